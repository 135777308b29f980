"""The fit of sync costs, on numbers that were made up."""

import pytest

from gpumuxd.device.cost_fit import fit
from gpumuxd.domain import SyncCost

GROUPS = 16
GROUPS_NS = 1_600_000


def exact(sync_ns: int, base_ns: int) -> dict[int, list[int]]:
    """Runs that follow the formula."""
    return {k: [GROUPS_NS + base_ns + sync_ns * (GROUPS // k)] for k in (1, 2, 4, 8, 17)}


@pytest.mark.parametrize(
    ("sync_ns", "base_ns"),
    [(11_500, 2_920_000), (0, 0), (0, 90_000), (80_000, 0), (1, 1), (73_211, 40_007)],
)
def test_what_follows_the_formula_is_found_again(sync_ns: int, base_ns: int) -> None:
    assert fit(3, GROUPS, GROUPS_NS, exact(sync_ns, base_ns)) == SyncCost(3, sync_ns, base_ns)


def test_runs_that_were_interrupted_move_nothing() -> None:
    runs = {k: [times[0] * 50, *times, *times, 0, *times] for k, times in exact(70, 900).items()}
    assert fit(1, GROUPS, GROUPS_NS, runs) == SyncCost(1, 70, 900)


def test_noise_that_cancels_out_does_so() -> None:
    #          x = 16   8    4    2   0; lifted alternately, with a slope of nothing left
    noise = {1: 3, 2: -7, 4: 0, 8: 5, 17: -1}
    runs = {k: [times[0] + noise[k]] for k, times in exact(1_000, 50_000).items()}
    assert fit(1, GROUPS, GROUPS_NS, runs) == SyncCost(1, 1_000, 50_000)


@pytest.mark.parametrize(
    ("runs", "base_ns"),
    [
        # more sync points, and faster: no slope, and the mean of what is left
        ({1: [GROUPS_NS + 100], 17: [GROUPS_NS + 300]}, 200),
        # the same, and faster than the groups alone
        ({1: [GROUPS_NS - 500], 17: [GROUPS_NS - 100]}, 0),
    ],
)
def test_a_sync_point_never_costs_less_than_nothing(
    runs: dict[int, list[int]], base_ns: int
) -> None:
    assert fit(2, GROUPS, GROUPS_NS, runs) == SyncCost(2, 0, base_ns)


def test_a_run_never_costs_less_than_its_groups() -> None:
    runs = {1: [GROUPS_NS + 16_000], 17: [GROUPS_NS - 400]}
    assert fit(1, GROUPS, GROUPS_NS, runs) == SyncCost(1, 1_025, 0)


def test_without_two_different_lengths_there_is_no_slope() -> None:
    with pytest.raises(AssertionError):
        fit(1, GROUPS, GROUPS_NS, {9: [5], 12: [6]})
