"""A daemon under load through gRPC is recorded with `gpumuxctl record`, and replays to the same."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpumuxd_client import AsyncClient, Client, RecordingEnd
from gpumuxd_client.errors import InvalidRequest, WrongMode

from gpumuxd.ctl.main import main as gpumuxctl
from gpumuxd.daemon.main import main as gpumuxd
from tests.daemon.harness import LIMIT_S, Daemon, Site
from tests.node.artifacts import export_busy, export_tiny

X = np.arange(8, dtype=np.float32).reshape(2, 4)
BUSY_X = np.ones((1, 384), dtype=np.float32)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, Daemon]]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    export_tiny(directory / "models" / "tiny" / "1" / "model.pt2")
    export_busy(directory / "models" / "busy" / "1" / "model.pt2")
    site = Site(directory, directory / "models")
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        yield site, daemon
    shutil.rmtree(directory)


async def _load(target: str, until: asyncio.Event) -> int:
    """Two loops of long requests, one of short and urgent ones; how many were answered."""
    done = 0

    async def ask(model: str, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        nonlocal done
        while not until.is_set():
            await client.infer(model, {"x": x}, priority=1 if model == "tiny" else 3, deadline=30)
            done += 1

    async with AsyncClient(target) as client:
        await asyncio.gather(ask("busy", BUSY_X), ask("busy", BUSY_X), ask("tiny", X))
    return done


async def test_a_loaded_daemon_replays_to_the_same_commands(
    served: tuple[Site, Daemon], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, _ = served
    path = tmp_path / "load.gpumuxd"
    until = asyncio.Event()
    load = asyncio.create_task(_load(site.target, until))
    arguments = ["--target", site.target, "record", "--output", str(path), "--seconds", "1"]
    try:
        assert await asyncio.to_thread(gpumuxctl, ["--json", *arguments]) == 0
        made = json.loads(capsys.readouterr().out)
        assert await asyncio.to_thread(gpumuxctl, arguments) == 2
        assert "is there already; --force" in capsys.readouterr().err
    finally:
        until.set()
    assert await load > 20
    assert made["reason"] == "its time was over"
    assert made["size_bytes"] == path.stat().st_size
    assert os.listdir(tmp_path) == [path.name]
    assert gpumuxd(["replay", "--json", str(path), "--slicing", "every(2)"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["is_same"] is True
    assert told["records"] == made["records"] > 100
    rows = {row["model"].partition("/")[0]: row for row in told["tables"][0]["rows"]}
    assert rows["busy"]["completed"] > 5
    assert rows["tiny"]["completed"] > 5
    assert (rows["tiny"]["priority_class"], rows["busy"]["priority_class"]) == (
        "REALTIME",
        "BEST_EFFORT",
    )
    assert [table["name"] for table in told["tables"][1:]] == [
        "predicted, as recorded",
        "predicted, every(2)",
    ]


def test_one_recording_at_a_time_and_leaving_ends_it(served: tuple[Site, Daemon]) -> None:
    site, _ = served
    with Client(site.target) as client:
        first = client.record(600)
        assert isinstance(next(first), bytes)
        with pytest.raises(WrongMode, match="goes on already"):
            next(client.record(1))
        first.close()  # type: ignore[attr-defined]  # it is a generator
        # The daemon hears of that a moment later.
        while True:
            with contextlib.suppress(WrongMode):
                parts = list(client.record(0.1))
                break
        assert isinstance(parts[-1], RecordingEnd)


@pytest.mark.parametrize(
    ("seconds", "device", "bytes_max", "says"),
    [
        (0.001, "", 1 << 24, "a recording takes 0.01 to 3600 s"),
        (4000, "", 1 << 24, "a recording takes"),
        (1, "cpu:7", 1 << 24, "a device of cpu:0, got 'cpu:7'"),
        (1, "", 5, "may take 1048576 to"),
        (1, "", 1 << 40, "may take"),
    ],
)
def test_what_can_not_be_recorded_is_said(
    served: tuple[Site, Daemon], seconds: float, device: str, bytes_max: int, says: str
) -> None:
    with Client(served[0].target) as client, pytest.raises(InvalidRequest, match=says):
        list(client.record(seconds, device=device, bytes_max=bytes_max))


def test_the_recording_of_a_device_that_dies_is_kept(
    served: tuple[Site, Daemon], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, _ = served
    path = tmp_path / "lost.gpumuxd"
    with Client(site.target) as client:
        (device,) = client.node_status().devices
        client.infer("tiny", {"x": X})
        parts = client.record(60)
        received = [next(parts)]
        os.kill(device.pid, signal.SIGKILL)
        received += parts
        while not client.server_ready(deadline=LIMIT_S):
            pass  # the next test wants its device
    end = received.pop()
    assert isinstance(end, RecordingEnd)
    assert not end.is_whole
    assert "cpu:0 was lost" in end.reason
    path.write_bytes(b"".join(part for part in received if isinstance(part, bytes)))
    assert gpumuxd(["replay", str(path)]) == 0
    assert "Not whole: it broke off" in capsys.readouterr().out
