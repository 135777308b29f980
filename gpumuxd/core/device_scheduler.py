"""The device scheduler: at each sync point and each arrival, which cursor moves next and how far.

    handle(event, now_ns)   records what happened and decides nothing
    poll(now_ns)            decides on all that is known and returns commands
    next_wakeup_ns()        when to poll although nothing happens: the next deadline, or the end of
                            a hold (`launcher`)
    statistics()            a frozen snapshot

It holds what the floors of the policy need and asks them in turn: `arrivals` for who is admitted
(it asks `admission` and `feasibility`), `launcher` for who moves and how far (it asks `run_queue`
and `slicing`), `endings` for who is done, `ledger` for frames and bytes, `estimator` for times. It
must not know clocks, threads, processes or tensors: the same code runs in virtual time, on the CPU
device and on CUDA.

Same events in, same commands out. Ties break by arrival number. Preempting is not moving a
cursor, so there is no code for it here but the counting.

Invariants: every RequestArrived gets exactly one Finish, an admitted one exactly one Admit before
it; a Finish is given only when nothing of its cursor is in flight; a cursor that held a frame
gets one Retire after its Finish; a draining model gets one Release after its last Finish;
what arrived before its model was told to drain is never refused for it.

Decisions where the plan is silent. A slice that ended before the deadline completes its request
even if we heard of it later. A request that can't be in time any more ends when it would be
launched next, not when its deadline comes (`lateness`). A failure outranks a cancellation or a
missed deadline, since it says something about the model. What was over before the device was lost
keeps its fate. A second ModelDraining, or one for an unknown model, changes nothing. Requests of a
class above their model's `class_max` raise it, so that the bounds stay true.
"""

from gpumuxd.commands import Command, Release
from gpumuxd.core import eligibility
from gpumuxd.core.arrivals import Arrivals
from gpumuxd.core.bucket_table import ONE
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.endings import Endings
from gpumuxd.core.estimator import Estimator
from gpumuxd.core.explanation import Explanation
from gpumuxd.core.inventory import inventory
from gpumuxd.core.lanes import Lanes
from gpumuxd.core.launcher import Launcher
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.snapshot import Counters, snapshot
from gpumuxd.core.statistics import DeviceStatistics
from gpumuxd.core.tap import Tap
from gpumuxd.domain import Bucket, LaneKind, Outcome, OutcomeKind, PriorityClass
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
from gpumuxd.settings import SchedulerSettings

_COPYING = (LaneKind.COPY_IN, LaneKind.COPY_OUT)  # their time is not the device's


