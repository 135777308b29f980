"""What travels beside a status for programs: `google.rpc.Status` in `grpc-status-details-bin`.

One ErrorInfo always; a RetryInfo where it is known how long to wait; a QuotaFailure for a limit
that was reached, whose numbers are in the ErrorInfo too. Any client that reads the standard details
reads these. It must not know gRPC, nor how an error came to be.
"""

from collections.abc import Mapping

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from gpumuxd.errors import GpumuxdError
from gpumuxd.rpc.generated import status_pb2 as pb

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "gpumuxd"

FACT_BYTES_MAX = 128
"""Of one value: names come from clients and may be of any length."""

FACTS_MAX = 9
"""More than any error has. What all of it may take is reckoned in `status.py`."""

INTERNAL = "INTERNAL"
"""The reason of a bug, which has no class here."""

_TYPE_PREFIX = "type.googleapis.com/google.rpc."


def encode_details(code: int, text: str, error: GpumuxdError | None) -> bytes:
    """The details of an error, None for a bug. `text` is what the status says, as it goes out."""
    info = pb.ErrorInfo(reason=INTERNAL if error is None else reason_of(error), domain=DOMAIN)
    details: list[Message] = [info]
    if error is not None:
        assert len(error.facts) <= FACTS_MAX, f"{reason_of(error)} has {len(error.facts)} facts"
        for name, value in error.facts.items():
            info.metadata[name] = cut(value, FACT_BYTES_MAX)
        if error.status == "RESOURCE_EXHAUSTED" and "limit" in error.facts:
            details.append(_quota_failure(info.metadata))
        if error.retry_delay_ns is not None:
            delay = Duration()
            delay.FromNanoseconds(error.retry_delay_ns)
            details.append(pb.RetryInfo(retry_delay=delay))
    # Packed by hand: the messages have a package of their own, and are told by the standard name.
    packed = [
        Any(type_url=_TYPE_PREFIX + each.DESCRIPTOR.name, value=each.SerializeToString())
        for each in details
    ]
    return pb.Status(code=code, message=text, details=packed).SerializeToString()


def _quota_failure(facts: Mapping[str, str]) -> pb.QuotaFailure:
    whose = next((f"{who}:{facts[who]}" for who in ("tenant", "device") if who in facts), "node")
    violation = pb.QuotaFailure.Violation(
        subject=whose, quota_metric=facts["limit"], quota_value=int(facts["limit_max"])
    )
    return pb.QuotaFailure(violations=[violation])


def reason_of(error: GpumuxdError) -> str:
    """The class as a constant: DeadlineInfeasible is DEADLINE_INFEASIBLE."""
    words = (f"_{x}" if x.isupper() and i else x for i, x in enumerate(error.name))
    return "".join(words).upper()


def cut(text: str, bytes_max: int) -> str:
    """The text, or its beginning and "...", in at most so many bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode("utf-8", "ignore") + "..."
