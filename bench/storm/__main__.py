"""What is left of a storm: 100,000 requests with deadlines of 0 to 5 ms, a third of them cancelled,
1,000 channels that are dropped in the middle of their calls, 100 client processes that are killed.

The daemon and, before it, a bare grpc.aio server (`echo.py`) weather the same storm, drawn from the
same seed. Both are warmed up by a tenth of it first. Memory is what a process has for itself
(RssAnon: no libraries, no arena), after the allocator was left alone for a moment; a child of the
daemon is a process of its own. Goals: nothing in flight afterwards; the child within 2 % of its
level after the warm-up; the parent grows at most 1.2 times as much as the bare server.
"""

import asyncio
import contextlib
import gc
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from gpumuxd_client import AsyncClient, calls

from bench.harness import Bench, at_least, at_most, run
from bench.storm.clients import drop_channels, kill_clients, storm
from gpumuxd.demo.daemon import VOICE, running_daemon, socket_path
from gpumuxd.demo.minilm import load_minilm
from gpumuxd.demo.repository import VAD, initial_state, write_repository
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, load_silero
from gpumuxd.units import MIB

REQUESTS = 100_000
CHANNELS = 1_000
PROCESSES = 100

QUICK = 20
"""The quick form is so many times less."""

WARM_UP = 10
"""The warm-up too."""

CHILD_GROWTH_MAX = 0.02
PARENT_TO_BARE_MAX = 1.2

SETTLE_S = 2.0
IDLE_S_MAX = 10.0


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        write_repository(folder / "models", load_silero(), load_minilm())
        gc.collect()
        gc.freeze()
        with bench.measuring():
            bare = runner.run(_storm_on_bare_server(bench, folder))
            runner.run(_storm_on_daemon(bench, folder, bare))


def _request() -> bytes:
    """One frame of audio."""
    audio = np.zeros((1, CONTEXT_SAMPLES + FRAME_SAMPLES), dtype=np.float32)
    return calls.infer(
        VAD,
        {"audio": audio, "state": initial_state()},
        version="",
        priority=0,
        deadline=None,
        timeout=None,
        outputs=None,
        request_id="",
    ).request


async def _storm_on_bare_server(bench: Bench, folder: Path) -> int:
    """By how many bytes it grew."""
    address = f"unix:{folder}/echo.sock"
    with _bare_server(address) as pid:
        await _blow(bench, address, WARM_UP)
        before = await _settled(pid)
        ends = await _blow(bench, address, 1)
        growth = await _settled(pid) - before
    _report_ends(bench, "bare server", ends)
    bench.figure("bare server after warm-up", before / MIB, "MiB")
    bench.figure("bare server, growth", growth / MIB, "MiB")
    return growth


@contextlib.contextmanager
def _bare_server(address: str) -> Iterator[int]:
    command = [sys.executable, "-m", "bench.storm.echo", address]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


async def _storm_on_daemon(bench: Bench, folder: Path, bare_growth: int) -> None:
    node = folder / "node"
    async with running_daemon(node, folder / "models", "adaptive") as daemon:
        address = f"unix:{socket_path(node, VOICE)}"
        async with daemon.client("operator") as operator, AsyncClient(address) as voice:
            await voice.load(VAD)
            await _blow(bench, address, WARM_UP)
            (device,) = (await operator.node_status()).devices
            parent, child = daemon.process.pid, device.pid
            before = await _settled(parent), await _settled(child)
            begin = time.monotonic()
            ends = await _blow(bench, address, 1)
            took_s = time.monotonic() - begin
            in_flight = await _in_flight(operator)
            after = await _settled(parent), await _settled(child)
            (device,) = (await operator.node_status()).devices
    _report_ends(bench, "daemon", ends)
    bench.figure("the storm took", took_s, "s")
    bench.figure("in flight afterwards", in_flight, "requests", at_most(0))
    bench.figure("device restarts", device.restarts, "", at_most(0))
    bench.figure("child after warm-up", before[1] / MIB, "MiB")
    growth = after[1] - before[1]
    bench.figure("child, growth", growth / MIB, "MiB")
    bench.figure("child, change", abs(growth) / before[1], "", at_most(CHILD_GROWTH_MAX))
    bench.figure("parent after warm-up", before[0] / MIB, "MiB")
    growth = after[0] - before[0]
    limit = at_most(PARENT_TO_BARE_MAX * max(bare_growth, 0) / MIB)
    bench.figure("parent, growth", growth / MIB, "MiB", limit)


async def _blow(bench: Bench, address: str, divisor: int) -> Counter[str]:
    """The whole storm, or a part of it; the same one for the same seed. The kinds at once."""
    divisor *= QUICK if bench.is_quick else 1
    rng = random.Random(bench.seed)
    request = _request()
    _, _, ends = await asyncio.gather(
        drop_channels(address, request, CHANNELS // divisor, rng),
        asyncio.to_thread(kill_clients, address, request, max(PROCESSES // divisor, 1)),
        storm(address, request, REQUESTS // divisor, rng),
    )
    return ends


async def _in_flight(operator: AsyncClient) -> int:
    """Of the node, once it has had the time to hear who has gone."""
    end = time.monotonic() + IDLE_S_MAX
    while True:
        (device,) = (await operator.node_status()).devices
        if device.requests_in_flight == 0 or time.monotonic() > end:
            return device.requests_in_flight
        await asyncio.sleep(0.1)


async def _settled(pid: int) -> int:
    """Bytes that a process has for itself, after a moment of rest."""
    await asyncio.sleep(SETTLE_S)
    return _private_bytes(pid)


def _private_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/PID/status")


def _report_ends(bench: Bench, server: str, ends: Counter[str]) -> None:
    bench.figure(f"{server}: requests", ends.total(), "")
    for status, count in sorted(ends.items()):
        bench.figure(f"{server}: {status}", count, "")
    bench.figure(
        f"{server}: statuses that belong there",
        sum(ends[status] for status in ("OK", "CANCELLED", "DEADLINE_EXCEEDED")) / ends.total(),
        "",
        at_least(1),
    )


if __name__ == "__main__":
    raise SystemExit(run("storm", "Cancels, deadlines, dropped channels and killed clients.", body))
