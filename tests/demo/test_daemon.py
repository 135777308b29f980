"""The daemon of the demo and the benches ends with its `with`, and says why it did not begin."""

import signal
from pathlib import Path

import pytest
from gpumuxd_client.errors import Unreachable

from gpumuxd.demo.daemon import Daemon, DaemonFailed, running_daemon


async def test_a_daemon_that_can_not_start_is_told_with_its_log(socket_dir: Path) -> None:
    with pytest.raises(DaemonFailed, match=r"(?s)ended with 78:.*slicing"):
        async with running_daemon(socket_dir, socket_dir / "models", "sideways"):
            pytest.fail("it is not running")


async def test_a_daemon_ends_with_its_block_also_when_that_fails(socket_dir: Path) -> None:
    (socket_dir / "models").mkdir()
    started: list[Daemon] = []

    async def fail() -> None:
        async with running_daemon(socket_dir, socket_dir / "models", "adaptive") as daemon:
            started.append(daemon)
            async with daemon.client("voice") as client:
                assert await client.server_live()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    (daemon,) = started
    assert daemon.process.returncode in (0, -signal.SIGTERM)
    async with daemon.client("voice") as client:
        with pytest.raises(Unreachable):
            await client.server_live(deadline=0.5)
