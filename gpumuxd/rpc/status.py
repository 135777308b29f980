"""Which gRPC status a failure becomes, and what its text may say.

The one place that turns exceptions into statuses. A `GpumuxdError` is written for the client and
goes out as it is; anything else is a bug, is logged with its traceback and leaves only
"internal error", because its text may hold paths or another tenant's data.

Beside the status travel the class name, as trailing metadata, so that a client can raise the same
class (several share one status), and the standard details (`error_details.py`).
"""

import asyncio
from typing import NamedTuple

import grpc
import structlog

from gpumuxd.errors import Draining, GpumuxdError
from gpumuxd.rpc.error_details import DETAILS_KEY, cut, encode_details

REASON_KEY = "gpumuxd-reason"

TEXT_BYTES_MAX = 2000
"""A message that echoes a 10,000-character name must still arrive."""

TEXT_WIRE_BYTES_MAX = 5600
"""Clients accept 8 KiB of trailers. The text is there twice: percent-encoded as the status, which
makes of most bytes that are not ASCII three, and in the details, whose bytes some peers get in
base64, four for three. What the details hold else takes up to 1.8 KB of base64."""

_AS_THEY_ARE = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("%"))

_logger = structlog.stdlib.get_logger(__name__)


class Failure(NamedTuple):
    """What a call that failed is answered with."""

    code: grpc.StatusCode
    text: str
    reason: str
    details: bytes

    @property
    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The class of the error, for clients that raise typed ones, and the standard details."""
        return ((REASON_KEY, self.reason), (DETAILS_KEY, self.details))


def failure_of(error: BaseException, method: str) -> Failure:
    """The answer for an exception that ended a handler."""
    match error:
        case GpumuxdError():
            return _told(error)
        case asyncio.CancelledError():
            # The handler was not cancelled from outside: something it waited for was. Let out,
            # gRPC would send nothing and the client would wait for ever.
            _logger.warning("a call was cancelled from inside", method=method)
            return _told(Draining("cancelled by the daemon"))
        case _:
            _logger.error("a call failed by a bug", method=method, exc_info=error)
            code, text = grpc.StatusCode.INTERNAL, "internal error"
            return Failure(code, text, "Internal", encode_details(_number(code), text, None))


def _told(error: GpumuxdError) -> Failure:
    code, text = grpc.StatusCode[error.status], shorten(error.message)
    return Failure(code, text, error.name, encode_details(_number(code), text, error))


def _number(code: grpc.StatusCode) -> int:
    """Of a code on the wire; its value is the pair of number and name."""
    number: int = code.value[0]
    return number


def shorten(text: str) -> str:
    """The text, cut to what the trailers of a call carry."""
    short = cut(text, TEXT_BYTES_MAX)
    data = short.encode()
    encoded = len(data) + 2 * len(data.translate(None, _AS_THEY_ARE)) + 4 * len(data) / 3
    if encoded > TEXT_WIRE_BYTES_MAX:
        return cut(text, TEXT_WIRE_BYTES_MAX * 3 // 13)  # 3 + 4/3 bytes for each, at most
    return short
