"""Everything that a call can end with, as one tree of exceptions.

GpumuxdError
+-- InvalidRequest          INVALID_ARGUMENT
|   +-- SequenceUnknown     a step of a sequence that was not begun, has ended or expired
|   +-- InvalidModel        an artifact that can't be served
|       +-- InvalidManifest
+-- NotFound                NOT_FOUND
|   +-- UnknownModel
|   +-- UnknownRegion       of shared memory
+-- RegionExists            ALREADY_EXISTS
+-- Unauthenticated         UNAUTHENTICATED
+-- PermissionDenied        PERMISSION_DENIED
+-- ResourceExhausted       RESOURCE_EXHAUSTED (also: a message over the limit)
|   +-- QuotaExceeded       a limit of your tenant
|   +-- QueueFull           a limit of the node
|   +-- OutOfDeviceMemory
+-- DeadlineExceeded        DEADLINE_EXCEEDED (alone: the client's own clock ended the call)
|   +-- DeadlineInfeasible  refused on arrival: it could not have been met
|   +-- DeadlineMissed      admitted, and then not done in time
+-- Cancelled               CANCELLED
+-- Unavailable             UNAVAILABLE
|   +-- Unreachable         no daemon answered, or the connection broke
|   +-- ModelNotReady
|   +-- Draining
|   +-- DeviceLost
|   +-- SequenceLost        its state is gone: begin it anew
+-- SequenceAborted         ABORTED: a step did not end well, begin the sequence anew
+-- Unsupported             UNIMPLEMENTED
+-- FailedPrecondition      FAILED_PRECONDITION
|   +-- WrongMode           a load while the daemon follows its repositories
|   +-- ModelQuarantined    it ended devices too often; an admin has to load it
+-- InternalError           INTERNAL and anything else
    +-- ModelFaulted        the model's own code failed on the device

The daemon names the class in its trailing metadata; without that (another server, a proxy) the
status decides. Wrong arguments to a method are ordinary ValueErrors and TypeErrors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpumuxd_client.error_details import read_details

REASON_KEY = "gpumuxd-reason"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that was reached.

    name     as the configuration of the daemon has it: `requests_in_flight_max`
    maximum  how much it is, in `unit`: "requests", "bytes" and so on
    current  how much of it was taken; None where that is not told
    asked    how much was asked for in addition; None where that is not told
    """

    name: str
    maximum: int
    unit: str
    current: int | None = None
    asked: int | None = None


class GpumuxdError(Exception):
    """Base of all. `status` is the name of the gRPC status that came.

    `facts` is what the daemon says beside the message, for programs: `model`, `deadline_ms` and so
    on. `retry_delay_s` is how long to wait at least before trying again, where that is known.
    `reason` is the code of what went wrong, QUOTA_EXCEEDED, stable over versions; "" where it was
    not the daemon that spoke. `limit` is the limit that was reached, if it was one.
    """

    is_retryable: ClassVar[bool] = False
    """Sending the same request again may help. The clients do so by themselves for idempotent
    calls that ended as `is_transient`."""

    is_transient: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        status: str,
        facts: Mapping[str, str] | None = None,
        retry_delay_s: float | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status
        self.facts = dict(facts or {})
        self.retry_delay_s = retry_delay_s

    @property
    def limit(self) -> Limit | None:
        counts = [self._count(name) for name in ("limit_max", "current", "asked")]
        if "limit" not in self.facts or counts[0] is None:
            return None
        return Limit(self.facts["limit"], counts[0], self.facts.get("unit", ""), *counts[1:])

    def _count(self, fact: str) -> int | None:
        try:
            return int(self.facts[fact])
        except (KeyError, ValueError):
            return None


class InvalidRequest(GpumuxdError):
    """The request is wrong; the message says what was expected and what came."""


class SequenceUnknown(InvalidRequest):
    """A step of a sequence that was not begun, has ended or expired."""


class InvalidModel(InvalidRequest):
    """The model's artifact can't be served."""


class InvalidManifest(InvalidModel):
    """The model's `model.toml` can't be used."""


class NotFound(GpumuxdError):
    """What the request names is not there."""


class UnknownModel(NotFound):
    """No such model or version for this tenant."""


class UnknownRegion(NotFound):
    """No such region of shared memory for this tenant, or no object that it could be made of."""


