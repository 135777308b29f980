"""The lanes of one partition: a run queue and a launch queue each, and which cursor goes where.

It must not know order or slicing. A partition is a part of a device with its own device
scheduler, so there is one `Lanes` per scheduler; a second partition announced to the same
scheduler is a bug of the caller.

REALTIME work goes to `compute_high` where there is one, weights to `copy_in` where there is one,
everything else to `compute`, which every partition has. A request that is ordered as STANDARD
because its tenant is over its rate goes where STANDARD goes.
"""

from gpumuxd.core.cursor import Cursor
from gpumuxd.core.launch_queue import Flight, LaunchQueue
from gpumuxd.core.run_queue import RunQueue
from gpumuxd.domain import CursorKind, Lane, LaneKind, PriorityClass
from gpumuxd.settings import SchedulerSettings

_DECISION_ORDER = (LaneKind.COMPUTE_HIGH, LaneKind.COMPUTE, LaneKind.COPY_IN, LaneKind.COPY_OUT)

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_REALTIME = PriorityClass.REALTIME
_UPLOAD = CursorKind.UPLOAD


class LaneState:
    """One lane: what could be launched on it and what is in flight on it."""

    __slots__ = ("launch_queue", "run_queue")

    def __init__(self, lane: Lane, settings: SchedulerSettings) -> None:
        self.launch_queue = LaunchQueue(
            lane, settings.window_max, settings.round_trip_ns, settings.window_fixed
        )
        self.run_queue = RunQueue(settings.order, settings.best_effort_share_min_ppm)


class Lanes:
    """The lanes that a partition has now."""

    __slots__ = (
        "_by_kind",
        "_settings",
        "compute",
        "high",
        "in_order",
        "only",
        "partition",
        "upload",
    )

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._by_kind: dict[LaneKind, LaneState] = {}
        self.partition: int | None = None
        self.in_order: list[LaneState] = []  # the order in which decisions are made
        self.only: LaneState | None = None  # the compute lane, if there is no other
        self.compute: LaneState | None = None
        self.high: LaneState | None = None
        self.upload: LaneState | None = None

    def change(self, partition: int, lanes: tuple[Lane, ...]) -> None:
        """Announce the lanes. Those that stay keep their queues; what is in flight on one that
        goes still passes."""
        assert self.partition in (None, partition), "one device scheduler per partition"
        kinds = {lane.kind for lane in lanes}
        assert len(kinds) == len(lanes), f"two lanes of one kind: {lanes}"
        assert LaneKind.COMPUTE in kinds, f"no compute lane: {lanes}"
        assert all(lane.partition == partition for lane in lanes), f"a foreign lane: {lanes}"
        self.partition = partition
        self._by_kind = {
            lane.kind: self._by_kind.get(lane.kind) or LaneState(lane, self._settings)
            for lane in lanes
        }
        self.in_order = [self._by_kind[kind] for kind in _DECISION_ORDER if kind in kinds]
        self.only = self.in_order[0] if len(self.in_order) == 1 else None
        self.compute = self._by_kind[LaneKind.COMPUTE]
        self.high = self._by_kind.get(LaneKind.COMPUTE_HIGH)
        self.upload = self._by_kind.get(LaneKind.COPY_IN)

    @property
    def live(self) -> int:
        """How many cursors have groups left to launch, eligible or not."""
        return sum(state.run_queue.live for state in self.in_order)

    @property
    def has_best_effort(self) -> bool:
        """Does best-effort work wait for the device?"""
        return self.compute is not None and self.compute.run_queue.has_best_effort

    def of(self, cursor: Cursor) -> LaneState:
        """Where this cursor's next slice goes."""
        if self.only is not None:
            return self.only
        lane = self.compute
        if cursor.priority_class is _REALTIME and self.high is not None:
            lane = self.high
        if cursor.kind is _UPLOAD and self.upload is not None:
            lane = self.upload
        assert lane is not None, "lanes are announced before anything else"
        return lane

    def overlapped(self, flight: Flight, started_ns: int) -> bool:
        """Was another lane active at some time since `started_ns`? Asked when a slice passes."""
        return any(
            queue is not flight.queue and (queue.flights or queue.last_end_ns > started_ns)
            for queue in (state.launch_queue for state in self.in_order)
        )
