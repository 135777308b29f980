"""Frames by class, and bytes."""

import pytest

from gpumuxd.core.ledger import Ledger
from gpumuxd.domain import PriorityClass
from tests.core.conversation import BEST_EFFORT, REALTIME, STANDARD
from tests.core.objects import make_model


@pytest.mark.parametrize(
    ("frames_max", "reserved", "best_effort", "standard", "realtime"),
    [
        (8, 2, 4, 6, 8),
        (8, 0, 8, 8, 8),
        (3, 1, 1, 2, 3),
        (2, 2, 1, 1, 2),  # a share of nothing would never run: one, when none is held
        (1, 5, 1, 1, 1),
    ],
)
def test_how_many_frames_each_class_may_see_held(
    frames_max: int, reserved: int, best_effort: int, standard: int, realtime: int
) -> None:
    limits = {BEST_EFFORT: best_effort, STANDARD: standard, REALTIME: realtime}
    ledger, model = Ledger(0, frames_max, reserved), make_model()
    for held in range(frames_max + 1):
        assert ledger.frames_held == held
        for priority_class, limit in limits.items():
            assert ledger.has_frame(priority_class) == (held < limit), (held, priority_class)
            assert ledger.frame_limit(priority_class) == limit
        if held < frames_max:
            assert ledger.take_frame(model) == held


def test_the_lowest_frame_is_reused_first() -> None:
    ledger, model = Ledger(0, 4, 0), make_model()
    for _ in range(4):
        ledger.take_frame(model)
    for frame in (2, 0, 3):
        ledger.return_frame(model, frame)
    assert [ledger.take_frame(model) for _ in range(3)] == [0, 2, 3]


def test_bytes_are_the_sum_of_weights_and_held_frames() -> None:
    ledger = Ledger(100, 8, 0)
    big, small = make_model(weights_bytes=50, frame_bytes=30), make_model(frame_bytes=20)
    ledger.book_weights(big)
    assert ledger.bytes_used == 50
    frame = ledger.take_frame(big)
    assert ledger.bytes_used == 80
    assert not ledger.fits(big)
    assert ledger.fits(small)  # to the last byte
    ledger.take_frame(small)
    assert ledger.bytes_used == 100
    assert not ledger.fits(small)
    ledger.return_frame(big, frame)
    assert ledger.bytes_used == 70
    ledger.return_weights(big)
    assert ledger.bytes_used == 20


def test_what_can_never_fit_says_why() -> None:
    ledger = Ledger(3 << 20, 8, 0)
    model = make_model(key="big/1", weights_bytes=2 << 20, frame_bytes=1 << 20)
    ledger.book_weights(model)
    ledger.take_frame(model)
    assert ledger.why_never(model) == ""  # a held frame is no reason: it will be returned
    other = make_model(weights_bytes=1)
    ledger.book_weights(other)
    assert ledger.why_never(model) == (
        "a frame of model 'big/1' needs 1.0 MiB; weights take 2.0 of 3.0 MiB"
    )


def test_taking_what_does_not_fit_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Ledger(10, 1, 0).take_frame(make_model(frame_bytes=11))


def test_returning_more_than_was_booked_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Ledger(10, 1, 0).return_weights(make_model(weights_bytes=1))


def test_no_frames_at_all_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Ledger(10, 0, 0)


def test_classes_are_what_the_limits_are_made_for() -> None:
    assert list(PriorityClass) == [0, 1, 2]  # `frames_reserved` counts the classes above
