"""Frames to events, and snapshots to frames: one function each, no state."""

from gpumuxd.core.statistics import LAXITY_OF, DeviceStatistics
from gpumuxd.device.measuring import INTERNAL_MARK
from gpumuxd.events import RequestArrived, TenantChanged
from gpumuxd.wire.frames import ModelFigures, SetTenant, Statistics, Submit

MODELS_TOLD_MAX = 128
"""Models in one Statistics frame, so that it fits with the longest of names. The first loaded."""


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
    )


def tenant_changed(frame: SetTenant) -> TenantChanged:
    """A tenant's share as the scheduler sees it."""
    return TenantChanged(
        tenant=frame.tenant,
        weight=frame.weight,
        realtime_per_s=frame.realtime_per_s,
        realtime_burst=frame.realtime_burst,
    )


def statistics_frame(snapshot: DeviceStatistics) -> Statistics:
    """What the parent is told; programs that are only measured are nobody's models."""
    models = [model for model in snapshot.models if INTERNAL_MARK not in model.model]
    origin = snapshot.bound_origin
    bound_model = origin.removeprefix(LAXITY_OF) if origin.startswith(LAXITY_OF) else ""
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
        models=tuple(
            ModelFigures(m.model, m.queued, m.started, m.completed, m.failed)
            for m in models[:MODELS_TOLD_MAX]
        ),
        bound_origin="laxity" if bound_model else origin,
        bound_model=bound_model,
    )
