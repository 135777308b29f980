"""What do two tenants feel of a device child that is killed a hundred times under them?

One daemon on the CPU device, as it is installed. `voice` sends frames to silero-vad as REALTIME,
`search` keeps sentences of all-MiniLM-L6-v2 outstanding as best effort. Again and again the child
is killed with SIGKILL at a random moment in the middle of this. The clients never try again: a
call that is refused counts as refused, and the next one is sent a moment later.

Every call must end as one of two: *right*, its outputs equal to the last bit to those from before
the first kill, or *refused* with a status that says "try again". One that has no end within
LOST_S is lost, and an answer that carries another call's id was given twice.

A recovery is from the kill until the daemon says that it is ready. What loading the same models
again takes from the stored profiles, while nobody is served, is measured apart, and what the rest
is made of is read from the daemon's own log.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import GpumuxdError
from gpumuxd_client.types import InferResult
from numpy.typing import NDArray

from bench.harness import Bench, at_most, percentile, run
from gpumuxd.demo.daemon import SEARCH, VOICE, Daemon, running_daemon, socket_path
from gpumuxd.demo.minilm import SentenceTokenizer, load_minilm
from gpumuxd.demo.repository import MINILM, SEQUENCE, VAD, initial_state, write_repository
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, load_silero
from gpumuxd.demo.traffic import FRAME_S, SEARCH_PRIORITY, VOICE_PRIORITY, VOICE_STREAMS

RECOVERY_S_MAX = 3.0
"""Beyond the time that the models take to load. The goal."""

LOST_S = 30.0
"""A call that has not ended after this time is lost."""

READY_S_MAX = 60.0
POLL_S = 0.01
SENTENCES_OUTSTANDING = 3
INPUTS = 16
REFUSED_S = 0.02
"""How long a client of these waits before its next call after one that was refused."""

Inputs = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class Tenant:
    """One tenant's calls, what they should get and what they got."""

    name: str
    model: str
    priority: int
    inputs: list[Inputs]
    client: AsyncClient
    expected: list[InferResult] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    answered_s: list[float] = field(default_factory=list)
    """When answers came that were right."""

    async def learn(self) -> None:
        """The answers of a device that nobody kills."""
        self.expected = [
            await self.client.infer(self.model, each, priority=self.priority)
            for each in self.inputs
        ]

    async def call(self, number: int) -> bool:
        """One call, counted by its end; False if it was refused."""
        index = number % len(self.inputs)
        name = f"{self.name}-{number}"
        try:
            result = await self.client.infer(
                self.model,
                self.inputs[index],
                priority=self.priority,
                request_id=name,
                deadline=LOST_S,
            )
        except GpumuxdError as error:
            is_lost = error.status == "DEADLINE_EXCEEDED"
            end = "refused" if error.is_retryable else "lost" if is_lost else "failed"
            self.reasons[f"{error.status} {type(error).__name__}"] += 1
        else:
            if result.request_id != name:
                end = "answered twice"
            elif not _is_equal(result, self.expected[index]):
                end = "wrong"
            else:
                end = "right"
                self.answered_s.append(time.monotonic())
        self.ends[end] += 1
        return end != "refused"


def _is_equal(result: InferResult, expected: InferResult) -> bool:
    return result.keys() == expected.keys() and all(
        result[name].tobytes() == expected[name].tobytes() for name in expected
    )


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        bench.console.print("exporting two models")
        write_repository(folder / "models", load_silero(), load_minilm())
        gc.collect()
        gc.freeze()
        runner.run(_measure(bench, folder))


async def _measure(bench: Bench, folder: Path) -> None:
    node = folder / "node"
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(
            running_daemon(node, folder / "models", "adaptive")
        )
        # No retries: what the node says is what is counted.
        clients = {
            tenant: await stack.enter_async_context(
                AsyncClient(f"unix:{socket_path(node, tenant)}", retries=0)
            )
            for tenant in (VOICE, SEARCH, "operator")
        }
        tenants = _tenants(bench, clients)
        load_s = await _load(tenants)
        for tenant in tenants:
            await tenant.learn()
        kills = bench.options.kills or bench.pick(100, 6)
        with bench.measuring():
            recovery_s = await _kill_under_load(bench, clients["operator"], tenants, kills)
        in_flight = (await clients["operator"].node_status()).devices[0].requests_in_flight
        _report(bench, tenants, recovery_s, load_s, in_flight)
        _report_parts(bench, daemon)


