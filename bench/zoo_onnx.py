"""The ONNX models of `gpumuxd/testing/zoo/onnx_models.py`: reading, cutting, and what groups cost.

Per model: time to read (checking, optimising and hashing, as the loader does it); how many kernel
groups the default target gives and how long the longest is; the processor time of a run in groups
over that of ONNX Runtime's own session of the same file, in interleaved rounds; and the largest
difference between what the two give, with one group per unit, the shortest that there can be.

    python -m bench.zoo_onnx [--quick] [--only NAME,...] [--target-ms N] [--json FILE] [--strict]
"""

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np
import torch
from rich.table import Table

from bench.harness import Bench, at_most, percentile, run
from gpumuxd.loader.main import read
from gpumuxd.models.onnx_optimiser import runtime_package
from gpumuxd.programs import onnx_model
from gpumuxd.programs.export_onnx import export_onnx
from gpumuxd.programs.onnx_model import OnnxModel
from gpumuxd.programs.onnx_program import OnnxProgram
from gpumuxd.programs.profiler import Pass, position_ns, run_ns
from gpumuxd.settings import DeviceSettings
from gpumuxd.testing.zoo.onnx_models import REAL, Real, example
from gpumuxd.units import GIB, NS_PER_MS, NS_PER_S
from gpumuxd.wire.process import map_sealed

QUICK = ("cls", "nudenet", "silero_op15")
OVERHEAD_PERCENT_MAX = 3.0
DIFFERENCE_MAX = 1e-6
ROUND_NS_MIN = 5 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Row:
    """All that is measured of one model. Times in milliseconds."""

    name: str
    nodes: int
    weights_mib: float
    read_ms: float
    units: int
    groups: int
    run_ms: float
    longest_ms: float
    overhead_percent: float
    noise_percent: float
    difference: float


def opened(path: Path) -> tuple[OnnxModel, float]:
    """The model as a device child has it, and what reading it took."""
    times_ms = []
    for _ in range(3):
        began_ns = perf_counter_ns()
        with path.open("rb") as file:
            _, fds = read(file, 8 * GIB, "onnx")
        times_ms.append((perf_counter_ns() - began_ns) / NS_PER_MS)
        plan, weights = map(map_sealed, fds)
        for fd in fds:
            os.close(fd)
    model = OnnxModel.open(bytes(plan), memoryview(weights))
    assert model.plan.is_optimised, f"{path} could not be optimised here"
    return model, min(times_ms)


