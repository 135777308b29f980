"""How long does a REALTIME request wait for best-effort work, and what does that cost the latter?

Two daemons on the CPU device serve the same two real models: silero-vad as REALTIME and
all-MiniLM-L6-v2, 1 x 64 tokens, as BEST_EFFORT. One launches every inference whole (slicing none),
the other in adaptive ones. Rounds alternate between them, the one whose turn it is not idles.

A round first keeps MiniLM saturated alone, which gives the throughput that slicing costs; then
sends REALTIME requests beside it, open loop with a seeded random phase, so that an arrival is
equally likely at every point of an inference. The preemption delay is `queue_ns` of the response:
from the arrival in the parent to the start of the first slice, taken on the node, so that this
process and the network are not in it.
"""

import asyncio
import itertools
import json
import shutil
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gpumuxd_client import AsyncClient
from rich.table import Table

from bench.harness import Bench, Samples, at_least, at_most, percentile, run
from gpumuxd.demo.daemon import SEARCH, VOICE, running_daemon
from gpumuxd.demo.minilm import load_minilm
from gpumuxd.demo.repository import MINILM, SEQUENCE, VAD, initial_state, write_repository
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, load_silero
from gpumuxd.models.plan import encode
from gpumuxd.models.pt2 import Artifact
from gpumuxd.programs.model import ServedModel
from gpumuxd.units import NS_PER_MS

NONE = "none"
ADAPTIVE = "adaptive"

OUTSTANDING = 3
"""Best-effort requests always in flight: the device never waits for us."""

PERIOD_S = 0.05
"""Mean time between REALTIME requests: rare enough that they seldom meet each other."""

LOAD_S_MAX = 120.0

DELAY_MARGIN_MS = 1.0
DELAY_RATIO_MAX = 1 / 5
THROUGHPUT_RATIO_MIN = 0.95
GROUP_MS_FLOOR = 1.0


@dataclass(slots=True)
class Daemon:
    """One of the two, with a client of each tenant and what was measured on it."""

    voice: AsyncClient
    search: AsyncClient
    operator: AsyncClient
    state: Path
    delay_ms: list[list[float]] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        bench.console.print("exporting both models")
        write_repository(folder / "models", load_silero(), load_minilm())
        runner.run(_measure(bench, folder))


