"""Twice as much as the device can do, for two minutes: what becomes of memory, of a REALTIME tenant
and of those who are refused?

One daemon on the CPU device and three tenants with a socket each. *batch* (best effort) and *web*
(standard, each request with a deadline) send a model of some milliseconds, open loop: at random
times, whatever became of the requests before. Together they offer twice the rate that was measured
just before with a few requests always outstanding. *voice* (REALTIME) sends a small model with an
`slo_ms` at a modest rate, and must be answered within it.

The flood comes from a process of its own, and voice from this one, which does nothing else, so that
what voice sees is the node and not its neighbour's client. The SLO is counted as voice sees it,
also against whatever keeps this process from a core. Memory is what /proc says is resident, looked
at four times a second. A refusal is explained if it says why in a way that a program can use: a
class, and a delay to try again or the deadline that decided.
"""

import asyncio
import collections
import contextlib
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import GpumuxdError

from bench.harness import Bench, at_most, percentile, run
from gpumuxd.programs.exporter import export_model

SMALL, WORK = "small", "work"
ROWS = 320

SLO_MS = 30
VOICE_PER_S = 20
DEADLINE_S = 0.5
"""Of a request of web: some of them are refused for it, which is the better answer in a flood."""

OVERLOAD = 2
OUTSTANDING = 4  # keeps the device busy while its capacity is measured
WARM_UP_S = 10.0
SAMPLE_S = 0.25
START_S_MAX = 60.0
END_S_MAX = 60.0

MEMORY_RATIO_MAX = 1.05
MISS_RATIO_MAX = 0.01

_CONFIG = """\
[node]
state_dir = "{folder}/state"
startup_models = ["{SMALL}", "{WORK}"]
[repository]
paths = ["{folder}/models"]
[listen]
tcp = []
[tenants.voice]
socket = "{folder}/voice.sock"
priority_max = "REALTIME"
priority_default = 1
[tenants.web]
socket = "{folder}/web.sock"
[tenants.batch]
socket = "{folder}/batch.sock"
priority_max = "BEST_EFFORT"
[tenants.operator]
socket = "{folder}/operator.sock"
admin = true
"""


class Small(torch.nn.Module):
    """Less than a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


class Work(torch.nn.Module):
    """Some milliseconds in several kernel groups."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(ROWS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.unsqueeze(1) * x.unsqueeze(2)
        for _ in range(6):
            y = y @ self.weight
        return y.sum(dim=2)


@dataclass(slots=True)
class Told:
    """What became of the requests of one tenant."""

    sent: int = 0
    answered: int = 0
    latency_ms: list[float] = field(default_factory=list)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    unexplained: collections.Counter[str] = field(default_factory=collections.Counter)

    def refuse(self, error: GpumuxdError) -> None:
        kind = f"{error.status} {type(error).__name__}"
        self.refused[kind] += 1
        if error.retry_delay_s is None and "deadline_ms" not in error.facts:
            self.unexplained[kind] += 1


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gm-", dir="/tmp") as name, asyncio.Runner() as runner:
        _write_models(Path(name) / "models")
        runner.run(_measure(bench, Path(name)))


def _write_models(root: Path) -> None:
    torch.manual_seed(0)
    for name, module, columns in ((SMALL, Small(), 256), (WORK, Work(), ROWS)):
        path = root / name / "1" / "model.pt2"
        path.parent.mkdir(parents=True)
        export_model(module.eval(), {"x": torch.zeros(2, columns)}, path, batch_max=2)
    (root / SMALL / "model.toml").write_text(f'slo_ms = {SLO_MS}\ntenants = ["voice"]\n')
    (root / WORK / "model.toml").write_text('tenants = ["web", "batch"]\n')


async def _measure(bench: Bench, folder: Path) -> None:
    with _daemon(folder) as process:
        async with _client(folder, "operator") as operator:
            await _wait_ready(operator, process)
            await _overload(bench, folder, process.pid, operator)