def whole_session(path: Path) -> Any:
    """What somebody would have without gpumuxd, on one thread."""
    package = runtime_package()
    options = package.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    return package.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def run_program(program: OnnxProgram, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    slots = program.start(inputs)
    for group in program.groups:
        group(slots)
    return program.outputs(slots)


def passes_of(program: OnnxProgram, inputs: Sequence[torch.Tensor]) -> list[Pass]:
    """As many as the daemon measures, in processor time; the first is slow in every library."""
    passes: list[Pass] = []
    for _ in range(DeviceSettings().profile_passes + 1):
        slots = program.start(inputs)
        times = []
        for group in program.groups:
            began_ns = process_time_ns()
            group(slots)
            times.append(process_time_ns() - began_ns)
        passes.append(times)
    return passes[1:]


def busy_ns(work: Callable[[], object], repeats: int) -> list[float]:
    began_ns = process_time_ns()
    for _ in range(repeats):
        work()
    return [(process_time_ns() - began_ns) / repeats]


def overhead(
    bench: Bench, whole: Callable[[], object], grouped: Callable[[], object]
) -> tuple[float, float]:
    """The median ratio of a round, less one, and the standard error of that median."""
    repeats = max(1, math.ceil(ROUND_NS_MIN / busy_ns(whole, 1)[0]))
    variants = {
        "whole": lambda: busy_ns(whole, repeats),
        "grouped": lambda: busy_ns(grouped, repeats),
    }
    ratios: list[float] = []
    deadline_ns = perf_counter_ns() + bench.pick(8, 3) * NS_PER_S
    while not ratios or perf_counter_ns() < deadline_ns:
        samples = bench.interleave(variants, rounds=10, warmup=0 if ratios else 1)
        pairs = zip(samples["grouped"].values, samples["whole"].values, strict=True)
        ratios += [many / one for many, one in pairs]
    quartiles = percentile(ratios, 75) - percentile(ratios, 25)
    return statistics.median(ratios) - 1, 1.2533 * quartiles / 1.349 / math.sqrt(len(ratios))


def largest_difference(got: Sequence[torch.Tensor], expected: Sequence[Any]) -> float:
    """Absolute; relative to the largest value of an output where that is above 1."""
    apart = [
        np.max(np.abs(one.numpy() - other)) / max(1.0, float(np.max(np.abs(other))))
        for one, other in zip(got, expected, strict=True)
    ]
    return float(max(apart))


def measure(bench: Bench, name: str, real: Real, path: Path) -> Row:
    export_onnx(real.path(), path, real.request)
    with bench.measuring():
        model, read_ms = opened(path)
    session = whole_session(path)
    arrays = example(model.spec, model.plan.fills, real.usual)
    inputs = [torch.from_numpy(array) for array in arrays]
    feeds = {tensor.name: array for tensor, array in zip(model.spec.inputs, arrays, strict=True)}
    names = [tensor.name for tensor in model.spec.outputs]
    units = model.node_program()
    difference = largest_difference(run_program(units, inputs), session.run(names, feeds))
    cuts = model.cut_by_time(
        position_ns(passes_of(units, inputs)), DeviceSettings().group_target_ns
    )
    grouped = model.grouped_program(cuts)
    with bench.measuring():
        passes = passes_of(grouped, inputs)
        added, noise = overhead(
            bench, lambda: session.run(names, feeds), lambda: run_program(grouped, inputs)
        )
    return Row(
        name=name,
        nodes=len(model.plan.nodes),
        weights_mib=model.plan.weights_bytes / 2**20,
        read_ms=read_ms,
        units=model.node_count,
        groups=grouped.group_count,
        run_ms=run_ns(passes) / NS_PER_MS,
        longest_ms=max(position_ns(passes)) / NS_PER_MS,
        overhead_percent=100 * added,
        noise_percent=100 * noise,
        difference=difference,
    )


def print_rows(bench: Bench, rows: Sequence[Row]) -> None:
    table = Table(
        *("model", "nodes", "MiB", "read ms", "units", "run ms", "groups", "longest ms"),
        *("groups cost", "differs by"),
        title="ONNX models, one request at its usual size",
        min_width=110,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row.name, str(row.nodes), f"{row.weights_mib:.1f}", f"{row.read_ms:.0f}",
            str(row.units), f"{row.run_ms:.1f}", str(row.groups), f"{row.longest_ms:.2f}",
            f"{row.overhead_percent:+.1f} ±{row.noise_percent:.1f} %", f"{row.difference:g}",
        )  # fmt: skip
    bench.console.print(table, width=112, crop=False)


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    wanted = (
        bench.options.only.split(",")
        if bench.options.only
        else list(QUICK if bench.is_quick else REAL)
    )
    if bench.options.target_ms is not None:
        onnx_model.GROUP_TARGET_NS_MIN = round(bench.options.target_ms * NS_PER_MS)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(bench, name, REAL[name], Path(folder) / name / "1" / "model.onnx")
            for name in wanted
        ]
    print_rows(bench, rows)
    bench.rows += [asdict(row) for row in rows]
    worst = max(row.difference for row in rows)
    bench.figure("largest difference", worst, "of the largest value", at_most(DIFFERENCE_MAX))
    cut = [row for row in rows if row.groups > 1]
    if cut:
        most = max(cut, key=lambda row: row.overhead_percent)
        bench.figure(
            f"groups cost, most ({most.name})",
            most.overhead_percent,
            "%",
            at_most(OVERHEAD_PERCENT_MAX),
            most.noise_percent,
        )
    bench.figure("longest group", max(row.longest_ms for row in rows), "ms")
    bench.figure("read, longest", max(row.read_ms for row in rows), "ms")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="NAMES", help=f"of {', '.join(REAL)}")
    parser.add_argument("--target-ms", type=float, help="instead of the shortest target for groups")


if __name__ == "__main__":
    raise SystemExit(run("zoo_onnx", "ONNX models.", body, add_arguments=arguments))
