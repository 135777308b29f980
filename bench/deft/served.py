"""(3) Through gRPC: what best-effort load adds to the latency of a speech detector, at its tail.

Two daemons, one that launches whole inferences and one that is adaptive, serve silero-vad as
REALTIME, and MiniLM and a ResNet-50 as BEST_EFFORT. A round of one of them sends voice frames open
loop at random phases, first alone, then beside each of the two loads, saturating. Latency is the
client's: everything is in it. The figure is p99 under load minus p99 alone.

ResNet-50 at 224 x 224 takes seconds for a batch of eight on a CPU, so the pictures of that batch
are as large as come nearest to RUN_MS.
"""

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpumuxd_client import AsyncClient

from bench.deft.subjects import opened, passes_of
from bench.harness import Bench, at_most, percentile
from gpumuxd.clock import monotonic_ns
from gpumuxd.demo.daemon import SEARCH, VOICE, running_daemon
from gpumuxd.demo.minilm import load_minilm
from gpumuxd.demo.repository import MINILM, SEQUENCE, VAD, initial_state, write_repository
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, load_silero
from gpumuxd.programs.exporter import write_artifact
from gpumuxd.programs.profiler import run_ns
from gpumuxd.testing.zoo.catalogue import Scale
from gpumuxd.testing.zoo.everything import architecture
from gpumuxd.units import NS_PER_MS

NONE, ADAPTIVE = "none", "adaptive"

RESNET = "resnet"
BATCH = 8
SIDES = (32, 48, 64, 80, 96)
RUN_MS = 100

OUTSTANDING = 3
PERIOD_S = 0.04
LOAD_S_MAX = 240.0
MARGIN_MS = 1.5

_MANIFEST = """\
tenants = ["search"]
priority_max = "BEST_EFFORT"
"""

Inputs = Mapping[str, np.ndarray[Any, Any]]


@dataclass(slots=True)
class Daemon:
    """One of the two, and the latencies that were measured on it, by load."""

    voice: AsyncClient
    search: AsyncClient
    operator: AsyncClient
    state: Path
    latency_ms: dict[str, list[list[float]]] = field(default_factory=dict)
    per_s: dict[str, list[float]] = field(default_factory=dict)


def measure_served(bench: Bench) -> dict[str, Daemon]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        bench.console.print("exporting silero-vad, MiniLM and ResNet-50")
        models = folder / "models"
        write_repository(models, load_silero(), load_minilm())
        artifact = models / RESNET / "1" / "model.pt2"
        artifact.parent.mkdir(parents=True)
        request = architecture(RESNET).make(Scale.FULL)
        # Measured at the size of its example inputs, so these have to be of the size it is fed.
        side = _side_of(request.module)
        example = {"image": torch.zeros(2, 3, side, side)}
        write_artifact(replace(request, example_inputs=example), artifact)
        (models / RESNET / "model.toml").write_text(_MANIFEST)
        run_ms = _run_ms(artifact, side)
        bench.figure(f"ResNet-50, {BATCH} x {side} x {side}, alone", run_ms, "ms")
        loads: dict[str, Inputs] = {
            MINILM: {
                "token_ids": np.full((1, SEQUENCE), 2023, dtype=np.int64),
                "mask": np.ones((1, SEQUENCE), dtype=np.int64),
            },
            RESNET: {"image": np.full((BATCH, 3, side, side), 0.05, dtype=np.float32)},
        }
        return runner.run(_measure(bench, folder, loads))


def _side_of(module: torch.nn.Module) -> int:
    """The side of pictures at which a batch comes nearest to RUN_MS."""
    found: dict[int, float] = {}
    with torch.inference_mode():
        for side in SIDES:
            images = torch.zeros(BATCH, 3, side, side)
            times_ms = []
            for _ in range(4):
                began_ns = monotonic_ns()
                module(images)
                times_ms.append((monotonic_ns() - began_ns) / NS_PER_MS)
            found[side] = min(times_ms)
    return min(found, key=lambda each: abs(found[each] - RUN_MS))


def _run_ms(artifact: Path, side: int) -> float:
    """How long that takes as an artifact, in one piece."""
    model = opened(artifact)
    program = model.grouped_program([model.node_count])
    return run_ns(passes_of(program, model.example_inputs((BATCH, side, side)))) / NS_PER_MS


async def _measure(bench: Bench, folder: Path, loads: Mapping[str, Inputs]) -> dict[str, Daemon]:
    async with AsyncExitStack() as stack:
        bench.console.print("starting two daemons, loading three models in each")
        daemons = {name: await _open(stack, folder, name) for name in (NONE, ADAPTIVE)}
        seconds = bench.pick(6, 3)
        with bench.measuring():
            for name, is_kept in bench.schedule(list(daemons), bench.pick(3, 1)):
                await _one_round(bench, daemons[name], loads, seconds if is_kept else 1, is_kept)
        status = await daemons[ADAPTIVE].operator.node_status()
        bound_ms = status.devices[0].bound_ns / NS_PER_MS
        _report(bench, daemons, loads, bound_ms)
    return daemons


