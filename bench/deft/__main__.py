"""Runs the three parts, or records the profiles anew.

python -m bench.deft [--quick] [--strict] [--json FILE] [--plots FOLDER] [--only PART,...]
python -m bench.deft --record-profiles
"""

import argparse
import sys
import warnings
from pathlib import Path

from bench.deft import profiles
from bench.deft.live import measure_pairs
from bench.deft.live import report as report_live
from bench.deft.pairs import compare
from bench.deft.plots import write_latencies, write_tradeoffs
from bench.deft.record import record
from bench.deft.report import (
    print_models,
    print_policies,
    report_differences,
    report_misses,
    report_sums,
    rows_of,
)
from bench.deft.served import measure_served
from bench.deft.virtual import PHASES, count_misses, loop_all
from bench.deft.world import Device
from bench.harness import Bench, run

PARTS = ("virtual", "live", "served")

QUICK_PARTS = PARTS[:2]
"""The third starts two daemons that load three models each: more than a minute."""

QUICK = ("minilm", "llama-step", "silero-vad")
"""Three shapes: long operators, many short ones, few."""

TABLE_COLUMNS = 150
"""Also where the output is no terminal: a dozen columns in eighty are unreadable."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--plots", metavar="FOLDER", type=Path, help="write pictures there")
    parser.add_argument(
        "--record-profiles",
        action="store_true",
        help=f"measure the models and this device, write {profiles.PATH.name}, and end",
    )


def body(bench: Bench) -> None:
    warnings.simplefilter("ignore")  # torch's, of its own deprecations
    bench.console.width = max(bench.console.width, TABLE_COLUMNS)
    by_default = QUICK_PARTS if bench.is_quick else PARTS
    parts = (bench.options.only or ",".join(by_default)).split(",")
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
    if bench.options.record_profiles:
        with bench.measuring():
            profiles.write(record(bench.console))
        return
    if "virtual" in parts:
        virtual(bench)
    if "live" in parts:
        live(bench)
    if "served" in parts:
        served(bench)


def virtual(bench: Bench) -> None:
    """Part 1."""
    known = profiles.read()
    if bench.is_quick:
        known = known.named(QUICK)
    bench.late_ns.append(0)  # in virtual time no machine is late
    device, seed = Device.of(known.costs), bench.seed
    phases = bench.pick(PHASES, PHASES // 5)
    looped = list(loop_all(known, device, seed, phases))
    misses = list(count_misses(looped, known, device, seed, phases))
    report_sums(bench, looped)
    report_misses(bench, misses)
    found = compare(known, device, seed, bench.pick(24, 4), PHASES // 5)
    report_differences(bench, found)
    print_models(bench, looped)
    print_policies(bench, looped, misses)
    bench.rows += rows_of(looped, misses)
    if bench.options.plots is not None:
        write_tradeoffs(looped, bench.options.plots / "deft-tradeoff.png")


def live(bench: Bench) -> None:
    """Part 2."""
    found = measure_pairs(bench)
    report_live(bench, found)
    if bench.options.plots is not None:
        latencies = {
            pair: {name: each.latency_ms for name, each in beds.items()}
            for pair, beds in found.items()
        }
        write_latencies(latencies, bench.options.plots / "deft-latency.png")


def served(bench: Bench) -> None:
    """Part 3."""
    measure_served(bench)


if __name__ == "__main__":
    sys.exit(run("deft", "Chosen sync points against fixed ones.", body, None, add_arguments))
