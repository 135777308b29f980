"""The standard details of an error: what a client finds in them, and that they fit the trailers."""

import ast
import base64
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest

from gpumuxd import errors
from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.rpc.error_details import DETAILS_KEY, FACTS_MAX, encode_details, reason_of
from gpumuxd.rpc.generated import status_pb2 as pb
from gpumuxd.rpc.status import failure_of
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import INFER, good_request, refusal

# Made with googleapis-common-protos 1.76.0: google.rpc.Status(code=14, ...) with Any.Pack of
# ErrorInfo(reason, domain, metadata={"model": "silero"}) and RetryInfo(1.25 s).
GOLDEN = bytes.fromhex(
    "080e1215646576696365206370753a3020776173206c6f73741a530a28747970652e676f6f676c6561706973"
    "2e636f6d2f676f6f676c652e7270632e4572726f72496e666f12270a0b4445564943455f4c4f535412076770"
    "756d7578641a0f0a056d6f64656c120673696c65726f1a350a28747970652e676f6f676c65617069732e636f"
    "6d2f676f6f676c652e7270632e5265747279496e666f12090a0708011080e59a77"
)
ERROR_CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type)
    and issubclass(each, errors.GpumuxdError)
    and each is not errors.GpumuxdError
]
TRAILER_BYTES_MAX = 8192
"""What gRPC's clients accept by default."""


def info_of(details: bytes) -> pb.ErrorInfo:
    return pb.ErrorInfo.FromString(pb.Status.FromString(details).details[0].value)


def test_they_are_the_very_bytes_of_the_standard_messages() -> None:
    error = errors.DeviceLost("not told", {"model": "silero"}, retry_delay_ns=1_250_000_000)
    assert encode_details(14, "device cpu:0 was lost", error) == GOLDEN


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.DeadlineInfeasible(""), "DEADLINE_INFEASIBLE"),
        (errors.OutOfDeviceMemory(""), "OUT_OF_DEVICE_MEMORY"),
        (errors.Cancelled(""), "CANCELLED"),
    ],
)
def test_the_reason_is_the_class_as_a_constant(error: errors.GpumuxdError, reason: str) -> None:
    assert reason_of(error) == reason


def test_every_reason_is_documented_with_its_status() -> None:
    document = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    rows = [line.split(" | ") for line in document.splitlines() if line.startswith("| `")]
    documented = {
        reason: row[1].strip("` |") for row in rows for reason in re.findall("`([A-Z_]+)`", row[0])
    }
    known = {reason_of(each("")): each.status for each in ERROR_CLASSES}
    assert documented == {**known, "INTERNAL": "INTERNAL"}
    assert len(known) == len(ERROR_CLASSES), "a reason is of one class"


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_whoever_may_try_again_is_told_how_long_to_wait_at_least(
    error_class: type[errors.GpumuxdError],
) -> None:
    error = error_class("")
    assert re.fullmatch("[A-Z]+(_[A-Z]+)*", reason_of(error))
    assert hasattr(grpc.StatusCode, error.status)
    assert error.retryable == (error.retry_delay_ns is not None)


SOURCES = Path(errors.__file__).parent
LIMITED = {"QuotaExceeded", "QueueFull"}


