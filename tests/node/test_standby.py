"""Device children that stand by: taken when they are ready, replaced when they are not."""

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.node.child_process import (
    SPAWN_DEVICE,
    SPAWN_SPARE_DEVICE,
    Child,
    device_environment,
)
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.settings import LinkSettings
from gpumuxd.node.standby import Standby
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB
from gpumuxd.wire.starting import SERVE, WARM, WORD_BYTES_MAX

ONE_THREAD, TWO_THREADS = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}
WARM_S = 60.0


class Stub:
    """A child that is none: `socket` is its end."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer.dup()
        self.is_killed = self.is_reaped = False

    pid = 0

    def fileno(self) -> int:
        return self.socket.fileno()

    def kill(self) -> None:
        self.is_killed = True
        self.socket.close()

    def reap(self) -> str:
        self.is_reaped = True
        return "signal SIGKILL"

    def close(self) -> None:
        assert self.is_reaped
        self.socket.close()


class Births:
    """Spawns stubs, and keeps them in order."""

    def __init__(self) -> None:
        self.all: list[Stub] = []
        self.error: OSError | None = None

    def spawn(self, peer: socket.socket, environment: Mapping[str, str]) -> Child:
        if self.error is not None:
            raise self.error
        self.all.append(Stub(peer))
        return self.all[-1]

    def close(self) -> None:
        for stub in self.all:
            stub.socket.close()


@pytest.fixture
def fresh() -> Iterator[Births]:
    with contextlib.closing(Births()) as made:
        yield made


@pytest.fixture
def spares() -> Iterator[Births]:
    with contextlib.closing(Births()) as made:
        yield made


@pytest.fixture
def standby(fresh: Births, spares: Births) -> Iterator[Standby]:
    with contextlib.closing(Standby(fresh.spawn, spares.spawn)) as made:
        yield made


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield theirs


def test_a_warm_spare_gets_the_end_of_the_channel(
    standby: Standby, spares: Births, fresh: Births, peer: socket.socket
) -> None:
    standby.prepare(ONE_THREAD)
    (spare,) = spares.all
    spare.socket.send(WARM)
    assert standby.spawn(peer, ONE_THREAD) is spare
    word, (fd,), _, _ = socket.recv_fds(spare.socket, WORD_BYTES_MAX, 1)
    assert word == SERVE
    assert os.path.sameopenfile(fd, peer.fileno())
    os.close(fd)
    assert standby.spawn(peer, ONE_THREAD) is fresh.all[0], "it is given out once"
    standby.close()
    assert not spare.is_killed, "it is the device's now"


def test_one_that_is_not_warm_yet_is_kept_for_the_next_time(
    standby: Standby, spares: Births, fresh: Births, peer: socket.socket
) -> None:
    standby.prepare(ONE_THREAD)
    standby.prepare(ONE_THREAD)
    (spare,) = spares.all
    assert standby.spawn(peer, ONE_THREAD) is fresh.all[0]
    spare.socket.send(WARM)
    standby.prepare(ONE_THREAD)
    assert standby.spawn(peer, ONE_THREAD) is spare


def test_one_that_ended_is_reaped_and_replaced(
    standby: Standby, spares: Births, fresh: Births, peer: socket.socket
) -> None:
    standby.prepare(ONE_THREAD)
    spares.all[0].socket.send(WARM)
    spares.all[0].socket.close()
    assert standby.spawn(peer, ONE_THREAD) is fresh.all[0]
    standby.prepare(ONE_THREAD)
    assert spares.all[0].is_reaped
    assert len(spares.all) == 2


def test_children_of_another_environment_are_others(
    standby: Standby, spares: Births, fresh: Births, peer: socket.socket
) -> None:
    standby.prepare(ONE_THREAD)
    standby.prepare(TWO_THREADS)
    for spare in spares.all:
        spare.socket.send(WARM)
    assert standby.spawn(peer, TWO_THREADS) is spares.all[1]
    assert standby.spawn(peer, TWO_THREADS) is fresh.all[0]
    standby.close()
    assert spares.all[0].is_reaped


def test_one_that_can_not_be_started_is_not_missed(
    standby: Standby, spares: Births, fresh: Births, peer: socket.socket
) -> None:
    spares.error = OSError("no process")
    standby.prepare(ONE_THREAD)
    assert standby.spawn(peer, ONE_THREAD) is fresh.all[0]


def test_after_the_end_none_is_started(standby: Standby, spares: Births) -> None:
    standby.close()
    standby.prepare(ONE_THREAD)
    assert spares.all == []


def test_none_where_none_is_wanted(fresh: Births, peer: socket.socket) -> None:
    standby = Standby(fresh.spawn, None)
    standby.prepare(ONE_THREAD)
    assert standby.spawn(peer, ONE_THREAD) is fresh.all[0]
    standby.close()


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


async def test_a_real_one_becomes_a_device_and_the_next_one_dies_with_the_node() -> None:
    settings = DeviceSettings("cpu:0", arena_bytes=MIB)
    environment = device_environment(settings.threads)
    standby = Standby(SPAWN_DEVICE, SPAWN_SPARE_DEVICE)
    with contextlib.closing(standby):
        standby.prepare(environment)
        (spare,) = standby._spares.values()
        await asyncio.to_thread(select.select, [spare._socket], [], [], WARM_S)
        link = DeviceLink(settings, LinkSettings(), (), monotonic_ns, standby.spawn)
        assert link.pid == spare.child.pid
        async with asyncio.timeout(WARM_S):
            started = await link.wait_started()
        assert started.device == "cpu:0"
        assert os.getpriority(os.PRIO_PROCESS, link.pid) == 0, "it serves as fast as any"
        assert "Seccomp:\t2" in _status(link.pid), "it gave up its rights all the same"
        standby.prepare(environment)
        (other,) = standby._spares.values()
        await link.stop()
    assert other.child.reap() == f"signal {signal.SIGKILL.name}"
