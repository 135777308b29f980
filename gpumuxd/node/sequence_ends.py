"""How a sequence ends, in the words of its client. Pure: a table of errors and what they mean.

A step that was accepted and did not end well ends its sequence: whatever comes behind it was meant
for a state that there will not be. One that never ran leaves the sequence as it was, so that its
client may send it again, unless the next one waits behind it already.
"""

import asyncio

from gpumuxd.errors import (
    Cancelled,
    DeadlineMissed,
    DeviceLost,
    Draining,
    GpumuxdError,
    InvalidRequest,
    ModelFaulted,
    ModelNotReady,
    SequenceAborted,
    SequenceLost,
    SequenceUnknown,
)
from gpumuxd.node.validation import elide
from gpumuxd.units import NS_PER_S

Key = tuple[str, int | str]
"""Model and id of a sequence. A number and a text are different ids."""


def end_by(error: BaseException, key: Key, is_alive: bool, has_next: bool) -> GpumuxdError | None:
    """What a step that failed so tells the next ones; None: the sequence goes on as it was.

    `is_alive`: its device is; `has_next`: a step waits behind it.
    """
    match error:
        case SequenceAborted() | SequenceLost():  # by a step before it
            return error
        case DeviceLost() | Draining() | ModelNotReady():
            return lost(key, error.message, error.retry_delay_ns)
        case ModelFaulted() if not is_alive:
            return lost(key, error.message)
        # What is wrong with a step itself was said before it was accepted. What shows afterwards is
        # of shared memory that could not be read, or not be written when the step had run.
        case DeadlineMissed() | Cancelled() | ModelFaulted() | InvalidRequest():
            return aborted(key, f"a step failed: {error.message}")
        case GpumuxdError() if not has_next:
            return None
        case GpumuxdError():
            return aborted(key, f"a step was refused while the next one waited: {error.message}")
        case asyncio.CancelledError():
            return aborted(key, "a step was cancelled")
        case _:
            return aborted(key, "a step failed")


def lost(key: Key, reason: str, retry_delay_ns: int | None = None) -> GpumuxdError:
    """The state is gone, by no fault of the sequence."""
    return SequenceLost(_over(key, f"its state is gone: {reason}"), _facts(key), retry_delay_ns)


def aborted(key: Key, reason: str) -> GpumuxdError:
    """A step did not end well."""
    return SequenceAborted(_over(key, reason), _facts(key))


def expired(key: Key, idle_ns: int) -> GpumuxdError:
    """Nothing came for so long."""
    reason = f"it expired, {idle_ns / NS_PER_S:g} s after its last step (idle_s_max)"
    return SequenceUnknown(_over(key, reason), _facts(key))


def unknown(key: Key) -> GpumuxdError:
    """It was never begun, or ended as it should, or long ago."""
    return SequenceUnknown(
        f"there is no {name_of(key)}: its first request says sequence_start, and nothing comes "
        "after its sequence_end",
        _facts(key),
    )


def again(error: GpumuxdError) -> GpumuxdError:
    """Each call is told by an exception of its own."""
    return type(error)(error.message, error.facts, error.retry_delay_ns)


def name_of(key: Key) -> str:
    """A sequence as messages name it."""
    return f"sequence {elide(key[1])} of model {key[0]!r}"


def _over(key: Key, reason: str) -> str:
    return f"{name_of(key)} has ended, begin it anew with sequence_start: {reason}"


def _facts(key: Key) -> dict[str, str]:
    return {"model": key[0], "sequence_id": str(key[1])}
