"""The standard details of a status, `google.rpc.Status`, from the trailers of a call.

Servers and proxies that are not gpumuxd may send others or none: what can't be read is not there.
"""

from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from gpumuxd_client.generated import status_pb2 as pb

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "gpumuxd"

_TYPE_PREFIX = "type.googleapis.com/google.rpc."
_NS_PER_S = 1_000_000_000


class Details(NamedTuple):
    """Reason and facts of gpumuxd's ErrorInfo, and how long to wait at least before another try."""

    facts: dict[str, str]
    retry_delay_s: float | None
    reason: str = ""


def read_details(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> Details:
    """What there is of it."""
    data = next((value for key, value in trailing_metadata if key == DETAILS_KEY), b"")
    try:
        return _decode(data) if isinstance(data, bytes) else Details({}, None)
    except DecodeError:
        return Details({}, None)


def _decode(data: bytes) -> Details:
    facts: dict[str, str] = {}
    reason = ""
    retry_delay_s = None
    for packed in pb.Status.FromString(data).details:
        match packed.type_url.removeprefix(_TYPE_PREFIX):
            case "ErrorInfo":
                info = pb.ErrorInfo.FromString(packed.value)
                if info.domain == DOMAIN:
                    facts, reason = dict(info.metadata), info.reason
            case "RetryInfo":
                delay = pb.RetryInfo.FromString(packed.value).retry_delay
                retry_delay_s = max(0.0, delay.seconds + delay.nanos / _NS_PER_S)
    return Details(facts, retry_delay_s, reason)
