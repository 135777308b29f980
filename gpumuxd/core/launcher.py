"""From the queues to the lanes: launch until something is in the way, lane by lane.

It asks the run queue who is next and `slicing` how far, and books what that takes: a frame at a
cursor's first slice, the flight, the move of the cursor, the preemption of whoever moved before
it. It must not know arrivals, deadlines or outcomes.

A lane takes nothing when its window is full, when nobody is eligible, or when the chosen cursor's
next slice would be over a bound. In the last case nobody else is tried: to launch lower work
because it is small would put it ahead of who is next.

Invariant: `flights` holds exactly the slices that were launched and have not passed or failed.
"""

from collections.abc import Mapping
from functools import partial

from gpumuxd.commands import Command, Launch
from gpumuxd.core import slicing
from gpumuxd.core.cursor import NO_FRAME, Cursor
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.lanes import Lanes, LaneState
from gpumuxd.core.launch_queue import Flight
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.run_queue import RunQueue
from gpumuxd.core.snapshot import Counters
from gpumuxd.domain import Slice
from gpumuxd.settings import SchedulerSettings

# Bound to a name: naming a member through its enum class takes 0.4 us on Python 3.11.
_WINDOW_FULL = Blocked.WINDOW_FULL

_new_slice = partial(tuple.__new__, Slice)
"""A slice from its fields in order, as `Slice._make` but without its two Python calls (1 us)."""


class Launcher:
    """The launching half of a device scheduler, which owns all that is given here."""

    __slots__ = (
        "_counters",
        "_lanes",
        "_ledger",
        "_models",
        "_settings",
        "_slice_id",
        "bounds",
        "bounds_are_stale",
        "flights",
    )

    def __init__(
        self,
        settings: SchedulerSettings,
        lanes: Lanes,
        ledger: Ledger,
        models: Mapping[str, Model],
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._ledger = ledger
        self._models = models
        self._counters = counters
        self._slice_id = 0
        self.flights: dict[int, Flight] = {}  # by slice id
        self.bounds = slicing.bounds_of((), settings, settings.round_trip_ns)
        self.bounds_are_stale = False  # models or their estimates changed since

    def launch(self, now_ns: int, commands: list[Command]) -> None:
        """Launch all that may be launched now."""
        if self.bounds_are_stale:
            self._derive_bounds()
        for lane in self._lanes.in_order:
            if lane.run_queue.live:
                self._fill(lane, now_ns, commands)

    def last_slice_of(self, cursor: Cursor) -> tuple[int, ...]:
        """What a cursor that changes lanes has to wait for: its last slice in flight, if any."""
        own = [slice_id for slice_id, flight in self.flights.items() if flight.cursor is cursor]
        return tuple(own[-1:])

    def _derive_bounds(self) -> None:
        assert self._lanes.in_order, "lanes are announced before anything else"
        self.bounds_are_stale = False
        round_trip_ns = self._lanes.in_order[0].launch_queue.round_trip_ns
        self.bounds = slicing.bounds_of(self._models.values(), self._settings, round_trip_ns)

    def _fill(self, lane: LaneState, now_ns: int, commands: list[Command]) -> None:
        """Launch on one lane until something is in the way."""
        run_queue, queue = lane.run_queue, lane.launch_queue
        blocked = self._why_held(lane) if self._lanes.high is not None else None
        while blocked is None:
            if not run_queue.live:
                return
            if len(queue.flights) >= queue.window:
                blocked = _WINDOW_FULL
            else:
                blocked = self._launch_next(lane, now_ns, commands)
        self._counters.blocked[blocked._value_] += 1

    def _why_held(self, lane: LaneState) -> Blocked | None:
        """Lower work does not start beside REALTIME work that runs or could run."""
        high = self._lanes.high
        if high is None or lane is not self._lanes.compute:
            return None
        if not high.launch_queue.flights and high.run_queue.select(self._ledger) is None:
            return None
        last = lane.launch_queue.last_cursor
        if last is not None:
            self._counters.preemptions += last.preempt()
        return Blocked.HELD_FOR_REALTIME

    def _launch_next(self, lane: LaneState, now_ns: int, commands: list[Command]) -> Blocked | None:
        """Launch one slice on this lane, or say what is in the way."""
        run_queue, queue = lane.run_queue, lane.launch_queue
        cursor = run_queue.select(self._ledger)
        if cursor is None:
            has_blocked = any(model.is_blocked for model in self._models.values())
            return Blocked.NO_MEMORY if has_blocked else Blocked.NO_FRAME
        end_group, predicted_ns, blocked = slicing.choose(
            cursor, queue, self.bounds, self._settings
        )
        if blocked is not None:
            return blocked
        if cursor.frame == NO_FRAME:
            self._start(cursor, run_queue)
        last = queue.last_cursor
        if last is not cursor and last is not None and last.is_queued:
            self._counters.preemptions += last.preempt()
        self._slice_id = slice_id = self._slice_id + 1
        work = _new_slice(
            (
                slice_id,
                cursor.cursor_id,
                cursor.model_key,
                cursor.bucket,
                cursor.members,
                cursor.frame,
                cursor.next_group,
                end_group,
                queue.lane,
                cursor.after,
                predicted_ns,
            )
        )
        self._counters.slices_launched = slice_id
        self._counters.groups_launched += end_group - cursor.next_group
        self.flights[slice_id] = queue.launch(work, cursor, now_ns, cursor.is_preempted)
        run_queue.launched(cursor, predicted_ns, cursor.moved_to(end_group))
        commands.append(Launch(work))
        return None

    def _start(self, cursor: Cursor, run_queue: RunQueue) -> None:
        """Give it a frame, for as long as it lives."""
        cursor.frame = self._ledger.take_frame(cursor.model)
        cursor.column = cursor.table.new_column(self._slice_id)
        cursor.model.started += 1
        run_queue.start(cursor)
