"""The nouns of the system: priority classes, lanes, slices, outcomes.

Plain immutable values that every layer shares and that import nothing. A value here says what a
thing is, never what to do with it: decisions are made in `core/` alone.

Identities are plain integers and strings. A *request id* is unique for the life of a device child
and is given by the parent; *cursor* and *slice ids* are given by the device scheduler. A *model
key* (`"minilm/1"`) names one load of one version of one model and is opaque below the parent.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

Bucket = tuple[int, ...]
"""A shape bucket: one rounded-up size for each dynamic dimension of a model, in its order."""


class PriorityClass(enum.IntEnum):
    """Who goes first. Strict between classes; the rule inside a class is in `core/run_queue.py`."""

    BEST_EFFORT = 0
    STANDARD = 1
    REALTIME = 2

    @classmethod
    def from_wire(cls, number: int) -> "PriorityClass":
        """The class that a wire priority asks for: 1 is the most urgent, 3 and above the least.

        0 means "the tenant's default" and has to be replaced before.
        """
        assert number >= 1, "0 is the tenant's default, negative numbers are refused at the edge"
        return _CLASS_OF_WIRE_NUMBER.get(number, cls.BEST_EFFORT)


_CLASS_OF_WIRE_NUMBER = {1: PriorityClass.REALTIME, 2: PriorityClass.STANDARD}


class CursorKind(enum.StrEnum):
    """What moves along a program."""

    INFER = "infer"
    STEP = "step"
    UPLOAD = "upload"
    PROFILE = "profile"


class LaneKind(enum.StrEnum):
    """What an in-order queue of a partition is for."""

    COMPUTE = "compute"
    COMPUTE_HIGH = "compute_high"
    COPY_IN = "copy_in"
    COPY_OUT = "copy_out"


class Lane(NamedTuple):
    """An in-order queue of one partition."""

    partition: int
    kind: LaneKind


class Slice(NamedTuple):
    """Consecutive kernel groups of one cursor, launched together; its end is a sync point.

    The groups are `first_group <= i < end_group` of the program of `model`. `after` names slices
    (of other lanes) that must have passed first. `frame` is the frame the cursor holds from its
    first slice to its retirement. `predicted_ns` is the estimate at launch, 0 if there was none.

    A named tuple, because one is made in every decision: a frozen dataclass of eleven fields takes
    four times as long.
    """

    slice_id: int
    cursor_id: int
    model: str
    bucket: Bucket
    members: tuple[int, ...]
    frame: int
    first_group: int
    end_group: int
    lane: Lane
    after: tuple[int, ...]
    predicted_ns: int


class SyncCost(NamedTuple):
    """What sync points cost on one device when `window` slices may be in flight, as fitted there.

    A run of S slices takes its kernel groups' time plus `base_ns` plus `sync_ns` for each of its
    sync points. (Deft, Middleware WoC 2023: `exec(k) = a * floor(N / k) + b`, with a = `sync_ns`.)
    """

    window: int
    sync_ns: int
    base_ns: int


class Batching(NamedTuple):
    """How requests of one model may share a run.

    `place` is where in a Bucket of the model its batch size stands, `sizes` the batch buckets that
    may be run, ascending: the last is the most rows together. `delay_ns_max` is how long a request
    that could start may wait for others to join it.
    """

    place: int
    sizes: tuple[int, ...]
    delay_ns_max: int = 0


class OutcomeKind(enum.StrEnum):
    """The fate of a request. `errors.py` maps each one but COMPLETED to an exception class."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    DEADLINE_MISSED = "deadline_missed"
    QUEUE_FULL = "queue_full"
    MODEL_NOT_READY = "model_not_ready"
    DRAINING = "draining"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    MODEL_FAULTED = "model_faulted"
    DEVICE_LOST = "device_lost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fate and, for people, the reason with its numbers.

    `predicted_finish_ns` and `deadline_ns` are on the monotonic clock and there when the deadline
    decided (refused as infeasible, or missed); 0 means unknown, or none.
    """

    kind: OutcomeKind
    reason: str = ""
    predicted_finish_ns: int = 0
    deadline_ns: int = 0


COMPLETED = Outcome(OutcomeKind.COMPLETED)


@dataclass(frozen=True, slots=True)
class RunReport:
    """What happened to a request, told in every response.

    queue_ns            from arrival to the start of its first slice (to its end if it never ran)
    compute_ns          device time of its slices
    preemptions         how often another cursor's slice went ahead of a started one
    preemption_wait_ns  time a started cursor stood still because of that
    predicted_ns        estimate of its run at arrival, 0 if there was none
    batch_rows          rows that ran together, its own among them; 0 if it never ran
    leads_batch         true for one of those that ran together: so executions can be counted
    """

    queue_ns: int = 0
    compute_ns: int = 0
    preemptions: int = 0
    preemption_wait_ns: int = 0
    predicted_ns: int = 0
    batch_rows: int = 0
    leads_batch: bool = False
