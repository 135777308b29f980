"""Stock Triton and gpumuxd serve two tenants at once: who is late, and what does that cost?

Voice sends a frame of silero-vad every 16 ms, open loop (two microphones, a frame each 32 ms), and
search keeps all-MiniLM-L6-v2 busy with single sentences of 64 tokens. The same torch modules, on
one thread each; the same client, Triton's own, in this process; the same machine. Rounds of all
servers are interleaved, and those whose turn it is not idle.

Triton is measured twice. With its rate limiter one inference runs at a time and voice has the
higher priority: that is one device, and its setting for this, and what the goals are about.
Without, both models run at once, on two cores where there are two: no device that is full has a
second one. The latency is the client's: it has everything in it.

Then a model that does nothing, on gpumuxd and on Triton without its limiter (`tiny.py`).
"""

import asyncio
import itertools
import socket
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tritonclient.grpc.aio as triton_client  # type: ignore[import-untyped]  # it has no types
from numpy.typing import NDArray
from tritonclient.grpc import InferInput
from tritonclient.utils import (  # type: ignore[import-untyped]  # it has no types
    np_to_triton_dtype,
)

from bench.harness import Bench, Samples, at_least, at_most, run
from bench.versus_triton import tiny
from bench.versus_triton.triton import Model, Tensor, running_triton
from gpumuxd.demo.daemon import SEARCH, VOICE, running_daemon, socket_path
from gpumuxd.demo.minilm import load_minilm
from gpumuxd.demo.repository import MINILM, SEQUENCE, VAD, initial_state, write_repository
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, STATE_SHAPE, load_silero

LIMITED, FREE, OURS = "Triton, one at a time", "Triton, both at once", "gpumuxd"

FRAME_S = 0.016
OUTSTANDING = 3
VOICE_PRIORITY, SEARCH_PRIORITY = 1, 3
LIMITER_PRIORITIES = {VAD: 1, MINILM: 100}
"""Of Triton's rate limiter. They are weights: a hundred chances against one."""

LATENCY_RATIO_MAX = 1 / 3
THROUGHPUT_RATIO_MIN = 0.95
ERROR_MAX = 1e-5

MODELS = {
    VAD: Model(
        "gpumuxd.demo.silero.load_silero",
        [
            Tensor("audio", "TYPE_FP32", CONTEXT_SAMPLES + FRAME_SAMPLES),
            Tensor("state", "TYPE_FP32", *STATE_SHAPE),
        ],
        [Tensor("probability", "TYPE_FP32", 1), Tensor("next_state", "TYPE_FP32", *STATE_SHAPE)],
        LIMITER_PRIORITIES[VAD],
    ),
    MINILM: Model(
        "gpumuxd.demo.minilm.load_minilm",
        [Tensor("token_ids", "TYPE_INT64", SEQUENCE), Tensor("mask", "TYPE_INT64", SEQUENCE)],
        [Tensor("embedding", "TYPE_FP32", 384)],
        LIMITER_PRIORITIES[MINILM],
    ),
    **tiny.MODELS,
}


@dataclass(slots=True)
class Server:
    """One server, a client of each tenant, and what was measured of it, by rounds."""

    voice: triton_client.InferenceServerClient
    search: triton_client.InferenceServerClient
    alone_ms: list[tuple[float, ...]] = field(default_factory=list)
    loaded_ms: list[tuple[float, ...]] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        bench.console.print("exporting both models, fetching Triton where it is not there yet")
        write_repository(folder / "models", load_silero(), load_minilm())
        tiny.export_idle(folder / "models")
        runner.run(_measure(bench, folder))