async def _overload(bench: Bench, folder: Path, parent_pid: int, operator: AsyncClient) -> None:
    seconds = bench.pick(120, 20)
    window_s = bench.pick(30, 5)
    (device,) = (await operator.node_status()).devices
    capacity = await _capacity(folder, bench.pick(5, 3))
    rate = OVERLOAD * capacity / 2  # of each of the two
    pids = {"parent": parent_pid, "device child": device.pid}
    with bench.measuring(), _flood(folder, rate, seconds + WARM_UP_S, bench.seed) as flood:
        flood.recv()  # it has begun
        await asyncio.sleep(WARM_UP_S)
        voice = Told()
        resident: dict[str, list[int]] = {who: [] for who in pids}
        async with asyncio.TaskGroup() as group:
            group.create_task(_speak(folder, voice, seconds))
            group.create_task(_watch(pids, resident, seconds))
        flooding: dict[str, Told] = await asyncio.to_thread(flood.recv)
    (device,) = (await operator.node_status()).devices
    bench.figure("capacity, measured before", capacity, "1/s")
    bench.figure("offered by web and batch", 2 * rate, "1/s")
    _report_voice(bench, voice)
    for who, samples in resident.items():
        _report_memory(bench, who, samples, round(window_s / SAMPLE_S))
    _report_flood(bench, {"voice": voice, **flooding}, seconds)
    bench.figure("in flight when all are answered", device.requests_in_flight, "", at_most(0))
    bench.figure("restarts of the device", device.restarts, "", at_most(0))


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    config = folder / "gpumuxd.toml"
    config.write_text(_CONFIG.format(folder=folder, SMALL=SMALL, WORK=WORK))
    command = [sys.executable, "-m", "gpumuxd.daemon.main", "serve", "--config", str(config)]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


async def _wait_ready(client: AsyncClient, process: "subprocess.Popen[bytes]") -> None:
    async with asyncio.timeout(START_S_MAX):
        while not await _is_ready(client):
            assert process.poll() is None, "the daemon ended"
            await asyncio.sleep(0.1)


async def _is_ready(client: AsyncClient) -> bool:
    with contextlib.suppress(GpumuxdError):
        return await client.server_ready(deadline=1.0)
    return False


def _client(folder: Path, tenant: str) -> AsyncClient:
    return AsyncClient(f"unix:{folder}/{tenant}.sock", retries=0)


async def _capacity(folder: Path, seconds: float) -> float:
    """Requests a second with a few always outstanding."""
    x = np.ones((1, ROWS), dtype=np.float32)
    done = 0

    async def ask(client: AsyncClient, end_s: float) -> None:
        nonlocal done
        while time.monotonic() < end_s:
            await client.infer(WORK, {"x": x})
            done += 1

    async with _client(folder, "batch") as client:
        await asyncio.gather(*(ask(client, time.monotonic() + 1) for _ in range(OUTSTANDING)))
        begin_s, done = time.monotonic(), 0
        await asyncio.gather(*(ask(client, begin_s + seconds) for _ in range(OUTSTANDING)))
    return done / (time.monotonic() - begin_s)


# The flood, in a process of its own


@contextlib.contextmanager
def _flood(folder: Path, rate: float, seconds: float, seed: int) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_flood, args=(theirs, folder, rate, seconds, seed))
    process.start()
    try:
        yield ours
    finally:
        process.kill() if sys.exc_info()[0] else None
        process.join()


def _run_flood(pipe: Connection, folder: Path, rate: float, seconds: float, seed: int) -> None:
    pipe.send(asyncio.run(_flood_both(pipe, folder, rate, seconds, seed)))


async def _flood_both(
    pipe: Connection, folder: Path, rate: float, seconds: float, seed: int
) -> dict[str, Told]:
    told = {"web": Told(), "batch": Told()}
    pipe.send(None)
    begin_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, (tenant, one) in enumerate(told.items()):
            rng = random.Random(f"{seed} {number}")
            deadline_s = DEADLINE_S if tenant == "web" else None
            group.create_task(
                _offer(folder, tenant, one, rng, rate, begin_s, begin_s + seconds, deadline_s)
            )
    return told


