"""From the queues to the lanes: launch until something is in the way, lane by lane.

It asks the run queue who is next and `slicing` how far, and books what that takes: a frame at a
cursor's first slice, the flight, the move of the cursor, the preemption of whoever moved before
it. A best-effort cursor that is owed its share goes first (`best_effort_share`). Who is next and
can't be in time any more is given up (`lateness` says so, `endings` does it) rather than launched.
It must not know arrivals or what becomes of those that have ended.

A lane takes nothing when its window is full, when nobody is eligible, or when the chosen cursor's
next slice would be over a bound. In the last case nobody else is tried: to launch lower work
because it is small would put it ahead of who is next.

The device's own work, profile runs and uploads, has time. While nobody else has work, a group of it
is launched when it should have passed before the next REALTIME request is expected (`quiet`), and
else held, but no longer than HOLD_BOUNDS bounds: it does go on when nothing can be foreseen.
Beside work of others there is nothing to spare anyone, and it takes its turn.

Invariant: `flights` holds exactly the slices that were launched and have not passed or failed.
"""

from collections.abc import Mapping

from gpumuxd.commands import Command, Launch
from gpumuxd.core import lateness, rehearsal
from gpumuxd.core.arrival_rates import ArrivalRates
from gpumuxd.core.batching import Batcher, Room, run_of
from gpumuxd.core.best_effort_share import BestEffortShare
from gpumuxd.core.bucket_table import BucketTable
from gpumuxd.core.cursor import NEVER_NS, NO_FRAME, Batch, Cursor
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.endings import Endings
from gpumuxd.core.explanation import Explanation
from gpumuxd.core.lanes import Lanes, LaneState
from gpumuxd.core.launch_queue import Flight, LaunchQueue
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.quiet import Quiet
from gpumuxd.core.run_queue import RunQueue
from gpumuxd.core.slicing import NOT_WEIGHED, bounds_of, choose
from gpumuxd.core.snapshot import Counters
from gpumuxd.domain import Bucket, CursorKind, LaneKind, PriorityClass, Slice, SyncCost
from gpumuxd.events import DeviceMeasured
from gpumuxd.settings import Order, SchedulerSettings

_new = tuple.__new__
"""Makes a named tuple of its fields in order, without the Python call that `Slice(...)` is."""

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_NO_FRAME = Blocked.NO_FRAME.value
_NO_MEMORY = Blocked.NO_MEMORY.value
_HELD_FOR_REALTIME = Blocked.HELD_FOR_REALTIME.value
_REALTIME_EXPECTED = Blocked.REALTIME_EXPECTED.value
_OWN_KINDS = (CursorKind.PROFILE, CursorKind.UPLOAD)

HOLD_BOUNDS = 4
"""Where requests are periodic, a group within the bound waits for about its own length and that of
a REALTIME run, which is mostly below the bound too; the rest is room for how they vary."""


