"""Does memory come back? Models that come and go 200 times, and 100 loads that fail.

One daemon on the CPU device, on its Unix socket. A cycle loads a model, runs it three times and
unloads it; models of two kinds take turns, and every other cycle finds no stored profile, so that
it is measured anew. The loads that fail are of three kinds: an artifact that is not one, weights
that the device has no room for, and a run that needs more than the device has left, which shows
only when the device measures it.

After each of them the memory of the daemon's processes is read: what is theirs and resident,
anonymous or shared (`RssAnon` and `RssShmem` of /proc/PID/status), without the code of libraries,
which are files. The first ten cycles are warm-up. *End* is the median of the last ten, *highest*
the largest of all since, both over what the tenth left.
"""

import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import GpumuxdError

from bench.harness import Bench, at_least, at_most, run
from gpumuxd.demo.daemon import Daemon, running_daemon
from gpumuxd.programs.exporter import export_model
from gpumuxd.units import MIB

WARMUP_CYCLES = 10
LAST = 10
RUNS_PER_CYCLE = 3
GROWTH_MAX = 1.02
LOAD_S_MAX = 60.0

MEMORY_MIB_MAX = 384
"""Of the device, of which the arena takes 64 MiB: room for one model and no large run."""

DEVICE_LINES = f"memory_mib_max = {MEMORY_MIB_MAX}\narena_mib = 64"

DENSE, CONVOLUTIONS = "dense", "convolutions"
BROKEN, TOO_LARGE, HUNGRY = "broken", "too-large", "hungry"
GOOD = (DENSE, CONVOLUTIONS)
BAD = (BROKEN, TOO_LARGE, HUNGRY)


class Hungry(torch.nn.Module):
    """A small model whose run holds 512 MiB."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = x.repeat(1, 128 * MIB // 64)
        return (wide + 1).sum(1)


def _convolutions() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [torch.nn.Conv2d(before, after, 3, stride=2, padding=1), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def _dense() -> torch.nn.Module:
    layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
    return torch.nn.Sequential(*layers)


@dataclass(slots=True)
class Memory:
    """What the daemon's processes held after each cycle, in bytes, by the name of a process."""

    pids: dict[str, int]
    held: dict[str, list[int]] = field(default_factory=dict)

    def look(self) -> None:
        for name, pid in self.pids.items():
            self.held.setdefault(name, []).append(resident_bytes(pid))

    def begin_anew(self) -> None:
        self.held.clear()


def resident_bytes(pid: int) -> int:
    """Memory of a process that is its own: no files."""
    kib = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            kib += int(line.split()[1])
    return kib * 1024


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name:
        folder = Path(name)
        bench.console.print("exporting models")
        _write_models(folder / "models")
        asyncio.run(_measure(bench, folder))


def _write_models(root: Path) -> None:
    torch.manual_seed(0)
    models: dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor]]] = {
        DENSE: (_dense(), {"x": torch.zeros(2, 1024)}),
        CONVOLUTIONS: (_convolutions(), {"x": torch.zeros(2, 3, 96, 96)}),
        TOO_LARGE: (torch.nn.Embedding(96 * 1024, 1024), {"x": torch.zeros(2, dtype=torch.int64)}),
        HUNGRY: (Hungry(), {"x": torch.zeros(2, 64)}),
    }
    for model, (module, inputs) in models.items():
        export_model(module.eval(), inputs, root / model / "1" / "model.pt2")
    (root / BROKEN / "1").mkdir(parents=True)
    # It begins like a good one, so that the reader gets as far as it can.
    whole = (root / DENSE / "1" / "model.pt2").read_bytes()
    (root / BROKEN / "1" / "model.pt2").write_bytes(whole[: len(whole) // 2])


async def _measure(bench: Bench, folder: Path) -> None:
    state = folder / "state"
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(
            running_daemon(folder / "node", folder / "models", "adaptive", state, DEVICE_LINES)
        )
        operator = await stack.enter_async_context(daemon.client("operator"))
        (device,) = (await operator.node_status()).devices
        memory = Memory(_pids(daemon, device.pid))
        with bench.measuring():
            for index in range(bench.pick(200, 30)):
                await _cycle(operator, GOOD[index % len(GOOD)], state, is_fresh=index % 4 < 2)
                memory.look()
            _report(bench, memory, "cycles")
            memory.begin_anew()
            refused = dict.fromkeys(BAD, 0)
            for index in range(bench.pick(100, 18)):
                kind = BAD[index % len(BAD)]
                refused[kind] += await _fails(operator, kind)
                memory.look()
            _report(bench, memory, "failing loads")
        for kind, count in refused.items():
            bench.figure(f"loads refused, {kind}", count, "", at_least(1))
        await _cycle(operator, DENSE, state, is_fresh=True)  # all of them left a daemon that serves


def _pids(daemon: Daemon, device_pid: int) -> dict[str, int]:
    pid = daemon.process.pid
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    (starter,) = [child for child in children if child != device_pid]
    return {"daemon": pid, "device": device_pid, "starter of loaders": starter}


async def _cycle(client: AsyncClient, model: str, state: Path, *, is_fresh: bool) -> None:
    if is_fresh:
        for path in (state / "profiles").glob("*.json"):
            path.unlink()
    await client.load(model, deadline=LOAD_S_MAX)
    metadata = await client.model_metadata(model)
    (tensor,) = metadata.inputs
    # Every run has a size of its own, among which there are some that were not measured.
    for rows in range(1, RUNS_PER_CYCLE + 1):
        shape = [rows, *tensor.shape[1:]]
        answer = await client.infer(model, {tensor.name: np.ones(shape, dtype=np.float32)})
        assert all(np.isfinite(output).all() for output in answer.values()), model
    await client.unload(model)


async def _fails(client: AsyncClient, model: str) -> bool:
    """Is it refused, as it should be?"""
    try:
        await client.load(model, deadline=LOAD_S_MAX)
    except GpumuxdError:
        return True
    await client.unload(model)
    return False


def _report(bench: Bench, memory: Memory, what: str) -> None:
    for process, held in memory.held.items():
        tenth, after = held[WARMUP_CYCLES - 1], held[WARMUP_CYCLES:]
        goal = at_most(GROWTH_MAX)
        bench.figure(f"{process}, after the tenth of {what}", tenth / MIB, "MiB")
        end = statistics.median(after[-LAST:])
        bench.figure(f"{process}, end / tenth of {what}", end / tenth, "", goal)
        bench.figure(f"{process}, highest / tenth of {what}", max(after) / tenth, "", goal)
        bench.rows.append({"process": process, "what": what, "resident_bytes": held})


if __name__ == "__main__":
    raise SystemExit(run("cycles", "Memory of a daemon whose models come and go.", body))