def _tenants(bench: Bench, clients: Mapping[str, AsyncClient]) -> list[Tenant]:
    random = np.random.default_rng(bench.seed)
    samples = CONTEXT_SAMPLES + FRAME_SAMPLES
    frames: list[Inputs] = [
        {
            "audio": random.standard_normal((1, samples), dtype=np.float32) * 0.1,
            "state": initial_state(),
        }
        for _ in range(INPUTS)
    ]
    tokenizer = SentenceTokenizer()
    sentences: list[Inputs] = []
    for index in range(INPUTS):
        token_ids, mask = tokenizer.encode([f"sentence {index} of those that are sent"], SEQUENCE)
        sentences.append({"token_ids": token_ids, "mask": mask})
    return [
        Tenant(VOICE, VAD, VOICE_PRIORITY, frames, clients[VOICE]),
        Tenant(SEARCH, MINILM, SEARCH_PRIORITY, sentences, clients[SEARCH]),
    ]


async def _load(tenants: list[Tenant]) -> float:
    """Load all; returns what that takes once the profiles are stored, the median of five."""
    took_s: list[float] = []
    for _ in range(6):
        begin = time.monotonic()
        for tenant in tenants:
            await tenant.client.load(tenant.model, deadline=READY_S_MAX)
        took_s.append(time.monotonic() - begin)
        for tenant in tenants:
            await tenant.client.unload(tenant.model)
    for tenant in tenants:
        await tenant.client.load(tenant.model, deadline=READY_S_MAX)
    return statistics.median(took_s[1:])


async def _kill_under_load(
    bench: Bench, operator: AsyncClient, tenants: list[Tenant], kills: int
) -> list[float]:
    voice, search = tenants
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        numbers = itertools.count()
        for _ in range(VOICE_STREAMS):
            group.create_task(_keep_calling(voice, numbers, FRAME_S, is_over))
        for _ in range(SENTENCES_OUTSTANDING):
            group.create_task(_keep_calling(search, numbers, 0.0, is_over))
        recovery_s = []
        for _ in range(kills):
            await asyncio.sleep(bench.rng.uniform(0.3, 1.0))
            (device,) = (await operator.node_status()).devices
            killed = time.monotonic()
            os.kill(device.pid, signal.SIGKILL)
            await _wait_back(operator, device.restarts + 1)
            recovery_s.append(time.monotonic() - killed)
        is_over.set()
    return recovery_s


async def _keep_calling(
    tenant: Tenant, numbers: Iterator[int], pause_s: float, is_over: asyncio.Event
) -> None:
    while not is_over.is_set():
        is_taken = await tenant.call(next(numbers))
        await asyncio.sleep(pause_s if is_taken else max(pause_s, REFUSED_S))


async def _wait_back(operator: AsyncClient, restarts: int) -> None:
    """Until the device was started again and every model serves."""
    async with asyncio.timeout(READY_S_MAX):
        while True:
            with contextlib.suppress(GpumuxdError):
                (device,) = (await operator.node_status()).devices
                if device.restarts >= restarts and device.state == "ready":
                    return
            await asyncio.sleep(POLL_S)


def _report(
    bench: Bench, tenants: list[Tenant], recovery_s: list[float], load_s: float, in_flight: int
) -> None:
    for tenant in tenants:
        for end in ("right", "refused"):
            bench.figure(f"{tenant.name}: {end}", tenant.ends[end], "calls")
        for end in ("wrong", "failed", "lost", "answered twice"):
            bench.figure(f"{tenant.name}: {end}", tenant.ends[end], "calls", at_most(0))
        for reason, count in sorted(tenant.reasons.items()):
            bench.console.print(f"{tenant.name}: {count} times {reason}")
    bench.figure("in flight afterwards", in_flight, "calls", at_most(0))
    bench.figure("kills", len(recovery_s), "")
    bench.figure("loading the models again, nobody served", load_s, "s")
    bench.figure("recovery, median", statistics.median(recovery_s), "s")
    bench.figure("recovery, worst", max(recovery_s), "s", at_most(RECOVERY_S_MAX + load_s))


def _report_parts(bench: Bench, daemon: Daemon) -> None:
    """What a recovery is made of, by the daemon's log."""
    parts: dict[str, list[float]] = {}
    lost_at = up_at = 0.0
    for line in daemon.log.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            said = json.loads(line)
            at = datetime.fromisoformat(said["timestamp"]).timestamp()
            match said["event"]:
                case "device_lost":
                    lost_at = at
                    parts.setdefault("wait before the start", []).append(
                        said["restart_in_ms"] / 1e3
                    )
                case "device_up" if lost_at:
                    up_at = at
                    parts.setdefault("start of Python and torch", []).append(said["after_ms"] / 1e3)
                case "readiness" if up_at and said["is_ready"]:
                    parts.setdefault("loading the models again, served", []).append(at - up_at)
    for name, values in parts.items():
        bench.figure(f"of it {name}, median", statistics.median(values), "s")
        bench.figure(f"of it {name}, p90", percentile(values, 90), "s")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="100, or 6 if --quick")


if __name__ == "__main__":
    raise SystemExit(
        run("recovery", "A device child that is killed under load.", body, None, _add_arguments)
    )
