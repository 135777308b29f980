"""Frozen snapshots of the device scheduler, for metrics, placement and people.

Values only: nothing here refers to a live object. The first part has the fields of the
`Statistics` frame; the rest says why, for `gpumuxctl` and the logs.
"""

from dataclasses import dataclass

from gpumuxd.domain import Bucket

LAXITY_OF = "laxity of "
"""How the origin of a bound begins that a model's SLO gave; its key follows."""


SLICE_NS_MAX = "slice_ns_max"
"""The origin of a bound that this setting gave."""

LEAST_DELAY = "least_delay"
"""The origin of no bound: slices are as long as is best for all, and nothing is promised."""


@dataclass(frozen=True, slots=True)
class BucketEstimate:
    """What is believed of a model at one bucket."""

    bucket: Bucket
    run_ns: int
    longest_group_ns: int
    is_measured: bool


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """One model's requests, memory and estimates. `tenant` is whose it is alone, if it is one's."""

    model: str
    queued: int
    started: int
    completed: int
    failed: int
    estimates: tuple[BucketEstimate, ...] = ()
    tenant: str = ""
    weights_bytes: int = 0
    frame_bytes_held: int = 0
    frame_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class TenantMemory:
    """What one tenant's own models hold, and may hold; None: what the device has."""

    tenant: str
    weights_bytes: int
    frame_bytes_held: int
    bytes_max: int | None


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """The device scheduler at one moment.

    queued       admitted requests that wait for their first slice
    started      admitted requests that hold a frame
    bound_ns     the tightest bound on work in flight, and where it comes from
    laxity_ns    work with a longer group keeps no bound, in favour of the SLO of `laxity_model`;
                 None where that is no question
    window       of the compute lane
    best_effort_grants  slices that went ahead of higher classes for `best_effort_share_min`, with
                 the device time of those that have passed
    backlog_ns   predicted device time of all that is not launched yet, by class, the lowest first;
                 what is in flight is ahead of everybody and counts as the highest
    blocked      how often each reason kept a lane from launching
    memory_bytes of `memory_bytes_max`: weights, and the frames that are held
    tenants      those whose own models hold something, or may hold so much only
    """

    queued: int
    started: int
    in_flight_slices: int
    slices_launched: int
    groups_launched: int
    preemptions: int
    deadline_missed: int
    refused: int
    frames_held: int
    memory_bytes: int
    bound_ns: int
    window: int
    device_busy_ns: int
    models: tuple[ModelStatistics, ...] = ()
    bound_origin: str = ""
    round_trip_ns: int = 0
    rescales: int = 0
    blocked: tuple[tuple[str, int], ...] = ()
    best_effort_grants: int = 0
    best_effort_granted_ns: int = 0
    laxity_ns: int | None = None
    laxity_model: str = ""
    backlog_ns: tuple[int, ...] = ()
    memory_bytes_max: int = 0
    tenants: tuple[TenantMemory, ...] = ()
