"""Which exception a status becomes, and when a call is sent again."""

import pytest
from gpumuxd_client import errors
from gpumuxd_client.calls import RETRY_DELAY_S_FIRST, Attempts, load, server_live
from gpumuxd_client.errors import error_of

from gpumuxd import errors as daemon_errors
from tests.rpc.test_error_details import ERROR_CLASSES


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("INVALID_ARGUMENT", "InvalidManifest", errors.InvalidManifest),
        ("UNAVAILABLE", "Draining", errors.Draining),
        ("UNAVAILABLE", None, errors.Unreachable),
        ("DEADLINE_EXCEEDED", None, errors.DeadlineExceeded),
        ("DEADLINE_EXCEEDED", "DeadlineInfeasible", errors.DeadlineInfeasible),
        ("RESOURCE_EXHAUSTED", None, errors.ResourceExhausted),
        ("RESOURCE_EXHAUSTED", "SomethingNewer", errors.ResourceExhausted),
        ("INTERNAL", "Internal", errors.InternalError),
        ("DATA_LOSS", None, errors.InternalError),
        ("UNIMPLEMENTED", None, errors.Unsupported),
        ("INVALID_ARGUMENT", b"Draining", errors.InvalidRequest),
    ],
)
def test_the_reason_decides_and_else_the_status(
    status: str, reason: str | bytes | None, expected: type[errors.GpumuxdError]
) -> None:
    metadata = [] if reason is None else [("other", "x"), ("gpumuxd-reason", reason)]
    error = error_of(status, "why", metadata)
    assert type(error) is expected
    assert (error.message, error.status) == ("why", status)


def test_an_error_without_a_text_tells_its_status() -> None:
    assert str(error_of("UNIMPLEMENTED", "", [])) == "UNIMPLEMENTED"


@pytest.mark.parametrize("theirs", ERROR_CLASSES)
def test_every_error_of_the_daemon_has_a_class_here(
    theirs: type[daemon_errors.GpumuxdError],
) -> None:
    ours = getattr(errors, theirs.__name__)
    assert issubclass(ours, errors.GpumuxdError)
    assert ours.is_retryable == theirs.retryable
    # Caught by the class of its status, too.
    assert issubclass(ours, type(error_of(theirs.status, "", []))) or theirs.status == "UNAVAILABLE"


LOST = errors.DeviceLost("restarting", "UNAVAILABLE")


def test_delays_double_up_to_the_number_of_retries() -> None:
    attempts = Attempts(retries=3, deadline=None, now_s=100.0)
    delays = [attempts.delay_s(server_live(), LOST, 100.0) for _ in range(4)]
    assert delays[3] is None
    for n, delay in enumerate(delays[:3]):
        assert delay is not None
        assert 0.75 <= delay / (RETRY_DELAY_S_FIRST * 2**n) <= 1.25
    assert attempts.remaining_s(1e9) is None


@pytest.mark.parametrize(
    ("deadline", "passed", "is_tried"),
    [(1.0, 0.0, True), (1.0, 0.9, True), (1.0, 0.99, False), (1.0, 1.5, False), (0.01, 0.0, False)],
)
def test_a_delay_never_outlasts_the_deadline(
    deadline: float, passed: float, is_tried: bool
) -> None:
    attempts = Attempts(retries=3, deadline=deadline, now_s=100.0)
    assert (attempts.delay_s(server_live(), LOST, 100.0 + passed) is not None) is is_tried
    assert attempts.remaining_s(100.0 + passed) == pytest.approx(max(0.0, deadline - passed))


def test_what_changes_the_node_is_sent_once() -> None:
    attempts = Attempts(retries=3, deadline=None, now_s=0.0)
    assert attempts.delay_s(load("m"), LOST, 0.0) is None
