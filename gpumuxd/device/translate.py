"""Frames to events, and snapshots to frames: one function each, no state."""

import heapq
from itertools import accumulate, pairwise

from gpumuxd.core import explanation
from gpumuxd.core.statistics import LAXITY_OF, DeviceStatistics, TenantMemory
from gpumuxd.device.measuring import INTERNAL_MARK
from gpumuxd.events import RequestArrived, TenantChanged
from gpumuxd.wire.frames import (
    ExplainedSlice,
    Explanation,
    ModelFigures,
    SetTenant,
    Statistics,
    Submit,
    TenantFigures,
)

MODELS_TOLD_MAX = 128
"""Models in one Statistics frame, so that it fits with the longest of names. The first loaded."""

TENANTS_TOLD_MAX = 64
"""In the same frame. Those that hold the most."""

GROUPS_TOLD_MAX = SLICES_TOLD_MAX = 1024
"""In one Explanation. A model of a thousand groups is told whole, and the frame stays half empty
even when every number takes nine bytes."""

REASON_CHARS_MAX = 2000


def request_arrived(frame: Submit) -> RequestArrived:
    """A request as the scheduler sees it: no tensors."""
    return RequestArrived(
        request_id=frame.request_id,
        tenant=frame.tenant,
        model=frame.model,
        priority_class=frame.priority_class,
        bucket=frame.bucket,
        arrived_ns=frame.arrived_ns,
        deadline_ns=frame.deadline_ns,
        rows=frame.rows,
        batch_key=frame.batch_key,
    )


def tenant_changed(frame: SetTenant) -> TenantChanged:
    """A tenant's share as the scheduler sees it."""
    return TenantChanged(
        tenant=frame.tenant,
        weight=frame.weight,
        realtime_per_s=frame.realtime_per_s,
        realtime_burst=frame.realtime_burst,
        memory_bytes_max=frame.memory_bytes_max,
    )


def statistics_frame(
    snapshot: DeviceStatistics, submits: int = 0, resident_bytes: int = 0
) -> Statistics:
    """What the parent is told after so many of its requests; programs that are only measured are
    nobody's models."""
    models = [model for model in snapshot.models if INTERNAL_MARK not in model.model]
    bound_origin, bound_model = _origin(snapshot.bound_origin)
    return Statistics(
        queued=snapshot.queued,
        started=snapshot.started,
        in_flight_slices=snapshot.in_flight_slices,
        slices_launched=snapshot.slices_launched,
        groups_launched=snapshot.groups_launched,
        preemptions=snapshot.preemptions,
        deadline_missed=snapshot.deadline_missed,
        refused=snapshot.refused,
        frames_held=snapshot.frames_held,
        memory_bytes=snapshot.memory_bytes,
        bound_ns=snapshot.bound_ns,
        window=snapshot.window,
        device_busy_ns=snapshot.device_busy_ns,
        best_effort_grants=snapshot.best_effort_grants,
        best_effort_granted_ns=snapshot.best_effort_granted_ns,
        models=tuple(
            ModelFigures(
                m.model,
                m.queued,
                m.started,
                m.completed,
                m.failed,
                m.weights_bytes,
                m.frame_bytes_held,
                m.frame_bytes_max,
            )
            for m in models[:MODELS_TOLD_MAX]
        ),
        bound_origin=bound_origin,
        bound_model=bound_model,
        laxity_ns=snapshot.laxity_ns,
        laxity_model=snapshot.laxity_model,
        backlog_ns=snapshot.backlog_ns,
        submits=submits,
        model_count=len(models),
        tenants=tuple(
            TenantFigures(t.tenant, t.weights_bytes, t.frame_bytes_held, t.bytes_max)
            for t in heapq.nlargest(TENANTS_TOLD_MAX, snapshot.tenants, key=_held_bytes)
        ),
        frame_bytes_held=sum([each.frame_bytes_held for each in snapshot.models]),
        resident_bytes=resident_bytes,
    )


def _held_bytes(tenant: TenantMemory) -> int:
    return tenant.weights_bytes + tenant.frame_bytes_held


def explanation_frame(why: explanation.Explanation) -> Explanation:
    """An explanation as the parent is told."""
    starts_ns = list(accumulate(why.group_ns, initial=0))
    cuts = list(pairwise((0, *why.slice_ends))) if why.group_ns else []
    bound_origin, bound_model = _origin(why.bound_origin)
    return Explanation(
        bucket=why.bucket,
        mode=why.mode,
        reason=why.reason[:REASON_CHARS_MAX],
        priority_class=why.priority_class,
        group_count=len(why.group_ns),
        group_ns=why.group_ns[:GROUPS_TOLD_MAX],
        run_ns=starts_ns[-1],
        slice_count=len(cuts),
        slices=tuple(
            ExplainedSlice(first, end, starts_ns[end] - starts_ns[first])
            for first, end in cuts[:SLICES_TOLD_MAX]
        ),
        window=why.window,
        slice_ns=why.slice_ns,
        bound_ns=why.bound_ns,
        bound_origin=bound_origin,
        bound_model=bound_model,
        floor_ns=why.floor_ns,
        floor_group=max(range(len(why.group_ns)), key=why.group_ns.__getitem__, default=0),
        exec_ns=why.exec_ns,
        preempt_ns=why.preempt_ns,
        preempt_expected_ns=why.preempt_expected_ns,
        is_guess=why.is_guess,
        is_cost_doubtful=why.is_cost_doubtful,
    )


def _origin(told: str) -> tuple[str, str]:
    """What gives a bound, and the key of the model if that is a model's laxity."""
    if told.startswith(LAXITY_OF):
        return "laxity", told.removeprefix(LAXITY_OF)
    return told, ""
