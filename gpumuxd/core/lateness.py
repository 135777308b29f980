"""Can an admitted request still be in time? Asked when it would be launched next, of nobody else.

Two answers, from what is in flight on its lane and the groups it has left. *Typical*: at the pace
of the median run, which is what people are told. *Soonest*: at the quickest pace there is reason
to hope for. Only who is late by the soonest end is given up, and never by a guess: to stop one
that would have made it is worse than to run one that will not.

The soonest pace is the least of three: the quickest of the whole runs that are remembered, so that
a program whose times vary keeps a margin as wide as they do; 1/8 less than the median, which is the
deviation that the estimates take as typical, so that one whose times were never seen to vary has a
margin at all; and the pace of this very run so far, so that one that goes better than any before
is believed. Work in flight counts at its own soonest pace.

It must not know who goes next, or what becomes of those that are late.
"""

from gpumuxd.core.bucket_table import DEVIATION_MIN, ONE, SHIFT
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.units import ms_from_ns


def may_be_late(cursor: Cursor, queue: LaunchQueue, now_ns: int) -> bool:
    """The quick question before: False if it is in time even at its p95 (and without deadline)."""
    return cursor.deadline_ns - now_ns < cursor.table.run_ns + queue.covered_ns[-1]


def why_given_up(cursor: Cursor, queue: LaunchQueue, now_ns: int) -> Outcome | None:
    """The fate of a cursor with groups left to launch that can't be in time; None if it can."""
    table = cursor.table
    if table.is_guess:
        return None
    rest_ns = table.base_ns(cursor.next_group, cursor.group_count) * _soonest_pace(cursor) >> SHIFT
    if now_ns + _in_flight_ns(queue, now_ns, is_soonest=True) + rest_ns <= cursor.deadline_ns:
        return None
    finish_ns = predicted_finish_ns(cursor, queue, now_ns)
    reason = (
        f"predicted to finish in {ms_from_ns(finish_ns - now_ns):.3f} ms, the deadline is in "
        f"{ms_from_ns(cursor.deadline_ns - now_ns):.3f} ms: stopped {_where(cursor)}"
    )
    return Outcome(OutcomeKind.DEADLINE_MISSED, reason, finish_ns, cursor.deadline_ns)


def predicted_finish_ns(cursor: Cursor, queue: LaunchQueue, now_ns: int) -> int:
    """The typical end if it went on now, after what is in flight; 0 while it is only guessed."""
    table = cursor.table
    if table.is_guess:
        return 0
    rest_ns = table.base_ns(cursor.next_group, cursor.group_count) * table.typical >> SHIFT
    return now_ns + _in_flight_ns(queue, now_ns, is_soonest=False) + rest_ns


def expired(cursor: Cursor, queue: LaunchQueue, now_ns: int) -> Outcome:
    """The fate of one whose deadline has come."""
    finish_ns = predicted_finish_ns(cursor, queue, now_ns)
    reason = f"the deadline passed {_where(cursor)}"
    return Outcome(OutcomeKind.DEADLINE_MISSED, reason, finish_ns, cursor.deadline_ns)


def ended_late(cursor: Cursor) -> Outcome:
    """The fate of one whose last slice has passed, after its deadline."""
    over_ns = cursor.last_end_ns - cursor.deadline_ns
    reason = f"finished {ms_from_ns(over_ns):.3f} ms after the deadline"
    return Outcome(OutcomeKind.DEADLINE_MISSED, reason, cursor.last_end_ns, cursor.deadline_ns)


def _soonest_pace(cursor: Cursor) -> int:
    table = cursor.table
    pace = min(table.quickest, table.typical * (ONE - DEVIATION_MIN) >> SHIFT)
    if cursor.passed_group:
        pace = min(pace, (cursor.compute_ns << SHIFT) // table.base_ns(0, cursor.passed_group))
    return pace


def _in_flight_ns(queue: LaunchQueue, now_ns: int, *, is_soonest: bool) -> int:
    """Time until all that is in flight has passed; guesses count as nothing."""
    rest_ns, since_ns = 0, max(0, now_ns - queue.head_since_ns)
    for flight in queue.flights:
        table, work = flight.cursor.table, flight.slice
        if not table.is_guess:
            pace = _soonest_pace(flight.cursor) if is_soonest else table.typical
            slice_ns = table.base_ns(work.first_group, work.end_group) * pace >> SHIFT
            rest_ns += max(0, slice_ns - since_ns)
        since_ns = 0  # only the head runs
    return rest_ns


def _where(cursor: Cursor) -> str:
    return "while it ran" if cursor.is_started else "in the queue"
