"""Buckets that borrow, drift that all models share, and interference."""

import pytest

from gpumuxd.core.bucket_table import ONE, BucketTable
from gpumuxd.core.estimator import BUCKETS_MAX, DRIFT_SAMPLES, PASSING_MAX, Estimates, Estimator
from gpumuxd.domain import Bucket
from gpumuxd.events import ModelProfile

THREE = ModelProfile(2, {(1,): (10, 20), (4,): (40, 50), (16,): (160, 170)}, {})


@pytest.mark.parametrize(
    ("bucket", "group_ns"),
    [
        ((1,), (10, 20)),
        ((4,), (40, 50)),
        ((2,), (20, 30)),
        ((3,), (30, 40)),
        ((10,), (100, 110)),
        ((64,), (640, 650)),
    ],
)
def test_an_unseen_bucket_borrows_group_by_group(
    bucket: tuple[int, ...], group_ns: tuple[int, int]
) -> None:
    table = Estimates(THREE).table(bucket)
    assert table.prefix == [0, group_ns[0], sum(group_ns)]
    assert table.run_ns == sum(group_ns)
    assert table.is_guess == (bucket not in THREE.group_ns)


def test_a_run_is_carried_over_apart_from_its_groups() -> None:
    runs = ModelProfile(1, {(1,): (1_000,), (3,): (3_000,)}, {(1,): 1_200, (3,): 5_200})
    assert abs(Estimates(runs).table((2,)).run_ns - 3_200) <= 2


def test_what_was_learnt_is_lent_and_what_was_borrowed_is_not() -> None:
    estimates = Estimates(ModelProfile(1, {(1,): (1_000,)}, {}))
    assert estimates.table((4,)).run_ns == 4_000, "one size alone: in proportion"
    assert estimates.table((8,)).run_ns == 8_000
    table = estimates.table((4,))
    for number in range(32):
        column = table.new_column(number)
        table.record_slice(column, 0, 1, 2_500)
        table.record_run(column, 2_500, number)
    # 1: 1,000, 4: 2,500, so 500 each; the guess for 8 is no evidence.
    assert abs(estimates.table((16,)).run_ns - 8_500) < 10
    assert abs(estimates.table((2,)).run_ns - 1_500) < 10


def test_the_most_outstanding_is_known_where_it_was_measured() -> None:
    estimates = Estimates(ModelProfile(1, {(1,): (10,), (2,): (20,)}, {}, outstanding_ns={(2,): 7}))
    assert [estimates.table((size,)).outstanding_ns for size in (1, 2, 3)] == [0, 7, 0]


def test_an_unmeasured_model_is_unknown_and_then_lends_what_it_learns() -> None:
    estimates = Estimates(ModelProfile(1))
    first, other = estimates.table((1,)), estimates.table((8,))
    assert not first.is_known
    assert not other.is_known
    first.record_slice(0, 0, 1, 100)
    assert estimates.table((8,)) is other
    assert other.run_ns == 800


def test_who_measures_a_bucket_borrows_nothing_but_finds_what_is_known() -> None:
    estimates = Estimates(ModelProfile(1, {(1,): (10,)}, {}))
    assert not estimates.table((8,), may_borrow=False).is_known
    assert estimates.table((1,), may_borrow=False).run_ns == 10
    assert estimates.table((8,)).run_ns == 80


def test_tables_are_kept_up_to_a_limit_and_predict_beyond_it() -> None:
    estimates = Estimates(ModelProfile(1, {(1,): (10,)}, {}))
    for size in range(1, 3 * BUCKETS_MAX):
        assert estimates.table((size,)).run_ns > 0
    assert len(estimates.tables()) == BUCKETS_MAX


def test_one_size_too_many_is_guessed_once_while_it_is_asked_for() -> None:
    estimates = Estimates(ModelProfile(1, {(n,): (10 * n,) for n in range(1, BUCKETS_MAX + 1)}, {}))
    often = estimates.table((1_000,))
    assert (often.is_guess, often.run_ns) == (True, 10_000)
    for size in range(PASSING_MAX * 3):
        once = estimates.table((2_000 + size,))
        assert estimates.table((1_000,)) is often
        assert estimates.seen((2_000 + size,)) is once
    assert estimates.seen((2_000,)) is None, "forgotten"
    assert len(estimates.tables()) == BUCKETS_MAX


def test_a_program_without_groups_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Estimates(ModelProfile(0))


