"""The budget of a measurement: of device time and of memory, and what a slow program still gets."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpumuxd.commands import Finish, Launch, Release
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.own_runs import OwnRun, OwnRuns
from gpumuxd.device.profiling import PASSES_NS_MAX, ProfileFailed, Profiler
from gpumuxd.device.steps import Steps
from gpumuxd.domain import Bucket, Lane, LaneKind, Slice
from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.events import PartitionChanged, SyncPointReached
from gpumuxd.settings import SchedulerSettings
from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_S

BUCKETS: list[Bucket] = [(1,), (2,), (4,), (8,)]


class FakeExecutor:
    """A device on which each group takes and holds what the test says. Groups pass at once."""

    def __init__(self, group_ns: Callable[[Bucket], int], held_bytes: int) -> None:
        self._group_ns = group_ns
        self._held_bytes = held_bytes
        self.programs: set[str] = set()
        self.passed: list[SyncPointReached] = []

    def load(self, key: str, program: object) -> None:
        self.programs.add(key)

    def unload(self, key: str) -> None:
        self.programs.remove(key)

    def bind(self, *_: object) -> None: ...

    def unbind(self, *_: object) -> None: ...

    def bytes_held(self, cursor_id: int) -> int:
        return self._held_bytes

    def launch(self, work: Slice, now_ns: int) -> None:
        completion = SyncPointReached(work.slice_id, now_ns, self._group_ns(work.bucket))
        self.passed.append(completion)


class TwoGroups:
    group_count = 2


def nothing() -> Steps[list[torch.Tensor]]:
    return []
    yield


class Rig:
    """A profiler, a real scheduler, a fake device and the loop between them."""

    def __init__(
        self, group_ns: Callable[[Bucket], int], held_bytes: int = 0, memory_bytes: int = GIB
    ) -> None:
        self.scheduler = DeviceScheduler(SchedulerSettings(memory_bytes_max=memory_bytes))
        self.scheduler.handle(PartitionChanged(0, (Lane(0, LaneKind.COMPUTE),)), 0)
        self.executor: Any = FakeExecutor(group_ns, held_bytes)
        self._now_ns = 0
        self.own = OwnRuns(self.scheduler, self.executor, self._clock)
        self.profiler = Profiler(self.own, self.scheduler)

    def _clock(self) -> int:
        self._now_ns += 1000
        return self._now_ns

    def measure(self, passes: int, weights_bytes: int = 0) -> dict[Bucket, list[OwnRun]]:
        steps = self.profiler.measure(
            "m@x",
            "",
            TwoGroups(),
            weights_bytes,
            BUCKETS,
            lambda bucket: nothing(),
            lambda bucket: passes,
        )
        try:
            return self._drive(steps)
        finally:
            assert self.executor.programs == set(), "whatever ends it, its program goes"

    def _drive(self, steps: Steps[dict[Bucket, list[OwnRun]]]) -> dict[Bucket, list[OwnRun]]:
        condition = next(steps)
        for _ in range(10_000):
            while condition():
                try:
                    condition = next(steps)
                except StopIteration as end:
                    return end.value
            for completion in self.executor.passed:
                self.own.passed(completion)
                self.scheduler.handle(completion, self._clock())
            self.executor.passed = []
            for command in self.scheduler.poll(self._clock()):
                match command:
                    case Launch(slice=work):
                        self.own.launched(work)
                        self.executor.launch(work, self._clock())
                    case Finish():
                        self.own.finished(command)
                    case Release(model=model):
                        self.own.released(model)
                    case _:
                        pass
        raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("group_ns_of_one", "passes"),
    [
        (NS_PER_MS, {1: 6, 2: 6, 4: 6, 8: 6}),
        # 0.6 s, 1.2 s and 2.4 s a run; of 8 it would be 4.8 s
        (300 * NS_PER_MS, {1: 4, 2: 2, 4: 1, 8: 1}),
        # 1 s and 2 s and 4 s; of 8 it would be 8 s
        (500 * NS_PER_MS, {1: 3, 2: 2, 4: 1}),
        (PASSES_NS_MAX, {1: 1}),
        (20 * NS_PER_S, {1: 1}),
    ],
)
def test_a_slow_program_is_measured_less_often_and_in_fewer_buckets(
    group_ns_of_one: int, passes: dict[int, int]
) -> None:
    rig = Rig(lambda bucket: group_ns_of_one * bucket[0])
    runs = rig.measure(passes=6)
    assert {bucket[0]: len(each) for bucket, each in runs.items()} == passes
    assert runs[(1,)][0].group_ns == [group_ns_of_one] * 2


def test_a_program_that_takes_too_long_is_given_up_between_two_groups() -> None:
    rig = Rig(lambda bucket: 61 * NS_PER_S)
    with pytest.raises(ProfileFailed, match="took over 60 s"):
        rig.measure(passes=6)
    assert rig.scheduler.statistics().groups_launched == 1


def test_a_run_that_holds_more_than_is_free_beside_the_weights_is_stopped_at_once() -> None:
    rig = Rig(lambda bucket: NS_PER_MS, held_bytes=6 * MIB, memory_bytes=10 * MIB)
    with pytest.raises(OutOfDeviceMemory, match=f"holds {6 * MIB} bytes and more, {5 * MIB} are"):
        rig.measure(passes=6, weights_bytes=5 * MIB)
    assert rig.scheduler.statistics().groups_launched == 1
    assert rig.measure(passes=2, weights_bytes=4 * MIB)[(8,)][0].frame_bytes == 6 * MIB
