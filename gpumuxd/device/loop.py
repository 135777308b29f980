"""The device loop: the one place where mail, scheduler and executor of a device meet.

    drain the mail and the completions into `handle`; carry out what the polls return; wait

It decides nothing: order is the scheduler's, work is the executor's, and models that come and go
are `loading.py`'s. It must not know how a slice is chosen. Invariants: every Submit is answered by
exactly one Finished; a request's tensors are bound from its first launch to its Finished; one turn
takes a bounded amount of mail, so nothing the parent sends delays a sync point for long.

Everything here runs on the loop's thread, but `stop`, which a signal handler calls between two of
its bytecodes.
"""

import gc
from collections.abc import Sequence

from gpumuxd.clock import Clock
from gpumuxd.commands import Admit, Command, Finish, Launch, Release, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device import process_memory
from gpumuxd.device.loading import Loading
from gpumuxd.device.mailbox import Mailbox, close_all
from gpumuxd.device.recorder import Recordings
from gpumuxd.device.sequences import Sequences, StateMisshaped, Tensors
from gpumuxd.device.tensors import ArenaTensors, blocks_of
from gpumuxd.device.translate import (
    explanation_frame,
    request_arrived,
    statistics_frame,
    tenant_changed,
)
from gpumuxd.device.watchdog import Watchdog
from gpumuxd.domain import Lane, Outcome, OutcomeKind, RunReport, Slice
from gpumuxd.events import DeviceMeasured, PartitionChanged, RequestCancelled
from gpumuxd.executors.cpu import CpuExecutor
from gpumuxd.programs.cost_cache import DeviceCosts
from gpumuxd.settings import DeviceSettings
from gpumuxd.wire.frames import (
    Accepted,
    AnyFrame,
    AskExplanation,
    AskStatistics,
    Block,
    Cancel,
    DropSequence,
    Explained,
    Finished,
    LoadModel,
    ModelFailed,
    Ping,
    Pong,
    SetTenant,
    StartRecording,
    Stop,
    StopRecording,
    Submit,
    UnloadModel,
)
from gpumuxd.wire.in_flight_board import InFlightNotes

COLLECT_TURNS = 20_000
"""Turns between two garbage collections. The collector is off otherwise: it was measured to hold
the GIL for 94 ms over 660,000 objects, at any moment. What serves makes no cycles, errors may."""

STOPPING = Outcome(OutcomeKind.DRAINING, "the device is stopping")