async def _measure(bench: Bench, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        servers = {
            LIMITED: await _open_triton(stack, folder / "limited", is_limited=True),
            FREE: await _open_triton(stack, folder / "free", is_limited=False),
            OURS: await _open_gpumuxd(stack, folder),
        }
        await _check_same(servers)
        alone_s, loaded_s = bench.pick(4, 1), bench.pick(10, 3)
        with bench.measuring():
            for name, is_kept in bench.schedule(list(servers), bench.pick(6, 2)):
                server = servers[name]
                alone_ms, _ = await _round(server, alone_s if is_kept else 1, 0)
                loaded_ms, per_s = await _round(server, loaded_s if is_kept else 1, OUTSTANDING)
                if is_kept:
                    server.alone_ms.append(alone_ms)
                    server.loaded_ms.append(loaded_ms)
                    server.per_s.append(per_s)
        _report(bench, servers)
        doors = {"Triton": servers[FREE].voice, OURS: servers[OURS].voice}
        await tiny.measure_tiny(bench, doors, OURS)


async def _open_triton(stack: AsyncExitStack, folder: Path, *, is_limited: bool) -> Server:
    address = await stack.enter_async_context(
        running_triton(folder, MODELS, _free_port(), is_limited=is_limited)
    )
    return await _connected(stack, address, address)


async def _open_gpumuxd(stack: AsyncExitStack, folder: Path) -> Server:
    home = folder / OURS
    daemon = await stack.enter_async_context(running_daemon(home, folder / "models", "adaptive"))
    idle = (("operator", name) for name in tiny.MODELS)
    for tenant, model in ((VOICE, VAD), (SEARCH, MINILM), *idle):
        async with daemon.client(tenant) as client:
            await client.load(model, deadline=120.0)
    return await _connected(
        stack, *(f"unix:{socket_path(home, tenant)}" for tenant in (VOICE, SEARCH))
    )


async def _connected(stack: AsyncExitStack, voice: str, search: str) -> Server:
    clients = [
        await stack.enter_async_context(triton_client.InferenceServerClient(address))
        for address in (voice, search)
    ]
    return Server(*clients)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Requests


def _inputs(arrays: Mapping[str, NDArray[Any]]) -> list[InferInput]:
    made = []
    for name, array in arrays.items():
        given = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        made.append(given.set_data_from_numpy(array))
    return made


FRAME = _inputs(
    {
        "audio": np.linspace(-0.1, 0.1, CONTEXT_SAMPLES + FRAME_SAMPLES, dtype=np.float32)[None],
        "state": initial_state(),
    }
)
SENTENCE = _inputs(
    {
        "token_ids": np.full((1, SEQUENCE), 2023, dtype=np.int64),
        "mask": np.ones((1, SEQUENCE), dtype=np.int64),
    }
)


async def _check_same(servers: Mapping[str, Server]) -> None:
    """They compute the same, or there is nothing to compare."""
    expected: dict[str, NDArray[Any]] = {}
    for name, server in servers.items():
        heard = await server.voice.infer(VAD, FRAME)
        found = await server.search.infer(MINILM, SENTENCE)
        for output, result in (("probability", heard), ("embedding", found)):
            array = result.as_numpy(output)
            error = float(np.abs(array - expected.setdefault(output, array)).max())
            assert error <= ERROR_MAX, f"{name}: {output} is off by {error}"


async def _round(
    server: Server, seconds: float, outstanding: int
) -> tuple[tuple[float, ...], float]:
    """Latencies of voice in milliseconds, and how many sentences a second there were beside."""
    latencies_ms: list[float] = []
    ended: list[float] = []
    begin = time.monotonic()
    until = begin + seconds

    async def speak() -> None:
        sent = time.monotonic()
        await server.voice.infer(VAD, FRAME, priority=VOICE_PRIORITY)
        latencies_ms.append(1e3 * (time.monotonic() - sent))

    async def search() -> None:
        while time.monotonic() < until:
            await server.search.infer(MINILM, SENTENCE, priority=SEARCH_PRIORITY)
            ended.append(time.monotonic())

    async with asyncio.TaskGroup() as group:
        for _ in range(outstanding):
            group.create_task(search())
        for i in itertools.count(1):
            due = begin + i * FRAME_S
            if due >= until - FRAME_S:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(speak())
    # From the first end to the last, so that neither the filling nor the draining counts.
    ended.sort()
    per_s = (len(ended) - 1) / (ended[-1] - ended[0]) if len(ended) > 1 else 0.0
    return tuple(latencies_ms), per_s


def _report(bench: Bench, servers: Mapping[str, Server]) -> None:
    loaded = {name: Samples(tuple(server.loaded_ms)) for name, server in servers.items()}
    for name, server in servers.items():
        bench.figure(f"{name}: voice alone, p50", Samples(tuple(server.alone_ms)).median, "ms")
        samples = loaded[name]
        bench.figure(f"{name}: voice loaded, p50", samples.median, "ms", spread=samples.spread)
        bench.figure(f"{name}: voice loaded, p99", samples.p99, "ms")
        bench.figure(f"{name}: sentences", statistics.median(server.per_s), "1/s")
    for theirs, is_goal in ((LIMITED, True), (FREE, False)):
        ratio = loaded[OURS].p99 / loaded[theirs].p99
        goal = at_most(LATENCY_RATIO_MAX) if is_goal else None
        bench.figure(f"voice p99, gpumuxd / {theirs}", ratio, "", goal)
        rounds = zip(servers[OURS].per_s, servers[theirs].per_s, strict=True)
        ratio = statistics.median(ours / other for ours, other in rounds)
        goal = at_least(THROUGHPUT_RATIO_MIN) if is_goal else None
        bench.figure(f"sentences, gpumuxd / {theirs}", ratio, "", goal)


if __name__ == "__main__":
    raise SystemExit(run("versus_triton", "Two tenants on gpumuxd and on stock Triton.", body))