class RegionExists(GpumuxdError):
    """The tenant has a region of shared memory of this name."""


class Unauthenticated(GpumuxdError):
    """The token is missing or not known."""


class PermissionDenied(GpumuxdError):
    """The tenant may not do this."""


class ResourceExhausted(GpumuxdError):
    """A limit was reached."""


class QuotaExceeded(ResourceExhausted):
    """A limit of the tenant was reached."""

    is_retryable = True


class QueueFull(ResourceExhausted):
    """A limit of the node was reached."""

    is_retryable = True


class OutOfDeviceMemory(ResourceExhausted):
    """It does not fit on the device."""

    is_retryable = True


class DeadlineExceeded(GpumuxdError):
    """Not done in time: catch this one. Itself, and neither of its subclasses, where the client's
    own clock ended the call before the node's answer came: the node may have said either.

    The times count from the arrival of the request at the node, None where they are not known.
    """

    @property
    def deadline_s(self) -> float | None:
        """The deadline that could not be met."""
        return self._seconds("deadline_ms")

    @property
    def predicted_finish_s(self) -> float | None:
        """When the node expected to be done."""
        return self._seconds("predicted_finish_ms")

    @property
    def late_by_s(self) -> float | None:
        """By how much that is after the deadline. None too for a request that would be in time
        itself and make one late that was admitted before."""
        return self._seconds("late_by_ms")

    def _seconds(self, fact: str) -> float | None:
        try:
            return float(self.facts[fact]) / 1000
        except (KeyError, ValueError):
            return None


class DeadlineInfeasible(DeadlineExceeded):
    """Refused on arrival: it, or a request admitted before, would have been late."""


class DeadlineMissed(DeadlineExceeded):
    """Admitted, and then not done in time."""


class Cancelled(GpumuxdError):
    """The call was cancelled."""


class Unavailable(GpumuxdError):
    """Not now."""

    is_retryable = True


class Unreachable(Unavailable):
    """No daemon answered at the target, or the connection broke during the call."""

    is_transient = True


class ModelNotReady(Unavailable):
    """The model is in the repository and not loaded."""


class Draining(Unavailable):
    """The daemon takes nothing new."""

    is_transient = True


class DeviceLost(Unavailable):
    """The device went away during the request."""

    is_transient = True


class SequenceLost(Unavailable):
    """The state of a sequence is gone. The same step again can't help: begin the sequence anew."""

    is_retryable = False


class SequenceAborted(GpumuxdError):
    """A step was cancelled, late or failed, which ended its sequence: begin it anew."""


class Unsupported(GpumuxdError):
    """The daemon does not serve this part of the protocol."""


class FailedPrecondition(GpumuxdError):
    """Not as things are: somebody has to change them first."""


class WrongMode(FailedPrecondition):
    """Not while the daemon is configured as it is: loads and unloads in `mode = "poll"`."""


class ModelQuarantined(FailedPrecondition):
    """The model ended devices too often; it is refused until an admin loads it again."""


class InternalError(GpumuxdError):
    """The daemon failed."""


class ModelFaulted(InternalError):
    """The model's own code failed on the device."""


_CLASS_OF_STATUS: dict[str, type[GpumuxdError]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": RegionExists,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "CANCELLED": Cancelled,
    "ABORTED": SequenceAborted,
    "UNAVAILABLE": Unreachable,
    "UNIMPLEMENTED": Unsupported,
    "FAILED_PRECONDITION": FailedPrecondition,
}


def _with_subclasses(base: type[GpumuxdError]) -> Iterable[type[GpumuxdError]]:
    yield base
    for subclass in base.__subclasses__():
        yield from _with_subclasses(subclass)


_CLASS_OF_REASON = {found.__name__: found for found in _with_subclasses(GpumuxdError)}


def error_of(
    status: str, message: str | None, trailing_metadata: Iterable[tuple[str, str | bytes]]
) -> GpumuxdError:
    """The exception for a status that came."""
    trailing_metadata = tuple(trailing_metadata)
    reason = next((value for key, value in trailing_metadata if key == REASON_KEY), None)
    by_status = _CLASS_OF_STATUS.get(status, InternalError)
    found = _CLASS_OF_REASON.get(reason, by_status) if isinstance(reason, str) else by_status
    details = read_details(trailing_metadata)
    return found(message or status, status, details.facts, details.retry_delay_s, details.reason)
