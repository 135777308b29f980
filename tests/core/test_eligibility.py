"""Each refusal has a reason that people can read."""

import pytest

from gpumuxd.core import eligibility
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.core.ledger import Ledger
from gpumuxd.events import ModelProfile
from tests.core.conversation import BEST_EFFORT, COMPUTE, MS, REALTIME
from tests.core.objects import fly, make_cursor, make_model

MIB = 1 << 20


def test_no_frame() -> None:
    ledger = Ledger(0, 8, 2)
    for _ in range(4):
        ledger.take_frame(make_model().frame_size((1,)))
    blocked = eligibility.why_not_started(make_cursor(1, None, BEST_EFFORT), ledger)
    assert blocked == (
        Blocked.NO_FRAME,
        "no frame: 4 of 8 are held and BEST_EFFORT may use 4",
    )
    assert eligibility.why_not_started(make_cursor(1, None, REALTIME), ledger) is None


def test_no_memory() -> None:
    ledger = Ledger(10 * MIB, 8, 0)
    ledger.book_weights(make_model(weights_bytes=8 * MIB))
    cursor = make_cursor(1, make_model(frame_bytes=3 * MIB))
    assert eligibility.why_not_started(cursor, ledger) == (
        Blocked.NO_MEMORY,
        "no memory for a frame of 3.0 MiB: 2.0 of 10.0 MiB are free",
    )


def test_a_started_cursor_needs_nothing() -> None:
    ledger = Ledger(0, 1, 0)
    cursor = make_cursor(1)
    cursor.frame = ledger.take_frame(cursor.frame_size)
    assert eligibility.why_not_started(cursor, ledger) is None


@pytest.mark.parametrize(
    ("in_flight_ns", "window", "is_known", "expected"),
    [
        ([MS, MS], 2, True, "0/compute: in flight are 2 slices, 2.000 ms; its window of 2 is full"),
        ([0], 2, True, "0/compute: work that was not measured yet runs one group at a time"),
        ([MS], 2, False, "0/compute: work that was not measured yet runs one group at a time"),
        (
            [MS],
            2,
            True,
            "0/compute: in flight are 1 slices, 1.000 ms; "
            "others go first, or the bound leaves no room",
        ),
    ],
)
def test_what_a_lane_has_against_it(
    in_flight_ns: list[int], window: int, is_known: bool, expected: str
) -> None:
    queue = LaunchQueue(COMPUTE, 4, 0)
    queue.window = window
    for predicted_ns in in_flight_ns:
        fly(queue, make_cursor(1), predicted_ns)
    measured = None if is_known else ModelProfile(1)
    cursor = make_cursor(2, make_model(measured=measured))
    told = eligibility.explain(cursor, queue, Ledger(0, 8, 0))
    assert told == "lane " + expected
