"""From a known fate to its Finish: who stops, when, and what is given back.

It owns the cursors until they have ended: those that are told to stop move no further, those with
nothing in flight are finished at the next poll. It must not know who goes next, or why an arrival
is refused (`arrivals`).

A run that several requests share ends with its last rider. A rider that ends before the run is told
as soon as nothing in flight touches its memory and nothing will: its inputs are read by the slice
of the first group, its outputs written by that of the last one. A slice that fails says nothing
of any one of several riders: who is left of them goes back to the queue and runs alone.

Invariants: each request gets one Finish, only when nothing in flight touches its memory; a cursor
that held a frame gets one Retire, after the Finish of all that end with it.
"""

from collections.abc import Mapping

from gpumuxd.commands import Command, Finish, Retire
from gpumuxd.core import lateness
from gpumuxd.core.cursor import NO_FRAME, Batch, Cursor
from gpumuxd.core.deadlines import Deadlines
from gpumuxd.core.lanes import Lanes
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.snapshot import Counters
from gpumuxd.domain import COMPLETED, Outcome, OutcomeKind

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_COMPLETED = OutcomeKind.COMPLETED
_MODEL_FAULTED = OutcomeKind.MODEL_FAULTED
_DEADLINE_MISSED = OutcomeKind.DEADLINE_MISSED