class Launcher:
    """The launching half of a device scheduler, which owns all that is given here."""

    __slots__ = (
        "_counters",
        "_endings",
        "_held",
        "_held_since_ns",
        "_lanes",
        "_ledger",
        "_models",
        "_settings",
        "_slice_id",
        "are_costs_firm",
        "batcher",
        "bounds",
        "bounds_are_stale",
        "estimates_moved",
        "flights",
        "held_until_ns",
        "quiet",
        "rates",
        "share",
        "sync_costs",
    )

    def __init__(
        self,
        settings: SchedulerSettings,
        lanes: Lanes,
        ledger: Ledger,
        models: Mapping[str, Model],
        endings: Endings,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._ledger = ledger
        self._models = models
        self._endings = endings
        self._counters = counters
        self._slice_id = 0
        self.flights: dict[int, Flight] = {}  # by slice id
        self.bounds = bounds_of((), settings, settings.round_trip_ns)
        self.bounds_are_stale = False  # models changed since, or all estimates at once
        self.estimates_moved = False  # of one model: the bounds follow at the launches after these
        self.batcher = Batcher()
        self.quiet = Quiet()
        self.rates = ArrivalRates()
        share_ppm = settings.best_effort_share_min_ppm if settings.order is not Order.FIFO else 0
        self.share = BestEffortShare(share_ppm) if share_ppm else None  # fifo knows no classes
        self.sync_costs: tuple[SyncCost, ...] = ()  # none while the device was not measured
        self.are_costs_firm = True
        self.held_until_ns: int | None = None  # own work will be launched then, if not before
        self._held = (0, 0)  # which cursor is held before which group,
        self._held_since_ns = 0  # and since when

    def launch(self, now_ns: int, commands: list[Command]) -> None:
        """Launch all that may be launched now."""
        if self.bounds_are_stale:
            self._derive_bounds(now_ns)
        # Folding estimates and deriving bounds in the same turn were the slowest decisions.
        self.bounds_are_stale, self.estimates_moved = self.estimates_moved, False
        self.bounds.has_planned = False
        self.held_until_ns = None
        while (waited := self.batcher.pop_released(now_ns)) is not None:
            self._lanes.of(waited).run_queue.release(waited)
        lanes, index = self._lanes.in_order, 0
        while index < len(lanes):
            lane = lanes[index]
            if lane.run_queue.live and self._fill(lane, now_ns, commands):
                index = 0  # a lane before this one may have waited for what came free
            else:
                index += 1

    def next_release_ns(self) -> int | None:
        """When something that is held will be launched, if not before."""
        own_ns, batch_ns = self.held_until_ns, self.batcher.next_release_ns()
        if own_ns is None or batch_ns is None:
            return batch_ns if own_ns is None else own_ns
        return min(own_ns, batch_ns)

    def release_held(self, model: Model | None = None) -> None:
        """Nobody of this model, or of all, is held for others any longer."""
        for cursor in self.batcher.held():
            if model is None or cursor.model is model:
                self._lanes.of(cursor).run_queue.release(cursor)

    def held_ns(self, cursor: Cursor) -> int:
        """How long the next group of this cursor may be held back in all; 0 if it is not held."""
        bound_ns = self.bounds.pace_of(PriorityClass.REALTIME)
        if self.held_until_ns is None or bound_ns is None or self._held[0] != cursor.cursor_id:
            return 0
        return HOLD_BOUNDS * bound_ns

    def last_slice_of(self, cursor: Cursor) -> tuple[int, ...]:
        """What a cursor that changes lanes has to wait for: its last slice in flight, if any."""
        own = [slice_id for slice_id, flight in self.flights.items() if flight.cursor is cursor]
        return tuple(own[-1:])

    def _derive_bounds(self, now_ns: int) -> None:
        compute = self._lanes.compute
        assert compute is not None, "lanes are announced before anything else"
        gap_ns = NOT_WEIGHED
        if self._settings.weigh_preemption_by_arrivals:
            gap_ns = tuple(self.rates.gap_ns(rank, now_ns) for rank in PriorityClass)
        self.bounds = bounds_of(
            self._models.values(),
            self._settings,
            self._lanes.in_order[0].launch_queue.round_trip_ns,
            before=self.bounds,
            costs=self._costs(compute.launch_queue),
            arrival_gap_ns=gap_ns,
        )
        if self.share is not None:
            self.share.slices_are(
                self.bounds.tightest_from[0],
                self._settings.slice_ns_max,
                compute.launch_queue.window,
                self.bounds.floor_ns,
            )

    @property
    def measured(self) -> DeviceMeasured | None:
        """The event that tells of these costs, if one did."""
        if not self.sync_costs:
            return None
        return DeviceMeasured(self.sync_costs, self.are_costs_firm)

    def _costs(self, queue: LaunchQueue) -> tuple[SyncCost, ...]:
        """Of the windows that may be used: as they were fitted, or more where that shows.

        Never less: what was fitted also has what a slice costs beside the gap before it. But what
        was fitted on a busy machine says little, and gives way to what serving shows.
        """
        alone_ns, queued_ns = queue.sync_ns_measured
        if not self.are_costs_firm and alone_ns:
            return tuple(
                SyncCost(
                    window,
                    # What is queued costs no more than a round trip: so no cost that was fitted is
                    # so high that two in flight are never tried.
                    alone_ns if window == 1 else queued_ns or min(alone_ns, sync_ns),
                    alone_ns,
                )
                for window, sync_ns, _ in self.sync_costs
                if window <= queue.window_max
            )
        return tuple(
            SyncCost(window, max(sync_ns, alone_ns if window == 1 else queued_ns), base_ns)
            for window, sync_ns, base_ns in self.sync_costs
            if window <= queue.window_max
        )

    def explain(
        self, model: Model, table: BucketTable, bucket: Bucket, priority_class: PriorityClass
    ) -> Explanation:
        """How this program is cut in work of this class, as of the last decisions."""
        compute = self._lanes.compute
        assert compute is not None, "lanes are announced before anything else"
        queue = compute.launch_queue
        return rehearsal.explain(
            model,
            table,
            bucket,
            priority_class,
            queue,
            self.bounds,
            self._settings,
            self._costs(queue),
            self.are_costs_firm,
        )

    def _fill(self, lane: LaneState, now_ns: int, commands: list[Command]) -> bool:
        """Launch on one lane until something is in the way; or True, and nothing is in the way but
        that a frame came free, which is to be offered to all lanes in their order."""
        run_queue, queue = lane.run_queue, lane.launch_queue
        flights, ledger = queue.flights, self._ledger
        share = self.share if lane is self._lanes.compute else None
        is_held = self._lanes.high is not None and self._is_held(lane)
        while run_queue.live:
            due = self._due(run_queue, share) if share is not None else None
            if is_held and due is None:
                self._counters.blocked[_HELD_FOR_REALTIME] += 1
                return False
            if len(flights) >= queue.window:
                self._counters.window_full += 1
                return False
            cursor = run_queue.select(ledger) if not is_held else due
            if cursor is None:
                has_blocked = self._has_blocked()
                self._counters.blocked[_NO_MEMORY if has_blocked else _NO_FRAME] += 1
                return False
            is_grant = due is not None and (is_held or cursor.rank > 0)
            if is_grant:
                assert due is not None
                cursor = due
            if cursor.batch is not None:
                if self._is_deserted(cursor, cursor.batch, queue, now_ns, commands):
                    if cursor.frame == NO_FRAME:
                        return True
                    continue
            elif cursor.deadline_ns != NEVER_NS and lateness.may_be_late(cursor, queue, now_ns):
                outcome = lateness.why_given_up(cursor, queue, now_ns)
                if outcome is not None:
                    frees = cursor.frame != NO_FRAME and cursor.in_flight == 0
                    self._endings.give_up(cursor, outcome, now_ns, commands)
                    if frees:
                        return True
                    continue
            if not cursor.runs_alone and cursor.frame == NO_FRAME:
                cursor = self._joined(cursor, run_queue, queue, now_ns)
            end, predicted_ns, why_not = choose(cursor, queue, self.bounds, self._settings)
            if why_not is not None:
                self._counters.blocked[why_not.value] += 1
                return False
            if (
                cursor.kind in _OWN_KINDS
                and self._lanes.live == 1
                and self._is_held_back(cursor, queue, predicted_ns, now_ns)
            ):
                self._counters.blocked[_REALTIME_EXPECTED] += 1
                return False
            work = self._move(cursor, run_queue, queue, end, predicted_ns, now_ns)
            if is_grant and share is not None:
                share.granted(work.slice_id, predicted_ns)
            commands.append(_new(Launch, (work,)))
        return False

    def _joined(
        self, leader: Cursor, run_queue: RunQueue, queue: LaunchQueue, now_ns: int
    ) -> Cursor:
        """What starts instead of this one: a run that it shares, or itself. Books nothing."""
        room = Room(leader, now_ns + queue.covered_ns[-1], self.bounds, self._ledger)
        riders = self.batcher.riders(leader, room, run_queue)
        return run_of(riders) if len(riders) > 1 else leader

    def _is_deserted(
        self,
        run: Cursor,
        batch: Batch,
        queue: LaunchQueue,
        now_ns: int,
        commands: list[Command],
    ) -> bool:
        """Give up those riders that can't be in time any more. Is nobody left of them?"""
        for rider in list(batch.riders):
            if rider.ending is None and lateness.may_be_late(run, queue, now_ns, rider):
                outcome = lateness.why_given_up(run, queue, now_ns, rider)
                if outcome is not None:
                    self._endings.give_up(rider, outcome, now_ns, commands)
        return run.ending is not None

    def _has_blocked(self) -> bool:
        """Does some frame not fit beside what is held now?"""
        return any(size.is_blocked for model in self._models.values() for size in model.frame_sizes)

    def _due(self, run_queue: RunQueue, share: BestEffortShare) -> Cursor | None:
        """The best-effort cursor that goes ahead of higher classes now, if one is owed that."""
        if share.debt < share.due:
            return None
        cursor = run_queue.select_best_effort(self._ledger)
        if cursor is None:
            share.not_taken()
        return cursor

    def _is_held(self, lane: LaneState) -> bool:
        """Lower work does not start beside REALTIME work that runs or could run."""
        high = self._lanes.high
        if high is None or lane is not self._lanes.compute:
            return False
        if not high.launch_queue.flights and high.run_queue.select(self._ledger) is None:
            return False
        last = lane.launch_queue.last_cursor
        if last is not None:
            self._counters.preemptions += last.preempt()
        return True

    def _is_held_back(
        self, cursor: Cursor, queue: LaunchQueue, predicted_ns: int, now_ns: int
    ) -> bool:
        """Would this group of the device's own stand in the way of a request that is expected?"""
        bound_ns = self.bounds.pace_of(PriorityClass.REALTIME)
        if bound_ns is None or queue.lane.kind is not LaneKind.COMPUTE:
            return False
        # What was never measured is taken to be as long as work may be that is in the way.
        passes_ns = now_ns + queue.covered_ns[-1] + (predicted_ns or bound_ns)
        if passes_ns <= self.quiet.until_ns(now_ns):
            return False
        place = (cursor.cursor_id, cursor.next_group)
        if self._held != place:
            self._held, self._held_since_ns = place, now_ns
        until_ns = self._held_since_ns + HOLD_BOUNDS * bound_ns
        if now_ns >= until_ns:
            return False
        self.held_until_ns = until_ns
        return True

    def _move(
        self,
        cursor: Cursor,
        run_queue: RunQueue,
        queue: LaunchQueue,
        end_group: int,
        predicted_ns: int,
        now_ns: int,
    ) -> Slice:
        """Move a cursor: one slice, from where it stands to `end_group`."""
        if cursor.frame == NO_FRAME:
            self._start(cursor, run_queue)
        last = queue.last_cursor
        if last is not cursor and last is not None and last.is_queued:
            self._counters.preemptions += last.preempt()
        self._slice_id = slice_id = self._slice_id + 1
        first_group = cursor.next_group
        work = _new(
            Slice,
            (
                slice_id,
                cursor.cursor_id,
                cursor.model_key,
                cursor.bucket,
                cursor.members,
                cursor.frame,
                first_group,
                end_group,
                queue.lane,
                cursor.after,
                predicted_ns,
            ),
        )
        counters = self._counters
        counters.slices_launched = slice_id
        counters.groups_launched += end_group - first_group
        self.flights[slice_id] = queue.launch(work, cursor, now_ns, cursor.is_preempted)
        cursor.moved_to(end_group)
        run_queue.launched(cursor, predicted_ns)
        return work

    def _start(self, cursor: Cursor, run_queue: RunQueue) -> None:
        """Give it a frame, for as long as it lives."""
        cursor.frame = self._ledger.take_frame(cursor.frame_size)
        cursor.column = cursor.table.new_column(self._slice_id)
        if cursor.batch is None:
            cursor.model.started += 1
            run_queue.start(cursor)
            return
        riders = cursor.batch.riders
        cursor.model.started += len(riders)
        run_queue.expect(cursor, cursor.predicted_rest_ns())
        run_queue.join(riders, cursor)
        for rider in riders:
            rider.run = cursor
