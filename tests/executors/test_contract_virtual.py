"""The virtual executor passes the suite of the real ones, and keeps its own promises on time."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpumuxd.domain import Lane, LaneKind, Slice
from gpumuxd.events import SliceFailed, SyncPointReached
from gpumuxd.executors.virtual import (
    SliceTruth,
    VirtualClock,
    VirtualExecutor,
    VirtualProgram,
)
from tests.executors.contract import ExecutorContract, Group, MultiLaneContract, Rig

COMPUTE = Lane(0, LaneKind.COMPUTE)
HIGH = Lane(0, LaneKind.COMPUTE_HIGH)
GROUP_NS = 1_000
LONG_NS = 10_000_000_000


def _long(slots: list[Any]) -> None:
    """A long group does nothing; its program says how long it takes."""


class VirtualRig(Rig[VirtualProgram, list[Any]]):
    blocking = False

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.clock = VirtualClock(5_000)
        self.executor = VirtualExecutor(self.clock, lanes, round_trip_ns=300, launch_cost_ns=20)
        self.outputs: dict[int, list[Any]] = {}

    def now_ns(self) -> int:
        return self.clock.now_ns

    def make_program(self, groups: Sequence[Group]) -> VirtualProgram:
        ends_ns = [0]
        for group in groups:
            ends_ns.append(ends_ns[-1] + (LONG_NS if group is _long else GROUP_NS))
        return VirtualProgram(len(groups), {self.bucket: tuple(ends_ns)}, tuple(groups))

    def bind(self, request_id: int, value: int) -> None:
        self.outputs[request_id] = []
        self.executor.bind(request_id, [value], self.outputs[request_id])

    def result(self, request_id: int) -> int | None:
        written = self.outputs[request_id]
        return written[0] if written else None

    def long_group(self) -> Group:
        return _long

    def end_long_groups(self) -> None:
        """Virtual time reaches their end by itself."""


class TestVirtual(ExecutorContract):
    def make_rig(self) -> Rig[VirtualProgram, list[Any]]:
        return VirtualRig([COMPUTE])


class TestVirtualWithTwoLanes(MultiLaneContract):
    def make_rig(self) -> Rig[VirtualProgram, list[Any]]:
        return VirtualRig([COMPUTE, HIGH])


def work(slice_id: int, lane: Lane = COMPUTE, after: tuple[int, ...] = ()) -> Slice:
    return Slice(slice_id, slice_id, "m", (1,), (slice_id,), slice_id, 0, 1, lane, after, 0)


def device(*truths: SliceTruth, **options: int) -> tuple[VirtualClock, VirtualExecutor]:
    """A device of two lanes whose slices meet these fates, in the order of their launch."""
    fates = iter(truths)
    clock = VirtualClock(100)
    executor = VirtualExecutor(clock, [COMPUTE, HIGH], lambda *_: next(fates), **options)
    executor.load("m", VirtualProgram(1, {(1,): (0, 1)}))
    return clock, executor


def test_sync_points_lie_at_lane_free_plus_the_true_duration() -> None:
    clock, executor = device(SliceTruth(50), SliceTruth(7), SliceTruth(10))
    executor.launch(work(1))
    executor.launch(work(2))
    executor.launch(work(3, HIGH))
    assert executor.wait(None) == [SyncPointReached(3, 100, 10)]
    assert clock.now_ns == 110
    assert executor.wait(149) == []
    assert clock.now_ns == 149
    assert executor.wait(None) == [SyncPointReached(1, 100, 50)]
    assert executor.wait(None) == [SyncPointReached(2, 150, 7)]
    assert clock.now_ns == 157


def test_a_slice_waits_for_the_slices_of_other_lanes_it_names() -> None:
    clock, executor = device(SliceTruth(50), SliceTruth(7))
    executor.launch(work(1))
    executor.launch(work(2, HIGH, after=(1,)))
    assert executor.wait(None) == [SyncPointReached(1, 100, 50)]
    assert executor.wait(None) == [SyncPointReached(2, 150, 7)]
    assert clock.now_ns == 157


def test_a_late_notification_delays_those_behind_it_in_its_lane_and_no_others() -> None:
    clock, executor = device(SliceTruth(10, late_ns=500), SliceTruth(10), SliceTruth(300))
    executor.launch(work(1))
    executor.launch(work(2))
    executor.launch(work(3, HIGH))
    assert executor.wait(None) == [SyncPointReached(3, 100, 300)]
    assert executor.wait(None) == [SyncPointReached(1, 100, 10), SyncPointReached(2, 110, 10)]
    assert clock.now_ns == 610


def test_round_trip_and_launch_cost_are_host_time() -> None:
    clock, executor = device(SliceTruth(10), round_trip_ns=30, launch_cost_ns=5)
    executor.launch(work(1))
    assert clock.now_ns == 105
    assert executor.wait(None) == [SyncPointReached(1, 105, 10)]
    assert clock.now_ns == 145


def test_an_idle_lane_begins_late_and_a_busy_one_leaves_a_gap() -> None:
    _, executor = device(SliceTruth(50), SliceTruth(7), start_ns=20, gap_ns=3)
    executor.launch(work(1))
    executor.launch(work(2))
    assert executor.wait(None) == [SyncPointReached(1, 120, 50)]
    assert executor.wait(None) == [SyncPointReached(2, 173, 7)]


def test_a_failure_that_the_truth_asks_for() -> None:
    _, executor = device(SliceTruth(10, failure="bit flip"), SliceTruth(10))
    executor.launch(work(1))
    executor.launch(work(2))
    assert executor.wait(None) == [SliceFailed(1, "bit flip")]
    assert executor.wait(None) == [SyncPointReached(2, 110, 10)]


def test_a_lost_device_reports_nothing_and_takes_nothing() -> None:
    _, executor = device(SliceTruth(10), SliceTruth(10))
    executor.launch(work(1))
    executor.lose()
    assert executor.wait(1_000) == []
    with pytest.raises(AssertionError, match="lost"):
        executor.launch(work(2))


def test_misuse_is_caught() -> None:
    _, executor = device(SliceTruth(10), SliceTruth(10))
    executor.launch(work(1))
    with pytest.raises(AssertionError, match="frame 1 is held"):
        executor.launch(Slice(2, 2, "m", (1,), (2,), 1, 0, 1, COMPUTE, (), 0))
    executor.wait(None)
    with pytest.raises(AssertionError, match="nothing can ever end"):
        executor.wait(None)
