"""Every limit and choice of a device child, with its name, unit, default and reason.

These values travel from the configuration file through the parent to the child in the first
frame. The defaults are what a node gets that states nothing.
"""

import enum
from dataclasses import dataclass, field

from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_US


class Slicing(enum.StrEnum):
    """Where the next sync point goes."""

    ADAPTIVE = "adaptive"
    NONE = "none"  # baseline: a whole inference is launched at once (burst)


class Order(enum.StrEnum):
    """Who is next among the eligible."""

    POLICY = "policy"
    FIFO = "fifo"  # baseline: arrival order, classes ignored


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the device scheduler may do. One object per device child, never changed in place."""

    slicing: Slicing = Slicing.ADAPTIVE
    order: Order = Order.POLICY

    preemption_delay_ns_max: int | None = None
    """Bound on work in flight that a possible arrival could be ordered ahead of. None: derived
    from the laxity of the loaded models ("auto")."""

    slice_ns_max: int = 2 * NS_PER_MS
    """Longest slice, and the bound where no model's laxity gives a smaller one."""

    window_max: int = 4
    """Most slices in flight per lane; the window itself follows from the measured round trip."""

    round_trip_ns: int = 100 * NS_PER_US
    """First guess of the time from a sync point to the next launch on the device; measured after.
    On two CPU cores it was 0.05 to 0.1 ms (bench/crossing.py)."""

    queue_requests_max: int = 20_000
    """Requests queued or running per device; the next one is refused with QUEUE_FULL."""

    frames_max: int = 8
    """Started cursors per partition."""

    frames_reserved: int = 2
    """Frames that only the next higher classes may take: BEST_EFFORT leaves twice this, STANDARD
    leaves it once, so that started best-effort work never keeps a REALTIME request out."""

    memory_bytes_max: int = 8 * GIB
    """Ledger limit of the device: weights, frames and arena together."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """How a device child is set up."""

    device: str = "cpu:0"
    """`<kind>:<index>`; `cpu` for now."""

    threads: int = 1
    """Compute threads of a CPU device."""

    launch_cost_ns: int = 0
    """CPU device only: host time added to every launch, to imitate the cost on a GPU."""

    arena_bytes: int = 256 * MIB
    """Shared memory for the tensors of requests in flight on this device."""

    group_target_ns: int = NS_PER_MS // 2
    """Kernel groups are merged up to this measured time."""

    profile_passes: int = 5
    """Runs per bucket that the profiler measures, after one that is discarded."""

    profile_batch_max: int = 8
    """Largest batch bucket profiled at load; larger ones are learnt from requests."""

    profile_cache_dir: str = ""
    """Where measured profiles are kept between runs; empty: nowhere."""

    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
