"""What can happen to a device scheduler. Facts with no opinion; `handle` records them.

Frozen and slotted. `now_ns` is not in them: it is given beside them, so that one log of
`(now_ns, event)` replays to the same commands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumuxd.domain import Batching, Bucket, CursorKind, Lane, PriorityClass, SyncCost


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request passed the parent. `arrived_ns` was stamped there, on the common clock.

    A profile run or an upload is a request of the device itself: same path, other `kind`.
    `rows` counts its batch rows. Requests of one model with an equal `batch_key` can share a run;
    None: it runs alone.
    """

    request_id: int
    tenant: str
    model: str
    priority_class: PriorityClass
    bucket: Bucket
    arrived_ns: int
    deadline_ns: int | None = None
    rows: int = 1
    kind: CursorKind = CursorKind.INFER
    batch_key: Bucket | None = None


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """Nobody waits for this request any more. Unknown and finished ids are no error."""

    request_id: int


@dataclass(frozen=True, slots=True)
class SyncPointReached:
    """A slice has passed: it began at `started_ns` (host clock) and took `device_ns`."""

    slice_id: int
    started_ns: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class SliceFailed:
    """A slice ended without its result; its cursor can't go on."""

    slice_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Measured times of a program: per bucket the time of each group and of a whole run.

    Empty mappings mean "not measured yet": such a model is never refused for its deadline and
    runs one group at a time. All times in nanoseconds.

    operators       how many operators each group has; empty: one each
    layer_ends      ends (exclusive) of the groups in which a layer of the module ends, ascending;
                    empty: every group is a layer
    outstanding_ns  most work that is ever in flight when the groups are launched freely, one by
                    one; a bucket that is missing: the whole run
    frame_bytes     the most that a run held, by bucket; a bucket that is missing: see `Model`
    """

    group_count: int
    group_ns: Mapping[Bucket, tuple[int, ...]] = field(default_factory=dict)
    run_ns: Mapping[Bucket, int] = field(default_factory=dict)
    operators: tuple[int, ...] = ()
    layer_ends: tuple[int, ...] = ()
    outstanding_ns: Mapping[Bucket, int] = field(default_factory=dict)
    frame_bytes: Mapping[Bucket, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelReady:
    """A program can be launched. `class_max` is the highest class a permitted tenant may ask for;
    `slo_ns` is the latency its owner declared, if any, and gives the bound its laxity. `tenant` is
    whose it is alone, if it is one's, `frame_bytes` what a run holds where no bucket says it;
    `batching` None: its requests never share a run."""

    model: str
    profile: ModelProfile
    class_max: PriorityClass
    slo_ns: int | None = None
    weights_bytes: int = 0
    frame_bytes: int = 0
    tenant: str = ""
    batching: Batching | None = None


@dataclass(frozen=True, slots=True)
class ModelDraining:
    """No new request of this model may start; when the last one ended, it is released."""

    model: str


@dataclass(frozen=True, slots=True)
class TenantChanged:
    """A tenant's share of device time and its admitted rate of REALTIME requests.

    `weight` is a positive integer; device time is shared in proportion inside a class.
    `realtime_per_s` None: unlimited; otherwise the excess is ordered as STANDARD.
    `memory_bytes_max` is for the models that are its alone; None: what the device has.
    """

    tenant: str
    weight: int = 1
    realtime_per_s: int | None = None
    realtime_burst: int = 1
    memory_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """The lanes a partition has now."""

    partition: int
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class DeviceMeasured:
    """What sync points cost on this device, for windows of 1 and up, ascending without gaps.

    Not firm: the machine was busy meanwhile, and what serving measures replaces them.
    """

    costs: tuple[SyncCost, ...]
    is_firm: bool = True


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """Nothing that was launched will ever report again."""

    reason: str


Event = (
    RequestArrived
    | RequestCancelled
    | SyncPointReached
    | SliceFailed
    | ModelReady
    | ModelDraining
    | TenantChanged
    | PartitionChanged
    | DeviceMeasured
    | DeviceLost
)
