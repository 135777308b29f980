"""The starter of loaders, real, as the node keeps it."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import InvalidModel, ModelNotReady
from gpumuxd.node import loader_starter, loading
from gpumuxd.node.child_process import SPAWN_STARTER, Child, Mortal
from gpumuxd.node.loader_starter import LoaderStarter
from gpumuxd.node.loading import Loading
from gpumuxd.node.settings import LoaderSettings, RestartSettings
from gpumuxd.units import NS_PER_S
from gpumuxd.wire.channel import Channel
from tests.loader.harness import TIMEOUT_S, has_ended

HOUR = RestartSettings(delay_ns_first=3600 * NS_PER_S, delay_ns_max=3600 * NS_PER_S)
AT_ONCE = RestartSettings(delay_ns_first=1, delay_ns_max=1)


class Kept:
    """A starter that is kept by a `LoaderStarter`, and what the test knows of it."""

    def __init__(self, restart: RestartSettings) -> None:
        self.starter = LoaderStarter(restart, monotonic_ns, self._spawn)
        self.loading = Loading(LoaderSettings(), self._spawn_loader)
        self.asked = asyncio.Event()
        self.environments: list[Mapping[str, str]] = []
        self.refusals = 0
        self._spawned = asyncio.Event()

    def _spawn(self, peer: socket.socket, environment: Mapping[str, str]) -> Child:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.environments.append(environment)
        self._spawned.set()
        return SPAWN_STARTER(peer, environment)

    def _spawn_loader(self, peer: socket.socket) -> Mortal:
        loader = self.starter.spawn(peer)
        self.asked.set()
        return loader

    async def wait_spawned(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.environments) < count:
                self._spawned.clear()
                await self._spawned.wait()


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    kept = Kept(HOUR)
    kept.starter.start()
    yield kept
    kept.starter.close()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"x")
    return path


async def refused(kept: Kept, path: Path) -> None:
    """A loader reads a file and finds that it is no artifact: it works."""
    with pytest.raises(InvalidModel, match="1 bytes that begin with"):
        await kept.loading.read(path)


async def test_loads_share_one_starter(kept: Kept, foreign: Path) -> None:
    pid = kept.starter.pid
    for _ in range(3):
        await refused(kept, foreign)
    assert kept.starter.pid == pid
    assert len(kept.environments) == 1


async def test_a_starter_that_died_costs_the_loads_in_flight_and_no_other(
    kept: Kept, foreign: Path
) -> None:
    os.kill(kept.starter.pid, signal.SIGSTOP)  # what is asked of it now stays in flight
    load = asyncio.ensure_future(kept.loading.read(foreign))
    await kept.asked.wait()
    os.kill(kept.starter.pid, signal.SIGKILL)
    with pytest.raises(ModelNotReady, match=r"was killed \(its starter ended\); retry"):
        await load
    await refused(kept, foreign)  # it does not wait for the hour
    assert len(kept.environments) == 2


async def test_one_that_is_stopped_is_replaced_and_costs_its_loads_and_no_other(
    kept: Kept, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_starter, "LOOK_S", 0.01)
    os.kill(kept.starter.pid, signal.SIGSTOP)
    with capture_logs() as logs:
        loads = [asyncio.ensure_future(kept.loading.read(foreign)) for _ in range(3)]
        for load in loads[:2]:  # as many as there may be at one time
            with pytest.raises(ModelNotReady, match=r"was killed \(its starter ended\); retry"):
                await asyncio.wait_for(load, TIMEOUT_S)
        with pytest.raises(InvalidModel, match="1 bytes that begin with"):
            await asyncio.wait_for(loads[2], TIMEOUT_S)
    assert len(kept.environments) == 2
    (lost,) = [line for line in logs if line["event"] == "loader_starter_lost"]
    assert lost["reason"] == "its process was stopped for 0.01 s (signal SIGKILL)"


async def test_one_that_goes_on_in_time_is_kept(
    kept: Kept, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_starter, "LOOK_S", 3600.0)
    pid = kept.starter.pid
    os.kill(pid, signal.SIGSTOP)
    load = asyncio.ensure_future(kept.loading.read(foreign))
    await kept.asked.wait()
    os.kill(pid, signal.SIGCONT)
    with pytest.raises(InvalidModel, match="1 bytes that begin with"):
        await asyncio.wait_for(load, TIMEOUT_S)
    assert kept.starter.pid == pid


async def test_one_that_does_not_tell_the_end_of_a_loader_is_replaced(
    kept: Kept, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "EXIT_S_MAX", 0.01)
    monkeypatch.setattr(loader_starter, "TELL_S_MAX", 0.01)
    monkeypatch.setattr(loader_starter, "is_stopped", lambda pid: False)
    kept.loading.set_read_limit(1)
    pid = kept.starter.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ModelNotReady, match="reading its artifact took over"):
        await asyncio.wait_for(kept.loading.read(foreign), TIMEOUT_S)
    kept.loading.set_read_limit(60 * NS_PER_S)
    # Whoever asks before it is gone is told so, and the next one is served.
    with contextlib.suppress(ModelNotReady):
        await refused(kept, foreign)
    await refused(kept, foreign)
    assert kept.starter.pid != pid


async def test_one_that_died_is_replaced_before_anybody_asks() -> None:
    kept = Kept(AT_ONCE)
    kept.starter.start()
    try:
        first = kept.starter.pid
        os.kill(first, signal.SIGKILL)
        await kept.wait_spawned(2)
        assert kept.starter.pid not in (0, first)
    finally:
        kept.starter.close()


async def test_one_that_died_this_very_moment_is_replaced_for_the_load(
    kept: Kept, foreign: Path
) -> None:
    pidfd = os.pidfd_open(kept.starter.pid)
    os.kill(kept.starter.pid, signal.SIGKILL)
    assert has_ended(pidfd)  # and the loop has not had a turn to hear of it
    channel, peer = Channel.pair()
    with peer:
        loader = kept.starter.spawn(peer)
    channel.close()
    loader.kill()
    loader.close()
    assert len(kept.environments) == 2
    await refused(kept, foreign)
    assert len(kept.environments) == 2


async def test_no_process_for_a_starter_is_an_error_of_the_load(foreign: Path) -> None:
    kept = Kept(HOUR)
    kept.refusals = 2
    kept.starter.start()  # is only logged
    try:
        with pytest.raises(ModelNotReady, match="no process to read it with: Resource temp"):
            await kept.loading.read(foreign)
        await refused(kept, foreign)
    finally:
        kept.starter.close()


async def test_nothing_is_left_after_close(kept: Kept) -> None:
    channel, peer = Channel.pair()
    with peer:
        loader = kept.starter.spawn(peer)
    pidfd = os.pidfd_open(kept.starter.pid)
    kept.starter.close()
    assert has_ended(pidfd)
    assert loader.reap() == "its starter ended"
    loader.close()
    channel.close()


async def test_it_is_told_nothing_that_is_the_daemon_s(
    monkeypatch: pytest.MonkeyPatch, kept: Kept
) -> None:
    for name in ("NOTIFY_SOCKET", "SECRET"):
        monkeypatch.setenv(name, "x")
    other = Kept(HOUR)
    other.starter.start()
    other.starter.close()
    (environment,) = other.environments
    assert not {"NOTIFY_SOCKET", "SECRET"} & environment.keys()
