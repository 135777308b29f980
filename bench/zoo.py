"""The zoo: how fast artifacts are read, how models are cut, and what running in groups costs.

Per architecture: time to read (our reader, once as it is and once with the hash, as the loader does
it) against `torch.export.load` of the same file, in interleaved rounds with the file in the page
cache; how many kernel groups the default target gives and how long the longest is; the time of a
run in groups over that of the whole as one group, in interleaved rounds until it is known to
NOISE_MAX; and whether both are bit-equal to what torch computes from the same file.

The long form has all of them, some at their published size and the others small: all at their
published sizes would take more than half an hour, most of it in torch. `--only` makes the named
ones at their published size.

Artifacts are made in two processes beside this one, and two at a time, so that a whole list of
models of published size needs neither much memory nor much disk. Nothing is measured meanwhile.

    python -m bench.zoo [--quick] [--only NAME,...] [--json FILE] [--strict]
"""

import argparse
import math
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree

from bench.harness import Bench, Samples, at_least, at_most, percentile, run
from gpumuxd.loader.main import read
from gpumuxd.models import plan as plans
from gpumuxd.models.pt2 import Artifact
from gpumuxd.programs.exporter import write_artifact
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.profiler import Pass, cuts_from_passes, position_ns, run_ns
from gpumuxd.programs.program import Program
from gpumuxd.settings import DeviceSettings
from gpumuxd.testing.zoo.catalogue import Architecture, Scale
from gpumuxd.testing.zoo.everything import ARCHITECTURES, architecture
from gpumuxd.units import GIB, NS_PER_MS, NS_PER_S
from gpumuxd.wire.process import map_sealed, sealed_memfd

QUICK = ("vit", "unet", "bert", "pointnet")
"""What `--quick` looks at: small ones of several families."""

PUBLISHED = ("resnet", "vit", "unet", "bert", "gpt2", "wav2vec2", "lstm")
"""Those of the long form at their published size. Models with packaged weights have one size."""

EXPORTERS = 2

RATIO_MEDIAN_MIN, RATIO_MIN = 4.0, 2.0
OVERHEAD_PERCENT_MAX = 3.0
NOISE_MAX = 0.01
"""How well the cost of groups must be known: a third of what it may be."""

READ_ROUNDS, READ_NS_MAX = 3, 4 * NS_PER_S
"""Fewer rounds where torch takes long: a load of seconds hardly varies."""

ROUND_NS_MIN = 2 * NS_PER_MS
"""A round of a smaller model runs it several times: a clock and a loop cost something too."""

ROUNDS_MIN, ROUNDS_MAX = 15, 400

TABLE_COLUMNS = 150
"""Also where the output is no terminal: fourteen columns in eighty are unreadable."""


@dataclass(frozen=True, slots=True)
class Row:
    """All that is measured of one architecture. Times in milliseconds."""

    name: str
    size: str
    nodes: int
    weights_mib: float
    load_ms: float
    read_ms: float
    hashed_ms: float
    groups: int
    run_ms: float
    longest_ms: float
    overhead_percent: float
    noise_percent: float
    is_equal: bool

    @property
    def ratio(self) -> float:
        return self.load_ms / self.read_ms

    @property
    def hashed_ratio(self) -> float:
        return self.load_ms / self.hashed_ms


# Making


def prepare_exporter() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def export(name: str, scale: Scale, path: Path) -> None:
    """In a process of its own: what tracing leaves behind goes with it."""
    write_artifact(architecture(name).make(scale), path)


def scale_of(bench: Bench, name: str) -> Scale:
    if bench.is_quick:
        return Scale.SMALL
    is_published = bench.options.only is not None or name in PUBLISHED
    return Scale.FULL if is_published else Scale.SMALL


def made(bench: Bench, names: Sequence[str], refused: list[str]) -> Iterator[tuple[str, Path]]:
    """Artifacts, a few at a time; each is gone when the next few are made."""
    with ProcessPoolExecutor(
        EXPORTERS, mp_context=get_context("spawn"), initializer=prepare_exporter
    ) as pool:
        for start in range(0, len(names), EXPORTERS):
            with tempfile.TemporaryDirectory() as folder:
                paths = {name: Path(folder) / f"{name}.pt2" for name in names[start:][:EXPORTERS]}
                exports = {
                    n: pool.submit(export, n, scale_of(bench, n), at) for n, at in paths.items()
                }
                for name, future in exports.items():
                    if (error := future.exception()) is not None:
                        bench.console.print(f"{name}: {error}", style="bold red")
                        refused.append(name)
                yield from ((n, at) for n, at in paths.items() if n not in refused)


# Reading


def read_plain(path: Path) -> None:
    """As the loader reads, without the hash."""
    with path.open("rb") as file:
        artifact = Artifact(file)
        plans.encode(artifact.plan)
        os.close(sealed_memfd("bench-zoo", lambda out: artifact.write_weights(out.write)))


