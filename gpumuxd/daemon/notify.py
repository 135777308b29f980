"""Tells systemd how the daemon is doing: the notify protocol, whole.

Own code, because the libraries for it lose what they can't encode or need a compiler. One
datagram per call to the socket that NOTIFY_SOCKET names; without one every call does nothing.
"""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """A connection to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # the abstract namespace
            self._address = "\0" + self._address[1:]

    @property
    def is_connected(self) -> bool:
        return bool(self._address)

    def send(self, **fields: str | int) -> None:
        """Send fields as one datagram, `send(READY=1, STATUS="serving")`. A manager that does not
        listen is no reason to stop serving, so errors of the socket are dropped."""
        if not self._address:
            return
        lines = "\n".join(f"{key}={_one_line(value)}" for key, value in fields.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(1.0)
                sock.sendto(lines.encode(), self._address)
        except OSError:
            return


def _one_line(value: str | int) -> str:
    """A line break in a value would begin another field."""
    return str(value).replace("\n", " ")
