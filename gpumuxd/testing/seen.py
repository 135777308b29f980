"""The things an onlooker keeps count of: models, tenants, cursors, requests, slices.

Plain records, changed by `world.py` alone. Each is made when the thing is first seen and says
only what was seen of it.
"""

from itertools import accumulate
from math import ceil, log2, prod

from gpumuxd.domain import Bucket, Slice
from gpumuxd.events import ModelReady, RequestArrived, TenantChanged
from gpumuxd.units import NS_PER_S

NEVER_NS = 1 << 62

Bounds = tuple[int | None, ...]
"""By class, the bound on work in flight that its arrivals could be ordered ahead of."""


class SeenModel:
    """A model from its readiness to its release."""

    __slots__ = (
        "_ends_ns",
        "buckets",
        "cursors",
        "is_draining",
        "live",
        "measured",
        "ready",
        "slowest_group_ns",
        "slowest_ns",
    )

    def __init__(self, ready: ModelReady) -> None:
        self.ready = ready
        self.is_draining = False
        self.live = 0
        self.cursors = 0
        self.measured = bool(ready.profile.group_ns)
        self.buckets = set(ready.profile.group_ns)  # told or asked for
        self.slowest_ns: dict[Bucket, int] = {}  # the slowest whole run, told or seen
        self.slowest_group_ns: dict[Bucket, list[int]] = {}  # of each group by itself
        self._ends_ns: dict[Bucket, tuple[int, ...]] = {}
        for bucket, group_ns in ready.profile.group_ns.items():
            self._ends_ns[bucket] = (0, *accumulate(max(1, ns) for ns in group_ns))
            self.slowest_ns[bucket] = max(sum(group_ns), ready.profile.run_ns.get(bucket, 0))

    def frame_bytes(self, bucket: Bucket) -> int:
        """What a run in this bucket should be booked with: see `ModelProfile.frame_bytes`."""
        told = self.ready.profile.frame_bytes
        if not told:
            return self.ready.frame_bytes
        if bucket in told:
            return told[bucket]
        larger = [told[b] for b in told if all(x <= y for x, y in zip(bucket, b, strict=True))]
        if larger:
            return min(larger)
        ratio = prod(bucket) / max(map(prod, told))
        return max(told.values()) << max(0, ceil(log2(ratio)))

    def see_run(self, bucket: Bucket, device_ns: int) -> None:
        """One whole run of it has passed."""
        self.slowest_ns[bucket] = max(self.slowest_ns.get(bucket, 0), device_ns)

    def see_slice(self, bucket: Bucket, first: int, end: int, device_ns: int) -> None:
        """These groups have passed together; each took its told share of that."""
        ends_ns = self._ends_ns.get(bucket)
        if ends_ns is None:
            return
        slowest_ns = self.slowest_group_ns.setdefault(bucket, [0] * (len(ends_ns) - 1))
        for group in range(first, end):
            share_ns = _share(device_ns, ends_ns, group, group + 1, ends_ns[end] - ends_ns[first])
            slowest_ns[group] = max(slowest_ns[group], share_ns)

    def upper_ns(self, bucket: Bucket, first: int, end: int) -> int:
        """These groups' told share of the slowest run, or what they took themselves at their
        slowest: the shares that were told may be far from the truth. All of the slowest run where
        none were told. 0: no run is known."""
        slowest_ns, ends_ns = self.slowest_ns.get(bucket, 0), self._ends_ns.get(bucket)
        if ends_ns is None:
            return slowest_ns
        told_ns = _share(slowest_ns, ends_ns, first, end, ends_ns[-1])
        return max(told_ns, sum(self.slowest_group_ns.get(bucket, ())[first:end]))


