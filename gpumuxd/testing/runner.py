"""Runs the production device scheduler in virtual time.

The loop has the shape of the device loop: mail into `handle`, one `poll`, carry out what it
returns, `wait` until `next_wakeup_ns` or mail, what comes back into `handle`. Several devices take
turns, the one whose clock is furthest behind first. Faults stop at 70 % of a run, requests at its
end; then all that is left must come to its fate (invariant 10).

Invariant: everything that happens follows from the parameters alone.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gpumuxd.commands import Admit, Command, Finish, Launch, Release, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.core.explanation import Explanation
from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.events import DeviceLost, Event, ModelReady
from gpumuxd.executors.virtual import VirtualClock, VirtualExecutor
from gpumuxd.settings import SchedulerSettings
from gpumuxd.testing.checkers import Checkers, Invariant, Violation
from gpumuxd.testing.launch_checks import StatisticsSeen
from gpumuxd.testing.parameters import DeviceParameters, Parameters
from gpumuxd.testing.truth import Truth, true_program, upload_program
from gpumuxd.testing.workload import Workload, lanes_of
from gpumuxd.units import ms_from_ns

_IDLE_STEPS_MAX = 100
"""Steps in a row in which nothing happens, before the loop counts as spinning."""

_STEPS_MAX = 200_000
"""Steps of one device, before the run counts as endless."""

_TRACE_KEPT = 256
"""Sides of steps that are hashed together. Part of the hash: changing it changes every one."""


class Scheduler(Protocol):
    """The core's contract, so that tests can put something broken in its place."""

    def handle(self, event: Event, now_ns: int) -> None: ...
    def poll(self, now_ns: int) -> list[Command]: ...
    def next_wakeup_ns(self) -> int | None: ...
    def statistics(self) -> StatisticsSeen: ...
    def explain(
        self, model_key: str, bucket: Bucket | None, priority_class: PriorityClass | None
    ) -> Explanation | None: ...


SchedulerOf = Callable[[SchedulerSettings], Scheduler]

_encode = msgspec.msgpack.Encoder().encode


