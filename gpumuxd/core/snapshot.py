"""Counts for people, and the frozen snapshot made of them. Nothing here is read by a decision."""

from collections.abc import Collection

from gpumuxd.core.best_effort_share import BestEffortShare
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.estimator import Estimator
from gpumuxd.core.lanes import Lanes
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.slicing import UNBOUNDED, Bounds
from gpumuxd.core.statistics import BucketEstimate, DeviceStatistics, ModelStatistics, TenantMemory
from gpumuxd.domain import PriorityClass


class Counters:
    """What only ever grows."""

    __slots__ = (
        "blocked",
        "deadline_missed",
        "groups_launched",
        "preemptions",
        "refused",
        "slices_launched",
        "window_full",
    )

    def __init__(self) -> None:
        self.slices_launched = 0
        self.groups_launched = 0
        self.preemptions = 0
        self.deadline_missed = 0
        self.refused = 0
        self.window_full = 0  # the one reason that is counted in nearly every decision
        self.blocked = dict.fromkeys((reason.value for reason in Blocked), 0)

    def blocked_by_reason(self) -> dict[str, int]:
        full = Blocked.WINDOW_FULL.value  # of the lane, or of a plan
        return self.blocked | {full: self.window_full + self.blocked[full]}


def snapshot(
    models: Collection[Model],
    lanes: Lanes,
    ledger: Ledger,
    bounds: Bounds,
    estimator: Estimator,
    counters: Counters,
    *,
    share: BestEffortShare | None,
    in_flight: int,
    admitted: int,
) -> DeviceStatistics:
    """Everything that can be seen of a device scheduler, as values."""
    queues = [lane.launch_queue for lane in lanes.in_order]
    first = lanes.compute.launch_queue if lanes.compute is not None else None
    # Of the highest class with an SLO the tightest.
    decides = min(bounds.slos, key=lambda slo: (-slo.rank, slo.laxity_ns), default=None)
    return DeviceStatistics(
        queued=admitted - sum(model.started for model in models),
        started=ledger.frames_held,
        in_flight_slices=in_flight,
        slices_launched=counters.slices_launched,
        groups_launched=counters.groups_launched,
        preemptions=counters.preemptions,
        deadline_missed=counters.deadline_missed,
        refused=counters.refused,
        frames_held=ledger.frames_held,
        memory_bytes=ledger.bytes_used,
        bound_ns=0 if bounds.tightest_from[0] == UNBOUNDED else bounds.tightest_from[0],
        window=first.window if first is not None else 0,
        device_busy_ns=sum(queue.busy_ns for queue in queues),
        models=tuple(_model_statistics(model) for model in models),
        bound_origin=bounds.origin,
        laxity_ns=decides.laxity_ns if decides is not None else None,
        laxity_model=decides.model if decides is not None else "",
        backlog_ns=_backlog_ns(lanes),
        round_trip_ns=first.round_trip_ns if first is not None else 0,
        rescales=estimator.rescales,
        best_effort_grants=share.grants if share is not None else 0,
        best_effort_granted_ns=share.granted_ns if share is not None else 0,
        blocked=tuple(counters.blocked_by_reason().items()),
        memory_bytes_max=ledger.bytes_max,
        tenants=tuple(
            TenantMemory(each.tenant, each.weights_bytes, each.frame_bytes, each.bytes_max)
            for each in ledger.accounts()
            if each.bytes_used or each.bytes_max is not None
        ),
    )


def _backlog_ns(lanes: Lanes) -> tuple[int, ...]:
    """Of all lanes. The sums are kept anyway; the few cursors that are started are brought up to
    date, as at an arrival."""
    backlog_ns = [0] * len(PriorityClass)
    for lane in lanes.in_order:
        lane.run_queue.settle()
        for rank, work_ns in enumerate(lane.run_queue.backlog_ns):
            backlog_ns[rank] += work_ns
        for flight in lane.launch_queue.flights:
            backlog_ns[PriorityClass.REALTIME] += flight.predicted_ns
    return tuple(backlog_ns)


def _model_statistics(model: Model) -> ModelStatistics:
    return ModelStatistics(
        model=model.key,
        queued=model.live - model.started,
        started=model.started,
        completed=model.completed,
        failed=model.failed,
        estimates=tuple(
            BucketEstimate(bucket, table.run_ns, table.longest_group_ns, table.is_measured)
            for bucket, table in model.estimates.tables()
        ),
        tenant=model.account.tenant if model.account is not None else "",
        weights_bytes=model.weights_bytes,
        frame_bytes_held=model.frame_bytes_held,
        frame_bytes_max=model.frame_bytes_max,
    )
