"""The notify protocol against a datagram socket: no systemd needed."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpumuxd.daemon.notify import UNSENT_MAX, Notifier


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
        notifier.close()


def test_without_a_manager_nothing_happens(socket_dir: Path) -> None:
    notifier = Notifier({})
    assert not notifier.is_connected
    notifier.send(READY=1)
    absent = Notifier({"NOTIFY_SOCKET": str(socket_dir / "gone")})
    absent.send(READY=1)
    absent.close()


def listening(path: Path) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(path))
    return manager


async def heard(manager: socket.socket, last: str) -> list[str]:
    """All that comes, up to a datagram with this line."""
    manager.setblocking(False)
    told: list[str] = []
    async with asyncio.timeout(10):
        while not told or last not in told[-1].splitlines():
            told.append((await asyncio.get_running_loop().sock_recv(manager, 4096)).decode())
    return told


async def test_a_manager_that_does_not_read_hears_every_step_and_the_newest_of_the_rest(
    socket_dir: Path,
) -> None:
    with listening(socket_dir / "notify") as manager:
        notifier = Notifier({"NOTIFY_SOCKET": str(socket_dir / "notify")})
        for count in range(1000):  # more than any socket has room for
            notifier.send(STATUS=count, EXTEND_TIMEOUT_USEC=7)
        notifier.send(READY=1)
        for count in range(1000):
            notifier.send(STATUS=f"serving {count}")
        notifier.send(RELOADING=1, MONOTONIC_USEC=5)
        notifier.send(READY=1)
        notifier.send(STOPPING=1)
        told = await heard(manager, "STOPPING=1")
        assert told[-4:] == [
            "STATUS=999\nEXTEND_TIMEOUT_USEC=7\nREADY=1",
            "STATUS=serving 999\nRELOADING=1\nMONOTONIC_USEC=5",
            "READY=1",
            "STOPPING=1",
        ]
        assert told[0] == "STATUS=0\nEXTEND_TIMEOUT_USEC=7"
        assert len(told) < 1000
        notifier.send(STATUS="again")
        assert await heard(manager, "STATUS=again") == ["STATUS=again"]
        notifier.close()


def test_what_was_not_read_until_the_end_is_sent_then(socket_dir: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(socket_dir / "notify")})

    async def serve() -> None:
        for _ in range(UNSENT_MAX):  # some of them find room
            notifier.send(STOPPING=1)

    def read(manager: socket.socket) -> list[str]:
        return [manager.recv(4096).decode() for _ in range(UNSENT_MAX)]

    with listening(socket_dir / "notify") as manager, ThreadPoolExecutor() as threads:
        manager.settimeout(10)
        asyncio.run(serve())
        reading = threads.submit(read, manager)
        notifier.close()
        assert reading.result() == ["STOPPING=1"] * UNSENT_MAX


async def test_a_manager_that_comes_back_hears_what_comes_then(socket_dir: Path) -> None:
    path = socket_dir / "notify"
    notifier = Notifier({"NOTIFY_SOCKET": str(path)})
    with listening(path):
        notifier.send(READY=1)
    notifier.send(STATUS="to nobody")
    path.unlink()
    with listening(path) as manager:
        notifier.send(STOPPING=1)
        assert await heard(manager, "STOPPING=1") == ["STOPPING=1"]
    notifier.close()


async def test_there_is_no_end_of_steps_that_nobody_hears(socket_dir: Path) -> None:
    with listening(socket_dir / "notify"):
        notifier = Notifier({"NOTIFY_SOCKET": str(socket_dir / "notify")})
        for count in range(1000):
            notifier.send(RELOADING=1, MONOTONIC_USEC=count)
        assert len(notifier._unsent) == UNSENT_MAX
        notifier._unsent.clear()
        notifier._stop_waiting()
        notifier.close()
