"""What each front door costs: a model that does nothing, one request at a time and sixteen.

It doubles sixteen numbers of a row, whose size is 64 B or 600 KB. The client is the same, and so is
the module; rounds of both servers are interleaved.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tritonclient.grpc.aio as triton_client  # type: ignore[import-untyped]  # it has no types
from tritonclient.grpc import InferInput

from bench.harness import Bench, Samples, at_least, at_most
from bench.versus_triton.triton import Model, Tensor
from gpumuxd.programs.exporter import export_model

KEPT = 16
SIZES = {"64 B": 64, "600 KB": 600_000}
RATIO_MAX = {"64 B": 1.1, "600 KB": 1.0}
OUTSTANDING = 16


class Idle(torch.nn.Module):
    """Looks at sixteen numbers of a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :KEPT] * 2


def name_of(size: str) -> str:
    return f"idle-{size.replace(' ', '')}"


MODELS = {
    name_of(size): Model(
        "bench.versus_triton.tiny.Idle",
        [Tensor("x", "TYPE_FP32", size_bytes // 4)],
        [Tensor("y", "TYPE_FP32", KEPT)],
        1,
    )
    for size, size_bytes in SIZES.items()
}


def export_idle(repository: Path) -> None:
    """The same models for gpumuxd."""
    for size, size_bytes in SIZES.items():
        path = repository / name_of(size) / "1" / "model.pt2"
        example = {"x": torch.zeros(2, size_bytes // 4)}
        export_model(Idle(), example, path, batch_max=4, output_names=("y",))


@dataclass(slots=True)
class Tiny:
    """One server and one size, by rounds."""

    one_ms: list[tuple[float, ...]] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)


async def measure_tiny(
    bench: Bench, clients: Mapping[str, triton_client.InferenceServerClient], ours: str
) -> None:
    """`ours` is the name of the one whose figures have goals."""
    found = {(name, size): Tiny() for name in clients for size in SIZES}
    cases = {f"{name}, {size}": (name, size) for name, size in found}
    seconds = bench.pick(20, 5) / 10
    with bench.measuring():
        for case, is_kept in bench.schedule(list(cases), bench.pick(10, 3)):
            name, size = cases[case]
            one_ms = await _one_at_a_time(clients[name], size, seconds)
            per_s = await _rate(clients[name], size, seconds)
            if is_kept:
                found[name, size].one_ms.append(one_ms)
                found[name, size].per_s.append(per_s)
    (other,) = [name for name in clients if name != ours]
    for size in SIZES:
        mine, theirs = found[ours, size], found[other, size]
        p50 = {name: Samples(tuple(found[name, size].one_ms)).median for name in clients}
        for name in clients:
            bench.figure(f"{name}: {size}, p50", p50[name], "ms")
            bench.figure(
                f"{name}: {size}, 16 at once", float(np.median(found[name, size].per_s)), "1/s"
            )
        bench.figure(
            f"{size}, p50, {ours} / Triton", p50[ours] / p50[other], "", at_most(RATIO_MAX[size])
        )
        rates = [a / b for a, b in zip(mine.per_s, theirs.per_s, strict=True)]
        bench.figure(f"{size}, rate, {ours} / Triton", float(np.median(rates)), "", at_least(1))


def _input(size: str) -> Any:
    given = InferInput("x", [1, SIZES[size] // 4], "FP32")
    return given.set_data_from_numpy(np.ones((1, SIZES[size] // 4), np.float32))


async def _one_at_a_time(client: Any, size: str, seconds: float) -> tuple[float, ...]:
    latencies_ms = []
    inputs, until = [_input(size)], time.monotonic() + seconds
    while (sent := time.monotonic()) < until:
        await client.infer(name_of(size), inputs)
        latencies_ms.append(1e3 * (time.monotonic() - sent))
    return tuple(latencies_ms)


async def _rate(client: Any, size: str, seconds: float) -> float:
    """Requests a second, sixteen outstanding."""
    inputs, begin, count = [_input(size)], time.monotonic(), 0

    async def ask() -> None:
        nonlocal count
        while time.monotonic() < begin + seconds:
            await client.infer(name_of(size), inputs)
            count += 1

    await asyncio.gather(*(ask() for _ in range(OUTSTANDING)))
    return count / (time.monotonic() - begin)
