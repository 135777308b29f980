"""What a cursor reports of its life."""

from gpumuxd.domain import RunReport
from tests.core.objects import make_cursor, make_model


def test_one_that_never_ran_was_queued_to_its_end() -> None:
    assert make_cursor(1, make_model(70)).report(500) == RunReport(queue_ns=500, predicted_ns=70)


def test_device_time_and_standing_still() -> None:
    cursor = make_cursor(1, make_model(10, 10, 10))
    cursor.in_flight = 3
    cursor.slice_passed(1, 100, 12, False)
    cursor.slice_passed(2, 150, 10, False)  # late, but not preempted
    cursor.slice_passed(3, 200, 10, True)
    report = cursor.report(1_000)
    assert (report.queue_ns, report.compute_ns) == (100, 32)
    assert report.preemption_wait_ns == 40
    assert (cursor.in_flight, cursor.passed_group) == (0, 3)


def test_one_that_ends_while_preempted_stood_still_until_then() -> None:
    cursor = make_cursor(1, make_model(10, 10))
    cursor.frame, cursor.is_queued, cursor.in_flight = 0, True, 1
    cursor.slice_passed(1, 100, 10, False)
    assert cursor.preempt()
    report = cursor.report(300)
    assert (report.preemptions, report.preemption_wait_ns) == (1, 190)


def test_a_preemption_counts_once_until_it_moves_again() -> None:
    cursor = make_cursor(1, make_model(10, 10))
    assert not cursor.preempt(), "it never started"
    cursor.frame, cursor.is_queued = 0, True
    assert [cursor.preempt(), cursor.preempt()] == [True, False]
    cursor.is_preempted = False
    assert cursor.preempt()
    assert cursor.preemptions == 2


def test_one_without_groups_left_is_not_preempted() -> None:
    cursor = make_cursor(1)
    cursor.frame, cursor.is_queued = 0, False
    assert not cursor.preempt()


def test_the_rest_is_a_share_of_the_whole_run() -> None:
    cursor = make_cursor(1, make_model(100, 300))
    rest = [cursor.predicted_rest_ns()]
    for end_group in (1, 2):
        cursor.moved_to(end_group)
        rest.append(cursor.predicted_rest_ns())
    assert rest == [400, 300, 0]
    assert (cursor.next_group, cursor.in_flight) == (2, 2)
