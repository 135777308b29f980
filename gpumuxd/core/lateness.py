"""Can an admitted request still be in time? Asked when it would be launched next, of nobody else.

Two answers, from what is in flight on its lane and the groups it has left. *Typical*: at the pace
of the median run, which is what people are told. *Soonest*: the quickest there is reason to hope
for. Only who is late by the soonest end is given up, and never by a guess: to stop one that would
have made it is worse than to run one that will not.

The soonest rest is the least that any run that is remembered took from this very group on, so that
a program whose times vary keeps a margin as wide as they do, wherever in its course they do; less
1/8 of it, which is the deviation that the estimates take as typical, so that one whose times were
never seen to vary has a margin at all. A slow run so far says nothing of its rest, since slow
groups need not stay slow; one that goes better than any before is believed to go on so. Work in
flight counts by the least of each group. Some are spared all the same and go on to their deadline:
probes that a typical run would make late, and now and then one that is under way, because who is
always stopped could never show that its rest is quick (`bucket_table.py`).

It must not know who goes next, or what becomes of those that are late.
"""

from gpumuxd.core.bucket_table import DEVIATION_MIN, ONE, SHIFT, BucketTable
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.units import ms_from_ns


def may_be_late(
    cursor: Cursor, queue: LaunchQueue, now_ns: int, rider: Cursor | None = None
) -> bool:
    """The quick question before: False if it is in time even at its p95 (and without deadline)."""
    deadline_ns = cursor.deadline_ns if rider is None else rider.deadline_ns
    return deadline_ns - now_ns < cursor.table.run_ns + queue.covered_ns[-1]


def why_given_up(
    cursor: Cursor, queue: LaunchQueue, now_ns: int, rider: Cursor | None = None
) -> Outcome | None:
    """The fate of a cursor with groups left to launch that can't be in time, or of one that rides
    on it; None if it can, or is spared: that is kept on whose deadline it is."""
    table, whose = cursor.table, rider or cursor
    if table.is_guess:
        return None
    if whose.goes_on:
        return None
    soonest_ns = now_ns + _in_flight_ns(queue, now_ns, is_soonest=True) + _soonest_rest_ns(cursor)
    if soonest_ns <= whose.deadline_ns:
        return None
    if cursor.is_started and table.is_spared():
        whose.goes_on = whose.is_spared = True
        return None
    finish_ns = max(soonest_ns, predicted_finish_ns(cursor, queue, now_ns))
    reason = (
        f"predicted to finish in {ms_from_ns(finish_ns - now_ns):.3f} ms, the deadline is in "
        f"{ms_from_ns(whose.deadline_ns - now_ns):.3f} ms: stopped {_where(cursor)}"
    )
    return Outcome(OutcomeKind.DEADLINE_MISSED, reason, finish_ns, whose.deadline_ns)


def predicted_finish_ns(cursor: Cursor, queue: LaunchQueue, now_ns: int) -> int:
    """The typical end if it went on now, after what is in flight; 0 while it is only guessed."""
    table = cursor.table
    if table.is_guess:
        return 0
    rest_ns = table.typical_ns(cursor.next_group, cursor.group_count)
    return now_ns + _in_flight_ns(queue, now_ns, is_soonest=False) + rest_ns


def expired(cursor: Cursor, queue: LaunchQueue, now_ns: int) -> Outcome:
    """The fate of one whose deadline has come."""
    run = cursor.run or cursor
    finish_ns = predicted_finish_ns(run, queue, now_ns)
    reason = f"the deadline passed {_where(run)}"
    return Outcome(OutcomeKind.DEADLINE_MISSED, reason, finish_ns, cursor.deadline_ns)


def ended_late(cursor: Cursor, run: Cursor) -> Outcome:
    """The fate of one whose run's last slice has passed, after its deadline."""
    over_ns = run.last_end_ns - cursor.deadline_ns
    reason = f"finished {ms_from_ns(over_ns):.3f} ms after the deadline"
    return Outcome(OutcomeKind.DEADLINE_MISSED, reason, run.last_end_ns, cursor.deadline_ns)


def _soonest_rest_ns(cursor: Cursor) -> int:
    table, first = cursor.table, cursor.next_group
    rest_ns = _less_a_deviation(table.least_rest[first])
    passed_ns = table.typical_ns(0, cursor.passed_group)
    if cursor.compute_ns < passed_ns:  # better than typical; worse is not held against it
        own_ns = table.typical_ns(first, cursor.group_count) * cursor.compute_ns // passed_ns
        rest_ns = min(rest_ns, own_ns)
    return rest_ns


def _soonest_slice_ns(table: BucketTable, first: int, end: int) -> int:
    return _less_a_deviation(table.least_ends[end] - table.least_ends[first])


def _less_a_deviation(time_ns: int) -> int:
    return time_ns * (ONE - DEVIATION_MIN) >> SHIFT


def _in_flight_ns(queue: LaunchQueue, now_ns: int, *, is_soonest: bool) -> int:
    """Time until all that is in flight has passed; guesses count as nothing."""
    rest_ns, since_ns = 0, max(0, now_ns - queue.head_since_ns)
    for flight in queue.flights:
        table, work = flight.cursor.table, flight.slice
        if not table.is_guess:
            first, end = work.first_group, work.end_group
            if is_soonest:
                slice_ns = _soonest_slice_ns(table, first, end)
            else:
                slice_ns = table.typical_ns(first, end)
            rest_ns += max(0, slice_ns - since_ns)
        since_ns = 0  # only the head runs
    return rest_ns


def _where(cursor: Cursor) -> str:
    return "while it ran" if cursor.is_started else "in the queue"