def refusals_of_limits() -> Iterator[tuple[str, ast.Call]]:
    """Every place where one is raised, but for what is built from an outcome."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in LIMITED
            ):
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node


def test_every_limit_that_is_reached_is_told_with_its_name_and_numbers() -> None:
    found = dict(refusals_of_limits())
    assert len(found) >= 5
    bare = [place for place, call in found.items() if "limit_facts" not in ast.unparse(call)]
    assert bare == [], "these need limit_facts(...) as their second argument"


def test_a_limit_is_told_as_the_standard_has_it_too() -> None:
    facts = errors.limit_facts(
        "requests_in_flight_max", 8, "requests", current=8, asked=1, tenant="voice"
    )
    details = failure_of(errors.QuotaExceeded("full", facts), "/a/B").details
    assert dict(info_of(details).metadata) == {
        "limit": "requests_in_flight_max",
        "limit_max": "8",
        "unit": "requests",
        "current": "8",
        "asked": "1",
        "tenant": "voice",
    }
    _, packed, retry = pb.Status.FromString(details).details
    assert packed.type_url == "type.googleapis.com/google.rpc.QuotaFailure"
    (violation,) = pb.QuotaFailure.FromString(packed.value).violations
    told = (violation.subject, violation.quota_metric, violation.quota_value)
    assert told == ("tenant:voice", "requests_in_flight_max", 8)
    assert pb.RetryInfo.FromString(retry.value).retry_delay.nanos == 100_000_000


@pytest.mark.parametrize(("device", "subject"), [("", "node"), ("cpu:0", "device:cpu:0")])
def test_a_limit_that_is_no_tenants_is_the_devices_or_the_nodes(device: str, subject: str) -> None:
    facts = errors.limit_facts("queue_requests_max", 1, "requests", device=device)
    details = failure_of(errors.QueueFull("full", facts), "/a/B").details
    packed = pb.Status.FromString(details).details[1]
    assert pb.QuotaFailure.FromString(packed.value).violations[0].subject == subject
    # A request that is wrong by a limit is not one for which there is no quota.
    wrong = failure_of(errors.InvalidRequest("large", facts), "/a/B").details
    assert len(pb.Status.FromString(wrong).details) == 1


def test_what_is_derived_elsewhere_is_told_as_what_it_is_derived_from() -> None:
    class Elsewhere(errors.QueueFull):
        pass

    failure = failure_of(Elsewhere("full"), "/a/B")
    assert (failure.reason, info_of(failure.details).reason) == ("QueueFull", "QUEUE_FULL")


def test_a_bug_has_a_reason_and_nothing_else() -> None:
    details = pb.Status.FromString(failure_of(KeyError("/home/secret"), "/a/B").details)
    assert (details.code, details.message) == (13, "internal error")
    (info,) = details.details
    assert pb.ErrorInfo.FromString(info.value) == pb.ErrorInfo(reason="INTERNAL", domain="gpumuxd")


@pytest.mark.parametrize(
    ("deadline_ns", "finish_ns", "facts"),
    [
        # deadline   predicted  told, from the arrival at 1 s
        (1_030_000_000, 1_041_500_000, {"deadline_ms": "30.000", "predicted_finish_ms": "41.500",
                                        "late_by_ms": "11.500"}),
        (1_030_000_000, 0, {"deadline_ms": "30.000"}),
        (0, 1_041_500_000, {"predicted_finish_ms": "41.500"}),
        (0, 0, {}),
        # In time itself, and refused for what it does to others.
        (1_030_000_000, 1_020_000_000, {"deadline_ms": "30.000", "predicted_finish_ms": "20.000"}),
        (999_999_000, 1_000_000_500, {"deadline_ms": "-0.001", "predicted_finish_ms": "0.001",
                                      "late_by_ms": "0.002"}),
    ],
)  # fmt: skip
def test_a_deadline_is_told_from_the_arrival(
    deadline_ns: int, finish_ns: int, facts: dict[str, str]
) -> None:
    outcome = Outcome(OutcomeKind.DEADLINE_INFEASIBLE, "late", finish_ns, deadline_ns)
    error = errors.error_of(outcome, arrived_ns=1_000_000_000)
    assert dict(info_of(failure_of(error, "/a/B").details).metadata) == facts


@pytest.mark.parametrize("text", ["x" * 5_000, "ü" * 5_000, "\U0001f600" * 5_000, "%" * 5_000])
def test_all_of_it_fits_the_trailers(text: str) -> None:
    facts = {f"quite_a_long_name_{n}_ms": text for n in range(FACTS_MAX - 7)}
    facts |= errors.limit_facts(
        "requests_in_flight_max", 2**50, "requests", current=2**50, tenant="t" * 64, device=text
    )
    error = errors.OutOfDeviceMemory(text, facts, retry_delay_ns=10**18 - 1)
    failure = failure_of(error, "/a/B")
    values = {
        "grpc-status": "8",
        "grpc-message": quote(failure.text, safe=""),
        "gpumuxd-reason": failure.reason,
        DETAILS_KEY: base64.b64encode(failure.details).decode(),
    }
    size_bytes = sum(len(key) + len(value) + 32 for key, value in values.items())
    assert size_bytes <= TRAILER_BYTES_MAX
    assert len(failure.text) > 250, "far more was cut than had to be"


@pytest.mark.parametrize("name", ["m" * 10_000, "\U0001f600" * 2_500, "a\0b\n"])
async def test_a_client_gets_them_whatever_it_called_its_model(
    channel: grpc.aio.Channel, name: str
) -> None:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(good_request(model_name=name).SerializeToString(), timeout=10)
    trailing = dict(refused.value.trailing_metadata() or ())
    details = trailing[DETAILS_KEY]
    assert isinstance(details, bytes)
    status = pb.Status.FromString(details)
    # grpc_status.rpc_status.from_call refuses details that differ from the status itself.
    assert (status.code, status.message) == (5, refused.value.details())
    info = info_of(details)
    assert (info.reason, info.domain) == ("UNKNOWN_MODEL", "gpumuxd")
    assert name.startswith(info.metadata["model"].removesuffix("..."))


async def test_the_nodes_numbers_arrive(channel: grpc.aio.Channel, node: FakeNode) -> None:
    async def fail(call: object) -> None:
        raise errors.DeadlineInfeasible("late", {"predicted_finish_ms": "41.500"})

    node.before_reply = fail
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(good_request().SerializeToString(), timeout=10)
    details = dict(refused.value.trailing_metadata() or ())[DETAILS_KEY]
    assert isinstance(details, bytes)
    assert dict(info_of(details).metadata) == {
        "predicted_finish_ms": "41.500",
        "model": "identity_fp32",
    }


async def test_what_can_not_be_decoded_names_its_model_too(channel: grpc.aio.Channel) -> None:
    request = good_request(raw_input_contents=[])
    assert (await refusal(channel, INFER, request))[0] == "INVALID_ARGUMENT"
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(request.SerializeToString(), timeout=10)
    details = dict(refused.value.trailing_metadata() or ())[DETAILS_KEY]
    assert isinstance(details, bytes)
    assert info_of(details).metadata["model"] == "identity_fp32"
