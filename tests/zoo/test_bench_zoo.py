"""What `bench/zoo.py` says of models that could not be exported, and of those that could."""

import random
from argparse import Namespace

import pytest
from rich.console import Console

from bench import zoo
from bench.harness import Bench


def bench(only: str | None = None) -> Bench:
    options = Namespace(strict=False, only=only)
    return Bench("zoo", 1, True, options, Console(quiet=True), random.Random(1))


def row(name: str, *, load_ms: float = 90.0, cost: float = 1.0, is_equal: bool = True) -> zoo.Row:
    return zoo.Row(
        name=name, size="small", nodes=7, weights_mib=1.0, load_ms=load_ms, read_ms=10.0,
        hashed_ms=12.0, groups=3, run_ms=4.0, longest_ms=1.0, overhead_percent=cost,
        noise_percent=0.5, is_equal=is_equal,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "refused", "missed"),
    [
        ([row("a")], [], []),
        ([row("a")], ["b"], ["not exported"]),
        ([row("a"), row("b", is_equal=False)], [], ["not bit-equal"]),
        ([row("a"), row("b", load_ms=19.0)], [], ["load / read, median", "load / read, smallest"]),
        ([row("a"), row("b", cost=3.5)], [], ["cost of groups, largest (b)"]),
    ],
)
def test_what_is_wrong_is_a_goal_missed(
    rows: list[zoo.Row], refused: list[str], missed: list[str]
) -> None:
    made = bench()
    zoo.report(made, rows, refused)
    assert [figure.name for figure in made.figures if not figure.is_met] == missed
    assert [each["ratio"] for each in made.rows] == [each.ratio for each in rows]


def test_a_run_without_a_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_made(_: Bench, names: list[str], refused: list[str]) -> list[object]:
        refused += names
        return []

    monkeypatch.setattr(zoo, "made", none_made)
    with pytest.raises(SystemExit, match="none of the models could be exported"):
        zoo.body(bench(only="vit"))
    with pytest.raises(SystemExit, match="no such architecture: nonsense"):
        zoo.body(bench(only="vit,nonsense"))
