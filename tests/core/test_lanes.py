"""Which cursor goes where, and what a change of lanes leaves alone."""

import pytest

from gpumuxd.core.lanes import Lanes
from gpumuxd.domain import CursorKind, Lane, LaneKind, PriorityClass
from gpumuxd.settings import SchedulerSettings
from tests.core.conversation import BEST_EFFORT, COMPUTE, COPY_IN, HIGH, REALTIME, STANDARD
from tests.core.objects import fly, make_cursor

COPY_OUT = Lane(0, LaneKind.COPY_OUT)
INFER, UPLOAD, PROFILE = CursorKind.INFER, CursorKind.UPLOAD, CursorKind.PROFILE


def lanes_of(*lanes: Lane) -> Lanes:
    made = Lanes(SchedulerSettings())
    made.change(0, lanes)
    return made


@pytest.mark.parametrize(
    ("lanes", "kind", "priority_class", "expected"),
    [
        ((COMPUTE,), INFER, REALTIME, COMPUTE),
        ((COMPUTE,), UPLOAD, BEST_EFFORT, COMPUTE),
        ((COMPUTE, HIGH), INFER, REALTIME, HIGH),
        ((COMPUTE, HIGH), INFER, STANDARD, COMPUTE),
        ((COMPUTE, HIGH), PROFILE, BEST_EFFORT, COMPUTE),
        ((COMPUTE, HIGH), UPLOAD, BEST_EFFORT, COMPUTE),
        ((COMPUTE, COPY_IN), UPLOAD, BEST_EFFORT, COPY_IN),
        ((COMPUTE, COPY_IN), INFER, REALTIME, COMPUTE),
        ((COPY_OUT, COPY_IN, HIGH, COMPUTE), UPLOAD, BEST_EFFORT, COPY_IN),
    ],
)
def test_where_a_cursor_goes(
    lanes: tuple[Lane, ...], kind: CursorKind, priority_class: PriorityClass, expected: Lane
) -> None:
    cursor = make_cursor(1, None, priority_class, kind=kind)
    assert lanes_of(*lanes).of(cursor).launch_queue.lane == expected


def test_the_high_lane_decides_first() -> None:
    order = lanes_of(COPY_OUT, COPY_IN, COMPUTE, HIGH).in_order
    assert [each.launch_queue.lane for each in order] == [HIGH, COMPUTE, COPY_IN, COPY_OUT]


def test_lanes_that_stay_keep_their_queues() -> None:
    lanes = lanes_of(COMPUTE)
    compute = lanes.in_order[0]
    compute.run_queue.add(make_cursor(1))
    lanes.change(0, (COMPUTE, HIGH))
    assert lanes.compute is compute
    assert compute.run_queue.live == 1


@pytest.mark.parametrize(
    "lanes",
    [(), (HIGH,), (COMPUTE, COMPUTE), (COMPUTE, Lane(1, LaneKind.COMPUTE_HIGH))],
)
def test_impossible_lanes_are_bugs(lanes: tuple[Lane, ...]) -> None:
    with pytest.raises(AssertionError):
        lanes_of(*lanes)


def test_a_second_partition_is_a_bug() -> None:
    lanes = lanes_of(COMPUTE)
    with pytest.raises(AssertionError):
        lanes.change(1, (Lane(1, LaneKind.COMPUTE),))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (None, False),
        ((0, 50), False),  # ended before
        ((0, 51), True),
        ((60, None), True),  # still in flight
    ],
)
def test_was_another_lane_active(other: tuple[int, int | None] | None, expected: bool) -> None:
    """Asked when a slice that started at 50 passes."""
    lanes = lanes_of(COMPUTE, HIGH)
    assert lanes.high is not None
    assert lanes.compute is not None
    if other is not None:
        start, end = other
        flight = fly(lanes.high.launch_queue, make_cursor(1), 10, start)
        if end is not None:
            lanes.high.launch_queue.passed(flight, start, end - start, end)
    asked = fly(lanes.compute.launch_queue, make_cursor(2), 10, 50)
    lanes.compute.launch_queue.passed(asked, 50, 10, 60)
    assert lanes.overlapped(asked, 50) == expected
