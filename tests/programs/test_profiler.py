"""From passes to figures."""

import pytest

from gpumuxd.domain import Bucket
from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.programs.profiler import (
    cuts_from_passes,
    median_ns,
    model_profile,
    outstanding_ns,
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
    profile = profile_from_passes(
        [2, 3], {(1,): [[5, 6], [7, 8], [5, 6]], (2,): [[9, 9]]}, {(1,): 1000, (2,): 2000}
    )
    assert profile == StoredProfile(
        cuts=(2, 3),
        group_ns={(1,): (5, 6), (2,): (9, 9)},
        run_ns={(1,): 11, (2,): 18},
        frame_bytes={(1,): 1000, (2,): 2000},
    )


def test_a_profile_must_fit_its_cuts() -> None:
    with pytest.raises(AssertionError):
        profile_from_passes([2, 3], {(1,): [[5, 6, 7]]}, {(1,): 0})


@pytest.mark.parametrize(
    ("group_ns", "launch_ns", "most_ns"),
    [
        # groups                 launch  most in flight
        ([10],                   0,      10),
        ([10],                   99,     10),
        # a host that costs nothing: all of it
        ([10, 10, 10],           0,      30),
        ([5, 50, 1],             0,      56),
        # the device is the slower one: all but what passed while the rest was launched
        ([100, 100, 100, 100],   10,     370),
        ([100, 1, 1, 1],         10,     100),
        # the host is the slower one: what was launched last
        ([10, 10, 10, 10],       10,     10),
        ([10, 10, 10, 10],       1_000,  10),
        ([10, 70, 10, 10],       1_000,  70),
        # first the one, then the other
        ([1, 1, 1, 50, 50, 50],  10,     130),
        ([50, 50, 50, 1, 1, 1],  10,     130),
        ([0, 0, 0],              5,      0),
    ],
)  # fmt: skip
def test_most_work_in_flight(group_ns: list[int], launch_ns: int, most_ns: int) -> None:
    assert outstanding_ns(group_ns, launch_ns) == most_ns


def test_what_the_scheduler_is_told() -> None:
    times: dict[Bucket, tuple[int, ...]] = {(1,): (100, 10, 100), (2,): (5, 5, 5)}
    stored = StoredProfile((2, 3, 5), times, {(1,): 211, (2,): 15}, 0)
    # of an ONNX model, cuts are not counted in operators
    told = model_profile(stored, operator_ends=[4, 9, 10], layer_ends=[1, 3, 9], launch_ns=20)
    assert told.group_count == 3
    assert (told.group_ns, told.run_ns) == (stored.group_ns, stored.run_ns)
    assert told.operators == (4, 5, 1)
    assert told.layer_ends == (1, 2)
    assert told.outstanding_ns == {(1,): 170, (2,): 5}
