"""From a known fate to its Finish: who stops, when, and what is given back.

It owns the cursors until they have ended: those that are told to stop move no further, those with
nothing in flight are finished at the next poll. It must not know who goes next, or why an arrival
is refused (`arrivals`).

Invariants: each cursor gets one Finish, only when nothing of it is in flight; one that held a
frame gets one Retire after it.
"""

from collections.abc import Mapping

from gpumuxd.commands import Command, Finish, Retire
from gpumuxd.core import lateness
from gpumuxd.core.cursor import NO_FRAME, Cursor
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
        self.lanes.of(cursor).run_queue.drop(cursor)
        if cursor.in_flight == 0:
            self.ended.append(cursor)

    def run_passed(self, cursor: Cursor) -> None:
        """All groups have passed: what counts is when the last one did."""
        if cursor.last_end_ns > cursor.deadline_ns:
            cursor.ending = lateness.ended_late(cursor)
        elif cursor.ending is None or cursor.ending.kind is _DEADLINE_MISSED:
            cursor.ending = COMPLETED
        self.ended.append(cursor)

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
            if not cursor.is_admitted or cursor.is_started or cursor.ending is not None:
                continue
            reason = self._ledger.why_never(cursor.frame_size)
            if reason:
                self.stop(cursor, Outcome(OutcomeKind.OUT_OF_DEVICE_MEMORY, reason))

    def lose(self, lost: Outcome) -> None:
        """Nothing will report again: what is not over yet ends now."""
        for cursor in self.cursors.values():
            if cursor.is_admitted and (cursor.ending is None or cursor.in_flight):
                cursor.in_flight = 0
                self.stop(cursor, lost)

    def finish_ended(self, now_ns: int, commands: list[Command]) -> None:
        """Tell the fates of all that have ended, and take back what they held."""
        for cursor in self.ended:
            self._finish(cursor, now_ns, commands)
        self.ended.clear()

    def _finish(self, cursor: Cursor, now_ns: int, commands: list[Command]) -> None:
        """End an admitted cursor: nothing of it is in flight."""
        model, ending = cursor.model, cursor.ending
        assert ending is not None
        assert cursor.in_flight == 0, "its memory is still in use"
        self.tell(cursor, now_ns, commands)
        if cursor.frame != NO_FRAME:
            commands.append(Retire(cursor.cursor_id, model.key, cursor.frame))
            self._ledger.return_frame(cursor.frame_size, cursor.frame)
            cursor.frame = NO_FRAME
            model.started -= 1
            self.unblock()
        model.live -= 1
        self.live -= 1
        kind = ending.kind
        if kind is _COMPLETED:
            model.completed += 1
        elif kind is _MODEL_FAULTED:
            model.failed += 1
        elif kind is _DEADLINE_MISSED:
            self._counters.deadline_missed += 1
        self.deadlines.trim(self.live)

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
