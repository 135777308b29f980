"""Which status an error becomes, and that nothing leaks."""

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from gpumuxd import errors
from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.rpc.status import TEXT_BYTES_MAX, failure_of, shorten
from tests.rpc.test_error_details import ERROR_CLASSES


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_every_error_has_a_status_and_tells_its_class(
    error_class: type[errors.GpumuxdError],
) -> None:
    failure = failure_of(error_class("expected 1, got 2"), "/a/B")
    assert failure.code is grpc.StatusCode[error_class.status]
    assert failure.text == "expected 1, got 2"
    assert failure.trailing_metadata == (
        ("gpumuxd-reason", error_class.__name__),
        ("grpc-status-details-bin", failure.details),
    )


@pytest.mark.parametrize(
    "kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.COMPLETED]
)
def test_every_fate_has_a_status(kind: OutcomeKind) -> None:
    failure = failure_of(errors.error_of(Outcome(kind, "why"), 0), "/a/B")
    assert failure.code is not grpc.StatusCode.OK
    assert failure.text == "why"


@pytest.mark.parametrize(
    "bug", [AssertionError("/home/secret"), KeyError("secret"), grpc.aio.UsageError("secret")]
)
def test_a_bug_is_logged_and_says_nothing(bug: Exception) -> None:
    with capture_logs() as logs:
        failure = failure_of(bug, "/a/B")
    assert failure[:3] == (grpc.StatusCode.INTERNAL, "internal error", "Internal")
    (entry,) = logs
    assert (entry["log_level"], entry["method"], entry["exc_info"]) == ("error", "/a/B", bug)


def test_a_cancellation_from_inside_becomes_retryable() -> None:
    with capture_logs():
        failure = failure_of(asyncio.CancelledError(), "/a/B")
    assert failure.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("text", ["", "plain", "x" * TEXT_BYTES_MAX, "ü" * 600, "a\0b\n"])
def test_a_text_that_fits_is_left_alone(text: str) -> None:
    assert shorten(text) == text


@pytest.mark.parametrize(
    ("text", "bytes_min"),
    [
        ("x" * (TEXT_BYTES_MAX + 1), TEXT_BYTES_MAX),
        ("x" * 10_000, TEXT_BYTES_MAX),
        ("ü" * 5_000, 1_280),  # three bytes on the wire for each
        ("\U0001f600" * 3_000, 1_280),
        ("ü" * 700, 1_280),
    ],
)
def test_a_long_text_is_cut_between_characters(text: str, bytes_min: int) -> None:
    short = shorten(text)
    assert short.endswith("...")
    assert text.startswith(short.removesuffix("..."))
    assert bytes_min <= len(short.encode()) <= TEXT_BYTES_MAX


def test_what_is_no_text_is_told_as_far_as_it_is() -> None:
    assert shorten("a\ud800b") == "a?b"
