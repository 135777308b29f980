"""The device scheduler: at each sync point and each arrival, which cursor moves next and how far.

    handle(event, now_ns)   records what happened and decides nothing
    poll(now_ns)            decides on all that is known and returns commands
    next_wakeup_ns()        when to poll although nothing happens: the next deadline, or the end of
                            a hold (`launcher`)
    statistics()            a frozen snapshot

It holds what the floors of the policy need and asks them in turn: `admission` and `feasibility`
for arrivals, `launcher` for who moves and how far (it asks `run_queue` and `slicing`), `ledger`
for frames and bytes, `estimator` for times. It must not know clocks, threads, processes or
tensors: the same code runs in virtual time, on the CPU device and on CUDA.

Same events in, same commands out. Ties break by arrival number. Preempting is not moving a
cursor, so there is no code for it here but the counting.

Invariants: every RequestArrived gets exactly one Finish, an admitted one exactly one Admit before
it; a Finish is given only when nothing of its cursor is in flight; a cursor that held a frame
gets one Retire after its Finish; a draining model gets one Release after its last Finish;
what arrived before its model was told to drain is never refused for it.

Decisions where the plan is silent. A slice that ended before the deadline completes its request
even if we heard of it later. A failure outranks a cancellation or a missed deadline, since it says
something about the model. What was over before the device was lost keeps its fate. A second
ModelDraining, or one for an unknown model, changes nothing. Requests of a class above their
model's `class_max` raise it, so that the bounds stay true.
"""

from gpumuxd.commands import Admit, Command, Finish, Release, Retire
from gpumuxd.core import admission, eligibility, feasibility
from gpumuxd.core.bucket_table import ONE
from gpumuxd.core.cursor import NO_FRAME, Cursor
from gpumuxd.core.deadlines import Deadlines
from gpumuxd.core.estimator import Estimator
from gpumuxd.core.lanes import Lanes, LaneState
from gpumuxd.core.launcher import Launcher
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.snapshot import Counters, snapshot
from gpumuxd.core.statistics import DeviceStatistics
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import COMPLETED, CursorKind, Outcome, OutcomeKind, PriorityClass
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

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_REALTIME = PriorityClass.REALTIME
_PROFILE = CursorKind.PROFILE
_COMPLETED = OutcomeKind.COMPLETED
_MODEL_FAULTED = OutcomeKind.MODEL_FAULTED
_DEADLINE_MISSED = OutcomeKind.DEADLINE_MISSED


