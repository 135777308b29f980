"""Everything that can be refused or fail, each with the gRPC status a client sees.

    GpumuxdError
    +-- InvalidRequest          INVALID_ARGUMENT
    |   +-- SequenceUnknown     INVALID_ARGUMENT
    +-- UnknownModel            NOT_FOUND
    +-- UnknownRegion           NOT_FOUND        of shared memory
    +-- RegionExists            ALREADY_EXISTS
    +-- ModelNotReady           UNAVAILABLE
    +-- Unauthenticated         UNAUTHENTICATED
    +-- PermissionDenied        PERMISSION_DENIED
    +-- QuotaExceeded           RESOURCE_EXHAUSTED
    +-- QueueFull               RESOURCE_EXHAUSTED
    +-- DeadlineInfeasible      DEADLINE_EXCEEDED
    +-- DeadlineMissed          DEADLINE_EXCEEDED
    +-- Cancelled               CANCELLED
    +-- Draining                UNAVAILABLE
    +-- InvalidModel            INVALID_ARGUMENT
    |   +-- InvalidManifest     INVALID_ARGUMENT
    +-- OutOfDeviceMemory       RESOURCE_EXHAUSTED
    +-- SequenceAborted         ABORTED          a step did not end well: begin anew
    +-- SequenceLost            UNAVAILABLE      its state is gone: begin anew
    +-- ModelFaulted            INTERNAL         the culprit
    +-- ModelQuarantined        FAILED_PRECONDITION
    +-- DeviceLost              UNAVAILABLE      everyone else: retry
    +-- Unsupported             UNIMPLEMENTED
    +-- WrongMode               FAILED_PRECONDITION
    +-- ConfigError             exit code 78, no status

A message is written for the one who sent the request: it names what was expected and what came,
and holds no path of the node. Its numbers travel beside it, as `facts`, for programs: of a limit
always those of `limit_facts`. Whoever may try again is told how long to wait at least. A bug is an
`assert`, never one of these.
"""

from collections.abc import Mapping
from typing import ClassVar

from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.units import NS_PER_MS, NS_PER_S, ms_from_ns

FULL_RETRY_DELAY_NS = 100 * NS_PER_MS
"""Told with a limit that was reached. When something ends that counts there, nobody knows; asked
again sooner, a full node would be busy with refusing."""

GONE_RETRY_DELAY_NS = 100 * NS_PER_MS
"""Told with a device or model that goes away, by who knows no better: no device is started again
sooner (`RestartSettings.delay_ns_first`)."""

ABSENT_RETRY_DELAY_NS = NS_PER_S
"""Told where somebody has to load or unload first, or a disk or device to answer. A load takes as
long at least, if it is more than a toy."""


