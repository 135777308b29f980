"""What do loads do to a REALTIME tenant that is served meanwhile?

One daemon on the CPU device serves silero-vad as REALTIME: two streams, a frame every 32 ms each,
as the demo sends them. Rounds alternate between the streams alone, and beside another tenant that
loads and unloads models as fast as the node takes them: all-MiniLM-L6-v2, a convolutional network
and a wide one with a quarter of a GiB of weights. Of such rounds there are two kinds: every
load measured anew (the daemon's stored profiles are removed before each), and with the profiles
kept. A control is beside both: nothing is loaded, but a process burns a core's time with the
scheduling of a loader (nice 19, SCHED_BATCH). What it does to the streams the machine does, which
has too few cores; what loads do beyond it is ours.

A frame's latency is what the client sees. The ratio of p99 beside loads to p99 alone is taken
round by round, next to each other in time, and the median of the rounds is the figure: the machine
drifts. Where the difference comes from is told by the reports of the node itself: *queued* is from
the arrival to the first slice, *on the device* the time of its slices, *elsewhere* the rest: both
processes, the socket and this client, which share the machine's cores as they would on the node.
"""

import asyncio
import contextlib
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gpumuxd_client import AsyncClient

from bench.harness import Bench, Samples, at_most, percentile, run
from gpumuxd.demo.daemon import SEARCH, VOICE, running_daemon
from gpumuxd.demo.minilm import load_minilm
from gpumuxd.demo.repository import MINILM, VAD, initial_state, write_repository
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, load_silero
from gpumuxd.demo.traffic import FRAME_S, VOICE_PRIORITY, VOICE_STREAMS
from gpumuxd.node.child_process import yield_to_others
from gpumuxd.programs.exporter import export_model
from gpumuxd.units import NS_PER_MS

ALONE = "alone"
FRESH = "fresh loads"
CACHED = "loads, profiles kept"
BURNER = "a burner"

CONVOLUTIONS = "convolutions"
WIDE = "wide"
LOADED = (MINILM, CONVOLUTIONS, WIDE)

LOAD_S_MAX = 120.0

P99_RATIO_MAX = 1.10

_MANIFEST = """\
tenants = ["search"]
priority_max = "BEST_EFFORT"
"""


class Convolutions(torch.nn.Module):
    """A small image classifier: layers of some milliseconds each, 5 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128), (128, 256), (256, 512)):
            layers += [
                torch.nn.Conv2d(before, after, 3, stride=2, padding=1),
                torch.nn.BatchNorm2d(after),
                torch.nn.ReLU(),
                torch.nn.Conv2d(after, after, 3, padding=1),
                torch.nn.BatchNorm2d(after),
                torch.nn.ReLU(),
            ]
        self.features = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(512, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        classes: torch.Tensor = self.head(self.features(image).mean((2, 3)))
        return classes


class Wide(torch.nn.Module):
    """A table of 256 MiB and little to do: its load is all weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(256 * 1024, 256)
        self.layer = torch.nn.Linear(256, 256)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        row: torch.Tensor = self.layer(self.table(index))
        return row


@dataclass(slots=True)
class Round:
    """What one round measured."""

    latency_ms: list[float] = field(default_factory=list)
    queue_ms: list[float] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)
    elsewhere_ms: list[float] = field(default_factory=list)
    missed: int = 0
    load_s: list[float] = field(default_factory=list)


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        bench.console.print("exporting four models")
        _write_models(folder / "models")
        # The exporter leaves so much behind that a collection takes a tenth of a second, in which
        # frames would be late that the node has answered.
        gc.collect()
        gc.freeze()
        runner.run(_measure(bench, folder))


def _write_models(root: Path) -> None:
    write_repository(root, load_silero(), load_minilm())
    torch.manual_seed(0)
    others: dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor]]] = {
        CONVOLUTIONS: (Convolutions(), {"image": torch.zeros(2, 3, 224, 224)}),
        WIDE: (Wide(), {"index": torch.zeros(2, dtype=torch.int64)}),
    }
    for model, (module, inputs) in others.items():
        export_model(module.eval(), inputs, root / model / "1" / "model.pt2")
        (root / model / "model.toml").write_text(_MANIFEST)


async def _measure(bench: Bench, folder: Path) -> None:
    state = folder / "state"
    seconds = bench.pick(16, 4)
    rounds: dict[str, list[Round]] = {ALONE: [], FRESH: [], CACHED: [], BURNER: []}
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(
            running_daemon(folder / "node", folder / "models", "adaptive", state)
        )
        voice = await stack.enter_async_context(daemon.client(VOICE))
        search = await stack.enter_async_context(daemon.client(SEARCH))
        await voice.load(VAD, deadline=LOAD_S_MAX)
        unserved = {
            FRESH: await _load_unserved(search, state / "profiles", bench.pick(4, 1)),
            # Every profile is in place before the rounds that keep them.
            CACHED: await _load_unserved(search, None, bench.pick(4, 1)),
        }
        with bench.measuring():
            for kind, is_kept in bench.schedule(list(rounds), bench.pick(8, 3)):
                one = await _round(voice, search, kind, state, seconds if is_kept else 1.0)
                if is_kept:
                    rounds[kind].append(one)
    _report(bench, rounds)
    _report_loads(bench, rounds, unserved)