async def _offer(
    folder: Path,
    tenant: str,
    told: Told,
    rng: random.Random,
    rate: float,
    due_s: float,
    end_s: float,
    deadline_s: float | None,
) -> None:
    """Open loop: each request is sent when it is due, or as soon after as this process can."""
    x = np.ones((1, ROWS), dtype=np.float32)

    async def ask(client: AsyncClient) -> None:
        begin_s = time.monotonic()
        try:
            await client.infer(WORK, {"x": x}, timeout=deadline_s)
        except GpumuxdError as error:
            told.refuse(error)
        else:
            told.answered += 1
            told.latency_ms.append((time.monotonic() - begin_s) * 1e3)

    async with _client(folder, tenant) as client, asyncio.TaskGroup() as group:
        while due_s < end_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            told.sent += 1
            group.create_task(ask(client))
            due_s += rng.expovariate(rate)


# What is looked at meanwhile


async def _speak(folder: Path, told: Told, seconds: float) -> None:
    """Open loop as well: a late answer delays no other request."""
    x = np.ones((1, 256), dtype=np.float32)

    async def ask(client: AsyncClient, due_s: float) -> None:
        try:
            await client.infer(SMALL, {"x": x}, deadline=END_S_MAX)
        except GpumuxdError as error:
            told.refuse(error)
        else:
            told.answered += 1
            told.latency_ms.append((time.monotonic() - due_s) * 1e3)

    async with _client(folder, "voice") as client, asyncio.TaskGroup() as group:
        begin_s = time.monotonic()
        for index in range(round(seconds * VOICE_PER_S)):
            due_s = begin_s + index / VOICE_PER_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            told.sent += 1
            group.create_task(ask(client, time.monotonic()))


async def _watch(pids: dict[str, int], resident: dict[str, list[int]], seconds: float) -> None:
    for _ in range(round(seconds / SAMPLE_S)):
        for who, pid in pids.items():
            resident[who].append(_resident_bytes(pid))
        await asyncio.sleep(SAMPLE_S)


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")


def _report_voice(bench: Bench, voice: Told) -> None:
    late = sum(ms > SLO_MS for ms in voice.latency_ms) + sum(voice.refused.values())
    bench.figure("REALTIME sent", voice.sent, "")
    bench.figure("REALTIME p50", percentile(voice.latency_ms, 50), "ms")
    bench.figure("REALTIME p99", percentile(voice.latency_ms, 99), "ms", at_most(SLO_MS))
    bench.figure("REALTIME worst", max(voice.latency_ms), "ms")
    bench.figure("REALTIME late or refused", late / voice.sent, "", at_most(MISS_RATIO_MAX))


def _report_memory(bench: Bench, who: str, samples: list[int], count: int) -> None:
    first, last = statistics.median(samples[:count]), statistics.median(samples[-count:])
    bench.figure(f"{who}, first part", first / 2**20, "MiB")
    bench.figure(f"{who}, last part", last / 2**20, "MiB")
    bench.figure(f"{who}, most", max(samples) / 2**20, "MiB")
    bench.figure(f"{who}, last / first", last / first, "", at_most(MEMORY_RATIO_MAX))


def _report_flood(bench: Bench, told: dict[str, Told], seconds: float) -> None:
    for tenant, one in told.items():
        if tenant != "voice":
            bench.figure(f"{tenant} sent", one.sent, "")
            bench.figure(f"{tenant} answered", one.answered, "")
            if one.latency_ms:
                bench.figure(f"{tenant} p50", percentile(one.latency_ms, 50), "ms")
        for kind, count in sorted(one.refused.items()):
            bench.figure(f"{tenant} refused, {kind}", count, "")
    lost = sum(one.sent - one.answered - sum(one.refused.values()) for one in told.values())
    unexplained = sum((one.unexplained for one in told.values()), collections.Counter())
    bench.figure("requests without an answer", lost, "", at_most(0))
    bench.figure("refusals without an explanation", unexplained.total(), "", at_most(0))
    for kind, count in sorted(unexplained.items()):
        bench.figure(f"not explained, {kind}", count, "")


if __name__ == "__main__":
    raise SystemExit(run("overload", "Twice what the device can do, for two minutes.", body))
