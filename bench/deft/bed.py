"""A test bed: the production scheduler on any executor, one model looping, another arriving.

The loop of a device child without its mail, arena and loads, so that what is measured is
scheduling: arrivals into `handle`, one `poll`, its commands carried out, `wait`. Whose clock it is,
virtual or not, is the caller's matter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpumuxd.commands import Finish, Launch, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import COMPLETED, Bucket, PriorityClass, RunReport, SyncCost
from gpumuxd.events import (
    DeviceMeasured,
    Event,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SyncPointReached,
)
from gpumuxd.executors.base import Executor
from gpumuxd.settings import SchedulerSettings, Slicing, parse_slicing

OUTSTANDING = 2
"""Requests of the looping model: one runs, one is there to follow it."""

WINDOW_MAX = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A model in the part it plays: the one that loops, or the one that arrives."""

    key: str
    bucket: Bucket
    priority_class: PriorityClass
    profile: ModelProfile
    program: Any
    inputs: Sequence[Any] = ()
    slo_ns: int | None = None


class Run(NamedTuple):
    """One finished request."""

    arrived_ns: int
    heard_ns: int
    report: RunReport


class Flown(NamedTuple):
    """One slice: when it was launched, began and ended, and when the host heard of that."""

    launched_ns: int
    started_ns: int
    end_ns: int
    heard_ns: int


def settings_of(slicing: str) -> SchedulerSettings:
    """A policy by its text, all else as it is by default."""
    kind, operators, window = parse_slicing(slicing)
    return SchedulerSettings(
        slicing=kind,
        slicing_operators=operators,
        slicing_window=window,
        window_max=max(WINDOW_MAX, window),
    )


def window_of(settings: SchedulerSettings) -> int:
    """How many slices a fixed policy lets fly; 0 where that follows from measurement."""
    return settings.slicing_window if settings.slicing is not Slicing.ADAPTIVE else 0


@dataclass(slots=True)
class Bed:
    """One executor with its scheduler, and the parts on it."""

    settings: SchedulerSettings
    executor: Executor[Any, Any]
    clock: Callable[[], int]
    costs: Sequence[SyncCost]
    parts: Sequence[Part]
    scheduler: DeviceScheduler = field(init=False)
    runs: Mapping[str, list[Run]] = field(init=False)
    flown: list[Flown] = field(default_factory=list)
    begun_ns: list[int] = field(default_factory=list)
    """When each run of the looping part was first launched."""
    _mail: list[RequestArrived] = field(default_factory=list)
    _live: dict[int, tuple[Part, int]] = field(default_factory=dict)  # with its arrival
    _launched_ns: dict[int, int] = field(default_factory=dict)
    _requests: int = 0
    _looping: Part | None = None

    def __post_init__(self) -> None:
        self.scheduler = DeviceScheduler(self.settings)
        self.runs = {part.key: [] for part in self.parts}
        self._tell(PartitionChanged(0, tuple(self.executor.lanes)))
        if self.costs:
            self._tell(DeviceMeasured(tuple(self.costs)))
        for part in self.parts:
            self.executor.load(part.key, part.program)
            self._tell(ModelReady(part.key, part.profile, part.priority_class, part.slo_ns))

    @property
    def is_idle(self) -> bool:
        return not self._live

    def loop(self, part: Part) -> None:
        """Keep the device busy with this one from now on."""
        self._looping = part
        for _ in range(OUTSTANDING):
            self.send(part, self.clock())

    def drain(self) -> None:
        """End the loop, and all that was sent."""
        self._looping = None
        while self._live:
            self.turn()

    def forget(self) -> None:
        """What was measured up to now."""
        self.flown.clear()
        self.begun_ns.clear()
        for runs in self.runs.values():
            runs.clear()

    def send(self, part: Part, time_ns: int) -> None:
        """One request that arrives then; not before one that was sent earlier."""
        self._requests += 1
        self._live[self._requests] = (part, time_ns)
        self._mail.append(
            RequestArrived(
                self._requests, part.key, part.key, part.priority_class, part.bucket, time_ns
            )
        )
        self._mail.sort(key=lambda each: each.arrived_ns)

    def turn(self, until_ns: int | None = None) -> None:
        """One turn of the device loop; sleeps no longer than until then."""
        clock, executor = self.clock, self.executor
        while self._mail and self._mail[0].arrived_ns <= clock():
            arrived = self._mail.pop(0)
            inputs = self._live[arrived.request_id][0].inputs
            executor.bind(arrived.request_id, inputs, ())
            self._tell(arrived)
        for command in self.scheduler.poll(clock()):
            match command:
                case Launch(slice=work):
                    self._launched_ns[work.slice_id] = clock()
                    if work.first_group == 0 and self._looping and work.model == self._looping.key:
                        self.begun_ns.append(clock())
                    executor.launch(work)
                case Finish():
                    self._finished(command)
                case Retire(cursor_id=cursor_id):
                    executor.retire(cursor_id)
        times = (self.scheduler.next_wakeup_ns(), until_ns, self._next_arrival_ns)
        known = [each for each in times if each is not None]
        if not known and not self._launched_ns:
            return  # nothing would ever end the wait
        for passed in executor.wait(min(known, default=None)):
            assert isinstance(passed, SyncPointReached), passed
            end_ns = passed.started_ns + passed.device_ns
            launched_ns = self._launched_ns.pop(passed.slice_id)
            self.flown.append(Flown(launched_ns, passed.started_ns, end_ns, clock()))
            self._tell(passed)

    @property
    def _next_arrival_ns(self) -> int | None:
        return self._mail[0].arrived_ns if self._mail else None

    def _finished(self, command: Finish) -> None:
        assert command.outcome == COMPLETED, command
        part, arrived_ns = self._live.pop(command.request_id)
        now_ns = self.clock()
        self.executor.unbind(command.request_id)
        self.runs[part.key].append(Run(arrived_ns, now_ns, command.report))
        if part is self._looping:
            self.send(part, now_ns)

    def _tell(self, event: Event) -> None:
        self.scheduler.handle(event, self.clock())