class Endings:
    """The ending half of a device scheduler, which owns all that is given here."""

    __slots__ = (
        "_counters",
        "_ledger",
        "_models",
        "cursor_no",
        "cursors",
        "deadlines",
        "ended",
        "lanes",
        "live",
    )

    def __init__(
        self, lanes: Lanes, ledger: Ledger, models: Mapping[str, Model], counters: Counters
    ) -> None:
        self._ledger = ledger
        self._models = models
        self._counters = counters
        self.lanes = lanes
        self.cursors: dict[int, Cursor] = {}  # by request id, until its Finish
        self.deadlines = Deadlines()
        self.ended: list[Cursor] = []  # fate known, nothing in flight, not finished yet
        self.live = 0  # admitted and not finished
        self.cursor_no = 0  # the last cursor id that was given

    def admitted(self, cursor: Cursor) -> None:
        """One more that has to end some time."""
        cursor.model.live += 1
        self.live += 1
        self.deadlines.add(cursor)

    def stop(self, cursor: Cursor, outcome: Outcome) -> None:
        """Its fate is known: it moves no further and ends when nothing of it is in flight."""
        cursor.ending = outcome
        if not cursor.is_admitted:
            return  # not decided yet: `poll` will find its ending
        if cursor.run is not None:
            self._leave(cursor, cursor.run)
            return
        self._stop(cursor)

    def _stop(self, cursor: Cursor) -> None:
        self.lanes.of(cursor).run_queue.drop(cursor)
        if cursor.in_flight == 0:
            self.ended.append(cursor)

    def _leave(self, rider: Cursor, run: Cursor) -> None:
        """Its fate is known before that of the run it shares."""
        if _is_free_of(run):
            self.ended.append(rider)
        assert run.batch is not None, "a run with riders"
        if run.ending is None and run.batch.is_deserted:
            run.ending = rider.ending
            self._stop(run)

    def first_slice_passed(self, run: Cursor) -> None:
        """The riders that left meanwhile can be told now, unless the last group is launched."""
        assert run.batch is not None, "a run with riders"
        if _is_free_of(run):
            self.ended += [rider for rider in run.batch.riders if rider.ending is not None]

    def run_passed(self, cursor: Cursor) -> None:
        """All groups have passed: what counts is when the last one did."""
        if cursor.batch is None:
            _end_with(cursor, cursor)
        elif cursor.ending is None or cursor.ending.kind is not _MODEL_FAULTED:
            cursor.ending = COMPLETED
            for rider in cursor.batch.riders:
                _end_with(rider, cursor)
        self.ended.append(cursor)

    def run_failed(self, cursor: Cursor, reason: str) -> None:
        """A slice of it failed, the first one. Of a run that is shared nobody's fate is known."""
        failed = Outcome(_MODEL_FAULTED, reason)
        if cursor.batch is None:
            self.stop(cursor, failed)
            return
        cursor.ending = failed
        self._stop(cursor)

    def expire(self, now_ns: int) -> None:
        """Deadlines have come."""
        while (expired := self.deadlines.pop_expired(now_ns)) is not None:
            queue = self.lanes.of(expired).launch_queue
            self.stop(expired, lateness.expired(expired, queue, now_ns))

    def give_up(
        self, cursor: Cursor, outcome: Outcome, now_ns: int, commands: list[Command]
    ) -> None:
        """It would have been launched next, and can't be in time any more."""
        self.stop(cursor, outcome)
        self.finish_ended(now_ns, commands)

    def stop_what_never_fits(self) -> None:
        """Weights that came later, or a limit that was lowered, may leave no room for the frames
        of queued requests."""
        for cursor in self.cursors.values():
            is_started = cursor.is_started or cursor.run is not None
            if not cursor.is_admitted or is_started or cursor.ending is not None:
                continue
            reason = self._ledger.why_never(cursor.frame_size)
            if reason:
                self.stop(cursor, Outcome(OutcomeKind.OUT_OF_DEVICE_MEMORY, reason))

    def lose(self, lost: Outcome) -> None:
        """Nothing will report again: what is not over yet ends now."""
        shared: list[Cursor] = []
        for cursor in self.cursors.values():
            run = cursor.run
            if run is not None:
                if run not in shared:
                    shared.append(run)
            elif cursor.is_admitted and (cursor.ending is None or cursor.in_flight):
                cursor.in_flight = 0
                self.stop(cursor, lost)
        for run in shared:
            self._lose_shared(run, lost)

    def _lose_shared(self, run: Cursor, lost: Outcome) -> None:
        assert run.batch is not None, "a run with riders"
        is_over = run.ending is not None and run.in_flight == 0
        for rider in run.batch.riders:
            if rider.ending is None or (not is_over and rider not in self.ended):
                rider.ending = lost
        if not is_over:
            run.in_flight = 0
            run.ending = lost
            self._stop(run)

    def finish_ended(self, now_ns: int, commands: list[Command]) -> None:
        """Tell the fates of all that have ended, and take back what they held."""
        for cursor in self.ended:
            self._finish(cursor, now_ns, commands)
        self.ended.clear()

    def _finish(self, cursor: Cursor, now_ns: int, commands: list[Command]) -> None:
        """End an admitted cursor: nothing of it is in flight, or of a rider nothing that touches
        its memory."""
        if cursor.run is not None:
            self._end_rider(cursor, cursor.run, False, now_ns, commands)
            return
        assert cursor.ending is not None
        assert cursor.in_flight == 0, "its memory is still in use"
        alone: list[Cursor] = []
        if cursor.batch is not None:
            alone = self._end_riders(cursor, cursor.batch, now_ns, commands)
        else:
            self.tell(cursor, now_ns, commands)
            self._count_out(cursor)
        if cursor.frame != NO_FRAME:
            commands.append(Retire(cursor.cursor_id, cursor.model.key, cursor.frame))
            self._ledger.return_frame(cursor.frame_size, cursor.frame)
            cursor.frame = NO_FRAME
            if cursor.batch is None:
                cursor.model.started -= 1
            self.unblock()
        for rider in alone:
            self._run_alone(rider)
        self.deadlines.trim(self.live)

    def _count_out(self, cursor: Cursor) -> None:
        """One request less."""
        model, ending = cursor.model, cursor.ending
        assert ending is not None
        model.live -= 1
        self.live -= 1
        kind = ending.kind
        if kind is _COMPLETED:
            model.completed += 1
        elif kind is _MODEL_FAULTED:
            model.failed += 1
        elif kind is _DEADLINE_MISSED:
            self._counters.deadline_missed += 1

    def _end_riders(
        self, run: Cursor, batch: Batch, now_ns: int, commands: list[Command]
    ) -> list[Cursor]:
        """Tell all that end with their run; returns who does not, because the run failed."""
        alone: list[Cursor] = []
        riders, ending = list(batch.riders), run.ending
        first: Cursor | None = None  # by it an execution is counted
        if ending is not None and ending.kind is _COMPLETED:
            done = [r for r in riders if r.ending is not None and r.ending.kind is _COMPLETED]
            first = (done or riders)[0]
        for rider in riders:
            if rider.ending is None:
                alone.append(rider)
            else:
                self._end_rider(rider, run, rider is first, now_ns, commands)
        return alone

    def _end_rider(
        self, rider: Cursor, run: Cursor, leads: bool, now_ns: int, commands: list[Command]
    ) -> None:
        assert run.batch is not None, "a run with riders"
        assert rider.ending is not None, "its fate is not known"
        run.batch.riders.remove(rider)
        rider.run = None
        rider.model.started -= 1
        request_id = rider.members[0]
        commands.append(Finish(request_id, rider.ending, run.report_of(rider, now_ns, leads)))
        del self.cursors[request_id]
        self._count_out(rider)

    def _run_alone(self, rider: Cursor) -> None:
        """The run that it shared has failed: it begins again."""
        rider.run = None
        rider.runs_alone = True
        rider.model.started -= 1
        self.cursor_no += 1
        rider.cursor_id = self.cursor_no
        self.lanes.of(rider).run_queue.add(rider)

    def tell(self, cursor: Cursor, now_ns: int, commands: list[Command]) -> None:
        """The fate of everybody who rides on it."""
        assert cursor.ending is not None
        report = cursor.report(now_ns)
        for request_id in cursor.members:
            commands.append(Finish(request_id, cursor.ending, report))
            del self.cursors[request_id]

    def unblock(self) -> None:
        """Memory was given back: frames that were passed over may fit again."""
        was_blocked = False
        for model in self._models.values():
            for size in model.frame_sizes:
                if size.is_blocked:
                    was_blocked, size.is_blocked = True, not self._ledger.fits(size)
        if was_blocked:
            for lane in self.lanes.in_order:
                lane.run_queue.unblock()


def _is_free_of(run: Cursor) -> bool:
    """Could a rider be told now, and its memory be used for something else?"""
    return run.passed_group > 0 and run.next_group < run.group_count


def _end_with(rider: Cursor, run: Cursor) -> None:
    """All groups of its run have passed: what counts is when the last one did."""
    if run.last_end_ns > rider.deadline_ns:
        rider.ending = lateness.ended_late(rider, run)
    elif rider.ending is None or rider.ending.kind is _DEADLINE_MISSED:
        rider.ending = COMPLETED
