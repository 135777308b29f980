"""Every limit and choice of a device child, with its name, unit, default and reason.

These values travel from the configuration file through the parent to the child in the first
frame. The defaults are what a node gets that states nothing.
"""

import enum
import re
from dataclasses import dataclass, field

from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_S, NS_PER_US


class Slicing(enum.StrEnum):
    """Where the next sync point goes."""

    ADAPTIVE = "adaptive"
    NONE = "none"  # baseline: a whole inference is launched at once (burst)
    LAYER = "layer"  # baseline: one after each layer, and the next launch waits for it
    EVERY = "every"  # baseline: one after each k operators, and the next launch waits for it
    WINDOW = "window"  # baseline: the same, but D slices of that length may be in flight


OPERATORS_MAX = 1_000_000
"""Per slice of a baseline. The largest value of the grid in Deft: never."""

WINDOW_MAX = 64
"""Slices in flight per lane: more than hides any round trip."""

WINDOW_BASELINE = 2
"""Slices in flight of the baseline `window` where nothing else is stated, as in Deft."""

SLICING_FORMS = "'adaptive', 'none', 'layer', 'every(k)', 'window(k)' or 'window(k, D)'"

_BASELINE = re.compile(r"(every|window) *\( *([0-9]{1,9}) *(?:, *([0-9]{1,9}) *)?\)")


def parse_slicing(text: str) -> tuple[Slicing, int, int]:
    """The kind, operators per slice and slices in flight of a text like `window(20, 3)`.

    0 where the kind has no such number. Raises ValueError, which says what is expected.
    """
    if text in (Slicing.ADAPTIVE, Slicing.NONE):
        return Slicing(text), 0, 0
    if text == Slicing.LAYER:
        return Slicing.LAYER, 0, 1
    found = _BASELINE.fullmatch(text)
    if found is None or (found[1] == Slicing.EVERY and found[3] is not None):
        raise ValueError(SLICING_FORMS)
    operators = int(found[2])
    if not 1 <= operators <= OPERATORS_MAX:
        raise ValueError(f"1 to {OPERATORS_MAX} operators per slice")
    if found[1] == Slicing.EVERY:
        return Slicing.EVERY, operators, 1
    window = WINDOW_BASELINE if found[3] is None else int(found[3])
    if not 1 <= window <= WINDOW_MAX:
        raise ValueError(f"1 to {WINDOW_MAX} slices in flight")
    return Slicing.WINDOW, operators, window


def format_slicing(slicing: Slicing, operators: int, window: int) -> str:
    """The text that `parse_slicing` reads as this."""
    match slicing:
        case Slicing.EVERY:
            return f"every({operators})"
        case Slicing.WINDOW:
            return f"window({operators}, {window})"
        case _:
            return slicing.value


class Order(enum.StrEnum):
    """Who is next among the eligible."""

    POLICY = "policy"
    FIFO = "fifo"  # baseline: arrival order, classes ignored


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the device scheduler may do. One object per device child, never changed in place."""

    slicing: Slicing = Slicing.ADAPTIVE

    slicing_operators: int = 0
    """Operators per slice of the baselines `every` and `window`; the others have none."""

    slicing_window: int = 0
    """Slices in flight of the baselines: 1 means stop and wait. 0: it follows from measurement.
    Never above `window_max`."""

    order: Order = Order.POLICY

    preemption_delay_ns_max: int | None = None
    """Bound on work in flight that a possible arrival could be ordered ahead of. None: derived
    from the laxity of the loaded models ("auto")."""

    slice_ns_max: int = 2 * NS_PER_MS
    """Longest slice where a bound is kept, and the largest bound that is derived; also the longest
    slice of all while the device was not told what its sync points cost. Where least delay
    chooses, it does not apply: the choice is the best sum, and a cap would only make it worse."""

    weigh_preemption_by_arrivals: bool = False
    """Weigh predicted preemption delay by how often requests that would preempt arrive. Without
    it, as in Deft, every inference counts as preempted once."""

    window_max: int = 4
    """Most slices in flight per lane; the window itself follows from the measured round trip."""

    round_trip_ns: int = 100 * NS_PER_US
    """First guess of the time from a sync point to the next launch on the device; measured after.
    On two CPU cores it was 0.05 to 0.1 ms (bench/crossing.py)."""

    best_effort_share_min_ppm: int = 0
    """Least share of device time for BEST_EFFORT work while it waits, in millionths. Above 0 it is
    an exception to the order between classes, and REALTIME work may wait for a slice of it."""

    queue_requests_max: int = 20_000
    """Requests queued or running per device; the next one is refused with QUEUE_FULL."""

    frames_max: int = 8
    """Started cursors per partition."""

    frames_reserved: int = 2
    """Frames that only the next higher classes may take: BEST_EFFORT leaves twice this, STANDARD
    leaves it once, so that started best-effort work never keeps a REALTIME request out."""

    memory_bytes_max: int = 8 * GIB
    """Ledger limit of the device: weights, frames and arena together."""

    @property
    def window_fixed(self) -> int:
        """Slices in flight of a baseline; 0 where it follows from measurement."""
        match self.slicing:
            case Slicing.EVERY | Slicing.LAYER:
                return 1
            case Slicing.WINDOW:
                return min(self.slicing_window or WINDOW_BASELINE, self.window_max)
            case _:
                return 0


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

    watchdog_factor: int = 20
    """A slice that runs this many times as long as predicted never ends: estimates err by less."""

    watchdog_ns_min: int = 2 * NS_PER_S
    """And at least this long: what keeps a busy machine from running a short slice is shorter."""

    watchdog_ns_unpredicted: int = 60 * NS_PER_S
    """The limit of a slice that nobody has an estimate of: mostly of a model that is measured."""

    profile_passes: int = 5
    """Runs per bucket that the profiler measures, after one that is discarded."""

    profile_batch_max: int = 8
    """Largest batch bucket profiled at load; larger ones are learnt from requests."""

    profile_cache_dir: str = ""
    """Where measured profiles are kept between runs; empty: nowhere."""

    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)


@dataclass(frozen=True, slots=True)
class LogLevels:
    """Which lines a daemon writes: each level has a switch, `verbose` above 0 is that of debug."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
