"""The formula of Deft: its golden values, its shape, and what windows and real cuts add."""

from itertools import accumulate, pairwise
from math import isqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumuxd.core.delay_predictor import (
    GRID,
    PPM,
    Delay,
    bared_ns,
    choose,
    predict,
    predict_cut,
    share_over_ppm,
    weighed_ns,
    worst_in_flight_ns,
)
from gpumuxd.domain import SyncCost

US = 1_000
PAPER = SyncCost(1, 11_500, 2_920 * US)
"""Fitted on the testbed of the paper: 0.0115 ms per sync point, 2.92 ms per inference."""


@pytest.mark.parametrize(
    ("groups", "tau_us", "outstanding_max", "slice_groups", "exec_us", "preempt_us", "never_us"),
    [
        (1_000, 50, 300, 20, 3_495, 1_000, 17_920),
        (1_000, 50, 40, 20, 3_495, 1_000, 4_920),
        (2_350, 45, 1_000, 20, 4_265.5, 900, 47_920),
        (400, 20, 10, 500, 2_920, 200, 3_120),  # launch-bound: never
    ],
)
def test_golden_values(
    groups: int,
    tau_us: int,
    outstanding_max: int,
    slice_groups: int,
    exec_us: float,
    preempt_us: int,
    never_us: int,
) -> None:
    chosen = choose(groups, tau_us * US, outstanding_max, [PAPER])
    assert chosen == (slice_groups, 1, Delay(round(exec_us * US), preempt_us * US))
    never = predict(groups, tau_us * US, outstanding_max, PAPER, GRID[-1])
    assert never.total_ns == never_us * US


def test_the_grid_is_the_paper_s() -> None:
    assert len(GRID) == 13
    assert GRID[0] == 1
    assert GRID[-1] == 1_000_000
    assert list(GRID) == sorted(GRID)


def test_of_equal_sums_the_first_counts() -> None:
    free = SyncCost(1, 0, 0)
    assert choose(100, 10, 0, [free]).slice_groups == 1  # nothing costs anything
    assert choose(100, 10, 99, [free._replace(sync_ns=10)]).slice_groups == 8  # 8 and 10: 200
    two = [SyncCost(1, 0, 7), SyncCost(2, 0, 7)]
    assert choose(100, 0, 9, two).window == 1
    assert choose(100, 10, 4, [two[0]._replace(sync_ns=10), two[1]]).window == 2


@pytest.mark.parametrize(
    ("sync_ns", "expected"),
    # a window of two hides most of a sync point: cheap enough, and it is taken
    [((1_000, 1_000), 1), ((1_000, 600), 1), ((1_000, 100), 2)],
)
def test_k_and_window_are_chosen_together(sync_ns: tuple[int, int], expected: int) -> None:
    costs = [SyncCost(window, each, 0) for window, each in enumerate(sync_ns, start=1)]
    chosen = choose(1_000, 1_000, 10_000, costs)
    assert chosen.window == expected
    for cost in costs:
        for slice_groups in GRID:
            assert (
                chosen.delay.total_ns <= predict(1_000, 1_000, 10_000, cost, slice_groups).total_ns
            )


@settings(max_examples=50, deadline=None)
@given(
    groups=st.integers(1, 5_000),
    tau_ns=st.integers(1, 10**6),
    outstanding=st.integers(1, 5_000),
    cost=st.builds(SyncCost, st.integers(1, 4), st.integers(0, 10**6), st.integers(0, 10**7)),
)
def test_longer_slices_cost_less_and_leave_more_in_flight(
    groups: int, tau_ns: int, outstanding: int, cost: SyncCost
) -> None:
    delays = [predict(groups, tau_ns, outstanding, cost, k) for k in range(1, 60)]
    for shorter, longer in pairwise(delays):
        assert shorter.exec_ns >= longer.exec_ns >= cost.base_ns
        assert shorter.preempt_ns <= longer.preempt_ns <= outstanding * tau_ns