class Fleet:
    """Three models of one group, of which some report slices."""

    def __init__(self) -> None:
        self.estimator = Estimator()
        profile = ModelProfile(1, {(1,): (1_000,)}, {})
        self.tables = [self.estimator.add(n, profile).table((1,)) for n in range(3)]
        self.slices = 0

    def run(self, model: int, device_ns: int) -> bool:
        table: BucketTable = self.tables[model]
        column = table.new_column(self.slices)
        self.slices += 1
        ratio = table.record_slice(column, 0, 1, device_ns)
        moved = self.estimator.record_deviation(model, ratio, self.slices)
        table.record_run(column, device_ns, self.slices)
        return moved

    def runs_ns(self) -> list[int]:
        return [table.run_ns for table in self.tables]


def test_a_steady_ratio_over_all_models_rescales_all_at_once() -> None:
    fleet = Fleet()
    for number in range(64):
        fleet.run(number % 2, 1_000)
    moved = [fleet.run(number % 2, 1_500 + number % 3) for number in range(DRIFT_SAMPLES)]
    assert moved == [False] * (DRIFT_SAMPLES - 1) + [True]
    assert fleet.estimator.rescales == 1
    assert all(abs(run_ns - 1_500) < 20 for run_ns in fleet.runs_ns()), "the idle one too"
    for number in range(100):
        fleet.run(number % 2, 1_500 + number % 3)
    assert fleet.estimator.rescales == 1, "the change was counted once"
    assert all(abs(run_ns - 1_500) < 20 for run_ns in fleet.runs_ns())


def test_and_back_again() -> None:
    fleet = Fleet()
    for device_ns in (1_500, 1_000, 700):
        for number in range(100):
            fleet.run(number % 2, device_ns)
    assert fleet.estimator.rescales == 3
    assert all(abs(run_ns - 700) < 10 for run_ns in fleet.runs_ns())


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        ("only one model changed", [(0, 1_500)] * 20),
        ("models disagree", [(0, 1_500), (1, 3_000)] * 20),
        ("one has too few to say", [(0, 1_500)] * 14 + [(1, 1_500)] * 2 + [(0, 1_000)] * 20),
        ("up and down", [(0, 1_500), (1, 600)] * 20),
        ("not enough", [(0, 1_100), (1, 1_100)] * 20),
        ("interrupted", ([(0, 1_500), (1, 1_500)] * 7 + [(0, 1_000)]) * 2),
    ],
)
def test_what_does_not_rescale(name: str, samples: list[tuple[int, int]]) -> None:
    fleet = Fleet()
    for model, device_ns in samples:
        assert not fleet.run(model, device_ns), name
    assert fleet.estimator.rescales == 0


def test_interference_follows_steadily_and_one_outlier_hardly_moves_it() -> None:
    estimator = Estimator()
    assert estimator.interference == ONE
    estimator.record_interference(1_000, 1_000_000)
    assert estimator.interference <= ONE + ONE // 8
    for _ in range(200):
        estimator.record_interference(1_000, 1_400)
    assert abs(estimator.interference - ONE * 14 // 10) < ONE // 100
    for _ in range(200):
        estimator.record_interference(1_000, 900)
    assert estimator.interference == ONE, "another lane never makes work faster"


def test_unpredicted_work_says_nothing_of_interference() -> None:
    estimator = Estimator()
    estimator.record_interference(0, 1_000_000)
    assert estimator.interference == ONE


def test_a_rescale_folds_only_what_is_used() -> None:
    """Hundreds of tables folded at one event would stop everything for a second."""
    estimator = Estimator()
    group_ns: dict[Bucket, tuple[int, ...]] = {
        (size,): (1_000 * size, 500) for size in range(1, 41)
    }
    tables = [t for _, t in estimator.add(1, ModelProfile(2, group_ns, {})).tables()]
    for estimates in estimator._models.values():
        estimates.rescale(ONE * 3 // 2, 1)
    assert all(table._is_stale for table in tables)
    assert [table.run_ns for table in tables] == [1_500 * n + 750 for n in range(1, 41)]
    assert [table.longest_group_ns for table in tables] == [1_500 * n for n in range(1, 41)]
    assert tables[3].prefix == [0, 6_000, 6_750]
    assert tables[3].prefix[1] == tables[3].longest_group_ns
    assert [table for table in tables if not table._is_stale] == [tables[3]]
