"""Estimates of one program: percentiles, spreading, learning, rescaling."""

import pytest

from gpumuxd.core.bucket_table import COLUMNS, ONE, RUNS, RUNS_PER_FOLD, BucketTable


def table_of(*group_ns: int, run_ns: int | None = None) -> BucketTable:
    table = BucketTable(len(group_ns))
    table.set_base(group_ns, sum(group_ns) if run_ns is None else run_ns)
    return table


def groups(table: BucketTable) -> list[int]:
    return [end - start for start, end in zip(table.prefix, table.prefix[1:], strict=False)]


def run(table: BucketTable, *slices: tuple[int, int, int], slice_no: int = 0) -> None:
    """One run, in slices of (first group, end group, time)."""
    column = table.new_column(slice_no)
    for first, end, device_ns in slices:
        table.record_slice(column, first, end, device_ns)
    table.record_run(column, sum(device_ns for _, _, device_ns in slices), slice_no)


def test_a_profile_is_believed() -> None:
    table = table_of(100, 300, 50, run_ns=430)
    assert groups(table) == [100, 300, 50]
    assert abs(table.run_ns - 430) <= 1
    assert table.longest_group_ns == 300
    assert not table.is_measured


@pytest.mark.parametrize("outlier_ns", [1, 100_000_000])
def test_one_outlier_moves_nothing(outlier_ns: int) -> None:
    table = table_of(1_000, 1_000)
    before = (groups(table), table.run_ns, table.typical)
    run(table, (0, 2, outlier_ns))
    for _ in range(RUNS_PER_FOLD):
        run(table, (0, 2, 2_000))
    assert (groups(table), table.run_ns, table.typical) == before


def test_what_stays_slower_is_followed_up_quickly_and_down_when_all_agree() -> None:
    table = table_of(1_000, 1_000)
    for _ in range(RUNS_PER_FOLD):
        run(table, (0, 2, 3_000))
    assert groups(table) == [1_500, 1_500]  # the second largest of the window
    for _ in range(COLUMNS):
        run(table, (0, 2, 1_000))
    assert groups(table) == [500, 500]


def test_slices_take_a_p90_of_groups_and_runs_a_p95_of_runs() -> None:
    """1 in 8 runs is slow: that is more than 10 and more than 5 in 100."""
    table = table_of(1_000)
    for number in range(RUNS):
        run(table, (0, 1, 2_000 if number % 8 == 0 else 1_000))
    assert groups(table) == [2_000]
    assert table.run_ns == 2_000
    table = table_of(1_000)
    for number in range(RUNS):  # one in 32 shows in neither
        run(table, (0, 1, 2_000 if number == 9 else 1_000))
    assert (groups(table), table.run_ns) == ([1_000], 1_000)


def test_a_whole_run_is_not_the_sum_of_its_groups() -> None:
    """Each run one other group is slow: all groups' p90 are, no run is slow in all of them."""
    table = table_of(1_000, 1_000, 1_000, 1_000)
    for number in range(2 * RUNS):
        slow = number % 4
        run(table, *((g, g + 1, 2_000 if g == slow else 1_000) for g in range(4)))
    assert groups(table) == [2_000] * 4
    assert table.run_ns == 5_000


def test_a_slice_spreads_its_ratio_over_its_groups_alone() -> None:
    table = table_of(100, 300, 600)
    for _ in range(2 * RUNS_PER_FOLD):
        run(table, (0, 2, 800), (2, 3, 600))
    assert groups(table) == [200, 600, 600]


def test_the_ratio_tells_what_is_typical_of_this_program() -> None:
    table = table_of(1_000)
    assert table.record_slice(table.new_column(0), 0, 1, 1_500) == ONE * 3 // 2
    for _ in range(RUNS):
        run(table, (0, 1, 1_500))
    assert table.record_slice(table.new_column(0), 0, 1, 1_500) == ONE


@pytest.mark.parametrize("device_ns", [1_120, 880])
def test_small_deviations_are_typical(device_ns: int) -> None:
    table = table_of(1_000)
    assert table.record_slice(table.new_column(0), 0, 1, device_ns) == ONE


