"""From passes to figures."""

import pytest

from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.programs.profiler import (
    cuts_from_passes,
    median_ns,
    position_ns,
    profile_from_passes,
    run_ns,
)


@pytest.mark.parametrize(
    ("samples", "middle"),
    [([7], 7), ([1, 9], 1), ([9, 1, 5], 5), ([4, 1, 3, 2], 2), ([5, 5, 5, 1_000_000], 5)],
)
def test_median(samples: list[int], middle: int) -> None:
    assert median_ns(samples) == middle


PASSES = [[1, 10, 100], [2, 10, 90], [3, 999, 95]]


def test_one_disturbed_pass_moves_nothing() -> None:
    assert position_ns(PASSES) == (2, 10, 95)
    assert run_ns(PASSES) == 111


def test_a_run_is_a_median_of_runs_and_not_a_sum_of_medians() -> None:
    passes = [[1, 10], [10, 1], [6, 6]]
    assert sum(position_ns(passes)) == 12
    assert run_ns(passes) == 11


def test_passes_must_have_the_same_positions() -> None:
    with pytest.raises(ValueError, match="shorter"):
        position_ns([[1, 2], [1]])
    with pytest.raises(AssertionError):
        position_ns([])


def test_cuts_come_from_medians() -> None:
    assert cuts_from_passes([[4, 4, 4], [4, 900, 4], [4, 4, 4]], 10) == [2, 3]


def test_a_profile() -> None:
    profile = profile_from_passes([2, 3], {(1,): [[5, 6], [7, 8], [5, 6]], (2,): [[9, 9]]}, 1000)
    assert profile == StoredProfile(
        cuts=(2, 3),
        group_ns={(1,): (5, 6), (2,): (9, 9)},
        run_ns={(1,): 11, (2,): 18},
        frame_bytes=1000,
    )


def test_a_profile_must_fit_its_cuts() -> None:
    with pytest.raises(AssertionError):
        profile_from_passes([2, 3], {(1,): [[5, 6, 7]]}, 0)
