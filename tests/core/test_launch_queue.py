"""What is in flight, how large the window is, and how the round trip is learnt."""

import pytest

from gpumuxd.core.launch_queue import LaunchQueue
from tests.core.conversation import BEST_EFFORT, COMPUTE, REALTIME, US
from tests.core.objects import fly, make_cursor


def play(
    queue: LaunchQueue, slice_ns: int, heard_ns: int, launch_ns: int, times: int = 100
) -> None:
    """Slices one at a time, each launched on an idle lane and heard of late."""
    now_ns = 0
    for _ in range(times):
        flight = fly(queue, make_cursor(1), slice_ns, now_ns)
        started_ns = now_ns + launch_ns
        now_ns = started_ns + slice_ns + heard_ns
        queue.passed(flight, started_ns, slice_ns, now_ns)


@pytest.mark.parametrize(
    ("slice_us", "heard_us", "launch_us", "window_max", "window"),
    [
        (1_000, 60, 40, 4, 2),
        (100, 60, 40, 4, 2),
        (99, 60, 40, 4, 3),
        (50, 60, 40, 4, 3),
        (30, 60, 40, 8, 5),
        (30, 60, 40, 4, 4),
        (1_000, 0, 0, 4, 2),  # one would drain at any jitter
        (1_000, 60, 40, 1, 1),
    ],
)
def test_the_window_hides_the_measured_round_trip(
    slice_us: int, heard_us: int, launch_us: int, window_max: int, window: int
) -> None:
    queue = LaunchQueue(COMPUTE, window_max, 0)
    play(queue, slice_us * US, heard_us * US, launch_us * US)
    assert queue.window == window
    assert abs(queue.round_trip_ns - (heard_us + launch_us) * US) <= 100


def test_the_guess_holds_until_a_launch_on_an_idle_lane_was_seen() -> None:
    queue = LaunchQueue(COMPUTE, 8, 300 * US)
    cursor = make_cursor(1)
    first, second = fly(queue, cursor, 100 * US), fly(queue, cursor, 100 * US)
    assert queue.round_trip_ns == 300 * US
    queue.passed(first, 10 * US, 100 * US, 120 * US)
    assert queue.round_trip_ns < 300 * US
    before = queue.round_trip_ns
    queue.passed(second, 110 * US, 100 * US, 210 * US)  # was not launched on an idle lane
    assert queue.round_trip_ns <= before


def test_one_late_wake_up_does_not_open_the_window() -> None:
    queue = LaunchQueue(COMPUTE, 8, 0)
    play(queue, 500 * US, 60 * US, 40 * US)
    assert queue.window == 2
    play(queue, 500 * US, 100_000 * US, 40 * US, times=1)
    assert queue.window == 2


def test_a_clock_that_seems_to_run_backwards_is_no_sample_below_zero() -> None:
    queue = LaunchQueue(COMPUTE, 8, 0)
    play(queue, 500 * US, -50 * US, -10 * US)
    assert queue.round_trip_ns == 0


def test_sums_by_class_follow_the_flights() -> None:
    queue = LaunchQueue(COMPUTE, 8, 0)
    low, high = make_cursor(1, None, BEST_EFFORT), make_cursor(2, None, REALTIME)
    flights = [fly(queue, low, 10), fly(queue, high, 3), fly(queue, low, 5)]
    assert queue.covered_ns == [15, 15, 18]
    queue.passed(flights[0], 0, 12, 12)
    assert queue.covered_ns == [5, 5, 8]
    queue.failed(flights[1], 20)
    assert (queue.covered_ns, len(queue.flights)) == ([5, 5, 5], 1)
    queue.clear()
    assert (queue.covered_ns, len(queue.flights)) == ([0, 0, 0], 0)


def test_work_without_a_prediction_is_known_by_its_head() -> None:
    queue = LaunchQueue(COMPUTE, 8, 0)
    assert not queue.has_unknown
    flight = fly(queue, make_cursor(1), 0)
    assert queue.has_unknown
    queue.passed(flight, 0, 12, 12)
    fly(queue, make_cursor(1), 1)
    assert not queue.has_unknown


@pytest.mark.parametrize(
    ("now_ns", "residual_ns"),
    [(0, 300), (40, 260), (100, 200), (150, 200)],  # an overdue head counts as nothing
)
def test_residual(now_ns: int, residual_ns: int) -> None:
    queue = LaunchQueue(COMPUTE, 8, 0)
    cursor = make_cursor(1)
    for predicted_ns in (100, 150, 50):
        fly(queue, cursor, predicted_ns)
    assert queue.residual_ns(now_ns) == residual_ns


def test_residual_counts_the_head_from_the_end_of_the_slice_before() -> None:
    queue = LaunchQueue(COMPUTE, 8, 0)
    cursor = make_cursor(1)
    first = fly(queue, cursor, 100)
    fly(queue, cursor, 100)
    queue.passed(first, 0, 130, 150)
    assert queue.residual_ns(150) == 80


def test_passing_out_of_order_is_a_bug() -> None:
    queue = LaunchQueue(COMPUTE, 8, 0)
    cursor = make_cursor(1)
    fly(queue, cursor, 1)
    second = fly(queue, cursor, 1)
    with pytest.raises(AssertionError):
        queue.passed(second, 0, 1, 1)


def test_a_window_of_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        LaunchQueue(COMPUTE, 0, 0)


def test_what_sync_points_cost_is_measured_along_the_way() -> None:
    queue = LaunchQueue(COMPUTE, 8, 300 * US)
    assert queue.sync_ns_measured == (0, 0), "a guess is no measurement"
    play(queue, 500 * US, 60 * US, 40 * US)
    alone_ns, queued_ns = queue.sync_ns_measured
    assert abs(alone_ns - 100 * US) < US, "one in flight: the round trip"
    assert queued_ns == 0, "none was queued"
    cursor, end_ns = make_cursor(1), queue.last_end_ns
    flights = [fly(queue, cursor, 100 * US, end_ns)]
    for _ in range(800):
        flights.append(fly(queue, cursor, 100 * US, end_ns))
        queue.passed(flights.pop(0), end_ns + 7 * US, 100 * US, end_ns + 107 * US)
        end_ns += 107 * US
    assert abs(queue.sync_ns_measured[1] - 7 * US) < US, "two in flight: the device's gap"


def test_a_launch_that_came_too_late_says_nothing_of_sync_points() -> None:
    """The slice behind was over before the host had heard of the one before it."""
    queue, cursor = LaunchQueue(COMPUTE, 8, 300 * US), make_cursor(1)
    flights, start_ns = [fly(queue, cursor, 20 * US, 0)], 0
    for _ in range(80):
        end_ns = start_ns + 20 * US
        flights.append(fly(queue, cursor, 20 * US, end_ns + 40 * US))
        queue.passed(flights.pop(0), start_ns, 20 * US, end_ns + 80 * US)
        start_ns = end_ns + 40 * US
    assert queue.sync_ns_measured[1] == 0


@pytest.mark.parametrize(("fixed", "window_max", "window"), [(1, 4, 1), (3, 4, 3), (3, 2, 2)])
def test_a_stated_window_stays(fixed: int, window_max: int, window: int) -> None:
    queue = LaunchQueue(COMPUTE, window_max, 300 * US, fixed)
    assert queue.window == window
    play(queue, 30 * US, 60 * US, 40 * US)
    assert queue.window == window
    assert abs(queue.round_trip_ns - 100 * US) <= 100, "it is measured all the same"