class DeviceScheduler:
    """Schedules one partition of a device. Owned by one thread: the device loop's."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._lanes = Lanes(settings)
        self._ledger = Ledger(
            settings.memory_bytes_max, settings.frames_max, settings.frames_reserved
        )
        self._estimator = Estimator()
        self._counters = Counters()
        self._models: dict[str, Model] = {}
        self._endings = Endings(self._lanes, self._ledger, self._models, self._counters)
        self._launcher = Launcher(
            settings, self._lanes, self._ledger, self._models, self._endings, self._counters
        )
        self._arrivals = Arrivals(
            settings,
            self._lanes,
            self._ledger,
            self._models,
            self._estimator,
            self._launcher,
            self._endings,
            self._counters,
        )
        self.tap: Tap | None = None  # who listens, if anybody
        self._draining: list[Model] = []
        self._may_never_fit = False
        self._lost: Outcome | None = None
        self._model_no = 0

    # What happened

    def handle(self, event: Event, now_ns: int) -> None:
        """Record an event. Call `poll` after a batch of them."""
        if self.tap is not None:
            self.tap.handles(event, now_ns)
        match event:
            case SyncPointReached():
                self._slice_passed(event, now_ns)
            case RequestArrived():
                self._arrivals.arrived(event)
            case RequestCancelled():
                cursor = self._endings.cursors.get(event.request_id)
                if cursor is not None and cursor.ending is None:
                    self._endings.stop(cursor, Outcome(OutcomeKind.CANCELLED))
            case SliceFailed():
                self._slice_failed(event, now_ns)
            case ModelReady():
                self._model_ready(event)
            case ModelDraining():
                model = self._models.get(event.model)
                if model is not None and not model.is_draining:
                    model.last_arrival = self._arrivals.count
                    self._draining.append(model)
                    self._launcher.release_held(model)
            case TenantChanged():
                self._tenant_changed(event, now_ns)
            case PartitionChanged():
                self._partition_changed(event)
            case DeviceMeasured(costs=costs):
                self._launcher.sync_costs = costs
                self._launcher.are_costs_firm = event.is_firm
                self._launcher.bounds_are_stale = True
            case DeviceLost():
                self._device_lost(event)
            case _:
                raise AssertionError(f"not an event: {event!r}")

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
        share = launcher.share
        if share is not None and flight.queue.lane.kind not in _COPYING:
            is_waiting = self._lanes.has_best_effort
            share.passed(work.slice_id, cursor.rank, device_ns, is_waiting)
        if device_ns != predicted_ns:
            run_queue = (lane or self._lanes.of(cursor)).run_queue
            run_queue.correct(cursor, device_ns - predicted_ns)
        if cursor.passed_group == cursor.group_count:
            self._run_passed(cursor, work.slice_id)
        elif cursor.ending is not None and cursor.in_flight == 0:
            self._endings.ended.append(cursor)
        elif cursor.batch is not None and work.first_group == 0:
            self._endings.first_slice_passed(cursor)

    def _run_passed(self, cursor: Cursor, slice_no: int) -> None:
        # Who was spared a stop has shown its rest; as a whole run it counts only if it was in time,
        # since those that are stopped don't count either.
        end_ns = cursor.last_end_ns
        riders = [cursor] if cursor.batch is None else cursor.batch.riders
        is_late_spared = any(each.is_spared and end_ns > each.deadline_ns for each in riders)
        if not cursor.interfered and not is_late_spared:
            moved = cursor.table.record_run(cursor.column, cursor.compute_ns, slice_no)
            self._launcher.estimates_moved |= moved
        self._endings.run_passed(cursor)

    def _slice_failed(self, event: SliceFailed, now_ns: int) -> None:
        flight = self._launcher.flights.pop(event.slice_id, None)
        if flight is None:
            assert self._lost is not None, f"slice {event.slice_id} is not in flight"
            return
        cursor = flight.cursor
        if self._launcher.share is not None:
            self._launcher.share.failed(event.slice_id)
        flight.queue.failed(flight, now_ns)
        cursor.in_flight -= 1
        if cursor.ending is None or cursor.ending.kind is not OutcomeKind.MODEL_FAULTED:
            self._endings.run_failed(cursor, event.reason)
        elif cursor.in_flight == 0:
            self._endings.ended.append(cursor)

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
            operators=event.profile.operators,
            layer_ends=event.profile.layer_ends,
            frame_bytes_measured=event.profile.frame_bytes,
            account=self._ledger.account(event.tenant),
            batching=event.batching,
        )
        self._models[event.model] = model
        self._ledger.book_weights(model)
        self._may_never_fit = True
        self._launcher.bounds_are_stale = True

    def _tenant_changed(self, event: TenantChanged, now_ns: int) -> None:
        self._arrivals.tenant(event.tenant).change(
            event.weight, event.realtime_per_s, event.realtime_burst, now_ns
        )
        account = self._ledger.account(event.tenant)
        if account is not None and account.bytes_max != event.memory_bytes_max:
            account.bytes_max = event.memory_bytes_max
            self._may_never_fit = True
            self._endings.unblock()

    def _partition_changed(self, event: PartitionChanged) -> None:
        self._launcher.release_held()
        cursors = self._endings.cursors.values()
        runs = dict.fromkeys([cursor.run or cursor for cursor in cursors])
        queued = [cursor for cursor in runs if cursor.is_queued]
        before = [self._lanes.of(cursor) for cursor in queued]
        self._lanes.change(event.partition, event.lanes)
        for cursor, lane in zip(queued, before, strict=True):
            if lane is self._lanes.of(cursor):
                continue
            lane.run_queue.drop(cursor)
            self._lanes.of(cursor).run_queue.add(cursor)
            cursor.after = self._launcher.last_slice_of(cursor)

    def _device_lost(self, event: DeviceLost) -> None:
        self._lost = Outcome(OutcomeKind.DEVICE_LOST, event.reason)
        for flight in self._launcher.flights.values():
            flight.queue.clear()
        self._launcher.flights.clear()
        self._endings.lose(self._lost)

    # What is done about it

    def poll(self, now_ns: int) -> list[Command]:
        """Decide on all that is known. Commands are in the order they must be carried out."""
        return self.poll_launches(now_ns, self.poll_fates(now_ns))

    def poll_fates(self, now_ns: int) -> list[Command]:
        """The first half of `poll`: who has ended, and who of the new ones is admitted.

        A loop that carries these out before it asks for the second half, at the same `now_ns`,
        answers an arrival without waiting for the choice of the next slice.
        """
        tap = self.tap
        if tap is not None:
            tap.polls_fates(now_ns)
        commands: list[Command] = []
        endings = self._endings
        if now_ns >= endings.deadlines.first_ns:
            endings.expire(now_ns)
        if self._may_never_fit:
            self._may_never_fit = False
            endings.stop_what_never_fits()
        if endings.ended:
            endings.finish_ended(now_ns, commands)
        if self._arrivals.undecided:
            self._arrivals.decide(self._lost, now_ns, commands)
        if tap is not None:
            tap.answers(commands)
        return commands

    def poll_launches(self, now_ns: int, commands: list[Command] | None = None) -> list[Command]:
        """The second half of `poll`: models that go, and what is launched next; added to the
        commands of the first half, if they are given."""
        if commands is None:
            commands = []
        tap, given = self.tap, len(commands)
        if tap is not None:
            tap.polls_launches(now_ns)
        if self._draining:
            self._release_drained(commands)
        if self._lost is None:
            self._launcher.launch(now_ns, commands)
            # Who was given up instead may have been the last of a model that drains.
            while self._draining and self._release_drained(commands):
                self._launcher.launch(now_ns, commands)
        if tap is not None:
            tap.answers(commands[given:])
        return commands

    def next_wakeup_ns(self) -> int | None:
        """When to poll at the latest. None: only when something happens."""
        deadline_ns = self._endings.deadlines.next_ns()
        held_until_ns = self._launcher.next_release_ns()
        if deadline_ns is None or held_until_ns is None:
            return held_until_ns if deadline_ns is None else deadline_ns
        return min(deadline_ns, held_until_ns)

    def _release_drained(self, commands: list[Command]) -> bool:
        drained = [each for each in self._draining if each.live == 0 and each.frames_held == 0]
        for model in drained:
            self._draining.remove(model)
            del self._models[model.key]
            self._estimator.remove(model.number)
            self._ledger.return_weights(model)
            self._launcher.bounds_are_stale = True
            commands.append(Release(model.key))
            self._endings.unblock()
        return bool(drained)

    # What can be seen

    def statistics(self) -> DeviceStatistics:
        """A frozen snapshot."""
        return snapshot(
            list(self._models.values()),
            self._lanes,
            self._ledger,
            self._launcher.bounds,
            self._estimator,
            self._counters,
            share=self._launcher.share,
            in_flight=len(self._launcher.flights),
            admitted=self._endings.live,
        )

    def inventory(self) -> list[Event]:
        """The events that would tell a new scheduler what this one knows."""
        return list(
            inventory(
                self._lanes,
                self._launcher.measured,
                self._arrivals.tenants(),
                self._models.values(),
                self._endings.cursors.values(),
                self._memory_bytes_max_of,
            )
        )

    def _memory_bytes_max_of(self, tenant: str) -> int | None:
        account = self._ledger.account(tenant)
        return account.bytes_max if account is not None else None

    def free_bytes(self, tenant: str) -> int:
        """What a model of this tenant alone, or of several (""), may still take."""
        return max(0, self._ledger.free_bytes(self._ledger.account(tenant)))

    def why_no_room(self, size_bytes: int, tenant: str) -> str:
        """Why a model of this tenant alone, or of several (""), may not take so much now; empty
        if it may."""
        return self._ledger.why_no_room(size_bytes, self._ledger.account(tenant))

    def bound_ns(self, priority_class: PriorityClass) -> int | None:
        """How long the device's own work may be in the way of an arrival of this class, as of the
        last poll: the bound of the class, `slice_ns_max` where nothing is promised. None: no loaded
        model reaches the class."""
        return self._launcher.bounds.pace_of(priority_class)

    def explain(
        self,
        model_key: str,
        bucket: Bucket | None = None,
        priority_class: PriorityClass | None = None,
    ) -> Explanation | None:
        """For people: how this model is cut and why, as of the last poll.

        Without a bucket: the one that was seen first. Without a class: the highest that its tenants
        may ask for. None: there is no such model, or nothing is remembered of it at that bucket:
        it was never asked for, or was one of too many and not among the last of them.
        """
        model = self._models.get(model_key)
        if model is None:
            return None
        if bucket is None:
            bucket = next((each for each, _ in model.estimates.tables()), None)
        table = None if bucket is None else model.estimates.seen(bucket)
        if bucket is None or table is None:
            return None
        asked = model.class_max if priority_class is None else priority_class
        return self._launcher.explain(model, table, bucket, asked)

    def why_waiting(self, request_id: int) -> str:
        """For people: why this request does not move now, empty if it is not waiting."""
        cursor = self._endings.cursors.get(request_id)
        if cursor is not None:
            cursor = cursor.run or cursor
        if cursor is None or not (cursor.is_queued or cursor.is_held):
            return ""
        lane = self._lanes.of(cursor)
        held_ns = self._launcher.held_ns(cursor)
        return eligibility.explain(cursor, lane.launch_queue, self._ledger, held_ns)