@settings(max_examples=50, deadline=None)
@given(groups=st.integers(200, 100_000), tau_ns=st.integers(10_000, 10**6), root=st.integers(4, 60))
def test_the_choice_lies_beside_the_square_root(groups: int, tau_ns: int, root: int) -> None:
    """Relaxed to real k the sum is least at sqrt(a N / tau), and the grid's best is next to it."""
    sync_ns = root * root * tau_ns // groups + 1
    best = isqrt(sync_ns * groups // tau_ns)
    chosen = choose(groups, tau_ns, groups, [SyncCost(1, sync_ns, 0)])
    # Equal sums lie at a constant ratio around the root, and the grid's steps are at most 2.5 here;
    # the floor in N / k moves it by one part in k.
    near = [k for k in GRID if best / 2 <= k <= best * 2]
    assert chosen.slice_groups in near
    least_ns = 2 * isqrt(sync_ns * groups * tau_ns)
    assert chosen.delay.total_ns <= 1.1 * least_ns + sync_ns + tau_ns


@settings(max_examples=50, deadline=None)
@given(groups=st.integers(1, 2_000), outstanding=st.integers(1, 30), tau_ns=st.integers(1, 10**5))
def test_launch_bound_models_get_no_sync_points(groups: int, outstanding: int, tau_ns: int) -> None:
    """When all that is ever in flight is worth less than one sync point, none pays."""
    cost = SyncCost(1, outstanding * tau_ns + 1, 0)
    assert groups // choose(groups, tau_ns, outstanding, [cost]).slice_groups == 0


def test_rare_preemptions_weigh_less() -> None:
    often, rarely, never = (
        choose(1_000, 50_000, 1_000, [PAPER], share).slice_groups for share in (PPM, PPM // 100, 0)
    )
    assert (often, rarely, never) == (20, 100, 5_000)
    assert weighed_ns(Delay(7, 100), PPM // 4) == 32


def ends(*slices_ns: int) -> list[int]:
    return [0, *accumulate(slices_ns)]


@pytest.mark.parametrize(
    ("slices_ns", "window", "worst_ns"),
    [
        ([100], 1, 100),
        ([100], 3, 100),
        ([100, 100, 100, 100], 1, 100),
        ([100, 100, 100, 100], 2, 200),
        ([300, 100], 1, 300),
        ([10, 200, 30, 90], 2, 230),
        ([10, 200, 30, 90], 3, 320),
        ([10, 200, 30, 90], 9, 330),
    ],
)
def test_the_most_in_flight(slices_ns: list[int], window: int, worst_ns: int) -> None:
    assert worst_in_flight_ns(ends(*slices_ns), window) == worst_ns


@pytest.mark.parametrize(
    ("slices_ns", "window", "limit_ns", "share"),
    [
        ([100, 100], 1, 100, 0),
        ([100, 100], 1, 99, 10_000),
        ([100, 100], 1, 75, 250_000),  # the first quarter of each
        ([100, 100], 1, 0, PPM),
        # of the first slice all but its last 50: then 150 are left; the second has none behind it
        ([100, 100], 2, 150, 250_000),
        ([100, 100], 2, 100, 500_000),
        ([100, 100], 2, 50, 750_000),
        ([10, 970, 10, 10], 1, 10, 960_000),
    ],
)
def test_the_share_of_moments_with_more_in_flight(
    slices_ns: list[int], window: int, limit_ns: int, share: int
) -> None:
    assert share_over_ppm(ends(*slices_ns), window, limit_ns) == share


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("slice_groups", [1, 2, 4, 8, 10, 20])
def test_a_real_cut_of_equal_groups_is_the_formula(window: int, slice_groups: int) -> None:
    cost = PAPER._replace(window=window)
    slices_ns = [slice_groups * 50 * US] * (400 // slice_groups)
    assert predict_cut(ends(*slices_ns), 30 * 50 * US, cost) == predict(
        400, 50 * US, 30, cost, slice_groups
    )


def test_a_slice_is_in_the_way_as_a_whole() -> None:
    """However little is ever outstanding when groups are launched one by one."""
    two = PAPER._replace(window=2)
    assert predict_cut(ends(100, 300, 200), 250, PAPER).preempt_ns == 300
    assert predict_cut(ends(100, 300, 200), 250, two).preempt_ns == 300
    assert predict_cut(ends(100, 300, 200), 450, two).preempt_ns == 450
    assert predict_cut(ends(100, 300, 200), 999, two).preempt_ns == 500


@pytest.mark.parametrize(
    ("slices_ns", "window", "round_trip_ns", "bared"),
    [
        ([100, 100, 100], 2, 100, 0),  # one behind is as long as the round trip
        ([100, 100, 100], 2, 130, 2 * 30),  # and does not hide more than its length
        ([100, 100, 100], 3, 130, 0),  # two behind do
        ([300, 20, 300, 20], 2, 100, 2 * 80),  # where a short one is behind
        ([300, 20, 300, 20], 3, 100, 0),
        ([20], 2, 100, 0),  # what follows the run is taken to hide its last round trips
        ([20, 20], 3, 100, 0),
    ],
)
def test_short_slices_do_not_hide_the_round_trip(
    slices_ns: list[int], window: int, round_trip_ns: int, bared: int
) -> None:
    assert bared_ns(ends(*slices_ns), window, round_trip_ns) == bared
    several = SyncCost(window, 5, 7)
    delay = predict_cut(ends(*slices_ns), 999, several, round_trip_ns + 5)
    assert delay.exec_ns == 5 * len(slices_ns) + 7 + bared
    alone = predict_cut(ends(*slices_ns), 999, several._replace(window=1), round_trip_ns + 5)
    assert alone.exec_ns == 5 * len(slices_ns) + 7, "with one in flight it is in the cost"
