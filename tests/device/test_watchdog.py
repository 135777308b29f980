"""The watchdog: a slice that never passes is noticed by its limit, and nothing else is."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gpumuxd.device.watchdog import LOOK_INTERVAL_NS, SliceOverdue, Watchdog
from gpumuxd.domain import Lane, LaneKind, Slice
from gpumuxd.executors.cpu import COMPUTE, CpuExecutor
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_MS, NS_PER_S

SETTINGS = DeviceSettings(
    watchdog_factor=20, watchdog_ns_min=2 * NS_PER_S, watchdog_ns_unpredicted=60 * NS_PER_S
)
COPY = Lane(0, LaneKind.COPY_IN)


def work(slice_id: int, predicted_ns: int = NS_PER_MS, lane: Lane = COMPUTE) -> Slice:
    return Slice(slice_id, slice_id, "m/1#1", (1,), (slice_id,), 0, 0, 3, lane, (), predicted_ns)


def looks_until_overdue(watchdog: Watchdog, looks_max: int = 1000) -> int:
    now_ns = watchdog.look_ns
    for count in range(looks_max):
        try:
            watchdog.look(now_ns)
        except SliceOverdue:
            return count
        now_ns = watchdog.look_ns
    return looks_max


@pytest.mark.parametrize(
    ("predicted_ns", "limit_ns"),
    [
        (NS_PER_MS, 2 * NS_PER_S),
        (100 * NS_PER_MS, 2 * NS_PER_S),
        (200 * NS_PER_MS, 4 * NS_PER_S),
        (0, 60 * NS_PER_S),
    ],
)
def test_the_limit_of_a_slice(predicted_ns: int, limit_ns: int) -> None:
    watchdog = Watchdog(SETTINGS)
    watchdog.look(0)
    watchdog.launched(work(1, predicted_ns))
    assert looks_until_overdue(watchdog) == limit_ns // LOOK_INTERVAL_NS


def test_what_waits_behind_the_head_has_its_time_before_it() -> None:
    watchdog = Watchdog(SETTINGS)
    for slice_id in (1, 2, 3):
        watchdog.launched(work(slice_id))
    assert looks_until_overdue(watchdog, 8) == 8
    watchdog.passed(1)
    assert looks_until_overdue(watchdog, 8) == 8
    watchdog.passed(2)
    assert looks_until_overdue(watchdog) == 8


def test_each_lane_has_a_head() -> None:
    watchdog = Watchdog(SETTINGS)
    watchdog.launched(work(1, lane=COPY))
    watchdog.launched(work(2))
    watchdog.look(0)
    watchdog.passed(1)
    for _ in range(7):
        watchdog.look(watchdog.look_ns)
    with pytest.raises(SliceOverdue, match=r"groups 0 to 2 of m/1#1 run for over 2\.00 s"):
        watchdog.look(watchdog.look_ns)


def test_a_process_that_stood_still_has_looked_once() -> None:
    watchdog = Watchdog(SETTINGS)
    watchdog.launched(work(1))
    watchdog.look(0)
    watchdog.look(3600 * NS_PER_S)
    assert watchdog.look_ns == 3600 * NS_PER_S + LOOK_INTERVAL_NS
    watchdog.passed(1)
    assert not watchdog.is_watching


def test_a_device_without_work_is_not_watched() -> None:
    assert looks_until_overdue(Watchdog(SETTINGS), 100) == 100


class Blocking:
    """A program whose one group waits until the test lets it go on."""

    group_count = 1

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()

    @property
    def groups(self) -> Sequence[Callable[[list[Any]], None]]:
        return [self._block]

    def _block(self, slots: list[Any]) -> None:
        self.entered.set()
        self.let_go.wait()

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return []

    def outputs(self, slots: list[Any]) -> list[torch.Tensor]:
        return []

    def bytes_held(self, slots: list[Any]) -> int:
        return 0


def test_a_group_that_never_ends_on_the_cpu_device() -> None:
    """The loop goes on turning beside it, which is what the watchdog counts."""
    executor, program, watchdog = CpuExecutor(), Blocking(), Watchdog(SETTINGS)
    executor.load("m/1#1", program)
    executor.bind(1, (), ())
    launched = work(1)._replace(end_group=1)
    watchdog.launched(launched)
    executor.launch(launched)
    assert program.entered.wait(30)
    for _ in range(8):
        assert executor.wait(0) == []
        watchdog.look(watchdog.look_ns)
    with pytest.raises(SliceOverdue):
        watchdog.look(watchdog.look_ns)
    program.let_go.set()
    (passed,) = executor.wait(None)
    watchdog.passed(passed.slice_id)
    executor.retire(1)
    executor.close()
