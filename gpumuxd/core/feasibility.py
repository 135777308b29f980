"""Can this deadline be met, and whom would it harm? Asked once, when a request arrives.

It decides about arrivals only: whether an admitted request can still be in time is asked in
`lateness`, when it would be launched next. It must not know frames, windows or slices beyond what
is in flight.

REALTIME is exact by its earliest-deadline backlog: what is in flight on the lane, then all
REALTIME work with an earlier deadline, then the request itself; and no admitted REALTIME request
behind it may become late. The other classes refuse only what is certain to miss: what is in flight
and all of the classes above go first whatever the fair order does; a later arrival of a class
above can only make it worse. With `fifo` all that is queued goes first.

Whoever is refused does not run, and so can't show that the estimate is wrong. Of requests that even
an idle device would refuse, some are admitted as probes (`bucket_table.py`): one that is in time at
the typical pace where it makes no admitted REALTIME request late at that pace; one that is not only
where nothing else is queued or in flight on the lane. A probe weighs what a typical run takes.

Where the plan is silent. A request without an estimate is never refused and weighs nothing, queued
or in flight. A guess is no estimate (`bucket_table.py`): sizes that were neither profiled nor run
refuse neither their own requests nor others, until their own runs tell how long they take. One
whose deadline has passed is refused, estimate or not. An admitted request that is late already
refuses every arrival ahead of it, until it is given up or expires. Where best-effort work has a
share for certain (`best_effort_share`), what may be granted meanwhile goes ahead of the classes
above, whether such work waits now or comes later: once a first grant can become due, one slice, and
the share of all work ahead. A best-effort arrival may be brought through by its share before all of
the classes above. Beside a lane that
is active, predictions are stretched by the measured interference.
"""

from gpumuxd.core.best_effort_share import BestEffortShare
from gpumuxd.core.bucket_table import ONE, SHIFT
from gpumuxd.core.cursor import NEVER_NS, Cursor
from gpumuxd.core.deadline_backlog import DeadlineBacklog
from gpumuxd.domain import PriorityClass
from gpumuxd.units import ms_from_ns

_REALTIME = PriorityClass.REALTIME  # naming it through its class takes 0.4 us on Python 3.11


class Ahead:
    """What the test knows of the lane: its residual and its backlog by class."""

    __slots__ = ("backlog_ns", "interference", "is_fifo", "realtime", "residual_ns", "share")

    def __init__(
        self,
        residual_ns: int,
        backlog_ns: list[int],
        realtime: DeadlineBacklog,
        interference: int = ONE,
        is_fifo: bool = False,
        share: BestEffortShare | None = None,
    ) -> None:
        self.residual_ns = residual_ns
        self.backlog_ns = backlog_ns
        self.realtime = realtime
        self.interference = interference
        self.is_fifo = is_fifo
        self.share = share

    def with_grants_ns(self, work_ns: int) -> int:
        """When so much work above best effort has passed; its stretched times are given."""
        if self.share is None:
            return self.residual_ns + work_ns
        alone_ns = self.residual_ns + self.share.alone_ns(work_ns)
        return alone_ns + self.share.grants_ns(alone_ns)

    def start_ns(self, work_ns: int) -> int:
        """When stretched work could start, if so much of it is to pass in all."""
        if self.share is None:
            return self.residual_ns
        share, residual_ns = self.share, self.residual_ns
        if not share.grants_ns(residual_ns + share.alone_ns(work_ns)):
            return residual_ns
        return residual_ns + max(share.longest_ns, share.grants_ns(residual_ns))


def predicted_finish_ns(cursor: Cursor, ahead: Ahead, now_ns: int) -> int:
    """The earliest end that its order allows, for an arrival that is not queued yet."""
    own_ns = cursor.remaining_ns
    if ahead.is_fifo:
        work_ns = ahead.residual_ns + own_ns + sum(ahead.backlog_ns)
    elif cursor.priority_class is _REALTIME:
        before_ns = ahead.realtime.work_before_ns(cursor.deadline_ns)
        work_ns = ahead.with_grants_ns(own_ns + before_ns)
    else:
        higher_ns = sum(ahead.backlog_ns[cursor.rank + 1 :])
        if cursor.rank:
            work_ns = ahead.with_grants_ns(own_ns + higher_ns)
        else:
            if ahead.share is not None:
                higher_ns = ahead.share.soonest_ahead_ns(own_ns, higher_ns)
            work_ns = ahead.residual_ns + own_ns + higher_ns
    return now_ns + ((work_ns * ahead.interference) >> SHIFT)


def why_infeasible(cursor: Cursor, ahead: Ahead, now_ns: int, finish_ns: int) -> str:
    """The reason to refuse an arrival, empty if there is none."""
    if cursor.deadline_ns <= now_ns:
        return f"the deadline passed {ms_from_ns(now_ns - cursor.deadline_ns):.3f} ms ago"
    if cursor.predicted_ns == 0:
        return ""
    if finish_ns > cursor.deadline_ns:
        return (
            f"predicted to finish in {ms_from_ns(finish_ns - now_ns):.3f} ms, "
            f"the deadline is in {ms_from_ns(cursor.deadline_ns - now_ns):.3f} ms"
        )
    if cursor.priority_class is not _REALTIME or ahead.is_fifo:
        return ""
    if cursor.deadline_ns == NEVER_NS:
        return ""
    all_ns = cursor.remaining_ns + ahead.backlog_ns[_REALTIME]
    late = ahead.realtime.first_late(
        cursor.deadline_ns, now_ns + ahead.start_ns(all_ns), cursor.remaining_ns
    )
    if late is None:
        return ""
    return (
        f"predicted to finish in {ms_from_ns(finish_ns - now_ns):.3f} ms, but then an admitted "
        f"request due in {ms_from_ns(late.deadline_ns - now_ns):.3f} ms would be late"
    )


def is_refused_always(cursor: Cursor, ahead: Ahead, now_ns: int) -> bool:
    """Would this refused one be refused on an idle device too, if it came in time at all?"""
    if cursor.deadline_ns <= now_ns or cursor.predicted_ns == 0:
        return False
    nobody = [0] * len(PriorityClass)
    idle = Ahead(0, nobody, DeadlineBacklog(), ONE, ahead.is_fifo, ahead.share)
    return predicted_finish_ns(cursor, idle, now_ns) > cursor.deadline_ns