def read_hashed(path: Path) -> None:
    with path.open("rb") as file:
        for fd in read(file, 8 * GIB)[1]:
            os.close(fd)


def timed_ns(work: Callable[[], object], repeats: int = 1) -> list[float]:
    began_ns = perf_counter_ns()
    for _ in range(repeats):
        work()
    return [(perf_counter_ns() - began_ns) / repeats]


def read_times_ms(bench: Bench, path: Path) -> tuple[float, float, float]:
    """Medians of `torch.export.load`, our reader, and our reader with the hash."""
    variants = {
        "load": lambda: timed_ns(lambda: torch.export.load(path)),
        "read": lambda: timed_ns(lambda: read_plain(path)),
        "hashed": lambda: timed_ns(lambda: read_hashed(path)),
    }
    # No round is thrown away: the file was just written, and the check of results has loaded it.
    rounds: list[dict[str, Samples]] = []
    deadline_ns = perf_counter_ns() + READ_NS_MAX
    while not rounds or (len(rounds) < READ_ROUNDS and perf_counter_ns() < deadline_ns):
        rounds.append(bench.interleave(variants, rounds=1, warmup=0))
    load, plain, hashed = (
        percentile([each[name].median for each in rounds], 50) / NS_PER_MS for name in variants
    )
    return load, plain, hashed


# Running


def open_model(path: Path) -> ServedModel:
    """As a device child has it: weights in a sealed memfd, mapped privately."""
    with path.open("rb") as file:
        _, (plan_fd, weights_fd) = read(file, 8 * GIB)
    plan, weights = map_sealed(plan_fd), map_sealed(weights_fd)
    os.close(plan_fd)
    os.close(weights_fd)
    return ServedModel.open(bytes(plan), weights)


