"""`bench/deft`: its statistics are right, and its virtual half runs and says what must be so."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.deft import profiles
from bench.deft.bed import Flown
from bench.deft.intervals import interval
from bench.deft.pairs import compare
from bench.deft.profiles import Batch, ModelTimes, Profiles
from bench.deft.report import late_percent, saved_percent
from bench.deft.virtual import (
    ADAPTIVE,
    FIXED,
    NONE,
    Looped,
    Misses,
    as_a,
    count_misses,
    loop_all,
    share_late,
)
from bench.deft.world import Device, Starts, most_in_flight
from gpumuxd.domain import SyncCost
from gpumuxd.units import NS_PER_US

COSTS = (SyncCost(1, 80_000, 0), SyncCost(2, 20_000, 0))


def model(name: str, operator_us: Sequence[int]) -> ModelTimes:
    """Each batch takes twice as long as the one before it."""
    batches = {}
    for index, batch in enumerate(profiles.BATCHES):
        operator_ns = tuple(each * NS_PER_US << index for each in operator_us)
        batches[batch] = Batch(operator_ns, sum(operator_ns), sum(operator_ns))
    ends = tuple(range(3, len(operator_us) + 1, 3))
    return ModelTimes(name, "made up", "small", ends, batches)


MADE_UP = Profiles(
    (model("even", [200] * 24), model("uneven", [30, 500, 20, 60] * 6)), COSTS, {}, {}, "today"
)


@pytest.fixture(scope="module")
def looped() -> list[Looped]:
    return list(loop_all(MADE_UP, Device.of(COSTS), seed=1, phases=20))


# Three slices of 100, launched ahead of each other; the host hears of each 10 after its end.
AHEAD = [Flown(0, 0, 100, 110), Flown(0, 100, 200, 210), Flown(110, 200, 300, 310)]
# Stop and wait.
WAITING = [Flown(0, 0, 100, 110), Flown(110, 110, 210, 220)]


@pytest.mark.parametrize(
    ("flown", "window", "time_ns", "start_ns"),
    [
        (AHEAD, 2, 40, 200),  # the window is full: launched at 110, behind the second slice
        (AHEAD, 3, 40, 200),  # launched at once, behind the same
        (AHEAD, 2, 110, 200),  # the launch of that very moment comes after it
        (AHEAD, 2, 111, 300),
        (AHEAD, 2, 310, 310),  # nothing is in flight
        (WAITING, 1, 40, 110),  # the host has to hear of the end first
        (WAITING, 1, 105, 110),
        (WAITING, 1, 110, 110),
        (WAITING, 1, 111, 220),
    ],
)
def test_an_arrival_starts_behind_what_is_in_flight(
    flown: Sequence[Flown], window: int, time_ns: int, start_ns: int
) -> None:
    assert Starts(flown, window, 0).of(time_ns) == start_ns


def test_slices_in_flight_are_counted_until_the_host_hears() -> None:
    assert most_in_flight(AHEAD) == 2
    assert most_in_flight(WAITING) == 1
    assert most_in_flight([Flown(0, 0, 100, 110), Flown(105, 105, 200, 210)]) == 2


@pytest.mark.parametrize(
    ("slo_ns", "late"), [(9, 1.0), (11, 0.75), (12, 0.5), (21, 0.25), (22, 0.0)]
)
def test_late_are_the_combinations_beyond_the_slo(slo_ns: int, late: float) -> None:
    assert share_late([0, 10], [11, 12], slo_ns) == pytest.approx(late)


def test_profiles_come_back_as_they_were_written(tmp_path: Path) -> None:
    profiles.write(MADE_UP, tmp_path / "some.json")
    assert profiles.read(tmp_path / "some.json") == MADE_UP


def test_an_interval_holds_the_mean_and_is_as_wide_as_the_values() -> None:
    narrow, wide = interval([9.9, 10.0, 10.1] * 5), interval([1.0, 10.0, 19.0] * 5)
    assert narrow.low < narrow.mean < narrow.high
    assert wide.high - wide.low > 50 * (narrow.high - narrow.low)
    assert interval([3.0] * 4).low == interval([3.0] * 4).high == 3.0


def test_more_sync_points_cost_more_and_let_others_wait_less(looped: list[Looped]) -> None:
    assert len(looped) == 4
    for each in looped:
        none, often, rarely = (each.policies[name] for name in (NONE, "every(1)", "every(20)"))
        assert none.added_ms == 0
        assert 0 < rarely.added_ms < often.added_ms
        assert often.worst_ms < rarely.worst_ms < none.worst_ms
        assert often.mean_ms < often.worst_ms


def test_sync_points_of_even_slices_cost_what_the_device_takes(looped: list[Looped]) -> None:
    cost = looped[0].sweep[1, 1]
    # As many, less the one at the end of a whole inference, whose round trip is hidden.
    assert cost.added_ms == pytest.approx(24 * 0.080 - 0.020, rel=0.02)
    # One operator of 0.2 ms give or take 5 %, the round trip until the host hears of it.
    assert cost.worst_ms == pytest.approx(0.2 + 0.080, rel=0.15)


def test_what_is_chosen_is_near_the_best_of_the_sweep(looped: list[Looped]) -> None:
    for each in looped:
        assert each.over_best <= 1.10, each.chosen


def test_savings_are_of_the_average_of_the_rivals(looped: list[Looped]) -> None:
    assert saved_percent(looped, lambda cost: 5.0) == pytest.approx(0)
    ours = {id(each.policies[ADAPTIVE]) for each in looped}
    saved = saved_percent(looped, lambda cost: 1.0 if id(cost) in ours else 4.0)
    assert saved == pytest.approx(75)


def test_every_ordered_pair_counts_once_a_batch_and_slo(looped: list[Looped]) -> None:
    misses = list(count_misses(looped, MADE_UP, Device.of(COSTS), seed=1, phases=10))
    cases = {(m.a.model.name, m.a.batch, m.b.model.name, m.b.batch, m.slo) for m in misses}
    assert len(cases) == len(misses) == 2 * 2 * 2 * 2
    assert all(case[0] != case[2] for case in cases)
    late = late_percent(misses)
    assert set(late) == {*FIXED, ADAPTIVE}
    # Whole inferences are in the way of one that may wait no longer than itself runs.
    assert late[ADAPTIVE] < late[NONE]


def test_a_miss_share_is_the_mean_over_pairs() -> None:
    role = as_a(MADE_UP.models[0], 1)
    some, none = (dict.fromkeys((*FIXED, ADAPTIVE), share) for share in (0.5, 0.0))
    assert late_percent([Misses(role, role, 2, some), Misses(role, role, 2, none)])[NONE] == 25


def test_whole_simulations_of_pairs_agree_with_what_is_computed() -> None:
    found = compare(MADE_UP, Device.of(COSTS), seed=3, count=2, phases=30)
    assert {each.policy for each in found} == {"none", "layer", "every(4)", ADAPTIVE}
    for each in found:
        assert each.of_delay < 0.15, each
        assert abs(each.simulated_late - each.computed_late) < 0.15, each


def test_the_same_seed_gives_the_same_figures(looped: list[Looped]) -> None:
    again = next(iter(loop_all(MADE_UP, Device.of(COSTS), seed=1, phases=20)))
    assert again.policies == looped[0].policies
    assert again.sweep == looped[0].sweep


def test_the_committed_profiles_are_whole() -> None:
    known = profiles.read()
    assert len({each.name for each in known.models}) >= 12
    assert [cost.window for cost in known.costs] == list(profiles.WINDOWS)
    for each in known.models:
        assert set(each.batches) == set(profiles.BATCHES)
        assert {len(batch.operator_ns) for batch in each.batches.values()} == {each.operators}
        assert each.layer_ends[-1] == each.operators
    assert profiles.PATH.stat().st_size < 1_000_000