async def _open(stack: AsyncExitStack, folder: Path, slicing: str) -> Daemon:
    # The same state: what one has measured of the models, the other finds.
    state = folder / f"state-{slicing}"
    running = await stack.enter_async_context(
        running_daemon(folder / slicing, folder / "models", slicing, state)
    )
    voice, search, operator = [
        await stack.enter_async_context(running.client(tenant))
        for tenant in (VOICE, SEARCH, "operator")
    ]
    await voice.load(VAD, deadline=LOAD_S_MAX)
    await search.load(MINILM, deadline=LOAD_S_MAX)
    await search.load(RESNET, deadline=LOAD_S_MAX)
    return Daemon(voice, search, operator, state)


async def _one_round(
    bench: Bench, daemon: Daemon, loads: Mapping[str, Inputs], seconds: float, is_kept: bool
) -> None:
    """Voice frames alone, then beside each load."""
    for load in ("", *loads):
        ended: list[float] = []
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(OUTSTANDING if load else 0):
                group.create_task(_saturate(daemon.search, load, loads[load], until, ended))
            found = await _frames(daemon.voice, until, bench.rng.random)
        if is_kept:
            daemon.latency_ms.setdefault(load, []).append(found)
            if len(ended) > 1:
                per_s = (len(ended) - 1) / (max(ended) - min(ended))
                daemon.per_s.setdefault(load, []).append(per_s)


async def _saturate(
    client: AsyncClient, model: str, inputs: Inputs, until: float, ended: list[float]
) -> None:
    while time.monotonic() < until:
        await client.infer(model, inputs, priority=3)
        ended.append(time.monotonic())


async def _frames(client: AsyncClient, until: float, uniform: Callable[[], float]) -> list[float]:
    """The latency of each voice frame, in milliseconds."""
    frame = {
        "audio": np.zeros((1, CONTEXT_SAMPLES + FRAME_SAMPLES), dtype=np.float32),
        "state": initial_state(),
    }
    found: list[float] = []

    async def send() -> None:
        began = time.monotonic()
        await client.infer(VAD, frame, priority=1)
        found.append((time.monotonic() - began) * 1e3)

    begin = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for i in itertools.count(1):
            due = begin + (i + uniform()) * PERIOD_S
            if due >= until - PERIOD_S:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(send())
    return found


def _longest_group_ms(state: Path, load: str, inputs: Inputs) -> float:
    """As profiled at the sizes of these inputs, or at the largest batch that was measured."""
    shape: tuple[int, ...] = next(iter(inputs.values())).shape
    batch, sizes = shape[0], list(shape[2 if load == RESNET else 1 :])  # pictures have channels
    found: dict[int, float] = {}
    for path in (state / "profiles").glob("*.json"):
        for timing in json.loads(path.read_text()).get("timings", ()):
            bucket, group_ns = timing["bucket"], timing["group_ns"]
            if bucket[1:] == sizes:
                found[bucket[0]] = max(group_ns) / NS_PER_MS
    assert found, f"no profile of {load} in {state}"
    nearest = min(found, key=lambda each: abs(each - batch))
    return found[nearest] * batch / nearest


def _report(
    bench: Bench, daemons: Mapping[str, Daemon], loads: Mapping[str, Inputs], bound_ms: float
) -> None:
    bench.figure("bound", bound_ms, "ms")
    for load, inputs in loads.items():
        for name, daemon in daemons.items():
            alone, beside = (
                [each for found in daemon.latency_ms[key] for each in found] for key in ("", load)
            )
            added = percentile(beside, 99) - percentile(alone, 99)
            goal = None
            if name == ADAPTIVE:
                longest_ms = _longest_group_ms(daemon.state, load, inputs)
                bench.figure(f"longest group of {load}", longest_ms, "ms")
                goal = at_most(max(bound_ms, longest_ms) + MARGIN_MS)
            bench.figure(f"silero over {load}, {name}: p99 added", added, "ms", goal)
            bench.rows.append(
                {
                    "part": "served", "load": load, "slicing": name, "n": len(beside),
                    "alone_p50_ms": percentile(alone, 50), "alone_p99_ms": percentile(alone, 99),
                    "p50_ms": percentile(beside, 50), "p99_ms": percentile(beside, 99),
                    "per_s": percentile(daemon.per_s[load], 50),
                }
            )  # fmt: skip