def run_program(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    slots = program.start(inputs)
    for group in program.groups:
        group(slots)
    return program.outputs(slots)


@torch.inference_mode()
def passes_of(program: Program, inputs: Sequence[Tensor]) -> list[Pass]:
    """As many as the daemon measures; the first is slow in every library below."""
    passes: list[Pass] = []
    for _ in range(DeviceSettings().profile_passes + 1):
        slots = program.start(inputs)
        times = []
        for group in program.groups:
            began_ns = perf_counter_ns()
            group(slots)
            times.append(perf_counter_ns() - began_ns)
        passes.append(times)
    return passes[1:]


@torch.inference_mode()
def overhead(bench: Bench, whole: Program, grouped: Program, inputs: Sequence[Tensor]) -> Any:
    """What running in groups adds, as a fraction of the whole, and how well that is known.

    The figure is the median over rounds of one ratio a round; what is known of a median is the
    standard error of that of a normal distribution, with the deviation taken from the quartiles.
    """
    once_ns = timed_ns(lambda: run_program(whole, inputs))[0]
    repeats = max(1, math.ceil(ROUND_NS_MIN / once_ns))
    variants = {
        "whole": lambda: timed_ns(lambda: run_program(whole, inputs), repeats),
        "grouped": lambda: timed_ns(lambda: run_program(grouped, inputs), repeats),
    }
    ratios: list[float] = []
    deadline_ns = perf_counter_ns() + bench.pick(6 * NS_PER_S, NS_PER_S)
    while True:
        samples = bench.interleave(variants, rounds=ROUNDS_MIN, warmup=0 if ratios else 1)
        pairs = zip(samples["grouped"].values, samples["whole"].values, strict=True)
        ratios += [many / one for many, one in pairs]
        quartiles = percentile(ratios, 75) - percentile(ratios, 25)
        noise = 1.2533 * quartiles / 1.349 / math.sqrt(len(ratios))
        is_enough = noise <= NOISE_MAX / 2 or len(ratios) >= ROUNDS_MAX
        if is_enough or perf_counter_ns() > deadline_ns:
            return statistics.median(ratios) - 1, noise


def is_same(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> bool:
    """Bit for bit: as bytes, so that NaN is equal to itself and 0.0 is not -0.0."""
    return len(expected) == len(actual) and all(
        (want.dtype, want.shape) == (got.dtype, got.shape)
        and torch.equal(
            want.contiguous().flatten().view(torch.uint8),
            got.contiguous().flatten().view(torch.uint8),
        )
        for want, got in zip(expected, actual, strict=True)
    )


def is_equal(
    path: Path,
    candidates: Sequence[Program],
    runs: Sequence[Sequence[Tensor]],
) -> bool:
    """Do all candidates compute what torch does?

    Loaded outside of inference mode: inside, torch 2.13 makes a module that sums otherwise.
    """
    program = torch.export.load(path)
    module: Any = program.module()
    spec = program.call_spec.in_spec
    assert spec is not None, "torch.export always says how arguments were given"
    with torch.inference_mode():
        for inputs in runs:
            arguments, keywords = pytree.tree_unflatten([item.clone() for item in inputs], spec)
            expected = pytree.tree_leaves(module(*arguments, **keywords))
            if not all(is_same(expected, run_program(each, inputs)) for each in candidates):
                return False
    return True


def measure(bench: Bench, what: Architecture, path: Path) -> Row:
    model = open_model(path)
    (bucket,) = model.profile_buckets(1)
    inputs = model.example_inputs(bucket)
    whole = model.grouped_program([model.node_count])
    target_ns = DeviceSettings().group_target_ns
    cuts = cuts_from_passes(passes_of(model.node_program(), inputs), target_ns)
    grouped = model.grouped_program(cuts)
    runs = [what.inputs(model.spec, sizes, seed) for seed, sizes in enumerate(what.sizes)]
    equal = is_equal(path, [whole, grouped], [inputs, *runs])
    with bench.measuring():
        load_ms, read_ms, hashed_ms = read_times_ms(bench, path)
        passes = passes_of(grouped, inputs)
        added, noise = overhead(bench, whole, grouped, inputs)
    return Row(
        name=what.name,
        size=scale_of(bench, what.name).value,
        nodes=model.node_count,
        weights_mib=model.weights_bytes / 2**20,
        load_ms=load_ms,
        read_ms=read_ms,
        hashed_ms=hashed_ms,
        groups=grouped.group_count,
        run_ms=run_ns(passes) / NS_PER_MS,
        longest_ms=max(position_ns(passes)) / NS_PER_MS,
        overhead_percent=100 * added,
        noise_percent=100 * noise,
        is_equal=equal,
    )


# Telling


def print_rows(bench: Bench, rows: Sequence[Row]) -> None:
    table = Table(
        "architecture", "size", "nodes", "MiB", "load ms", "read ms", "ratio", "hashed", "run ms",
        "groups", "longest ms", "share", "groups cost", "equal",
        title="zoo, one row a request",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row.name, row.size, str(row.nodes), f"{row.weights_mib:.1f}", f"{row.load_ms:.0f}",
            f"{row.read_ms:.0f}", f"{row.ratio:.1f}", f"{row.hashed_ratio:.1f}",
            f"{row.run_ms:.1f}", str(row.groups), f"{row.longest_ms:.2f}",
            f"{row.longest_ms / row.run_ms:.0%}",
            f"{row.overhead_percent:+.1f} ±{row.noise_percent:.1f} %",
            "yes" if row.is_equal else "NO",
        )  # fmt: skip
    bench.console.print(table, width=TABLE_COLUMNS, crop=False)


def report(bench: Bench, rows: Sequence[Row], refused: Sequence[str]) -> None:
    bench.figure("architectures", len(rows), "models")
    bench.figure("not exported", len(refused), "models", at_most(0))
    print_rows(bench, rows)
    bench.rows += [{**asdict(row), "ratio": row.ratio} for row in rows]
    bench.figure("not bit-equal", sum(not row.is_equal for row in rows), "models", at_most(0))
    report_reading(bench, rows)
    report_groups(bench, rows)


def report_reading(bench: Bench, rows: Sequence[Row]) -> None:
    ratios = [row.ratio for row in rows]
    hashed = [row.hashed_ratio for row in rows]
    median = percentile(ratios, 50)
    bench.figure("load / read, median", median, "x", at_least(RATIO_MEDIAN_MIN))
    bench.figure("load / read, smallest", min(ratios), "x", at_least(RATIO_MIN))
    bench.figure("load / read with hash, median", percentile(hashed, 50), "x")
    bench.figure("load / read with hash, smallest", min(hashed), "x")


def report_groups(bench: Bench, rows: Sequence[Row]) -> None:
    shares = [row.longest_ms / row.run_ms for row in rows]
    costs = [row.overhead_percent for row in rows]
    bench.figure("longest group's share of a run, median", 100 * percentile(shares, 50), "%")
    bench.figure("cost of groups, median", percentile(costs, 50), "%")
    worst = max(rows, key=lambda row: row.overhead_percent)
    bench.figure(
        f"cost of groups, largest ({worst.name})",
        worst.overhead_percent,
        "%",
        at_most(OVERHEAD_PERCENT_MAX),
        worst.noise_percent,
    )
    noise = max(row.noise_percent for row in rows)
    bench.figure("noise of that cost, largest", noise, "%", at_most(100 * NOISE_MAX))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="NAME,...", help="these architectures")


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, of its own deprecations
    names = list(QUICK) if bench.is_quick else [each.name for each in ARCHITECTURES]
    if bench.options.only is not None:
        names = bench.options.only.split(",")
        if unknown := set(names) - {each.name for each in ARCHITECTURES}:
            raise SystemExit(f"no such architecture: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    refused: list[str] = []
    for name, path in made(bench, names, refused):
        rows.append(measure(bench, architecture(name), path))
        bench.console.print(f"{len(rows)} of {len(names)}: {name}", style="dim")
    if not rows:
        raise SystemExit("nothing to measure: none of the models could be exported")
    report(bench, rows, refused)


if __name__ == "__main__":
    raise SystemExit(run("zoo", "Reading and cutting the zoo's models.", body, None, add_arguments))
