"""Which gRPC status a failure becomes, and what its text may say.

The one place that turns exceptions into statuses. A `GpumuxdError` is written for the client and
goes out as it is; anything else is a bug, is logged with its traceback and leaves only
"internal error", because its text may hold paths or another tenant's data.

The class name travels as trailing metadata, so that a client can raise the same class: several
share one status.
"""

import asyncio
from typing import NamedTuple

import grpc
import structlog

from gpumuxd.errors import GpumuxdError

REASON_KEY = "gpumuxd-reason"

DETAILS_BYTES_MAX = 2000
"""Status text travels in a header, percent-encoded to up to three times its size; clients accept
8 KiB of headers. A message that echoes a 10,000-character name must still arrive."""

_logger = structlog.stdlib.get_logger(__name__)


class Failure(NamedTuple):
    """What a call that failed is answered with."""

    code: grpc.StatusCode
    details: str
    reason: str

    @property
    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """The class of the error, for clients that raise typed ones."""
        return ((REASON_KEY, self.reason),)


def failure_of(error: BaseException, method: str) -> Failure:
    """The answer for an exception that ended a handler."""
    match error:
        case GpumuxdError():
            code = grpc.StatusCode[error.status]
            return Failure(code, shorten(error.message), type(error).__name__)
        case asyncio.CancelledError():
            # The handler was not cancelled from outside: something it waited for was. Let out,
            # gRPC would send nothing and the client would wait for ever.
            _logger.warning("a call was cancelled from inside", method=method)
            return Failure(grpc.StatusCode.UNAVAILABLE, "cancelled by the daemon", "Draining")
        case _:
            _logger.error("a call failed by a bug", method=method, exc_info=error)
            return Failure(grpc.StatusCode.INTERNAL, "internal error", "Internal")


def shorten(text: str) -> str:
    """The text, cut to what a header carries."""
    data = text.encode("utf-8", "replace")
    if len(data) <= DETAILS_BYTES_MAX:
        return text
    return data[: DETAILS_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
