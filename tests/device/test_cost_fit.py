"""The fit of sync costs, on numbers that were made up."""

import pytest

from gpumuxd.device.cost_fit import fit
from gpumuxd.domain import SyncCost

GROUPS = 16
LENGTHS = (1, 2, 4, 8, 17)


def exact(sync_ns: int, base_ns: int) -> dict[int, int]:
    """Runs of one window that follow the formula."""
    return {k: base_ns + sync_ns * (GROUPS // k) for k in LENGTHS}


@pytest.mark.parametrize(
    ("sync_ns", "base_ns"),
    [
        ([11_500], 2_920_000),
        ([0], 0),
        ([0], 90_000),
        ([1], 1),
        ([80_000, 0], 0),
        ([133_211, 15_003, 14_007, 1], 40_007),
        ([5, 500, 50], 7),
    ],
)
def test_what_follows_the_formula_is_found_again(sync_ns: list[int], base_ns: int) -> None:
    runs = {window: exact(ns, base_ns) for window, ns in enumerate(sync_ns, 1)}
    assert fit(GROUPS, runs) == tuple(
        SyncCost(window, ns, base_ns) for window, ns in enumerate(sync_ns, 1)
    )


def test_one_window_is_a_plain_least_squares_line() -> None:
    # (x, y) = (16, 36), (8, 18), (0, 6): mean (8, 20), slope 8 * 30 / 128, intercept 20 - 15
    runs = {1: 36, 2: 18, 17: 6}
    assert fit(GROUPS, {1: runs}) == (SyncCost(1, 2, 5),)


def test_windows_have_one_base() -> None:
    """Each by itself would say 100 and 300 at no sync point, and compare windows by that."""
    runs = {1: {1: 1_700, 17: 100}, 2: {1: 1_900, 17: 300}}
    first, second = fit(GROUPS, runs)
    assert first.base_ns == second.base_ns == 200
    assert first.sync_ns < 100 < second.sync_ns


@pytest.mark.parametrize(
    ("runs", "base_ns"),
    [
        # more sync points, and faster: no slope, and the mean of what is left
        ({1: 100, 17: 300}, 200),
        # the same, and less than nothing: a clock that was read too early
        ({1: -500, 17: -100}, 0),
    ],
)
def test_a_sync_point_never_costs_less_than_nothing(runs: dict[int, int], base_ns: int) -> None:
    assert fit(GROUPS, {2: runs}) == (SyncCost(2, 0, base_ns),)


def test_a_window_without_cost_leaves_the_others_their_own() -> None:
    """One that seems to cost less than nothing counts as flat, and must not drag the rest along."""
    faster = {1: -700, 17: 900}
    costs = fit(GROUPS, {1: exact(5_000, 900), 2: faster, 3: exact(1_000, 900)})
    assert [cost.window for cost in costs] == [1, 2, 3]
    assert costs[1].sync_ns == 0
    assert abs(costs[0].sync_ns - 5_000) < 50
    assert abs(costs[2].sync_ns - 1_000) < 50


def test_a_device_never_idles_less_than_not_at_all() -> None:
    runs = {1: 16_000, 17: -400}
    assert fit(GROUPS, {1: runs}) == (SyncCost(1, 1_025, 0),)


@pytest.mark.parametrize("runs", [{9: 5, 12: 6}, {17: 5}])
def test_without_two_different_lengths_there_is_no_slope(runs: dict[int, int]) -> None:
    with pytest.raises(AssertionError):
        fit(GROUPS, {1: runs})
