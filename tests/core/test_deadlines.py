"""The timer, and that ended requests leave nothing behind."""

from gpumuxd.core.deadlines import STALE_MIN, Deadlines
from gpumuxd.domain import COMPLETED
from tests.core.objects import make_cursor


def test_the_next_deadline_of_those_that_have_not_ended() -> None:
    deadlines = Deadlines()
    cursors = [make_cursor(n, deadline_ns=d) for n, d in enumerate((30, 10, 20, None))]
    for cursor in cursors:
        deadlines.add(cursor)
    assert deadlines.next_ns() == 10
    cursors[1].ending = COMPLETED
    assert deadlines.next_ns() == 20
    cursors[2].ending = cursors[0].ending = COMPLETED
    assert deadlines.next_ns() is None


def test_expired_ones_come_once_in_order_of_deadline_then_arrival() -> None:
    deadlines = Deadlines()
    for number, deadline_ns in enumerate((30, 10, 10, 31)):
        deadlines.add(make_cursor(number, deadline_ns=deadline_ns))
    assert deadlines.pop_expired(9) is None
    expired = [deadlines.pop_expired(30) for _ in range(4)]
    assert [cursor and cursor.arrival for cursor in expired] == [1, 2, 0, None]
    assert deadlines.next_ns() == 31


def test_an_ended_one_does_not_expire() -> None:
    deadlines = Deadlines()
    ended, other = make_cursor(1, deadline_ns=5), make_cursor(2, deadline_ns=6)
    deadlines.add(ended)
    deadlines.add(other)
    ended.ending = COMPLETED
    assert deadlines.pop_expired(10) is other


def test_a_storm_of_ended_requests_is_forgotten() -> None:
    deadlines = Deadlines()
    first = make_cursor(0, deadline_ns=1)
    deadlines.add(first)  # keeps the head alive, so that nothing is dropped there
    for number in range(1, 20 * STALE_MIN):
        cursor = make_cursor(number, deadline_ns=1_000)
        deadlines.add(cursor)
        cursor.ending = COMPLETED
        deadlines.trim(live=1)
    assert len(deadlines._heap) <= STALE_MIN + 2
    assert deadlines.pop_expired(1) is first
