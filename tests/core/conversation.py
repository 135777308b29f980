"""A device for conversations: it runs what is launched, in order, for as long as it is told.

The smallest thing that answers a DeviceScheduler. `Conversation.run` plays handle and poll until
nothing is left, so that a test says what arrives when and then looks at what came out.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heappop, heappush
from typing import TypeVar

from gpumuxd.commands import Admit, Command, Finish, Launch, Release, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import Lane, LaneKind, OutcomeKind, PriorityClass, Slice
from gpumuxd.events import (
    Event,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SyncPointReached,
)
from gpumuxd.settings import SchedulerSettings
from gpumuxd.testing.checkers import Checkers

US = 1_000
MS = 1_000_000
BEST_EFFORT, STANDARD, REALTIME = PriorityClass
COMPUTE = Lane(0, LaneKind.COMPUTE)
HIGH = Lane(0, LaneKind.COMPUTE_HIGH)
COPY_IN = Lane(0, LaneKind.COPY_IN)

CommandT = TypeVar("CommandT", bound=Command)


def profile(*group_ns: int, bucket: tuple[int, ...] = (1,)) -> ModelProfile:
    return ModelProfile(len(group_ns), {bucket: group_ns}, {bucket: sum(group_ns)})


def ready(
    model: str,
    *group_ns: int,
    class_max: PriorityClass = REALTIME,
    slo_ns: int | None = None,
    weights_bytes: int = 0,
    frame_bytes: int = 0,
) -> ModelReady:
    return ModelReady(model, profile(*group_ns), class_max, slo_ns, weights_bytes, frame_bytes)


def request(
    request_id: int,
    model: str,
    priority_class: PriorityClass = BEST_EFFORT,
    *,
    at: int = 0,
    deadline: int | None = None,
    tenant: str = "t",
) -> RequestArrived:
    return RequestArrived(request_id, tenant, model, priority_class, (1,), at, deadline)


class Conversation:
    """A scheduler, the device under it and everything that was said."""

    def __init__(
        self,
        *events: Event,
        lanes: tuple[Lane, ...] = (COMPUTE,),
        duration_ns: Callable[[Slice], int] | None = None,
        settings: SchedulerSettings | None = None,
        is_checked: bool = False,
        **changes: object,
    ) -> None:
        chosen = settings or SchedulerSettings(round_trip_ns=0)
        chosen = replace(chosen, **changes)  # type: ignore[arg-type]  # by name
        self.scheduler = scheduler = DeviceScheduler(chosen)
        self.checkers: Checkers | None = None
        if is_checked:
            self.checkers = Checkers(
                chosen, scheduler.statistics, scheduler.explain, "a conversation"
            )
        self.duration_ns = duration_ns or (lambda work: work.predicted_ns or US)
        self.now_ns = 0
        self.commands: list[Command] = []
        self.launched_at: dict[int, int] = {}
        self.started_at: dict[int, int] = {}
        self.finished_at: dict[int, int] = {}
        self._free_ns: dict[Lane, int] = {}
        self._ends: list[tuple[int, int, SyncPointReached]] = []
        self.say(PartitionChanged(lanes[0].partition, lanes), *events)

    def say(self, *events: Event, at: int | None = None) -> list[Command]:
        """Handle events together and poll once. Does not run the device up to that time."""
        self.now_ns = self.now_ns if at is None else at
        checkers = self.checkers
        for event in events:
            if checkers is not None:
                checkers.see_event(event, self.now_ns)
            self.scheduler.handle(event, self.now_ns)
        said = self.scheduler.poll(self.now_ns)
        self.commands += said
        if checkers is not None:
            checkers.see_commands(said, self.now_ns)
        for command in said:
            match command:
                case Launch(work):
                    self._launch(work)
                case Finish(request_id, _, _):
                    self.finished_at[request_id] = self.now_ns
                case _:
                    pass
        return said

    def _launch(self, work: Slice) -> None:
        started_ns = max(self.now_ns, self._free_ns.get(work.lane, 0))
        device_ns = self.duration_ns(work)
        self._free_ns[work.lane] = started_ns + device_ns
        self.launched_at[work.slice_id] = self.now_ns
        self.started_at[work.slice_id] = started_ns
        passed = SyncPointReached(work.slice_id, started_ns, device_ns)
        heappush(self._ends, (started_ns + device_ns, work.slice_id, passed))

    def step(self) -> list[Command] | None:
        """The next sync point or wake-up. None: there is nothing to come."""
        wakeup_ns = self.scheduler.next_wakeup_ns()
        if self._ends and (wakeup_ns is None or self._ends[0][0] <= wakeup_ns):
            end_ns, _, passed = heappop(self._ends)
            return self.say(passed, at=end_ns)
        return self.say(at=wakeup_ns) if wakeup_ns is not None else None

    def run(self, arrivals: Iterable[tuple[int, Event]] = (), until: int | None = None) -> None:
        """Play what happens at the given times, and the device, to the end or `until`."""
        for at, event in sorted(arrivals, key=lambda pair: pair[0]):
            self._run_to(at)
            self.say(event, at=at)
        self._run_to(until)
        self.now_ns = until if until is not None else self.now_ns

    def _run_to(self, until: int | None) -> None:
        for _ in range(100_000):
            times = [end for end, _, _ in self._ends[:1]]
            wakeup_ns = self.scheduler.next_wakeup_ns()
            times += [wakeup_ns] if wakeup_ns is not None else []
            if not times or (until is not None and min(times) >= until):
                return
            self.step()
        raise AssertionError("it does not come to rest")

    def of_type(self, kind: type[CommandT]) -> list[CommandT]:
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def slices(self) -> list[Slice]:
        return [command.slice for command in self.of_type(Launch)]

    @property
    def order(self) -> list[tuple[int, int, int]]:
        """(request, first group, end group) of every slice launched, in order."""
        return [(work.members[0], work.first_group, work.end_group) for work in self.slices]

    @property
    def outcomes(self) -> dict[int, OutcomeKind]:
        assert len({each.request_id for each in self.of_type(Finish)}) == len(self.of_type(Finish))
        return {each.request_id: each.outcome.kind for each in self.of_type(Finish)}

    def finish(self, request_id: int) -> Finish:
        return next(each for each in self.of_type(Finish) if each.request_id == request_id)


__all__ = [
    "BEST_EFFORT",
    "COMPUTE",
    "COPY_IN",
    "HIGH",
    "MS",
    "REALTIME",
    "STANDARD",
    "US",
    "Admit",
    "Conversation",
    "Finish",
    "Launch",
    "Release",
    "Retire",
    "profile",
    "ready",
    "request",
]