async def _measure(bench: Bench, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        bench.console.print("starting two daemons, loading both models in each")
        daemons = await _open_both(stack, folder)
        quiet_s, loaded_s = bench.pick(8, 2), bench.pick(12, 3)
        with bench.measuring():
            for slicing, is_kept in bench.schedule(list(daemons), bench.pick(6, 2)):
                daemon = daemons[slicing]
                # A warm-up needs to touch everything once, not to last.
                per_s = await _throughput(daemon, quiet_s if is_kept else 1)
                delay_ms = await _delays(bench, daemon, loaded_s if is_kept else 1)
                if is_kept:
                    daemon.per_s.append(per_s)
                    daemon.delay_ms.append(delay_ms)
        status = await daemons[ADAPTIVE].operator.node_status()
        bound_ms = status.devices[0].bound_ns / NS_PER_MS
    group_ms, cuts = _groups(daemons[ADAPTIVE].state)
    operator_ms = _operator_ms(folder / "models" / MINILM / "1" / "model.pt2", bench.pick(15, 5))
    # Of the same times as the longest operator: how groups are cut is asked, not how times vary.
    begins = [0, *cuts[:-1]]
    cut_ms = [sum(operator_ms[a:b]) for a, b in zip(begins, cuts, strict=True)]
    _report(bench, daemons, bound_ms, max(group_ms))
    bench.figure("longest operator", max(operator_ms), "ms")
    bench.figure(
        "longest group, sum of its operators",
        max(cut_ms),
        "ms",
        at_most(max(GROUP_MS_FLOOR, max(operator_ms))),
    )


async def _open_both(stack: AsyncExitStack, folder: Path) -> dict[str, Daemon]:
    names = (NONE, ADAPTIVE)
    daemons = dict(
        zip(
            names,
            await asyncio.gather(*(_open(stack, folder, name) for name in names)),
            strict=True,
        )
    )
    await _load(daemons[NONE])
    # The same profile for both: the same groups, and the same estimates to begin with.
    profiles = daemons[NONE].state / "profiles"
    await asyncio.to_thread(shutil.copytree, profiles, daemons[ADAPTIVE].state / "profiles")
    await _load(daemons[ADAPTIVE])
    return daemons


async def _open(stack: AsyncExitStack, folder: Path, slicing: str) -> Daemon:
    state = folder / f"state-{slicing}"
    running = await stack.enter_async_context(
        running_daemon(folder / slicing, folder / "models", slicing, state)
    )
    voice, search, operator = [
        await stack.enter_async_context(running.client(tenant))
        for tenant in (VOICE, SEARCH, "operator")
    ]
    return Daemon(voice, search, operator, state)


async def _load(daemon: Daemon) -> None:
    await daemon.voice.load(VAD, deadline=LOAD_S_MAX)
    await daemon.search.load(MINILM, deadline=LOAD_S_MAX)


async def _saturate(daemon: Daemon, until: float, ended: list[float]) -> None:
    """One best-effort request after the other; when each ended."""
    tokens = {
        "token_ids": np.full((1, SEQUENCE), 2023, dtype=np.int64),
        "mask": np.ones((1, SEQUENCE), dtype=np.int64),
    }
    while time.monotonic() < until:
        await daemon.search.infer(MINILM, tokens, priority=3)
        ended.append(time.monotonic())


async def _throughput(daemon: Daemon, seconds: float) -> float:
    """Best-effort inferences a second, the REALTIME model loaded and idle."""
    ended: list[float] = []
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(OUTSTANDING):
            group.create_task(_saturate(daemon, until, ended))
    # From the first end to the last, so that neither the filling nor the draining counts.
    ended.sort()
    return (len(ended) - 1) / (ended[-1] - ended[0])


async def _delays(bench: Bench, daemon: Daemon, seconds: float) -> list[float]:
    """The preemption delay of each REALTIME request, in milliseconds."""
    frame = {
        "audio": np.zeros((1, CONTEXT_SAMPLES + FRAME_SAMPLES), dtype=np.float32),
        "state": initial_state(),
    }
    found: list[float] = []

    async def send() -> None:
        answer = await daemon.voice.infer(VAD, frame, priority=1)
        found.append(answer.report.queue_ns / NS_PER_MS)

    begin = time.monotonic()
    until = begin + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(OUTSTANDING):
            group.create_task(_saturate(daemon, until, []))
        for i in itertools.count(1):
            due = begin + (i + bench.rng.random()) * PERIOD_S
            if due >= until - PERIOD_S:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(send())
    return found


def _groups(state: Path) -> tuple[list[float], list[int]]:
    """What the daemon measured for each kernel group of MiniLM at 1 x 64, and where each ends."""
    profiles = [json.loads(path.read_text()) for path in (state / "profiles").glob("*.json")]
    for profile in profiles:
        for timing in profile["timings"]:
            if tuple(timing["bucket"]) == (1, SEQUENCE):
                group_ms = [group_ns / NS_PER_MS for group_ns in timing["group_ns"]]
                return group_ms, profile["cuts"]
    raise AssertionError(f"no profile of bucket (1, {SEQUENCE}) in {state}")


def _operator_ms(path: Path, passes: int) -> list[float]:
    """The median time of each single operator of MiniLM at 1 x 64, measured here and now."""
    with path.open("rb") as file:
        artifact = Artifact(file)
        weights = bytearray()
        artifact.write_weights(weights.extend)
    model = ServedModel.open(encode(artifact.plan), memoryview(weights))
    program = model.node_program()
    times: list[list[int]] = []
    with torch.inference_mode():
        for _ in range(passes + 1):
            slots = program.start(model.example_inputs((1, SEQUENCE)))
            one: list[int] = []
            for group in program.groups:
                begin = time.perf_counter_ns()
                group(slots)
                one.append(time.perf_counter_ns() - begin)
            times.append(one)
    return [statistics.median(samples) / NS_PER_MS for samples in zip(*times[1:], strict=True)]


def _report(
    bench: Bench,
    daemons: dict[str, Daemon],
    bound_ms: float,
    longest_ms: float,
) -> None:
    delays = {
        name: Samples(tuple(tuple(samples) for samples in daemon.delay_ms))
        for name, daemon in daemons.items()
    }
    for name, samples in delays.items():
        bench.figure(f"delay p50, {name}", samples.median, "ms", spread=samples.spread)
    bench.figure(f"delay p99, {NONE}", delays[NONE].p99, "ms")
    bench.figure(
        f"delay p99, {ADAPTIVE}",
        delays[ADAPTIVE].p99,
        "ms",
        at_most(max(bound_ms, longest_ms) + DELAY_MARGIN_MS),
    )
    bench.figure(
        f"delay p99, {ADAPTIVE} / {NONE}",
        delays[ADAPTIVE].p99 / delays[NONE].p99,
        "",
        at_most(DELAY_RATIO_MAX),
    )
    ratios = [a / b for a, b in zip(daemons[ADAPTIVE].per_s, daemons[NONE].per_s, strict=True)]
    for name, daemon in daemons.items():
        bench.figure(f"inferences, {name}, REALTIME idle", percentile(daemon.per_s, 50), "1/s")
    bench.figure(
        f"inferences, {ADAPTIVE} / {NONE}",
        statistics.median(ratios),
        "",
        at_least(THROUGHPUT_RATIO_MIN),
        spread=percentile(ratios, 75) - percentile(ratios, 25),
    )
    bench.figure("bound", bound_ms, "ms")
    bench.figure("longest group, as profiled", longest_ms, "ms")
    table = Table("delay (ms)", *(f"p{p}" for p in (1, 10, 25, 50, 75, 90, 99)), "n")
    for name, samples in delays.items():
        values = [percentile(samples.values, p) for p in (1, 10, 25, 50, 75, 90, 99)]
        table.add_row(name, *(f"{value:.2f}" for value in values), str(len(samples.values)))
    bench.console.print(table)


if __name__ == "__main__":
    raise SystemExit(run("preemption_delay", "REALTIME silero-vad over best-effort MiniLM.", body))
