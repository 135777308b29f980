"""The notify protocol against a datagram socket: no systemd needed."""

import socket
from pathlib import Path

import pytest

from gpumuxd.daemon.notify import Notifier


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_fields_arrive_as_one_datagram(socket_dir: Path, kind: str) -> None:
    path = str(socket_dir / "notify")
    address = path if kind == "path" else "\0" + path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(5)
        manager.bind(address)
        notifier = Notifier({"NOTIFY_SOCKET": address.replace("\0", "@")})
        assert notifier.is_connected
        notifier.send(READY=1, STATUS="läuft → 2\nSTOPPING=1")
        assert manager.recv(4096).decode() == "READY=1\nSTATUS=läuft → 2 STOPPING=1"


def test_without_a_manager_nothing_happens(socket_dir: Path) -> None:
    notifier = Notifier({})
    assert not notifier.is_connected
    notifier.send(READY=1)
    Notifier({"NOTIFY_SOCKET": str(socket_dir / "gone")}).send(READY=1)