class DeviceLoop:
    """One device's loop, from the first frame after Start to its end."""

    def __init__(
        self,
        mailbox: Mailbox,
        scheduler: DeviceScheduler,
        executor: CpuExecutor,
        arena: ArenaTensors,
        notes: InFlightNotes,
        settings: DeviceSettings,
        clock: Clock,
    ) -> None:
        self._mailbox = mailbox
        self._scheduler = scheduler
        self._executor = executor
        self._arena = arena
        self._clock = clock
        self._notes = notes
        self._watchdog = Watchdog(settings)
        self._loading = Loading(scheduler, executor, mailbox.post, settings, clock, notes.load)
        self._recordings = Recordings(scheduler, settings, mailbox.post)
        self._sequences = Sequences(scheduler.why_no_room)
        self._loading.kept_bytes = lambda: self._sequences.held_bytes
        self._requests: dict[int, Submit] = {}
        self._finished: list[Finished] = []  # of this turn, not yet told
        self._turns = 0
        self._submits = 0
        self._collect_at = COLLECT_TURNS
        self._is_stop_asked = False
        self._is_stopping = False
        for partition, lanes in _lanes_of_partitions(executor.lanes):
            scheduler.handle(PartitionChanged(partition, lanes), clock())

    def measured(self, costs: DeviceCosts) -> None:
        """What launches and sync points cost on this device; told before the first model comes."""
        self._loading.launch_ns = costs.launch_ns
        self._scheduler.handle(DeviceMeasured(costs.sync_costs, costs.is_firm), self._clock())

    def run(self) -> None:
        """Turn until everything has ended after Stop. Raises ChannelClosed when the parent goes,
        SliceOverdue when the device does not come back."""
        try:
            while not self._is_done:
                self._turn()
        except BaseException:
            self._recordings.flush()
            raise
        self._recordings.stop("the device was stopped", self._clock())

    def stop(self) -> None:
        """Do as if Stop had come: finish what was admitted, then end. Signal handlers may call."""
        self._is_stop_asked = True
        self._executor.wake()

    @property
    def _is_done(self) -> bool:
        return (
            self._is_stopping
            and not self._requests
            and self._loading.is_empty
            and self._mailbox.is_flushed
        )

    def _turn(self) -> None:
        self._turns += 1
        # A time that has come: look at what there is, do not sleep.
        until_ns = 0 if self._loading.is_runnable else self._scheduler.next_wakeup_ns()
        if self._watchdog.is_watching:
            look_ns = self._watchdog.look_ns
            until_ns = look_ns if until_ns is None else min(until_ns, look_ns)
        completions = self._executor.wait(until_ns)
        now_ns = self._clock()
        for completion in completions:
            self._notes.passed(completion.slice_id)
            self._watchdog.passed(completion.slice_id)
            self._loading.own.passed(completion)
            self._scheduler.handle(completion, now_ns)
        if now_ns >= self._watchdog.look_ns:
            self._watchdog.look(now_ns)
        if mail := self._mailbox.collect():
            # A new look at the clock: a request must not arrive before the parent has stamped it.
            now_ns = self._clock()
            for frame, fds in mail:
                self._handle_frame(frame, fds, now_ns)
        if self._is_stop_asked and not self._is_stopping:
            self._begin_stop()
        self._loading.advance()
        now_ns = self._clock()
        # In two halves, so that a request is accepted before the next slice is chosen: that
        # choice is half the way from Submit to Accepted, and the parent is still awake then.
        for command in self._scheduler.poll_fates(now_ns):
            self._carry_out(command)
        for command in self._scheduler.poll_launches(now_ns):
            self._carry_out(command)
        # After the launches: the kernel likes to run the parent that this wakes on our core, and
        # then the turn stands still for as long as the parent takes, 0.3 to 0.5 ms.
        self._tell_finished()
        if self._turns >= self._collect_at:
            self._collect_garbage()

    # Mail

    def _handle_frame(self, frame: AnyFrame, fds: list[int], now_ns: int) -> None:
        match frame:
            case Submit():
                self._submits += 1
                self._handle_submit(frame, now_ns)
            case Cancel(request_id=request_id):
                self._scheduler.handle(RequestCancelled(request_id), now_ns)
            case DropSequence(model=model, slot=slot):
                self._sequences.drop(model, slot)
            case Ping(count=count):
                self._mailbox.post(Pong(count, self._turns))
            case AskStatistics():
                snapshot = self._scheduler.statistics()
                try:
                    resident_bytes = process_memory.resident_bytes()
                except MemoryError:  # a run has taken all there is, and gives it back soon
                    resident_bytes = 0
                self._mailbox.post(statistics_frame(snapshot, self._submits, resident_bytes))
            case AskExplanation():
                self._explain(frame)
            case SetTenant():
                self._scheduler.handle(tenant_changed(frame), now_ns)
            case LoadModel():
                self._handle_load(frame, fds)
                return
            case UnloadModel():
                self._loading.handle_unload(frame)
            case StartRecording(bytes_max=bytes_max):
                (fd,) = fds
                self._recordings.start(fd, bytes_max, now_ns)
                return
            case StopRecording():
                self._recordings.stop("its time was over", now_ns)
            case Stop():
                self._is_stop_asked = True
            case _:
                raise AssertionError(f"{type(frame).__name__} is not the parent's to send")
        close_all(fds)

    def _explain(self, frame: AskExplanation) -> None:
        why = self._scheduler.explain(frame.model, frame.bucket)
        told = None if why is None else explanation_frame(why)
        self._mailbox.post(Explained(frame.ask_id, told))

    def _handle_submit(self, frame: Submit, now_ns: int) -> None:
        assert frame.request_id > 0, "ids below 1 are the device's own"
        assert frame.request_id not in self._requests, frame
        if self._is_stopping:
            self._mailbox.post(Finished(frame.request_id, STOPPING, RunReport(), ()))
            return
        if frame.sequence is not None and (reason := self._sequences.begin(frame)):
            outcome = Outcome(OutcomeKind.OUT_OF_DEVICE_MEMORY, reason)
            self._mailbox.post(Finished(frame.request_id, outcome, RunReport(), ()))
            return
        self._requests[frame.request_id] = frame
        self._scheduler.handle(request_arrived(frame), now_ns)

    def _handle_load(self, frame: LoadModel, fds: list[int]) -> None:
        if self._is_stopping:
            close_all(fds)
            self._mailbox.post(ModelFailed(frame.model, STOPPING.reason))
        else:
            self._loading.handle_load(frame, fds)

    def _begin_stop(self) -> None:
        self._is_stopping = True
        self._loading.handle_stop()

    # Commands

    def _carry_out(self, command: Command) -> None:
        match command:
            case Launch(slice=work):
                self._launch(work)
            case Finish():
                self._finish(command)
            case Admit(request_id=request_id, predicted_finish_ns=finish_ns):
                if request_id in self._requests:
                    self._mailbox.post(Accepted(request_id, finish_ns))
            case Retire(cursor_id=cursor_id):
                self._executor.retire(cursor_id)
            case Release(model=model):
                self._tell_finished()  # the parent hears of a model's requests before its end
                self._sequences.drop_model(model)
                self._loading.released(model)
            case _:
                raise AssertionError(command)

    def _launch(self, work: Slice) -> None:
        if work.members[0] < 1:
            self._loading.own.launched(work)
        elif work.first_group == 0:
            for member in work.members:
                self._bind(self._requests[member])
        self._notes.launched(work.slice_id, work.members)  # before it can do any harm
        self._watchdog.launched(work)
        self._executor.launch(work)

    def _bind(self, request: Submit) -> None:
        inputs: Tensors = [self._arena.tensor(block) for block in request.inputs]
        outputs: Tensors = [self._arena.tensor(block) for block in request.outputs]
        if request.sequence is not None:
            inputs, outputs = self._sequences.bound(request, inputs, outputs)
        # Whoever ran beside others and failed with them runs again.
        self._executor.unbind(request.request_id)
        self._executor.bind(request.request_id, inputs, outputs)

    def _finish(self, command: Finish) -> None:
        request = self._requests.pop(command.request_id, None)
        if request is None:
            self._loading.own.finished(command)
            return
        outcome = command.outcome
        outputs: tuple[Block, ...] = ()
        if outcome.kind is OutcomeKind.COMPLETED:
            outcome, outputs = self._outputs(request, outcome)
        self._executor.unbind(request.request_id)
        self._finished.append(Finished(request.request_id, outcome, command.report, outputs))

    def _outputs(self, request: Submit, outcome: Outcome) -> tuple[Outcome, tuple[Block, ...]]:
        """Of a run that completed. A step whose state is wrong did not do what it was to do."""
        regions, results = self._executor.result(request.request_id)
        if request.sequence is not None:
            reserved = [self._arena.tensor(block) for block in request.outputs]
            try:
                regions, results = self._sequences.commit(request, regions, results, reserved)
            except StateMisshaped as error:
                return Outcome(OutcomeKind.MODEL_FAULTED, str(error)), ()
        return outcome, blocks_of(request.outputs, regions, results)

    def _tell_finished(self) -> None:
        for frame in self._finished:
            self._mailbox.post(frame)
        self._finished.clear()

    def _collect_garbage(self) -> None:
        """Everything when nothing is going on, else the young objects, which are few."""
        is_idle = not self._requests and not self._loading.is_runnable
        gc.collect(2 if is_idle else 0)
        self._collect_at = self._turns + COLLECT_TURNS


def _lanes_of_partitions(lanes: Sequence[Lane]) -> list[tuple[int, tuple[Lane, ...]]]:
    partitions = sorted({lane.partition for lane in lanes})
    return [(p, tuple(lane for lane in lanes if lane.partition == p)) for p in partitions]
