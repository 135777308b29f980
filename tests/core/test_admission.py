"""What an arrival must pass, in order."""

import pytest

from gpumuxd.core import admission
from gpumuxd.core.deadline_backlog import DeadlineBacklog
from gpumuxd.core.feasibility import Ahead
from gpumuxd.core.ledger import Ledger
from gpumuxd.domain import OutcomeKind
from tests.core.objects import make_cursor, make_model


@pytest.mark.parametrize(
    ("is_loaded", "last_arrival", "live", "frame_bytes", "expected"),
    [
        (True, None, 9, 10, None),
        (False, None, 9, 10, OutcomeKind.MODEL_NOT_READY),
        (True, 6, 9, 10, OutcomeKind.DRAINING),
        (True, 7, 9, 10, None),  # it was there before the drain
        (True, None, 10, 10, OutcomeKind.QUEUE_FULL),
        (True, None, 9, 11, OutcomeKind.OUT_OF_DEVICE_MEMORY),
        (False, 6, 10, 11, OutcomeKind.MODEL_NOT_READY),  # the first that fails is told
        (True, 6, 10, 11, OutcomeKind.DRAINING),
        (True, None, 10, 11, OutcomeKind.QUEUE_FULL),
    ],
)
def test_is_there_a_place(
    is_loaded: bool,
    last_arrival: int | None,
    live: int,
    frame_bytes: int,
    expected: OutcomeKind | None,
) -> None:
    model = make_model(frame_bytes=frame_bytes)
    model.last_arrival = last_arrival
    outcome = admission.why_no_place(
        make_cursor(7, model), model if is_loaded else None, live, 10, Ledger(10, 8, 0)
    )
    assert (outcome and outcome.kind) == expected
    if outcome is not None:
        assert outcome.reason, "people are told why"


@pytest.mark.parametrize(("deadline_ns", "is_refused"), [(1_000, False), (999, True)])
def test_is_there_time(deadline_ns: int, is_refused: bool) -> None:
    cursor = make_cursor(1, make_model(1_000), deadline_ns=deadline_ns)
    ahead = Ahead(0, [0, 0, 0], DeadlineBacklog())
    outcome = admission.why_too_late(cursor, ahead, 0, 1_000)
    assert (outcome is not None) == is_refused
    if outcome is not None:
        assert outcome.kind is OutcomeKind.DEADLINE_INFEASIBLE
