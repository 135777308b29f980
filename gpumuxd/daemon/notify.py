"""Tells systemd how the daemon is doing: the notify protocol, whole.

Own code, because the libraries for it lose what they can't encode or need a compiler. One datagram
per call to the socket that NOTIFY_SOCKET names; without one every call does nothing.

No call blocks: requests are served on the same loop. What a manager that does not read leaves no
room for is sent when it does, in order; of fields that only say how it is now, the newest.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Mapping

PASSING = frozenset({"STATUS", "WATCHDOG", "EXTEND_TIMEOUT_USEC"})
"""Fields of which only the newest counts. All others tell of a step that has to be heard."""

UNSENT_MAX = 64
"""Datagrams that wait to be sent; the oldest go first. A daemon takes few steps: reloads alone can
be many."""

CLOSE_S = 1.0
"""At the end there is nobody to serve: so long a manager that does not read is waited for."""


class Notifier:
    """A connection to the service manager, if there is one. Used on the loop of the daemon."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # the abstract namespace
            self._address = "\0" + self._address[1:]
        self._socket: socket.socket | None = None
        self._unsent: deque[dict[str, str]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # while it waits for room

    @property
    def is_connected(self) -> bool:
        return bool(self._address)

    def send(self, **fields: str | int) -> None:
        """Send fields as one datagram, `send(READY=1, STATUS="serving")`, now or as soon as there
        is room. A manager that is not there is no reason to stop serving."""
        if not self._address:
            return
        told = {key: _one_line(value) for key, value in fields.items()}
        if self._unsent and self._unsent[-1].keys() <= PASSING:
            told = self._unsent.pop() | told
        self._unsent.append(told)
        if len(self._unsent) > UNSENT_MAX:
            self._unsent.popleft()
        self._send_unsent()

    def close(self) -> None:
        """Send what was not sent, after the loop has ended."""
        self._loop = None
        if self._socket is not None:
            self._socket.settimeout(CLOSE_S)
            with contextlib.suppress(OSError):
                for told in self._unsent:
                    self._socket.send(_encoded(told))
            self._socket.close()
        self._unsent.clear()

    def _send_unsent(self) -> None:
        while self._unsent:
            try:
                self._send(_encoded(self._unsent[0]))
            except BlockingIOError:
                self._wait_for_room()
                return
            except OSError:
                pass  # nobody listens
            self._unsent.popleft()
        self._stop_waiting()

    def _send(self, data: bytes) -> None:
        """Raises BlockingIOError when there is no room, OSError when nobody listens."""
        if self._socket is not None:
            try:
                self._socket.send(data)
                return
            except BlockingIOError:
                raise
            except OSError:  # it went away, and may be back
                self._stop_waiting()
                self._socket.close()
                self._socket = None
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        connecting.setblocking(False)
        try:
            connecting.connect(self._address)
        except OSError:
            connecting.close()
            raise
        self._socket = connecting
        self._socket.send(data)

    def _wait_for_room(self) -> None:
        if self._loop is None and self._socket is not None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_writer(self._socket, self._send_unsent)

    def _stop_waiting(self) -> None:
        if self._loop is not None and self._socket is not None:
            self._loop.remove_writer(self._socket)
            self._loop = None


def _encoded(fields: Mapping[str, str]) -> bytes:
    return "\n".join(f"{key}={value}" for key, value in fields.items()).encode()


def _one_line(value: str | int) -> str:
    """A line break in a value would begin another field."""
    return str(value).replace("\n", " ")