def test_an_unknown_program_is_learnt_from_its_first_complete_run() -> None:
    table = BucketTable(3)
    assert (table.is_known, table.run_ns, table.prefix) == (False, 0, [])
    column = table.new_column(0)
    for group, device_ns in enumerate((70, 20, 110)):
        assert not table.is_known
        assert table.record_slice(column, group, group + 1, device_ns) == ONE
    assert table.is_known
    assert groups(table) == [70, 20, 110]
    assert table.run_ns == 200


def test_a_guess_is_out_of_both_windows_after_one_whole_run() -> None:
    table = BucketTable(2)
    table.set_base((4_000, 1_000), 5_000, is_guess=True)
    assert table.is_guess
    run(table, (0, 1, 400), (1, 2, 600))
    assert groups(table) == pytest.approx([400, 600], abs=1)  # ratios are rounded down
    assert table.run_ns == pytest.approx(1_000, abs=1)
    assert table.is_guess, "one run may be an outlier"
    run(table, (0, 2, 1_000))
    assert not table.is_guess
    assert table.run_ns == pytest.approx(1_000, abs=1)
    for _ in range(2 * RUNS):
        run(table, (0, 2, 2_000))
    assert table.run_ns == pytest.approx(2_000, abs=1), "and from there it follows as ever"


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_one_outlier_among_the_first_real_runs_counts_as_little(slow: int) -> None:
    table = BucketTable(1)
    table.set_base((5_000,), 5_000, is_guess=True)
    for number in range(3):
        run(table, (0, 1, 90_000 if number == slow else 1_000))
    assert abs(table.run_ns - 1_000) <= 1


def test_what_a_guess_is_off_by_is_no_deviation() -> None:
    guessed, profiled = BucketTable(1), table_of(5_000)
    guessed.set_base((5_000,), 5_000, is_guess=True)
    assert guessed.record_slice(guessed.new_column(0), 0, 1, 1_000) == ONE
    assert profiled.record_slice(profiled.new_column(0), 0, 1, 1_000) != ONE


def test_pieces_of_several_runs_make_a_complete_one() -> None:
    table = BucketTable(2)
    table.record_slice(0, 1, 2, 20)
    assert not table.is_known
    table.record_slice(0, 0, 1, 10)
    assert groups(table) == [10, 20]


def test_two_unknown_groups_in_one_slice_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        BucketTable(3).record_slice(0, 0, 2, 10)


def test_a_profile_of_the_wrong_length_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        BucketTable(3).set_base((1, 2), 3)


def test_groups_of_no_time_are_kept_apart_from_unknown() -> None:
    table = table_of(0, 0, 10)
    assert groups(table) == [1, 1, 10]
    assert table.is_known


def test_rescaling_corrects_old_samples_and_leaves_new_ones() -> None:
    table = table_of(1_000, 1_000)
    for number in range(COLUMNS):
        run(table, (0, 2, 2_000), slice_no=number + 1)
    for number in range(3):  # already slow when the change is noticed
        run(table, (0, 2, 3_000), slice_no=COLUMNS + 1 + number)
    table.rescale(ONE * 3 // 2, since_slice_no=COLUMNS + 1)
    assert groups(table) == [1_500, 1_500], "not 2,250: that would count the change twice"
    assert table.run_ns == 3_000


def test_a_sample_after_a_rescale_is_not_scaled_again() -> None:
    """Two runs were under way: their samples from before are corrected, later ones are not."""
    table = table_of(1_000, 1_000)
    columns = [table.new_column(5) for _ in range(2)]
    table.rescale(2 * ONE, since_slice_no=9)
    for column in columns:
        table.record_slice(column, 0, 1, 2_000)
    for _ in range(RUNS_PER_FOLD):
        table.record_run(columns[0], 4_000, 9)
    assert groups(table) == [2_000, 2_000]


def test_rescaling_the_unknown_does_nothing() -> None:
    table = BucketTable(2)
    table.rescale(2 * ONE, 0)
    assert not table.is_known
