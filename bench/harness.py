"""What every bench shares: options, fair order, statistics, goals, and an honest way to say no.

    def body(bench: Bench) -> None:
        with bench.measuring():
            samples = bench.interleave({"short": short, "long": long}, rounds=bench.pick(20, 5))
        bench.figure("short, median", samples["short"].median / 1e3, "us", at_most(20))

    if __name__ == "__main__":
        raise SystemExit(run("decision", "One decision of the device scheduler.", body))

A variant is a callable that does one round and returns its samples. Rounds of all variants are
interleaved in a seeded random order, because the speed of a machine drifts by more than most
differences worth knowing; the first round of each is discarded. Set-up stays outside
`measuring()`, which runs the probe (`bench/probe.py`) beside what it encloses.

Exit status: 0 measured; 1 a goal was missed and `--strict` was given; 2 inconclusive, because the
machine itself kept a due thread waiting for more than GAP_NS_MAX at p99. Inconclusive beats both:
figures of such a run mean nothing, good or bad.
"""

import argparse
import array
import contextlib
import importlib.metadata
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpumuxd import compiled

ROOT = Path(__file__).parent.parent

GAP_NS_MAX = 500_000
"""Half a millisecond: the smallest difference that the delay goals are stated in is 1 ms."""

EXIT_MISSED = 1
EXIT_INCONCLUSIVE = 2

VERSIONS_OF = ("gpumuxd", "torch", "numpy", "grpcio", "protobuf", "uvloop", "msgspec")

Round = Callable[[], Sequence[float]]


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank, so that the answer is a value that was measured."""
    assert values, "a percentile of nothing"
    ordered = sorted(values)
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one variant, kept by round; warm-up is not among them."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def values(self) -> list[float]:
        return [value for samples in self.rounds for value in samples]

    @property
    def median(self) -> float:
        return percentile(self.values, 50)

    @property
    def p99(self) -> float:
        return percentile(self.values, 99)

    @property
    def spread(self) -> float:
        """How far the medians of the rounds lie apart: from the first to the third quartile."""
        medians = [statistics.median(samples) for samples in self.rounds]
        return percentile(medians, 75) - percentile(medians, 25)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should be: at most (`<=`) or at least (`>=`) a value."""

    relation: str
    value: float

    def is_met(self, value: float) -> bool:
        return value <= self.value if self.relation == "<=" else value >= self.value


def at_most(value: float) -> Goal:
    """The goal of a figure that should be small."""
    return Goal("<=", value)


