"""What each error of a step means for those behind it."""

import asyncio

import pytest

from gpumuxd.errors import (
    Cancelled,
    DeadlineInfeasible,
    DeadlineMissed,
    DeviceLost,
    Draining,
    GpumuxdError,
    InvalidRequest,
    ModelFaulted,
    ModelNotReady,
    OutOfDeviceMemory,
    PermissionDenied,
    QueueFull,
    QuotaExceeded,
    SequenceAborted,
    SequenceLost,
    SequenceUnknown,
)
from gpumuxd.node.sequence_ends import again, end_by, expired, lost, unknown

KEY = ("m", 5)


@pytest.mark.parametrize(
    ("error", "alone", "followed", "device_gone"),
    [
        # never ran
        (QueueFull("x"),            None,            SequenceAborted, None),
        (QuotaExceeded("x"),        None,            SequenceAborted, None),
        (PermissionDenied("x"),     None,            SequenceAborted, None),
        (DeadlineInfeasible("x"),   None,            SequenceAborted, None),
        (OutOfDeviceMemory("x"),    None,            SequenceAborted, None),
        # ran, or may have
        (DeadlineMissed("x"),       SequenceAborted, SequenceAborted, SequenceAborted),
        (Cancelled("x"),            SequenceAborted, SequenceAborted, SequenceAborted),
        (InvalidRequest("x"),       SequenceAborted, SequenceAborted, SequenceAborted),
        (ModelFaulted("x"),         SequenceAborted, SequenceAborted, SequenceLost),
        (asyncio.CancelledError(),  SequenceAborted, SequenceAborted, SequenceAborted),
        (ZeroDivisionError(),       SequenceAborted, SequenceAborted, SequenceAborted),
        # its replica goes
        (DeviceLost("x"),           SequenceLost,    SequenceLost,    SequenceLost),
        (Draining("x"),             SequenceLost,    SequenceLost,    SequenceLost),
        (ModelNotReady("x"),        SequenceLost,    SequenceLost,    SequenceLost),
    ],
)  # fmt: skip
def test_ends(
    error: BaseException,
    alone: type[GpumuxdError] | None,
    followed: type[GpumuxdError],
    device_gone: type[GpumuxdError] | None,
) -> None:
    cases = [(True, False, alone), (True, True, followed), (False, False, device_gone)]
    for is_alive, has_next, expected in cases:
        end = end_by(error, KEY, is_alive=is_alive, has_next=has_next)
        assert (None if end is None else type(end)) is expected
        if end is not None and str(error):
            assert "x" in end.message


def test_the_end_that_a_step_was_told_is_told_on() -> None:
    end = lost(KEY, "gone", retry_delay_ns=7)
    told = again(end)
    assert told is not end
    assert (type(told), told.message, told.retry_delay_ns) == (SequenceLost, end.message, 7)
    assert told.facts == {"model": "m", "sequence_id": "5"}
    assert end_by(told, KEY, is_alive=True, has_next=False) is told


def test_long_ids_are_cut_in_messages() -> None:
    for end in (unknown(("m", "x" * 200)), expired(("m", "x" * 200), 10**9)):
        assert isinstance(end, SequenceUnknown)
        assert len(end.message) < 300