class DeviceScheduler:
    """Schedules one partition of a device. Owned by one thread: the device loop's."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._is_fifo = settings.order is Order.FIFO
        self._lanes = Lanes(settings)
        self._ledger = Ledger(
            settings.memory_bytes_max, settings.frames_max, settings.frames_reserved
        )
        self._estimator = Estimator()
        self._deadlines = Deadlines()
        self._counters = Counters()
        self._models: dict[str, Model] = {}
        self._launcher = Launcher(settings, self._lanes, self._ledger, self._models, self._counters)
        self._tenants: dict[str, Tenant] = {}
        self._cursors: dict[int, Cursor] = {}  # by request id, until its Finish
        self._arrivals: list[Cursor] = []  # not decided yet
        self._ended: list[Cursor] = []  # fate known, nothing in flight, not finished yet
        self._draining: list[Model] = []
        self._live = 0  # admitted and not finished
        self._weights_grew = False
        self._lost: Outcome | None = None
        self._arrival = 0
        self._model_no = 0

    # What happened

    def handle(self, event: Event, now_ns: int) -> None:
        """Record an event. Call `poll` after a batch of them."""
        match event:
            case SyncPointReached():
                self._slice_passed(event, now_ns)
            case RequestArrived():
                self._request_arrived(event)
            case RequestCancelled():
                cursor = self._cursors.get(event.request_id)
                if cursor is not None and cursor.ending is None:
                    self._stop(cursor, Outcome(OutcomeKind.CANCELLED))
            case SliceFailed():
                self._slice_failed(event, now_ns)
            case ModelReady():
                self._model_ready(event)
            case ModelDraining():
                model = self._models.get(event.model)
                if model is not None and not model.is_draining:
                    model.last_arrival = self._arrival
                    self._draining.append(model)
            case TenantChanged():
                self._tenant(event.tenant).change(
                    event.weight, event.realtime_per_s, event.realtime_burst, now_ns
                )
            case PartitionChanged():
                self._partition_changed(event)
            case DeviceMeasured(costs=costs):
                self._launcher.sync_costs = costs
                self._launcher.bounds_are_stale = True
            case DeviceLost():
                self._device_lost(event)
            case _:
                raise AssertionError(f"not an event: {event!r}")

    def _request_arrived(self, event: RequestArrived) -> None:
        assert event.request_id not in self._cursors, f"request {event.request_id} arrived twice"
        self._arrival += 1
        cursor = Cursor(
            cursor_id=self._arrival,
            kind=event.kind,
            model_key=event.model,
            bucket=event.bucket,
            members=(event.request_id,),
            tenant=self._tenant(event.tenant),
            priority_class=event.priority_class,
            arrival=self._arrival,
            arrived_ns=event.arrived_ns,
            deadline_ns=event.deadline_ns,
        )
        self._cursors[event.request_id] = cursor
        self._arrivals.append(cursor)

    def _slice_passed(self, event: SyncPointReached, now_ns: int) -> None:
        launcher = self._launcher
        flight = launcher.flights.pop(event.slice_id, None)
        if flight is None:
            assert self._lost is not None, f"slice {event.slice_id} is not in flight"
            return
        cursor, work = flight.cursor, flight.slice
        started_ns, device_ns, end = event.started_ns, event.device_ns, work.end_group
        flight.queue.passed(flight, started_ns, device_ns, now_ns)
        cursor.slice_passed(end, started_ns, device_ns, flight.is_resumption)
        estimator, table, predicted_ns = self._estimator, cursor.table, flight.predicted_ns
        lane = self._lanes.only
        if lane is None and self._lanes.overlapped(flight, started_ns) and table.is_known:
            cursor.interfered = True
            if not table.is_guess:
                estimator.record_interference(predicted_ns, device_ns)
        else:
            ratio = table.record_slice(cursor.column, work.first_group, end, device_ns)
            if (ratio != ONE or estimator.is_watching) and estimator.record_deviation(
                cursor.model.number, ratio, work.slice_id
            ):
                launcher.bounds_are_stale = True
        if device_ns != predicted_ns:
            run_queue = (lane or self._lanes.of(cursor)).run_queue
            run_queue.correct(cursor, device_ns - predicted_ns)
        if cursor.passed_group == cursor.group_count:
            self._run_passed(cursor, work.slice_id)
        elif cursor.ending is not None and cursor.in_flight == 0:
            self._ended.append(cursor)

    def _run_passed(self, cursor: Cursor, slice_no: int) -> None:
        if not cursor.interfered:
            moved = cursor.table.record_run(cursor.column, cursor.compute_ns, slice_no)
            self._launcher.bounds_are_stale |= moved
        if cursor.last_end_ns > cursor.deadline_ns:
            cursor.ending = _missed(cursor)
        elif cursor.ending is None or cursor.ending.kind is _DEADLINE_MISSED:
            cursor.ending = COMPLETED
        self._ended.append(cursor)

    def _slice_failed(self, event: SliceFailed, now_ns: int) -> None:
        flight = self._launcher.flights.pop(event.slice_id, None)
        if flight is None:
            assert self._lost is not None, f"slice {event.slice_id} is not in flight"
            return
        cursor = flight.cursor
        flight.queue.failed(flight, now_ns)
        cursor.in_flight -= 1
        if cursor.ending is None or cursor.ending.kind is not OutcomeKind.MODEL_FAULTED:
            self._stop(cursor, Outcome(OutcomeKind.MODEL_FAULTED, event.reason))
        elif cursor.in_flight == 0:
            self._ended.append(cursor)

    def _model_ready(self, event: ModelReady) -> None:
        assert event.model not in self._models, f"model key {event.model!r} is in use"
        self._model_no += 1
        model = Model(
            key=event.model,
            number=self._model_no,
            estimates=self._estimator.add(self._model_no, event.profile),
            class_max=event.class_max,
            slo_ns=event.slo_ns,
            weights_bytes=event.weights_bytes,
            frame_bytes=event.frame_bytes,
        )
        self._models[event.model] = model
        self._ledger.book_weights(model)
        self._weights_grew = True
        self._launcher.bounds_are_stale = True

    def _partition_changed(self, event: PartitionChanged) -> None:
        queued = [cursor for cursor in self._cursors.values() if cursor.is_queued]
        before = [self._lanes.of(cursor) for cursor in queued]
        self._lanes.change(event.partition, event.lanes)
        for cursor, lane in zip(queued, before, strict=True):
            if lane is self._lanes.of(cursor):
                continue
            lane.run_queue.drop(cursor)
            self._lanes.of(cursor).run_queue.add(cursor)
            cursor.after = self._launcher.last_slice_of(cursor)

    def _device_lost(self, event: DeviceLost) -> None:
        """Nothing will report again: what is not over yet ends now."""
        self._lost = Outcome(OutcomeKind.DEVICE_LOST, event.reason)
        for flight in self._launcher.flights.values():
            flight.queue.clear()
        self._launcher.flights.clear()
        for cursor in self._cursors.values():
            if cursor.is_admitted and (cursor.ending is None or cursor.in_flight):
                cursor.in_flight = 0
                self._stop(cursor, self._lost)

    def _stop(self, cursor: Cursor, outcome: Outcome) -> None:
        """Its fate is known: it moves no further and ends when nothing of it is in flight."""
        cursor.ending = outcome
        if not cursor.is_admitted:
            return  # not decided yet: `poll` will find its ending
        self._lanes.of(cursor).run_queue.drop(cursor)
        if cursor.in_flight == 0:
            self._ended.append(cursor)

    def _tenant(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        return tenant

    # What is done about it

    def poll(self, now_ns: int) -> list[Command]:
        """Decide on all that is known. Commands are in the order they must be carried out."""
        return self.poll_launches(now_ns, self.poll_fates(now_ns))

    def poll_fates(self, now_ns: int) -> list[Command]:
        """The first half of `poll`: who has ended, and who of the new ones is admitted.

        A loop that carries these out before it asks for the second half, at the same `now_ns`,
        answers an arrival without waiting for the choice of the next slice.
        """
        commands: list[Command] = []
        if now_ns >= self._deadlines.first_ns:
            self._expire(now_ns)
        if self._weights_grew:
            self._stop_what_never_fits()
        if self._ended:
            for cursor in self._ended:
                self._finish(cursor, now_ns, commands)
            self._ended.clear()
        if self._arrivals:
            for cursor in self._arrivals:
                self._decide_arrival(cursor, now_ns, commands)
            self._arrivals.clear()
        return commands

    def poll_launches(self, now_ns: int, commands: list[Command] | None = None) -> list[Command]:
        """The second half of `poll`: models that go, and what is launched next; added to the
        commands of the first half, if they are given."""
        if commands is None:
            commands = []
        if self._draining:
            self._release_drained(commands)
        if self._lost is None:
            self._launcher.launch(now_ns, commands)
        return commands

    def next_wakeup_ns(self) -> int | None:
        """When to poll at the latest. None: only when something happens."""
        deadline_ns, held_until_ns = self._deadlines.next_ns(), self._launcher.held_until_ns
        if deadline_ns is None or held_until_ns is None:
            return held_until_ns if deadline_ns is None else deadline_ns
        return min(deadline_ns, held_until_ns)

    def _expire(self, now_ns: int) -> None:
        while (expired := self._deadlines.pop_expired(now_ns)) is not None:
            self._stop(expired, _missed(expired))

    def _decide_arrival(self, cursor: Cursor, now_ns: int, commands: list[Command]) -> None:
        model = self._models.get(cursor.model_key)
        outcome = cursor.ending or self._lost
        if outcome is None:
            outcome = admission.why_no_place(
                cursor, model, self._live, self._settings.queue_requests_max, self._ledger
            )
        if outcome is None:
            assert model is not None
            outcome = self._consider(cursor, model, now_ns, commands)
        if outcome is not None:
            cursor.ending = outcome
            self._counters.refused += outcome.kind is not OutcomeKind.CANCELLED
            self._tell(cursor, now_ns, commands)

    def _consider(
        self, cursor: Cursor, model: Model, now_ns: int, commands: list[Command]
    ) -> Outcome | None:
        """Admit an arrival if its deadline can be met; else say why not."""
        is_realtime = cursor.priority_class is _REALTIME
        if is_realtime and not cursor.tenant.is_within_rate(now_ns):
            cursor.order_as(PriorityClass.STANDARD)
        table = model.estimates.table(cursor.bucket, cursor.kind is not _PROFILE)
        cursor.predicted_ns = cursor.remaining_ns = 0 if table.is_guess else table.run_ns
        lane = self._lanes.of(cursor)
        ahead = self._ahead(lane, now_ns)
        finish_ns = feasibility.predicted_finish_ns(cursor, ahead, now_ns)
        outcome = admission.why_too_late(cursor, ahead, now_ns, finish_ns)
        if outcome is not None:
            return outcome
        if is_realtime and cursor.priority_class is _REALTIME:
            cursor.tenant.take()
            self._launcher.quiet.arrived(cursor.arrived_ns)
        if cursor.priority_class > model.class_max:
            model.class_max = cursor.priority_class
            self._launcher.bounds_are_stale = True
        cursor.admit(model, table)
        model.live += 1
        self._live += 1
        self._deadlines.add(cursor)
        lane.run_queue.add(cursor)
        commands.append(Admit(cursor.members[0], finish_ns if cursor.predicted_ns else 0))
        return None

    def _ahead(self, lane: LaneState, now_ns: int) -> feasibility.Ahead:
        lane.run_queue.settle()
        is_beside = self._lanes.only is None and any(
            each.launch_queue.flights for each in self._lanes.in_order if each is not lane
        )
        return feasibility.Ahead(
            residual_ns=lane.launch_queue.residual_ns(now_ns),
            backlog_ns=lane.run_queue.backlog_ns,
            realtime=lane.run_queue.realtime,
            interference=self._estimator.interference if is_beside else ONE,
            is_fifo=self._is_fifo,
        )

    def _finish(self, cursor: Cursor, now_ns: int, commands: list[Command]) -> None:
        """End an admitted cursor: nothing of it is in flight."""
        model, ending = cursor.model, cursor.ending
        assert ending is not None
        assert cursor.in_flight == 0, "its memory is still in use"
        self._tell(cursor, now_ns, commands)
        if cursor.frame != NO_FRAME:
            commands.append(Retire(cursor.cursor_id, model.key, cursor.frame))
            self._ledger.return_frame(model, cursor.frame)
            cursor.frame = NO_FRAME
            model.started -= 1
            self._unblock()
        model.live -= 1
        self._live -= 1
        kind = ending.kind
        if kind is _COMPLETED:
            model.completed += 1
        elif kind is _MODEL_FAULTED:
            model.failed += 1
        elif kind is _DEADLINE_MISSED:
            self._counters.deadline_missed += 1
        self._deadlines.trim(self._live)

    def _tell(self, cursor: Cursor, now_ns: int, commands: list[Command]) -> None:
        assert cursor.ending is not None
        report = cursor.report(now_ns)
        for request_id in cursor.members:
            commands.append(Finish(request_id, cursor.ending, report))
            del self._cursors[request_id]

    def _release_drained(self, commands: list[Command]) -> None:
        for model in [each for each in self._draining if each.live == 0]:
            self._draining.remove(model)
            del self._models[model.key]
            self._estimator.remove(model.number)
            self._ledger.return_weights(model)
            self._launcher.bounds_are_stale = True
            commands.append(Release(model.key))
            self._unblock()

    def _stop_what_never_fits(self) -> None:
        """Weights that came later may leave no room for the frames of queued requests."""
        self._weights_grew = False
        for cursor in self._cursors.values():
            if not cursor.is_admitted or cursor.is_started or cursor.ending is not None:
                continue
            reason = self._ledger.why_never(cursor.model)
            if reason:
                self._stop(cursor, Outcome(OutcomeKind.OUT_OF_DEVICE_MEMORY, reason))

    def _unblock(self) -> None:
        """Memory was given back: models that were passed over may start again."""
        was_blocked = False
        for model in self._models.values():
            if model.is_blocked:
                was_blocked, model.is_blocked = True, not self._ledger.fits(model)
        if was_blocked:
            for lane in self._lanes.in_order:
                lane.run_queue.unblock()

    # What can be seen

    def statistics(self) -> DeviceStatistics:
        """A frozen snapshot."""
        return snapshot(
            self._models.values(),
            self._lanes,
            self._ledger,
            self._launcher.bounds,
            self._estimator,
            self._counters,
            in_flight=len(self._launcher.flights),
            admitted=self._live,
        )

    def bound_ns(self, priority_class: PriorityClass) -> int | None:
        """The bound on work in flight that an arrival of this class could be ordered ahead of, as
        of the last poll. None: no loaded model reaches the class."""
        return self._launcher.bounds.of(priority_class)

    def why_waiting(self, request_id: int) -> str:
        """For people: why this request does not move now, empty if it is not waiting."""
        cursor = self._cursors.get(request_id)
        if cursor is None or not cursor.is_queued:
            return ""
        lane = self._lanes.of(cursor)
        held_ns = self._launcher.held_ns(cursor)
        return eligibility.explain(cursor, lane.launch_queue, self._ledger, held_ns)


def _missed(cursor: Cursor) -> Outcome:
    where = "while it ran" if cursor.is_started else "in the queue"
    return Outcome(OutcomeKind.DEADLINE_MISSED, f"the deadline passed {where}")