def at_least(value: float) -> Goal:
    """The goal of a figure that should be large."""
    return Goal(">=", value)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a bench; `spread` is in the same unit, None where there is none."""

    name: str
    value: float
    unit: str
    goal: Goal | None = None
    spread: float | None = None

    @property
    def is_met(self) -> bool:
        return self.goal is None or self.goal.is_met(self.value)


@dataclass(slots=True)
class Bench:
    """One run of one bench: its options, its random numbers, its figures and its probe."""

    name: str
    seed: int
    is_quick: bool
    options: argparse.Namespace
    console: Console
    rng: random.Random
    figures: list[Figure] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """A table beside the figures, for `--json`: without goals, one row a case."""
    late_ns: list[int] = field(default_factory=list)

    def pick(self, full: int, quick: int) -> int:
        """A count or size: `quick` under `--quick`, `full` otherwise."""
        return quick if self.is_quick else full

    def schedule(
        self, names: Sequence[str], rounds: int, warmup: int = 1
    ) -> Iterator[tuple[str, bool]]:
        """Every name once a round, in a random order, with whether to keep the result."""
        for index in range(warmup + rounds):
            order = list(names)
            self.rng.shuffle(order)
            for name in order:
                yield name, index >= warmup

    def interleave(
        self, variants: Mapping[str, Round], rounds: int, warmup: int = 1
    ) -> dict[str, Samples]:
        """Run all variants `rounds` times and return the samples of each."""
        kept: dict[str, list[tuple[float, ...]]] = {name: [] for name in variants}
        for name, is_kept in self.schedule(list(variants), rounds, warmup):
            samples = tuple(variants[name]())
            if is_kept:
                kept[name].append(samples)
        return {name: Samples(tuple(samples)) for name, samples in kept.items()}

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Run the probe beside what is enclosed. May be entered several times."""
        probe = subprocess.Popen(
            [sys.executable, "-S", "-E", str(Path(__file__).with_name("probe.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with probe:
            assert probe.stdout is not None, "a pipe was asked for"
            probe.stdout.readline()
            try:
                yield
            finally:
                late_ns = array.array("q", probe.communicate()[0])
        self.late_ns.extend(late_ns)

    @property
    def gap_p99_ns(self) -> int:
        """How late the probe was woken, 99 times of 100 at most."""
        return round(percentile(self.late_ns, 99)) if self.late_ns else 0

    @property
    def is_conclusive(self) -> bool:
        return self.gap_p99_ns <= GAP_NS_MAX

    def figure(
        self,
        name: str,
        value: float,
        unit: str,
        goal: Goal | None = None,
        spread: float | None = None,
    ) -> None:
        """Record one number. The last word of its unit says what it counts: `us`, `1/s`."""
        self.figures.append(Figure(name, value, unit, goal, spread))

    def report(self) -> dict[str, Any]:
        """All that `--json` writes."""
        return {
            "bench": self.name,
            "quick": self.is_quick,
            "seed": self.seed,
            "conclusive": self.is_conclusive,
            "gap_p99_us": self.gap_p99_ns / 1e3,
            "figures": [
                {
                    "name": figure.name,
                    "value": figure.value,
                    "unit": figure.unit,
                    "spread": figure.spread,
                    "goal": f"{figure.goal.relation} {figure.goal.value:g}"
                    if figure.goal
                    else None,
                    "met": figure.is_met if figure.goal else None,
                }
                for figure in self.figures
            ],
            "rows": self.rows,
            "machine": machine(),
            "versions": versions(),
            "core": core_form(),
            "commit": commit(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def print_figures(self) -> None:
        """One table for people, and what the probe says of it."""
        quick = ", quick" if self.is_quick else ""
        title = f"{self.name} (seed {self.seed}{quick}, core {core_form()})"
        table = Table("figure", "value", "spread", "unit", "goal", "", title=title)
        for column in (1, 2):
            table.columns[column].justify = "right"
        for figure in self.figures:
            table.add_row(
                figure.name,
                _number(figure.value),
                "" if figure.spread is None else _number(figure.spread),
                figure.unit,
                f"{figure.goal.relation} {_number(figure.goal.value)}" if figure.goal else "",
                ("met" if figure.is_met else "MISSED") if figure.goal else "",
                style=None if figure.is_met else "bold red",
            )
        self.console.print(table)
        gap = f"scheduling gap of the machine: p99 {self.gap_p99_ns / 1e3:.0f} us"
        if not self.is_conclusive:
            gap += f", more than {GAP_NS_MAX / 1e3:.0f} us: inconclusive"
        self.console.print(gap)

    def exit_status(self) -> int:
        if not self.is_conclusive:
            return EXIT_INCONCLUSIVE
        is_missed = any(not figure.is_met for figure in self.figures)
        return EXIT_MISSED if is_missed and self.options.strict else 0


def _number(value: float) -> str:
    """Three or four digits that matter, for every size."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                model = line.partition(":")[2].strip()
                break
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Of the packages that can change a figure, those that are installed."""
    found = {}
    for package in VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def core_form() -> str:
    """Which form of the policy stack runs here: a figure of the one says nothing of the other."""
    is_translated = not os.environ.get(compiled.INTERPRETED) and compiled.is_current()
    return "translated" if is_translated else "interpreted"


def commit() -> str:
    """The commit of the working tree, with `+` if it has changes; empty outside of one."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changes else "")


def run(
    name: str,
    description: str,
    body: Callable[[Bench], None],
    argv: Sequence[str] | None = None,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
) -> int:
    """Read the options, run a bench, print and write its figures; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help="less than a minute, less sure")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice")
    if add_arguments is not None:
        add_arguments(parser)
    options = parser.parse_args(argv)
    bench = Bench(
        name, options.seed, options.quick, options, Console(), random.Random(options.seed)
    )
    body(bench)
    assert bench.late_ns, f"{name} measured nothing inside `with bench.measuring()`"
    bench.print_figures()
    if options.json is not None:
        options.json.write_text(json.dumps(bench.report(), indent=2) + "\n")
    return bench.exit_status()