class Trace:
    """A hash over everything that went in and out, with its time. Also the log, if asked for.

    A message is encoded with the names of its fields, in the order of their declaration, and no
    two messages have the same names: that is canonical without naming types.
    """

    def __init__(self, lines: list[str] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._lines = lines
        self._kept: list[tuple[int, Sequence[Event | Command]]] = []

    def record(self, now_ns: int, what: Sequence[Event | Command]) -> None:
        """One side of one step: the events that came, or the commands that went."""
        self._kept.append((now_ns, what))
        if len(self._kept) >= _TRACE_KEPT:  # one call of the encoder for many steps is cheaper
            self.flush()

    def hexdigest(self) -> str:
        self.flush()
        return self._hash.hexdigest()

    def flush(self) -> None:
        """Take what was recorded into the hash and the lines."""
        for now_ns, what in self._kept:
            if self._lines is not None:
                self._lines += [f"{ms_from_ns(now_ns):12.4f} ms  {one}" for one in what]
        self._hash.update(_encode(self._kept))
        self._kept.clear()


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one seed."""

    seed: int
    events: int
    commands: int
    steps: int
    fates: dict[str, int]
    virtual_ns: int
    trace_hash: str


class DeviceRun:
    """One device, its scheduler and its surroundings; a lost one is replaced, twice at most."""

    def __init__(
        self,
        parameters: DeviceParameters,
        seed: int,
        scheduler_of: SchedulerOf,
        trace: Trace,
        check: Iterable[Invariant],
    ) -> None:
        self.clock = VirtualClock()
        self.events = 0
        self.commands = 0
        self.steps = 0
        self.fates: dict[str, int] = {}
        self._parameters = parameters
        self._where = f"seed {seed}, {parameters.name}"
        self._truth = Truth(parameters, self.clock, f"{seed}/{parameters.name}/truth")
        self._workload = Workload(parameters, f"{seed}/{parameters.name}")
        self._programs = {model.name: true_program(model) for model in parameters.models}
        self._uploads = {model.name: upload_program(model) for model in parameters.models}
        self._scheduler_of = scheduler_of
        self._trace = trace
        self._check = tuple(check)
        self._restart_ns: int | None = None
        self._idle_steps = 0
        self._new_device()
        self._workload.start()

    def _new_device(self) -> None:
        parameters = self._parameters
        self._executor = VirtualExecutor(
            self.clock,
            lanes_of(parameters),
            self._truth,
            parameters.round_trip_ns,
            parameters.launch_cost_ns,
        )
        self._scheduler = self._scheduler_of(parameters.settings)
        self._checkers: Checkers | None = None
        if self._check:
            self._checkers = Checkers(
                parameters.settings,
                self._scheduler.statistics,
                self._scheduler.explain,
                self._where,
                self._check,
            )

    def step(self) -> bool:
        """One turn of the device loop. False when nothing can happen any more."""
        self.steps += 1
        clock = self.clock
        if self._restart_ns is not None and clock.now_ns >= self._restart_ns:
            self._restart()
        now_ns, mail_ns = clock.now_ns, self._workload.next_ns
        told: Sequence[Event] = ()
        if mail_ns is not None and mail_ns <= now_ns:
            told = self._workload.due(now_ns)
            if told:
                for event in told:
                    self._prepare(event)
                self._feed(told)
        commands = self._scheduler.poll(now_ns)
        if commands:
            self._carry_out(commands)
        elif self._checkers is not None:
            self._checkers.see_commands((), now_ns)
        if told or commands:
            clock.now_ns += self._parameters.loop_cost_ns
            self._idle_steps = 0
        return self._wait()

    def _wait(self) -> bool:
        until_ns = self._scheduler.next_wakeup_ns()
        mail_ns = self._workload.next_ns
        if until_ns is None or (mail_ns is not None and mail_ns < until_ns):
            until_ns = mail_ns
        if self._restart_ns is not None:
            until_ns = self._restart_ns if until_ns is None else min(until_ns, self._restart_ns)
        if until_ns is None and self._executor.next_sync_point_ns is None:
            self._end()
            return False
        completions = self._executor.wait(until_ns)
        if completions:
            self._feed(completions)
            self._idle_steps = 0
        else:
            self._idle_steps += 1
            if self._idle_steps > _IDLE_STEPS_MAX or self.steps > _STEPS_MAX:
                self._never_ends()
        return True

    def _prepare(self, event: Event) -> None:
        """What a device does itself before it tells its scheduler."""
        if isinstance(event, ModelReady):
            name = self._workload.model_of(event.model).name
            is_upload = self._workload.is_upload(event.model)
            program = self._uploads[name] if is_upload else self._programs[name]
            self._executor.load(event.model, program)
        elif isinstance(event, DeviceLost):
            self._executor.lose()
            self._restart_ns = self.clock.now_ns + self._parameters.faults.restart_ns

    def _feed(self, events: Sequence[Event]) -> None:
        now_ns = self.clock.now_ns
        self._trace.record(now_ns, events)
        self.events += len(events)
        handle, checkers = self._scheduler.handle, self._checkers
        if checkers is None:
            for event in events:
                handle(event, now_ns)
        else:
            for event in events:
                checkers.see_event(event, now_ns)
                handle(event, now_ns)

    def _carry_out(self, commands: list[Command]) -> None:
        now_ns = self.clock.now_ns
        self._trace.record(now_ns, commands)
        self.commands += len(commands)
        if self._checkers is not None:
            self._checkers.see_commands(commands, now_ns)
        executor, workload = self._executor, self._workload
        for command in commands:
            # In the order of how often they come: this is the busiest loop of the simulator.
            if isinstance(command, Launch):
                executor.launch(command.slice)
            elif isinstance(command, Finish):
                kind = command.outcome.kind
                self.fates[kind] = self.fates.get(kind, 0) + 1
                workload.finished(command.request_id, kind, now_ns)
            elif isinstance(command, Retire):
                executor.retire(command.cursor_id)
            elif isinstance(command, Release):
                executor.unload(command.model)
                workload.released(command.model, now_ns)
            else:
                assert isinstance(command, Admit), command

    def _restart(self) -> None:
        if self._checkers is not None:
            self._checkers.see_end()
        self._restart_ns = None
        self._new_device()
        self._workload.restart(self.clock.now_ns)

    def _end(self) -> None:
        if self._checkers is not None:
            self._checkers.see_end()
        self._executor.close()

    def _never_ends(self) -> None:
        message = f"nothing happens and it never ends: {self._idle_steps} idle of {self.steps}"
        if self._checkers is None:
            raise Violation(Invariant.LIVENESS, message, self._where)
        self._checkers.violate(Invariant.LIVENESS, message)
        raise AssertionError(message)


def run(
    parameters: Parameters,
    scheduler_of: SchedulerOf = DeviceScheduler,
    check: Iterable[Invariant] = tuple(Invariant),
    lines: list[str] | None = None,
) -> Result:
    """Run one world to its end. Raises Violation; `lines` collects the trace for people."""
    trace = Trace(lines)
    check = tuple(check)
    runs = [
        DeviceRun(device, parameters.seed, scheduler_of, trace, check)
        for device in parameters.devices
    ]
    going = list(runs)
    try:
        while going:
            behind = min(going, key=_clock_of) if len(going) > 1 else going[0]
            if not behind.step():
                going.remove(behind)
    finally:
        trace.flush()  # who reads the lines of a run that failed looks for the last ones
    fates: dict[str, int] = {}
    for one in runs:
        for kind, count in one.fates.items():
            fates[kind] = fates.get(kind, 0) + count
    return Result(
        seed=parameters.seed,
        events=sum(one.events for one in runs),
        commands=sum(one.commands for one in runs),
        steps=sum(one.steps for one in runs),
        fates=dict(sorted(fates.items())),
        virtual_ns=max(one.clock.now_ns for one in runs),
        trace_hash=trace.hexdigest(),
    )


def _clock_of(device: DeviceRun) -> int:
    return device.clock.now_ns