def _share(time_ns: int, ends_ns: tuple[int, ...], first: int, end: int, whole_ns: int) -> int:
    """Rounded up."""
    return -(-time_ns * (ends_ns[end] - ends_ns[first]) // whole_ns)


class SeenTenant:
    """A tenant's weight, and its admitted rate as a bucket of tokens worth NS_PER_S each."""

    __slots__ = ("changed", "filled_ns", "level")

    def __init__(self, changed: TenantChanged, now_ns: int) -> None:
        self.changed = changed
        self.level = changed.realtime_burst * NS_PER_S
        self.filled_ns = now_ns

    def take_realtime(self, now_ns: int) -> bool:
        """Take a token if there is one: is this request within the admitted rate?"""
        rate = self.changed.realtime_per_s
        if rate is None:
            return True
        full = self.changed.realtime_burst * NS_PER_S
        self.level = min(full, self.level + (now_ns - self.filled_ns) * rate)
        self.filled_ns = now_ns
        if self.level < NS_PER_S:
            return False
        self.level -= NS_PER_S
        return True


class SeenCursor:
    """A cursor from its first slice to its retirement."""

    __slots__ = (
        "compute_ns",
        "failed",
        "first_started_ns",
        "frame",
        "in_flight",
        "is_interrupted",
        "last_end_ns",
        "launched",
        "leads",
        "model",
        "passed",
        "preemption_wait_ns",
        "preemptions",
        "request",
        "riders",
        "sample",
    )

    def __init__(self, riders: "list[SeenRequest]", model: SeenModel, work: Slice) -> None:
        self.riders = riders
        self.request = riders[0] if len(riders) == 1 else riders[0].as_run()
        """Where it stands in the order; of several riders nobody's own."""
        self.leads = 0  # riders by whom its execution is to be counted
        self.model = model
        self.sample = work
        self.frame = work.frame
        self.launched = 0
        self.passed = 0
        self.in_flight = 0
        self.failed = False
        self.compute_ns = 0
        self.first_started_ns = -1
        self.last_end_ns = 0
        self.is_interrupted = False  # another one went ahead and this one has not moved since
        self.preemptions = 0
        self.preemption_wait_ns = 0

    @property
    def is_shared(self) -> bool:
        return len(self.riders) > 1

    @property
    def rows(self) -> int:
        return sum(rider.arrived.rows for rider in self.riders)

    @property
    def is_complete(self) -> bool:
        return self.passed == self.model.ready.profile.group_count


class SeenRequest:
    """A request from its arrival to its fate."""

    __slots__ = (
        "arrival",
        "arrived",
        "cancelled",
        "cursor",
        "effective_class",
        "expires_ns",
        "is_admitted",
        "key",
        "may_be_given_up",
        "met_drain",
        "model",
        "ran_with_others",
        "seen_ns",
        "was_held_back",
        "was_passed_over",
    )

    def __init__(self, arrived: RequestArrived, arrival: int, now_ns: int) -> None:
        deadline_ns = NEVER_NS if arrived.deadline_ns is None else arrived.deadline_ns
        self.arrived = arrived
        self.arrival = arrival
        self.key = (deadline_ns, arrival)
        self.expires_ns = deadline_ns
        self.ran_with_others = False  # in a run that failed
        self.seen_ns = now_ns
        self.effective_class = arrived.priority_class
        self.model: SeenModel | None = None
        self.cursor: SeenCursor | None = None
        self.is_admitted = False
        self.cancelled = False
        self.met_drain = False  # its model drained already when it arrived
        self.was_held_back = False  # for want of a frame or of memory
        self.may_be_given_up = False  # since its last launch there was reason to
        self.was_passed_over = False  # others went before it since its last launch

    def as_run(self) -> "SeenRequest":
        """A run that is shared stands where its leader stood, and has no deadline of its own."""
        run = SeenRequest(self.arrived, self.arrival, self.seen_ns)
        run.effective_class = self.effective_class
        run.model = self.model
        run.is_admitted = True
        run.was_held_back = self.was_held_back
        run.expires_ns = NEVER_NS
        return run


class SeenSlice:
    """A slice in flight, with the bounds in force when it was launched."""

    __slots__ = (
        "bounds_ns",
        "cursor",
        "is_grant",
        "is_resumption",
        "launched_ns",
        "may_be_grant",
        "work",
    )

    def __init__(
        self, work: Slice, cursor: SeenCursor, bounds_ns: Bounds, launched_ns: int
    ) -> None:
        self.work = work
        self.cursor = cursor
        self.bounds_ns = bounds_ns
        self.launched_ns = launched_ns
        self.is_resumption = cursor.is_interrupted
        self.is_grant = False  # it went ahead of higher classes,
        self.may_be_grant = False  # or an onlooker can't exclude it
