"""A device in virtual time: what the simulator, many tests and what-if replays run on.

It behaves like an in-order device and costs nothing: a slice's sync point lies at
`max(now, lane free, slices it waits for) + true duration`, sync points wait in a heap, and `wait`
pops the earliest and sets the clock. It must not know any estimate: durations come from the
*truth* it is given, which is drawn apart or was recorded. It passes `tests/executors/contract.py`,
the same suite as the real devices.

Invariant: sync points of one lane are told in the order of their launches, never before they
have passed; the clock never goes back.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpumuxd.domain import Bucket, Lane, LaneKind, Slice
from gpumuxd.events import SliceFailed, SyncPointReached
from gpumuxd.executors.base import Completion

Group = Callable[[list[Any]], None]
"""What a kernel group does to the slots of its frame. Only contract tests need any."""


class VirtualClock:
    """The time of a simulated device: an integer that its executor moves forward."""

    __slots__ = ("now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns


@dataclass(frozen=True, slots=True)
class VirtualProgram:
    """A program as the device knows it: how long its groups really take, and what they do.

    `group_ends_ns[bucket][i]` is the true time of the first `i` groups, so that a slice's time is
    one subtraction. `groups` is empty when nobody looks at results.
    """

    group_count: int
    group_ends_ns: Mapping[Bucket, tuple[int, ...]]
    groups: tuple[Group, ...] = field(default=())


class SliceTruth(NamedTuple):
    """What really happens to one slice."""

    duration_ns: int
    late_ns: int = 0
    failure: str | None = None


TruthOf = Callable[[Slice, VirtualProgram], SliceTruth]


def exact_truth(work: Slice, program: VirtualProgram) -> SliceTruth:
    """Every group takes its own time, on time, and none fails."""
    ends = program.group_ends_ns[work.bucket]
    return SliceTruth(ends[work.end_group] - ends[work.first_group])


_Enqueued = tuple[int, int, Slice, int, int, str | None]
"""When it is told, launch number, slice, when it starts, how long it takes, why it fails."""


class _LaneQueue:
    """When a lane has done all it has, and when the host hears of its last slice."""

    __slots__ = ("free_ns", "told_ns")

    def __init__(self) -> None:
        self.free_ns = 0
        self.told_ns = 0


class VirtualExecutor:
    """Implements `executors/base.py` Executor[VirtualProgram, list[Any]] in virtual time.

    `round_trip_ns` passes between a sync point and the moment the host is told of it,
    `launch_cost_ns` of host time goes by in every launch, `start_ns` after that before an idle lane
    begins, and `gap_ns` between two slices of a lane that is kept busy.
    """

    def __init__(
        self,
        clock: VirtualClock,
        lanes: Sequence[Lane] = (Lane(0, LaneKind.COMPUTE),),
        truth_of: TruthOf = exact_truth,
        round_trip_ns: int = 0,
        launch_cost_ns: int = 0,
        start_ns: int = 0,
        gap_ns: int = 0,
    ) -> None:
        self._clock = clock
        self._lanes = tuple(lanes)
        self._truth_of = truth_of
        self._round_trip_ns = round_trip_ns
        self._launch_cost_ns = launch_cost_ns
        self._start_ns = start_ns
        self._gap_ns = gap_ns
        self._programs: dict[str, VirtualProgram] = {}
        self._tensors: dict[int, tuple[list[Any], list[Any]]] = {}
        self._frames: dict[int, tuple[int, list[list[Any]]]] = {}  # slots of each member
        self._cursor_of_frame: dict[int, int] = {}
        self._failed: set[int] = set()
        self._heap: list[_Enqueued] = []
        self._end_ns_of_slice: dict[int, int] = {}
        self._queues = {lane: _LaneQueue() for lane in self._lanes}
        only = next(iter(self._queues.values())) if len(self._queues) == 1 else None
        self._only = only  # the hash of a lane takes 0.5 us
        self._launches = 0
        self._woken = False
        self._lost = False

    @property
    def lanes(self) -> Sequence[Lane]:
        return self._lanes

    @property
    def next_sync_point_ns(self) -> int | None:
        """When the host will be told of the next sync point. For the simulator only."""
        return self._heap[0][0] if self._heap else None

    def load(self, model: str, program: VirtualProgram, fills: Sequence[int | float] = ()) -> None:
        assert model not in self._programs, f"{model} is loaded already"
        self._programs[model] = program

    def unload(self, model: str) -> None:
        del self._programs[model]

    def bind(self, request_id: int, inputs: list[Any], outputs: list[Any]) -> None:
        assert request_id not in self._tensors, f"request {request_id} is bound already"
        self._tensors[request_id] = (inputs, outputs)

    def unbind(self, request_id: int) -> None:
        self._tensors.pop(request_id, None)

    def launch(self, work: Slice) -> None:
        assert not self._lost, "a lost device takes no work"
        program = self._programs[work.model]
        if work.first_group == 0:
            self._take_frame(work)
        assert self._frames[work.cursor_id][0] == work.frame, "a cursor keeps its frame"
        duration_ns, late_ns, failure = self._truth_of(work, program)
        clock, queue = self._clock, self._only or self._queues[work.lane]
        clock.now_ns = now_ns = clock.now_ns + self._launch_cost_ns
        started_ns, follows_ns = now_ns + self._start_ns, queue.free_ns + self._gap_ns
        if follows_ns > started_ns:
            started_ns = follows_ns
        for slice_id in work.after:
            started_ns = max(started_ns, self._end_ns_of_slice.get(slice_id, 0))
        end_ns = started_ns + duration_ns
        told_ns = end_ns + self._round_trip_ns + late_ns
        if told_ns < queue.told_ns:
            told_ns = queue.told_ns
        queue.free_ns = end_ns
        queue.told_ns = told_ns
        if self._only is None:
            self._end_ns_of_slice[work.slice_id] = end_ns
        self._launches += 1
        entry = (told_ns, self._launches, work, started_ns, duration_ns, failure)
        heapq.heappush(self._heap, entry)

    def retire(self, cursor_id: int) -> None:
        held = self._frames.pop(cursor_id, None)
        if held is not None:
            del self._cursor_of_frame[held[0]]
            self._failed.discard(cursor_id)

    def wait(self, until_ns: int | None) -> list[Completion]:
        clock, heap = self._clock, self._heap
        now_ns = clock.now_ns
        if self._woken:
            self._woken = False
        elif until_ns is None or until_ns > now_ns:
            target_ns = heap[0][0] if heap else until_ns
            assert target_ns is not None, "nothing can ever end this wait"
            if until_ns is not None and until_ns < target_ns:
                target_ns = until_ns
            if target_ns > now_ns:
                clock.now_ns = now_ns = target_ns
        told: list[Completion] = []
        while heap and heap[0][0] <= now_ns:
            told.append(self._pass(heapq.heappop(heap)))
        return told

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        while self._heap:
            self.wait(None)
        self._programs.clear()
        self._tensors.clear()
        self._frames.clear()
        self._cursor_of_frame.clear()

    def lose(self) -> None:
        """The device is gone: what was enqueued never reports. A fault of the simulator."""
        self._lost = True
        self._heap.clear()

    def _take_frame(self, work: Slice) -> None:
        assert work.cursor_id not in self._frames, f"cursor {work.cursor_id} starts twice"
        holder = self._cursor_of_frame.setdefault(work.frame, work.cursor_id)
        assert holder == work.cursor_id, f"frame {work.frame} is held by cursor {holder}"
        bound = [self._tensors.get(member) for member in work.members]
        slots = [[] if tensors is None else list(tensors[0]) for tensors in bound]
        self._frames[work.cursor_id] = (work.frame, slots)

    def _pass(self, entry: _Enqueued) -> Completion:
        _, _, work, started_ns, duration_ns, failure = entry
        if self._end_ns_of_slice:
            self._end_ns_of_slice.pop(work.slice_id, None)
        if self._failed and work.cursor_id in self._failed:
            failure = "an earlier slice of this cursor failed"
        elif failure is None and (program := self._programs[work.model]).groups:
            failure = self._run(work, program)
        if failure is not None:
            self._failed.add(work.cursor_id)
            return SliceFailed(work.slice_id, failure)
        return SyncPointReached(work.slice_id, started_ns, duration_ns)

    def _run(self, work: Slice, program: VirtualProgram) -> str | None:
        """Members of one run are run side by side, which is what they can tell of it."""
        slots_of_members = self._frames[work.cursor_id][1]
        try:
            for group in program.groups[work.first_group : work.end_group]:
                for slots in slots_of_members:
                    group(slots)
        except Exception as error:  # a group may raise anything; it ends its own cursor only
            return repr(error)
        if work.end_group == program.group_count:
            for member, slots in zip(work.members, slots_of_members, strict=True):
                if member in self._tensors:
                    self._tensors[member][1][:] = slots
        return None