async def _round(
    voice: AsyncClient, search: AsyncClient, kind: str, state: Path, seconds: float
) -> Round:
    one = Round()
    with _burner() if kind == BURNER else contextlib.nullcontext():
        await _speak_and_load(voice, search, kind, state, seconds, one)
    return one


async def _speak_and_load(
    voice: AsyncClient, search: AsyncClient, kind: str, state: Path, seconds: float, one: Round
) -> None:
    begin = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for index in range(VOICE_STREAMS):
            due = begin + index * FRAME_S / VOICE_STREAMS
            group.create_task(_speak(voice, due, begin + seconds, one))
        if kind in (FRESH, CACHED):
            profiles = state / "profiles" if kind == FRESH else None
            group.create_task(_load_on(search, profiles, begin + seconds, one))


@contextlib.contextmanager
def _burner() -> Iterator[None]:
    """A process that wants a core all the time, with the scheduling of a loader."""
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            yield_to_others(process.pid)
            yield
        finally:
            process.kill()


async def _speak(client: AsyncClient, due: float, end: float, one: Round) -> None:
    """One stream. A frame that is late delays the next one, which is late too then."""
    inputs = {
        "audio": np.zeros((1, CONTEXT_SAMPLES + FRAME_SAMPLES), dtype=np.float32),
        "state": initial_state(),
    }
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        sent = time.monotonic()
        answer = await client.infer(VAD, inputs, priority=VOICE_PRIORITY)
        done = time.monotonic()
        inputs["state"] = answer["next_state"]
        one.latency_ms.append((done - sent) * 1e3)
        queue_ms = answer.report.queue_ns / NS_PER_MS
        compute_ms = answer.report.compute_ns / NS_PER_MS
        one.queue_ms.append(queue_ms)
        one.compute_ms.append(compute_ms)
        one.elsewhere_ms.append(one.latency_ms[-1] - queue_ms - compute_ms)
        one.missed += done > due + FRAME_S
        due += FRAME_S


async def _load_on(client: AsyncClient, profiles: Path | None, end: float, one: Round) -> None:
    """One model after the other comes and goes; the one that is loading at the end still does."""
    while time.monotonic() < end:
        for model in LOADED:
            if time.monotonic() >= end:
                break
            one.load_s.append(await _load_once(client, model, profiles))


async def _load_once(client: AsyncClient, model: str, profiles: Path | None) -> float:
    """How long the load took; with a folder of profiles, those in it are removed first."""
    if profiles is not None:
        _remove(profiles)
    begin = time.monotonic()
    await client.load(model, deadline=LOAD_S_MAX)
    took_s = time.monotonic() - begin
    await client.unload(model)
    return took_s


def _remove(profiles: Path) -> None:
    for path in profiles.glob("*.json"):
        path.unlink()


async def _load_unserved(client: AsyncClient, profiles: Path | None, times: int) -> list[float]:
    """Loads while nobody is served."""
    return [await _load_once(client, model, profiles) for _ in range(times) for model in LOADED]


def _report(bench: Bench, rounds: dict[str, list[Round]]) -> None:
    p99 = {kind: [percentile(one.latency_ms, 99) for one in ones] for kind, ones in rounds.items()}
    for kind, ones in rounds.items():
        latency = Samples(tuple(tuple(one.latency_ms) for one in ones))
        parts = {
            "queued": [ms for one in ones for ms in one.queue_ms],
            "on the device": [ms for one in ones for ms in one.compute_ms],
            "elsewhere": [ms for one in ones for ms in one.elsewhere_ms],
        }
        bench.figure(f"p50, {kind}", latency.median, "ms", spread=latency.spread)
        bench.figure(f"p99, {kind}, median of rounds", statistics.median(p99[kind]), "ms")
        bench.figure(f"worst, {kind}", max(latency.values), "ms")
        for part, values in parts.items():
            bench.figure(f"{part} p99, {kind}", percentile(values, 99), "ms")
        bench.figure(f"frames, {kind}", len(latency.values), "")
        bench.figure(f"frames missed, {kind}", sum(one.missed for one in ones), "")
    for kind, beside, goal in (
        (FRESH, ALONE, at_most(P99_RATIO_MAX)),
        (CACHED, ALONE, at_most(P99_RATIO_MAX)),
        (BURNER, ALONE, None),
        (FRESH, BURNER, None),
        (CACHED, BURNER, None),
    ):
        ratios = [a / b for a, b in zip(p99[kind], p99[beside], strict=True)]
        bench.figure(
            f"p99, {kind} / {beside}",
            statistics.median(ratios),
            "",
            goal,
            spread=percentile(ratios, 75) - percentile(ratios, 25),
        )


def _report_loads(
    bench: Bench, rounds: dict[str, list[Round]], unserved: dict[str, list[float]]
) -> None:
    """Loads have to end: how long they took beside the streams, and while nobody was served."""
    for kind, alone_s in unserved.items():
        beside_s = [load_s for one in rounds[kind] for load_s in one.load_s]
        bench.figure(f"models loaded, {kind}", len(beside_s), "")
        bench.figure(f"one load, {kind}, mean", statistics.fmean(beside_s), "s")
        bench.figure(f"longest load, {kind}", max(beside_s), "s")
        bench.figure(f"one load, {kind}, nobody served, mean", statistics.fmean(alone_s), "s")


if __name__ == "__main__":
    raise SystemExit(run("loading", "REALTIME silero-vad while models come and go.", body))
