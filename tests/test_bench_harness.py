"""The benches' harness: fair order, honest statistics, and the exit status that figures earn."""

import json
import random
from argparse import Namespace
from pathlib import Path

import pytest
from rich.console import Console

from bench.harness import (
    EXIT_INCONCLUSIVE,
    EXIT_MISSED,
    GAP_NS_MAX,
    Bench,
    Goal,
    Samples,
    at_least,
    at_most,
    percentile,
    run,
)


def bench(*, is_strict: bool = False, late_ns: int = 0, seed: int = 1) -> Bench:
    made = Bench("a", seed, True, Namespace(strict=is_strict), Console(), random.Random(seed))
    made.late_ns.append(late_ns)
    return made


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5], 50, 5),
        ([1, 2], 50, 1),
        ([3, 1, 2], 50, 2),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 101)), 100, 100),
        (list(range(1, 101)), 0, 1),
        ([1, 100], 99, 100),
    ],
)
def test_percentile_is_a_value_that_was_measured(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_spread_is_between_rounds_not_within_one() -> None:
    assert Samples(((0, 50, 100), (0, 50, 100))).spread == 0
    assert Samples(((1, 1), (2, 2), (3, 3), (4, 4))).spread == 2


def test_variants_are_interleaved_and_the_first_round_is_discarded() -> None:
    calls: list[str] = []
    counts = {"a": 0, "b": 0}

    def variant(name: str) -> list[float]:
        calls.append(name)
        counts[name] += 1
        return [counts[name]]

    samples = bench().interleave({"a": lambda: variant("a"), "b": lambda: variant("b")}, rounds=20)
    assert samples["a"].values == samples["b"].values == list(range(2, 22))
    pairs = {tuple(calls[i : i + 2]) for i in range(0, len(calls), 2)}
    assert pairs == {("a", "b"), ("b", "a")}


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[str]:
        return [name for name, _ in bench(seed=seed).schedule(["a", "b", "c"], rounds=10)]

    assert order(1) == order(1) != order(2)


@pytest.mark.parametrize(
    ("goal", "value", "is_met"),
    [
        (at_most(2), 2, True),
        (at_most(2), 2.1, False),
        (at_least(2), 2, True),
        (at_least(2), 1.9, False),
    ],
)
def test_a_goal_includes_its_limit(goal: Goal, value: float, is_met: bool) -> None:
    assert goal.is_met(value) is is_met


@pytest.mark.parametrize(
    ("value", "is_strict", "late_ns", "status"),
    [
        (1, True, 0, 0),
        (3, True, 0, EXIT_MISSED),
        (3, False, 0, 0),
        (1, False, GAP_NS_MAX, 0),
        (1, False, GAP_NS_MAX + 1, EXIT_INCONCLUSIVE),
        (3, True, GAP_NS_MAX + 1, EXIT_INCONCLUSIVE),
    ],
)
def test_exit_status(value: float, is_strict: bool, late_ns: int, status: int) -> None:
    measured = bench(is_strict=is_strict, late_ns=late_ns)
    measured.figure("time", value, "us", at_most(2))
    measured.figure("no goal", 1e9, "us")
    assert measured.exit_status() == status


def test_a_run_writes_its_figures_and_runs_the_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"

    def body(measured: Bench) -> None:
        with measured.measuring():
            samples = measured.interleave({"a": lambda: [1500.0]}, rounds=3)
        measured.figure("median", samples["a"].median / 1e3, "us", at_most(1), spread=0.0)

    status = run("example", "An example.", body, ["--json", str(file), "--seed", "7", "--quick"])
    report = json.loads(file.read_text())
    # The tests' machine may be busy, and then a run is inconclusive.
    assert status == (0 if report["conclusive"] else EXIT_INCONCLUSIVE)
    assert report["gap_p99_us"] > 0
    assert report["figures"] == [
        {"name": "median", "value": 1.5, "unit": "us", "spread": 0.0, "goal": "<= 1", "met": False}
    ]
    assert (report["bench"], report["seed"], report["quick"]) == ("example", 7, True)
    assert report["machine"]["cores"] >= 1
    assert "MISSED" in capsys.readouterr().out


def test_a_bench_that_measures_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="measured nothing"):
        run("example", "An example.", lambda _: None, [])
