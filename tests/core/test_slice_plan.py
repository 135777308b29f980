"""Slices where no bound decides: the least sum of delays, and the fewest SLOs missed."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumuxd.core.delay_predictor import GRID, PPM, predict_cut, weighed_ns
from gpumuxd.core.slice_plan import (
    SLICES_MAX,
    SLOS_MAX,
    Basis,
    Slo,
    cut,
    lengths_ns,
    make_plan,
)
from gpumuxd.core.slicing_mode import Mode
from gpumuxd.domain import SyncCost

TENS = [10] * 40
ALONE = (SyncCost(1, 20, 5),)
TWO = (SyncCost(1, 12, 5), SyncCost(2, 4, 5))


def prefix(group_ns: list[int]) -> list[int]:
    return [0, *accumulate(group_ns)]


def basis(
    costs: tuple[SyncCost, ...] = ALONE,
    *slos: Slo,
    own_slo_ns: int = 0,
    share_ppm: int = PPM,
) -> Basis:
    mode = Mode.SLO if slos else Mode.LEAST_DELAY
    return Basis(mode, costs, slos, own_slo_ns, share_ppm)


@pytest.mark.parametrize(
    ("group_ns", "slice_ns", "slices_ns"),
    [
        ([10] * 6, 30, [30, 30]),
        ([10] * 6, 29, [20, 20, 20]),
        ([10] * 5, 20, [20, 20, 10]),
        ([10] * 3, 1, [10, 10, 10]),
        ([10] * 3, 99, [30]),
        ([50, 5, 5, 50, 5], 20, [50, 10, 50, 5]),  # a group that is longer is alone
    ],
)
def test_cut(group_ns: list[int], slice_ns: int, slices_ns: list[int]) -> None:
    assert cut(prefix(group_ns), slice_ns) == prefix(slices_ns)


@pytest.mark.parametrize("groups", [1, 2, 7, 40, 500])
def test_the_lengths_that_are_tried(groups: int) -> None:
    tried = list(lengths_ns(prefix([10] * groups)))
    assert tried == sorted(set(tried))
    assert tried[-1] == 10 * groups
    assert tried[: min(groups, 10)] == [10 * k for k in range(1, min(groups, 10) + 1)]
    assert len(tried) < 35


@pytest.mark.parametrize(
    ("costs", "outstanding_ns", "share_ppm", "slice_ns", "window"),
    [
        # 20 for each of 5 sync points, and 80 in flight; 4 and 100 are as good, and longer
        (ALONE, 0, PPM, 80, 1),
        # with two in flight one costs 4, but two slices are in the way
        (TWO, 0, PPM, 30, 2),
        # launch-bound: a second slice is hardly ever there before the first has passed
        (TWO, 12, PPM, 40, 2),
        (ALONE, 12, PPM, 80, 1),
        # hardly anybody preempts
        (TWO, 0, PPM // 100, 400, 2),
    ],
)
def test_least_delay(
    costs: tuple[SyncCost, ...], outstanding_ns: int, share_ppm: int, slice_ns: int, window: int
) -> None:
    plan = make_plan(basis(costs, share_ppm=share_ppm), prefix(TENS), outstanding_ns)
    assert (plan.slice_ns, plan.window) == (slice_ns, window)


@settings(max_examples=60, deadline=None)
@given(
    group_ns=st.lists(st.integers(1, 10**6), min_size=1, max_size=60),
    sync_ns=st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    share_ppm=st.integers(0, PPM),
)
def test_nothing_on_the_papers_grid_is_much_better(
    group_ns: list[int], sync_ns: list[int], share_ppm: int
) -> None:
    """Whatever the groups: no length of the grid, with any window, has a sum that is a third less
    (between two lengths that are tried lies a quarter)."""
    ends = prefix(group_ns)
    costs = tuple(SyncCost(window, each, 0) for window, each in enumerate(sync_ns, start=1))
    plan = make_plan(basis(costs, share_ppm=share_ppm), ends, 0)
    for groups in GRID:
        slices = cut(ends, min(groups * ends[-1] // len(group_ns), ends[-1]) or 1)
        for cost in costs:
            delay = predict_cut(slices, ends[-1], cost, sync_ns[0])
            assert weighed_ns(plan.delay, share_ppm) <= weighed_ns(delay, share_ppm) * 4 // 3 + 1


def voice(laxity_ns: int, run_ns: int = 1, rank: int = 2, model: str = "voice") -> Slo:
    return Slo(model, rank, laxity_ns, run_ns)


CROWD = [voice(401, 500, rank=0, model=str(n)) for n in range(9)]
"""Who want as few sync points as can be: their runs leave this program nothing of its SLO."""


@pytest.mark.parametrize(
    ("what", "costs", "slos", "own_slo_ns", "slice_ns", "window"),
    [
        ("what keeps the laxity, with the least sum", TWO, [voice(45)], 0, 20, 2),
        ("the same, stop and wait", ALONE, [voice(45)], 0, 40, 1),
        ("wider than least delay needs: least delay", TWO, [voice(1_000)], 0, 30, 2),
        ("nothing keeps it: as short as it goes", TWO, [voice(5)], 0, 10, 1),
        ("nobody can wait at all: least delay is as good as any", TWO, [voice(0)], 0, 30, 2),
        ("the tighter of two", TWO, [voice(500), voice(25, model="b")], 0, 10, 2),
        # 400 of work, 5, one run of voice, and 20 for each slice: 8 of them are in time
        ("its own SLO forbids so many sync points", ALONE, [voice(45, 50, rank=0)], 620, 50, 1),
        ("but a higher class comes first", ALONE, [voice(45, 50)], 620, 40, 1),
        ("nobody of a lower class outweighs it", TWO, [voice(45), *CROWD], 620, 20, 2),
        ("its own SLO is lost anyway", ALONE, [voice(45, 50)], 420, 40, 1),
    ],
)
def test_fewest_slos_missed(
    what: str,
    costs: tuple[SyncCost, ...],
    slos: list[Slo],
    own_slo_ns: int,
    slice_ns: int,
    window: int,
) -> None:
    plan = make_plan(basis(costs, *slos, own_slo_ns=own_slo_ns), prefix(TENS), 0)
    assert (plan.slice_ns, plan.window) == (slice_ns, window), what


def test_one_long_group_does_not_make_others_give_up() -> None:
    """At worst voice is late whatever is done; at most moments it need not be."""
    ends = prefix([10] * 20 + [200] + [10] * 20)
    plan = make_plan(basis(TWO, voice(50)), ends, 0)
    slices_ns = [end - start for start, end in pairwise(cut(ends, plan.slice_ns))]
    others = [slice_ns for slice_ns in slices_ns if slice_ns != 200]
    assert max(others) * plan.window <= 50
    assert plan.delay.preempt_ns >= 200


@dataclass(frozen=True)
class Change:
    """What a plan was made from, a little later."""

    basis: Basis
    total_ns: int = 400
    longest_ns: int = 10


PLANNED = Basis(Mode.SLO, TWO, (voice(80, 160),), 1_000, 500_000)


@pytest.mark.parametrize(
    ("change", "is_current"),
    [
        (Change(PLANNED), True),
        (Change(PLANNED, total_ns=450, longest_ns=11), True),
        (Change(PLANNED, total_ns=451), False),
        (Change(PLANNED, total_ns=349), False),
        (Change(PLANNED, longest_ns=12), False),
        (Change(PLANNED._replace(mode=Mode.LEAST_DELAY)), False),
        (Change(PLANNED._replace(own_slo_ns=0)), False),
        (Change(PLANNED._replace(slos=(voice(90, 180),))), True),
        (Change(PLANNED._replace(slos=(voice(91, 160),))), False),
        (Change(PLANNED._replace(slos=(voice(80, 139),))), False),
        (Change(PLANNED._replace(slos=(voice(80, 160, model="other"),))), False),
        (Change(PLANNED._replace(slos=())), False),
        (Change(PLANNED._replace(share_ppm=250_000)), True),
        (Change(PLANNED._replace(share_ppm=249_999)), False),
        (Change(PLANNED._replace(costs=(TWO[0], SyncCost(2, 5_004, 5)))), True),
        (Change(PLANNED._replace(costs=(TWO[0], SyncCost(2, 5_005, 5)))), False),
        (Change(PLANNED._replace(costs=(TWO[0], SyncCost(2, 4, 6)))), False),
        (Change(PLANNED._replace(costs=TWO[:1])), False),
    ],
)
def test_only_what_is_noticeable_makes_a_plan_stale(change: Change, is_current: bool) -> None:
    plan = make_plan(PLANNED, prefix(TENS), 0)
    assert plan.is_current(change.basis, change.total_ns, change.longest_ns) == is_current


def test_the_tightest_of_a_class_count_and_a_crowd_costs_no_more() -> None:
    few = [voice(20 + n, model=str(n)) for n in range(SLOS_MAX)]
    crowd = [*few, *(voice(300, model=f"more{n}") for n in range(50))]
    plans = [make_plan(basis(TWO, *slos), prefix(TENS), 0) for slos in (few, crowd[::-1])]
    assert (plans[0].slice_ns, plans[0].window) == (plans[1].slice_ns, plans[1].window)


def test_long_programs_and_wide_windows_are_not_tried_out_in_full() -> None:
    long = prefix([10] * 20 * SLICES_MAX)
    assert len(cut(long, next(lengths_ns(long)))) - 1 <= SLICES_MAX
    assert len(list(lengths_ns(long))) < 40
    costs = tuple(SyncCost(window, 100 // window, 0) for window in range(1, 65))
    tried: set[int] = set()
    for share_ppm in (0, PPM // 1000, PPM // 10, PPM):
        tried.add(make_plan(basis(costs, share_ppm=share_ppm), prefix(TENS), 0).window)
    assert tried <= {1, 2, 3, 4, 8, 16, 32, 64}
