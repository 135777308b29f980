"""What does it gain to let requests share a run, and what does that cost the tenant beside it?

One daemon on the CPU device serves silero-vad as REALTIME, and all-MiniLM-L6-v2 twice as
BEST_EFFORT: once as it is, once with a `[batching]` table. 32 clients, each with a connection of
its own, send sentences of 4 to 16 tokens one after the other, and a voice sends a frame now and
then, open loop. Rounds alternate between the two models, the one whose turn it is not idles.

The latency of a frame is taken on the node, from its arrival in the parent to the end of its run:
this process, which has more to do the more answers come, is not in it. What a client sees is
reported beside it. Outputs are compared with those of the model that is not batched.
"""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gpumuxd_client import AsyncClient
from numpy.typing import NDArray

from bench.harness import Bench, Samples, at_least, at_most, percentile, run
from gpumuxd.demo.daemon import SEARCH, VOICE, running_daemon
from gpumuxd.demo.minilm import MiniLm, load_minilm
from gpumuxd.demo.repository import VAD, initial_state
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, STATE_SHAPE, load_silero
from gpumuxd.programs.exporter import export_model
from gpumuxd.units import NS_PER_MS

ALONE = "alone"
TOGETHER = "together"

CLIENTS = 32
ROWS_MAX = 16
"""As large as two of its kernel groups can be in flight within the bound; in runs of 32 rows one
group takes more than half of it, and the device idles between them."""

TOKENS_MIN, TOKENS_MAX = 4, 16
VOCABULARY = 30_000
PERIOD_S = 0.032
"""Time between two frames, on average: that of one live voice."""

LOAD_S_MAX = 120.0
DIFFERENCE_MAX = 1e-4
"""Of outputs of length 1: what the device allows when it tries batching at load."""

GAIN_MIN = 3.0
VOICE_RATIO_MAX = 1.1

_MANIFESTS = {
    ALONE: 'tenants = ["search"]\npriority_max = "BEST_EFFORT"\n',
    TOGETHER: f"""\
tenants = ["search"]
priority_max = "BEST_EFFORT"

[batching]
rows_max = {ROWS_MAX}
pad.sequence = {{ token_ids = 0, mask = 0 }}
""",
    VAD: 'slo_ms = 32\ntenants = ["voice"]\n',
}

Sentence = dict[str, NDArray[np.int64]]


