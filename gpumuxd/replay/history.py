"""What happened on a device, request by request and slice by slice, put together from what went in
and came out of its scheduler. The same for what was recorded and for what is predicted.

It must not know which of the two it is. Invariant: nothing here is read by the scheduler.

*Preemption delay* is what a request waited from its arrival to the start of its first slice, of
those requests alone that went ahead of another one's remaining groups.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpumuxd.commands import Admit, Command, Finish, Launch, Release, Retire
from gpumuxd.domain import CursorKind, Lane, Outcome, RunReport, Slice
from gpumuxd.events import (
    Event,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SyncPointReached,
)


@dataclass(slots=True)
class Passage:
    """One slice: when it was launched, ran and was heard of. 0: not heard of."""

    work: Slice
    launched_ns: int
    launched_on_idle: bool
    before: "Passage | None"
    started_ns: int = 0
    device_ns: int = 0
    heard_ns: int = 0

    @property
    def has_passed(self) -> bool:
        return self.heard_ns > 0

    @property
    def end_ns(self) -> int:
        return self.started_ns + self.device_ns


@dataclass(slots=True)
class Request:
    """One request. `was_there`: it had come before the recording began."""

    arrival: RequestArrived
    was_there: bool
    slices: list[Passage] = field(default_factory=list)
    outcome: Outcome | None = None
    report: RunReport = field(default_factory=RunReport)
    ended_ns: int = 0
    went_ahead: bool = False

    @property
    def is_counted(self) -> bool:
        """Does it belong in a table: a tenant's, seen from its arrival to its end?"""
        is_tenants = self.arrival.kind is CursorKind.INFER
        return is_tenants and not self.was_there and self.outcome is not None

    @property
    def latency_ns(self) -> int:
        return self.ended_ns - self.arrival.arrived_ns


@dataclass(slots=True)
class _Mover:
    """A cursor that holds a frame: how many of its groups are launched, of how many."""

    launched: int
    group_count: int


class History:
    """Begins with what the scheduler knew (`DeviceScheduler.inventory`)."""

    def __init__(self, known: Iterable[Event], began_ns: int) -> None:
        self.requests: dict[int, Request] = {}
        self.profiles: dict[str, ModelProfile] = {}
        self.lanes: tuple[Lane, ...] = ()
        self.passages: list[Passage] = []
        self.turns_ns: list[int] = []  # from hearing of a slice to the next decision
        self._slices: dict[int, Passage] = {}
        self._movers: dict[int, _Mover] = {}  # by cursor
        self._last: dict[Lane, Passage] = {}
        self._heard_ns: int | None = None
        for event in known:
            self.handled(event, began_ns, was_there=True)

    def handled(self, event: Event, now_ns: int, *, was_there: bool = False) -> None:
        """An event went in."""
        match event:
            case SyncPointReached():
                passage = self._slices.pop(event.slice_id, None)
                self._heard_ns = now_ns
                if passage is not None:
                    passage.started_ns = event.started_ns
                    passage.device_ns = event.device_ns
                    passage.heard_ns = now_ns
            case RequestArrived():
                self.requests[event.request_id] = Request(event, was_there)
            case ModelReady():
                self.profiles[event.model] = event.profile
            case PartitionChanged(lanes=lanes):
                self.lanes = lanes
            case _:
                pass

    def asked(self, now_ns: int) -> None:
        """A decision is made now."""
        if self._heard_ns is not None:
            self.turns_ns.append(now_ns - self._heard_ns)
            self._heard_ns = None

    def answered(self, commands: Sequence[Command], now_ns: int) -> None:
        """Commands came out."""
        for command in commands:
            match command:
                case Launch(slice=work):
                    self._launched(work, now_ns)
                case Finish():
                    request = self.requests.get(command.request_id)
                    if request is not None:
                        request.outcome, request.report = command.outcome, command.report
                        request.ended_ns = now_ns
                case Retire(cursor_id=cursor_id):
                    self._movers.pop(cursor_id, None)
                case Admit() | Release():
                    pass

    def _launched(self, work: Slice, now_ns: int) -> None:
        before = self._last.get(work.lane)
        is_idle = before is None or before.has_passed
        passage = Passage(work, now_ns, is_idle, before)
        self._last[work.lane] = self._slices[work.slice_id] = passage
        self.passages.append(passage)
        profile = self.profiles.get(work.model)
        mover = self._movers.setdefault(
            work.cursor_id, _Mover(0, profile.group_count if profile is not None else 0)
        )
        mover.launched = work.end_group
        begins = work.first_group == 0
        goes_ahead = False
        if begins and before is not None and before.work.cursor_id != work.cursor_id:
            behind = self._movers.get(before.work.cursor_id)
            goes_ahead = behind is not None and behind.launched < behind.group_count
        for member in work.members:
            request = self.requests.get(member)
            if request is None or request.outcome is not None:
                continue  # who has been told rides no further
            if begins:
                request.slices.clear()  # a run that it shared has failed
                request.went_ahead = goes_ahead
            request.slices.append(passage)