class GpumuxdError(Exception):
    """Base of all; `status` is the name of a gRPC status code, `retryable` what clients may do.

    `facts` are for programs: names and texts, with the unit last in the name, times from the
    arrival of the request (the node's clock means nothing to a client). `retry_delay_ns` is there
    where sending it again sooner can't help.
    """

    status: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False
    retry_delay_ns_least: ClassVar[int | None] = None

    def __init__(
        self,
        message: str,
        facts: Mapping[str, str] | None = None,
        retry_delay_ns: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.facts = dict(facts or {})
        is_known = retry_delay_ns is not None
        self.retry_delay_ns = retry_delay_ns if is_known else self.retry_delay_ns_least

    @property
    def name(self) -> str:
        """The class as clients know it: one of this file, also of what is derived elsewhere."""
        return next(each.__name__ for each in type(self).__mro__ if each.__module__ == __name__)


class InvalidRequest(GpumuxdError):
    """The request itself is wrong; sending it again can't help."""

    status = "INVALID_ARGUMENT"


class SequenceUnknown(InvalidRequest):
    """A step of a sequence that was not begun, has ended or expired."""


class UnknownModel(GpumuxdError):
    """No such model or version for this tenant."""

    status = "NOT_FOUND"


class UnknownRegion(GpumuxdError):
    """No such region of shared memory for this tenant, or no object that it could be made of."""

    status = "NOT_FOUND"


class RegionExists(GpumuxdError):
    """The tenant has a region of this name."""

    status = "ALREADY_EXISTS"


class ModelNotReady(GpumuxdError):
    """The model exists but can't serve now."""

    status = "UNAVAILABLE"
    retryable = True
    retry_delay_ns_least = ABSENT_RETRY_DELAY_NS


class Unauthenticated(GpumuxdError):
    """No identity, or one that is not known."""

    status = "UNAUTHENTICATED"


class PermissionDenied(GpumuxdError):
    """The tenant is known and may not do this."""

    status = "PERMISSION_DENIED"


class QuotaExceeded(GpumuxdError):
    """A limit of the tenant was reached."""

    status = "RESOURCE_EXHAUSTED"
    retryable = True
    retry_delay_ns_least = FULL_RETRY_DELAY_NS


class QueueFull(GpumuxdError):
    """A limit of the node was reached."""

    status = "RESOURCE_EXHAUSTED"
    retryable = True
    retry_delay_ns_least = FULL_RETRY_DELAY_NS


class DeadlineInfeasible(GpumuxdError):
    """Refused on arrival: it, or a request admitted before, would be late."""

    status = "DEADLINE_EXCEEDED"


class DeadlineMissed(GpumuxdError):
    """Admitted, and then not done in time."""

    status = "DEADLINE_EXCEEDED"


class Cancelled(GpumuxdError):
    """Stopped because nobody waits for it."""

    status = "CANCELLED"


class Draining(GpumuxdError):
    """The daemon, device or model takes nothing new."""

    status = "UNAVAILABLE"
    retryable = True
    retry_delay_ns_least = GONE_RETRY_DELAY_NS


class InvalidModel(GpumuxdError):
    """An artifact that can't be served, and why."""

    status = "INVALID_ARGUMENT"


class InvalidManifest(InvalidModel):
    """A `model.toml` that can't be read or contradicts its artifact."""


class OutOfDeviceMemory(GpumuxdError):
    """What was asked for does not fit, with the numbers."""

    status = "RESOURCE_EXHAUSTED"
    retryable = True
    retry_delay_ns_least = ABSENT_RETRY_DELAY_NS


class SequenceAborted(GpumuxdError):
    """A step was cancelled, late or failed, which ended its sequence. Sending the step again can't
    help; beginning the sequence anew can."""

    status = "ABORTED"


class SequenceLost(GpumuxdError):
    """The state of a sequence is gone. Sending the step again can't help; beginning anew can."""

    status = "UNAVAILABLE"


class ModelFaulted(GpumuxdError):
    """This model's code failed on the device."""

    status = "INTERNAL"


class ModelQuarantined(GpumuxdError):
    """This model ended devices too often; an admin has to release it."""

    status = "FAILED_PRECONDITION"


class DeviceLost(GpumuxdError):
    """The device went away under a request that did no wrong."""

    status = "UNAVAILABLE"
    retryable = True
    retry_delay_ns_least = GONE_RETRY_DELAY_NS


class Unsupported(GpumuxdError):
    """A part of the protocol that this daemon does not serve."""

    status = "UNIMPLEMENTED"


class WrongMode(GpumuxdError):
    """Not while the node is configured as it is; asking again can't help."""

    status = "FAILED_PRECONDITION"


class ConfigError(Exception):
    """The configuration can't be used. The daemon exits with 78 (EX_CONFIG)."""

    EXIT_CODE: ClassVar[int] = 78


_ERROR_OF_OUTCOME: dict[OutcomeKind, type[GpumuxdError]] = {
    OutcomeKind.CANCELLED: Cancelled,
    OutcomeKind.DEADLINE_INFEASIBLE: DeadlineInfeasible,
    OutcomeKind.DEADLINE_MISSED: DeadlineMissed,
    OutcomeKind.QUEUE_FULL: QueueFull,
    OutcomeKind.MODEL_NOT_READY: ModelNotReady,
    OutcomeKind.DRAINING: Draining,
    OutcomeKind.OUT_OF_DEVICE_MEMORY: OutOfDeviceMemory,
    OutcomeKind.MODEL_FAULTED: ModelFaulted,
    OutcomeKind.DEVICE_LOST: DeviceLost,
}


def error_of(
    outcome: Outcome, arrived_ns: int, limit: Mapping[str, str] | None = None
) -> GpumuxdError:
    """The exception that tells a client of a fate other than COMPLETED. `limit` is the one that
    was reached, if the fate is of that kind."""
    assert outcome.kind is not OutcomeKind.COMPLETED, "a completed request is not an error"
    facts = deadline_facts(arrived_ns, outcome.deadline_ns, outcome.predicted_finish_ns)
    facts |= limit or {}
    return _ERROR_OF_OUTCOME[outcome.kind](outcome.reason or outcome.kind.value, facts)


def limit_facts(
    limit: str,
    limit_max: int,
    unit: str,
    *,
    current: int | None = None,
    asked: int | None = None,
    tenant: str = "",
    device: str = "",
) -> dict[str, str]:
    """A limit that was reached, for programs: its name where it is set, how much it is and of what,
    how much of that was taken and how much was asked for in addition, and whose limit it is: a
    tenant's, a device's, else the node's."""
    told = {
        "limit": limit,
        "limit_max": limit_max,
        "unit": unit,
        "current": current,
        "asked": asked,
        "tenant": tenant or None,
        "device": device or None,
    }
    return {name: str(value) for name, value in told.items() if value is not None}


def deadline_facts(arrived_ns: int, deadline_ns: int, finish_ns: int) -> dict[str, str]:
    """What is known of a deadline that decided, and of the finish beside it; 0 is unknown.

    A request may be refused that would itself be in time, for what it does to those before it.
    """
    known = {}
    if deadline_ns:
        known["deadline_ms"] = deadline_ns - arrived_ns
    if finish_ns:
        known["predicted_finish_ms"] = finish_ns - arrived_ns
    if 0 < deadline_ns < finish_ns:
        known["late_by_ms"] = finish_ns - deadline_ns
    return {name: f"{ms_from_ns(time_ns):.3f}" for name, time_ns in known.items()}