@dataclass(slots=True)
class Measured:
    """What was measured with one of the two models."""

    per_s: list[tuple[float, ...]] = field(default_factory=list)
    node_ms: list[tuple[float, ...]] = field(default_factory=list)
    client_ms: list[tuple[float, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Round:
    """One round: when sentences were answered, and what frames took."""

    ended: list[float] = field(default_factory=list)
    node_ms: list[float] = field(default_factory=list)
    client_ms: list[float] = field(default_factory=list)


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        bench.console.print("exporting the models")
        _write_repository(folder / "models", load_minilm())
        runner.run(_measure(bench, folder))


def _write_repository(root: Path, minilm: MiniLm) -> None:
    tokens = torch.full((2, TOKENS_MAX), 2023, dtype=torch.int64)
    dimensions = {0: "batch", 1: "sequence"}
    for name in (ALONE, TOGETHER):
        export_model(
            minilm,
            {"token_ids": tokens, "mask": torch.ones_like(tokens)},
            root / name / "1" / "model.pt2",
            dynamic={"token_ids": dimensions, "mask": dimensions},
            sizes={"sequence": (1, 256)},
            output_names=("embedding",),
        )
    audio = torch.zeros(2, CONTEXT_SAMPLES + FRAME_SAMPLES)
    export_model(
        load_silero(),
        {"audio": audio, "state": torch.zeros(2, *STATE_SHAPE)},
        root / VAD / "1" / "model.pt2",
        output_names=("probability", "next_state"),
    )
    for name, text in _MANIFESTS.items():
        (root / name / "model.toml").write_text(text)


async def _measure(bench: Bench, folder: Path) -> None:
    measured = {name: Measured() for name in (ALONE, TOGETHER)}
    async with AsyncExitStack() as stack:
        bench.console.print("starting the daemon, loading the models")
        daemon = await stack.enter_async_context(
            running_daemon(folder / "daemon", folder / "models", "adaptive", folder / "state")
        )
        operator, voice, *clients = [
            await stack.enter_async_context(daemon.client(tenant))
            for tenant in ("operator", VOICE, *[SEARCH] * CLIENTS)
        ]
        for name in (ALONE, TOGETHER, VAD):
            await operator.load(name, deadline=LOAD_S_MAX)
        for version in (await operator.model_detail(TOGETHER)).versions:
            assert version.loaded is not None, version
            for note in version.loaded.notes:
                bench.console.print(note)
        worst = await _compare(bench, clients)
        seconds = bench.pick(8, 3)
        with bench.measuring():
            for name, is_kept in bench.schedule(list(measured), bench.pick(6, 3)):
                one = await _round(bench, name, clients, voice, seconds if is_kept else 1)
                if is_kept:
                    measured[name].per_s.append(_per_s(one.ended))
                    measured[name].node_ms.append(tuple(one.node_ms))
                    measured[name].client_ms.append(tuple(one.client_ms))
        rows = await _rows(bench, clients)
    _report(bench, measured, rows, worst)


def _sentence(bench: Bench) -> Sentence:
    count = bench.rng.randint(TOKENS_MIN, TOKENS_MAX)
    tokens = [bench.rng.randrange(1000, VOCABULARY) for _ in range(count)]
    token_ids = np.array([tokens], dtype=np.int64)
    return {"token_ids": token_ids, "mask": np.ones_like(token_ids)}


async def _compare(bench: Bench, clients: Sequence[AsyncClient]) -> float:
    """The largest difference between the outputs of sentences that ran together and alone."""
    sentences = [_sentence(bench) for _ in clients]
    found = {}
    for name in (ALONE, TOGETHER):
        pairs = zip(clients, sentences, strict=True)
        answers = await asyncio.gather(*(c.infer(name, s, priority=3) for c, s in pairs))
        found[name] = np.concatenate([answer["embedding"] for answer in answers])
    return float(np.abs(found[ALONE] - found[TOGETHER]).max())


async def _rows(bench: Bench, clients: Sequence[AsyncClient]) -> list[int]:
    """With how many rows requests ran, when all clients send a few."""

    async def send(client: AsyncClient) -> list[int]:
        answers = [await client.infer(TOGETHER, _sentence(bench), priority=3) for _ in range(8)]
        return [answer.report.batch_rows for answer in answers]

    return list(itertools.chain(*await asyncio.gather(*map(send, clients))))


async def _round(
    bench: Bench, name: str, clients: Sequence[AsyncClient], voice: AsyncClient, seconds: float
) -> Round:
    one = Round()
    begin = time.monotonic()
    until = begin + seconds

    async def keep_asking(client: AsyncClient) -> None:
        while time.monotonic() < until:
            await client.infer(name, _sentence(bench), priority=3)
            one.ended.append(time.monotonic())

    frame = {
        "audio": np.zeros((1, CONTEXT_SAMPLES + FRAME_SAMPLES), dtype=np.float32),
        "state": initial_state(),
    }

    async def speak() -> None:
        asked = time.monotonic()
        report = (await voice.infer(VAD, frame, priority=1)).report
        one.client_ms.append((time.monotonic() - asked) * 1e3)
        node_ns = report.queue_ns + report.compute_ns + report.preemption_wait_ns
        one.node_ms.append(node_ns / NS_PER_MS)

    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(keep_asking(client))
        for i in itertools.count(1):
            due = begin + (i + bench.rng.random()) * PERIOD_S
            if due >= until - PERIOD_S:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(speak())
    return one


def _per_s(ended: list[float]) -> tuple[float, ...]:
    """Without the filling and the draining at the ends."""
    ended = sorted(ended)[CLIENTS:-CLIENTS]
    return ((len(ended) - 1) / (ended[-1] - ended[0]),)


def _report(bench: Bench, measured: dict[str, Measured], rows: list[int], worst: float) -> None:
    rates = {name: Samples(tuple(each.per_s)) for name, each in measured.items()}
    for name, samples in rates.items():
        bench.figure(f"sentences, {name}", samples.median, "1/s", spread=samples.spread)
    pairs = zip(rates[TOGETHER].values, rates[ALONE].values, strict=True)
    ratios = [together / alone for together, alone in pairs]
    bench.figure(
        "sentences, together / alone",
        statistics.median(ratios),
        "",
        at_least(GAIN_MIN),
        spread=percentile(ratios, 75) - percentile(ratios, 25),
    )
    bench.figure("rows that shared a run, median", statistics.median(rows), "rows")
    for where, goal in (("node", at_most(VOICE_RATIO_MAX)), ("client", None)):
        voice = {
            name: Samples(tuple(each.node_ms if where == "node" else each.client_ms))
            for name, each in measured.items()
        }
        for name, samples in voice.items():
            bench.figure(f"voice p50, {where}, beside {name}", samples.median, "ms")
            bench.figure(f"voice p99, {where}, beside {name}", samples.p99, "ms")
        ratio = voice[TOGETHER].p99 / voice[ALONE].p99
        bench.figure(f"voice p99, {where}, together / alone", ratio, "", goal)
    bench.figure("largest difference of outputs", worst, "", at_most(DIFFERENCE_MAX))


if __name__ == "__main__":
    raise SystemExit(run("batching", "MiniLM, 32 clients, batched and not, beside a voice.", body))
