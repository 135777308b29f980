"""What an onlooker knows who sees only the events and commands of one device scheduler.

The independent model behind the checkers: it never looks into the scheduler. It records facts
(what arrived, what is in flight, who holds which frame) and derives from them who could be
launched; whether that is right is asked in `checkers.py` and `order_checks.py`.

Invariant: `waiting` holds exactly the admitted requests that have groups left to launch and
nothing against them but, maybe, a deadline that has come.
"""

import heapq
from collections import deque
from collections.abc import Iterable

from gpumuxd.commands import Admit, Finish, Launch, Release, Retire
from gpumuxd.domain import Bucket, Lane, LaneKind, Outcome, PriorityClass, Slice, SyncCost
from gpumuxd.events import (
    DeviceLost,
    DeviceMeasured,
    Event,
    ModelDraining,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    RequestCancelled,
    SliceFailed,
    SyncPointReached,
    TenantChanged,
)
from gpumuxd.settings import Order, SchedulerSettings
from gpumuxd.testing.seen import (
    Bounds,
    SeenCursor,
    SeenModel,
    SeenRequest,
    SeenSlice,
    SeenTenant,
)


class World:
    """Everything seen so far of one device scheduler."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.requests: dict[int, SeenRequest] = {}
        self.finished: dict[int, Outcome] = {}
        self.undecided: dict[int, SeenRequest] = {}
        self.waiting: dict[PriorityClass, dict[int, SeenRequest]] = {c: {} for c in PriorityClass}
        self.models: dict[str, SeenModel] = {}
        self.tenants: dict[str, SeenTenant] = {}
        self.cursors: dict[int, SeenCursor] = {}
        self.cursors_ended: set[int] = set()
        self.slices: dict[int, SeenSlice] = {}
        self.slice_id_max = -1
        self.lanes: dict[Lane, deque[SeenSlice]] = {}
        self.last_cursor: dict[Lane, SeenCursor] = {}
        self.cursor_of_frame: dict[int, int] = {}
        self.memory_bytes = 0
        self.memory_of: dict[str, int] = {}  # of the models that are a tenant's alone
        self.arrivals = 0
        self.slices_launched = 0
        self.groups_launched = 0
        self.is_lost = False
        self.sync_costs: tuple[SyncCost, ...] = ()
        self.touched: list[SeenRequest] = []
        """Requests that an event may have brought to their end since the last poll."""
        self.frames_for = [_frames_for(settings, one) for one in PriorityClass]
        """By class: how many cursors may hold a frame, one of this class that starts included."""
        self._deadlines: list[tuple[int, int]] = []

    # Events

    def see(self, event: Event, now_ns: int) -> None:
        """Record an event."""
        match event:
            case SyncPointReached():
                self._see_passed(event)
            case RequestArrived():
                request = SeenRequest(event, self.arrivals, now_ns)
                self.arrivals += 1
                model = self.models.get(event.model)
                request.met_drain = model is not None and model.is_draining
                self.requests[event.request_id] = request
                self.undecided[event.request_id] = request
                if event.deadline_ns is not None:
                    heapq.heappush(self._deadlines, (event.deadline_ns, event.request_id))
            case RequestCancelled(request_id):
                if request_id in self.requests:
                    self._cancel(self.requests[request_id])
            case SliceFailed(slice_id):
                cursor = self._leave_lane(slice_id).cursor
                cursor.failed = True
                self.stop_waiting(cursor.request)
            case ModelReady():
                model = self.models[event.model] = SeenModel(event)
                self._book(model, event.weights_bytes)
            case ModelDraining():
                self.models[event.model].is_draining = True
            case TenantChanged():
                self.tenants[event.tenant] = SeenTenant(event, now_ns)
            case PartitionChanged():
                self.lanes = {lane: self.lanes.get(lane, deque()) for lane in event.lanes}
            case DeviceLost():
                self.is_lost = True
                for one_class in self.waiting.values():
                    one_class.clear()
            case DeviceMeasured(costs):
                self.sync_costs = costs
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _see_passed(self, event: SyncPointReached) -> None:
        seen = self._leave_lane(event.slice_id)
        cursor = seen.cursor
        cursor.passed = seen.work.end_group
        if seen.is_resumption:
            cursor.preemption_wait_ns += event.started_ns - cursor.last_end_ns
        cursor.compute_ns += event.device_ns
        cursor.last_end_ns = event.started_ns + event.device_ns
        cursor.model.measured = True
        work = seen.work
        cursor.model.see_slice(work.bucket, work.first_group, work.end_group, event.device_ns)
        if cursor.is_complete:
            cursor.model.see_run(work.bucket, cursor.compute_ns)
        if cursor.first_started_ns < 0:
            cursor.first_started_ns = event.started_ns

    def _leave_lane(self, slice_id: int) -> SeenSlice:
        seen = self.slices.pop(slice_id)
        self.lanes[seen.work.lane].remove(seen)
        seen.cursor.in_flight -= 1
        self.touched += seen.cursor.riders
        return seen

    def _cancel(self, request: SeenRequest) -> None:
        request.cancelled = True
        self.stop_waiting(request)
        self.touched.append(request)
        self._look_at_run_of(request)

    def _look_at_run_of(self, request: SeenRequest) -> None:
        """A run that is shared waits as long as somebody waits for it."""
        cursor = request.cursor
        if cursor is None or not cursor.is_shared:
            return
        left = [r for r in cursor.riders if self.is_in_run(r) and not r.cancelled]
        if not left:
            self.stop_waiting(cursor.request)

    # Commands

    def admit(self, command: Admit, now_ns: int) -> None:
        """Record that a request was accepted, and the class it is ordered in from now on."""
        request = self.undecided.pop(command.request_id)
        arrived = request.arrived
        request.is_admitted = True
        request.model = self.models[arrived.model]
        request.model.live += 1
        request.model.buckets.add(arrived.bucket)
        tenant = self.tenants.get(arrived.tenant)
        if arrived.priority_class is PriorityClass.REALTIME and tenant is not None:
            within = tenant.take_realtime(now_ns)
            request.effective_class = PriorityClass.REALTIME if within else PriorityClass.STANDARD
        if not request.cancelled:
            self.waiting[request.effective_class][arrived.request_id] = request

    def launch(self, command: Launch, bounds_ns: Bounds, now_ns: int) -> None:
        """Record a slice in flight; its first one starts a cursor and takes a frame."""
        work = command.slice
        cursor = self.cursors.get(work.cursor_id)
        if cursor is None:
            cursor = self._start(work)
        self._interrupt(work.lane, cursor, now_ns)
        seen = SeenSlice(work, cursor, bounds_ns, now_ns)
        cursor.is_interrupted = False
        cursor.request.may_be_given_up = False
        for rider in cursor.riders:
            rider.may_be_given_up = False
        cursor.launched = work.end_group
        cursor.in_flight += 1
        self.slices[work.slice_id] = seen
        self.slice_id_max = max(self.slice_id_max, work.slice_id)
        self.lanes[work.lane].append(seen)
        self.slices_launched += 1
        self.groups_launched += work.end_group - work.first_group
        if cursor.launched >= cursor.model.ready.profile.group_count:
            self.stop_waiting(cursor.request)

    def _interrupt(self, lane: Lane, cursor: SeenCursor, now_ns: int) -> None:
        """Whoever was launched last on the lane and could go on is preempted by this one."""
        last = self.last_cursor.get(lane)
        self.last_cursor[lane] = cursor
        if last is None or last is cursor or last.is_interrupted:
            return
        request = last.request
        own = self.waiting[request.effective_class].get(request.arrived.request_id)
        if own is request and now_ns < request.expires_ns:
            last.is_interrupted = True
            last.preemptions += 1

    def _start(self, work: Slice) -> SeenCursor:
        riders = [self.requests[member] for member in work.members]
        model = self.models[work.model]
        cursor = SeenCursor(riders, model, work)
        for rider in riders:
            rider.cursor = cursor
        if cursor.is_shared:
            for rider in riders:
                self.stop_waiting(rider)
            run = cursor.request
            run.cursor = cursor
            self.waiting[run.effective_class][run.arrived.request_id] = run
        self.cursors[work.cursor_id] = cursor
        self.cursor_of_frame[work.frame] = work.cursor_id
        self._book(model, model.frame_bytes(work.bucket))
        model.cursors += 1
        return cursor

    def finish(self, command: Finish) -> None:
        """Record a fate."""
        request = self.requests.pop(command.request_id)
        self.undecided.pop(command.request_id, None)
        self.finished[command.request_id] = command.outcome
        self.stop_waiting(request)
        if request.cursor is not None:
            request.cursor.leads += command.report.leads_batch
        self._look_at_run_of(request)
        if request.model is not None:
            request.model.live -= 1

    def retire(self, command: Retire) -> None:
        """Record that a frame is free."""
        cursor = self.cursors.pop(command.cursor_id)
        if cursor.is_shared:
            self.stop_waiting(cursor.request)
            for rider in cursor.riders:
                if self.is_in_run(rider):  # its run has failed, and it begins again
                    rider.cursor, rider.ran_with_others = None, True
                    if not rider.cancelled:
                        self.waiting[rider.effective_class][rider.arrived.request_id] = rider
        self.cursors_ended.add(command.cursor_id)
        self.cursor_of_frame.pop(cursor.frame, None)
        self._book(cursor.model, -cursor.model.frame_bytes(cursor.sample.bucket))
        cursor.model.cursors -= 1

    def release(self, command: Release) -> None:
        """Record that a model is gone."""
        model = self.models.pop(command.model)
        self._book(model, -model.ready.weights_bytes)

    def _book(self, model: SeenModel, size_bytes: int) -> None:
        self.memory_bytes += size_bytes
        if model.ready.tenant:
            held = self.memory_of.get(model.ready.tenant, 0)
            self.memory_of[model.ready.tenant] = held + size_bytes

    def take_touched(self, now_ns: int) -> list[SeenRequest]:
        """The touched requests, and those whose deadline has come; each is told once."""
        touched, self.touched = self.touched, []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            request = self.requests.get(heapq.heappop(self._deadlines)[1])
            if request is not None:
                touched.append(request)
        return touched

    def stop_waiting(self, request: SeenRequest) -> None:
        """Its groups are launched, or it ends."""
        waiting = self.waiting[request.effective_class]
        if waiting.get(request.arrived.request_id) is request:
            del waiting[request.arrived.request_id]

    def is_in_run(self, rider: SeenRequest) -> bool:
        """Has it no fate yet?"""
        return self.requests.get(rider.arrived.request_id) is rider

    def mover(self, work: Slice) -> SeenRequest | None:
        """Who moves by this slice: what its order, its class and its bound follow from."""
        cursor = self.cursors.get(work.cursor_id)
        return cursor.request if cursor is not None else self.requests.get(work.members[0])

    def is_read(self, cursor: SeenCursor) -> bool:
        """Does nothing in flight read inputs or write outputs of this run, nor did any of it write
        them?"""
        count = cursor.model.ready.profile.group_count
        return cursor.passed > 0 and cursor.launched < count

    # Questions

    def may_take_frame(self, priority_class: PriorityClass) -> bool:
        """Is there a frame for one of this class still to start?"""
        return len(self.cursors) < self.frames_for[priority_class]

    def why_no_memory(self, model: SeenModel, bucket: Bucket) -> str | None:
        """Why one more frame of this model goes past a limit; None if it does not."""
        frame_bytes, bytes_max = model.frame_bytes(bucket), self.settings.memory_bytes_max
        if self.memory_bytes + frame_bytes > bytes_max:
            return f"it makes it {self.memory_bytes + frame_bytes} of {bytes_max} bytes"
        name = model.ready.tenant
        limit, held = self.memory_limit_of(name), self.memory_of.get(name, 0) + frame_bytes
        if limit is not None and held > limit:
            return f"it makes it {held} of tenant {name}'s {limit} bytes"
        return None

    def memory_limit_of(self, tenant: str) -> int | None:
        """What the models that are this tenant's alone may hold."""
        seen = self.tenants.get(tenant)
        return None if seen is None else seen.changed.memory_bytes_max

    def may_start(self, request: SeenRequest) -> bool:
        """Is there a frame and memory for it now?"""
        assert request.model is not None
        return (
            self.may_take_frame(request.effective_class)
            and self.why_no_memory(request.model, request.arrived.bucket) is None
        )

    def is_eligible(self, request: SeenRequest, now_ns: int) -> bool:
        """Could a slice of this waiting request be launched now, as far as an onlooker knows?

        What was never measured runs one group at a time, so it rests while one is in flight.
        """
        if now_ns >= request.expires_ns:
            return False
        if request.cursor is None:
            return self.may_start(request)
        model = request.model
        assert model is not None
        return model.measured or not request.cursor.in_flight

    def may_wait(self, request: SeenRequest, now_ns: int) -> bool:
        """May it be held for others to share its run? From its admission, in the poll that follows
        its arrival, for as long as its model says."""
        model, arrived = request.model, request.arrived
        if model is None or request.cursor is not None or request.ran_with_others:
            return False
        batching = model.ready.batching
        if batching is None or arrived.batch_key is None or model.is_draining:
            return False
        is_small = arrived.rows < batching.sizes[-1]
        return is_small and now_ns < request.seen_ns + batching.delay_ns_max

    def has_lane_of_its_own(self, request: SeenRequest) -> bool:
        """Does it go beside the others, on the high lane? Order is per lane."""
        return request.effective_class is PriorityClass.REALTIME and any(
            lane.kind is LaneKind.COMPUTE_HIGH for lane in self.lanes
        )

    def in_flight(self) -> Iterable[SeenSlice]:
        """Slices in flight, in the order of their launch."""
        return self.slices.values()


def _frames_for(settings: SchedulerSettings, priority_class: PriorityClass) -> int:
    if settings.order is Order.FIFO:  # knows no classes
        return settings.frames_max
    classes_above = PriorityClass.REALTIME - priority_class
    # A share of nothing would mean never: the first frame of an empty device is anybody's.
    return max(1, settings.frames_max - classes_above * settings.frames_reserved)
