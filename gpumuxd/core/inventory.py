"""What a device scheduler knows, as the events that would tell it to a new one.

Lanes, costs, tenants, models with what is believed of them now, and requests that have not ended.
That is enough to go on from here under other settings (`gpumuxd replay --slicing`), not to go on
exactly: what is in flight begins again, and windows, tags and samples are lost.
"""

from collections.abc import Callable, Iterable, Iterator

from gpumuxd.core.cursor import NEVER_NS, Cursor
from gpumuxd.core.lanes import Lanes
from gpumuxd.core.model import Model
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import Bucket
from gpumuxd.events import (
    DeviceMeasured,
    Event,
    ModelDraining,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    TenantChanged,
)


def inventory(
    lanes: Lanes,
    costs: DeviceMeasured | None,
    tenants: Iterable[Tenant],
    models: Iterable[Model],
    cursors: Iterable[Cursor],
    memory_bytes_max_of: Callable[[str], int | None],
) -> Iterator[Event]:
    """The events, in an order in which they can be handled."""
    if lanes.partition is not None:
        announced = tuple(state.launch_queue.lane for state in lanes.in_order)
        yield PartitionChanged(lanes.partition, announced)
    if costs is not None:
        yield costs
    for tenant in tenants:
        yield TenantChanged(
            tenant.name,
            tenant.weight,
            tenant.realtime_per_s,
            tenant.burst,
            memory_bytes_max_of(tenant.name),
        )
    draining = []
    for model in models:
        yield ModelReady(
            model=model.key,
            profile=_profile(model),
            class_max=model.class_max,
            slo_ns=model.slo_ns,
            weights_bytes=model.weights_bytes,
            frame_bytes=model.frame_bytes_max,
            tenant=model.account.tenant if model.account is not None else "",
            batching=model.batching,
        )
        if model.is_draining:
            draining.append(model.key)
    for cursor in cursors:
        if cursor.ending is None:
            yield _arrived(cursor)
    for key in draining:
        yield ModelDraining(key)


def _profile(model: Model) -> ModelProfile:
    """What is believed now. Guesses are left out: a new scheduler makes its own."""
    group_ns: dict[Bucket, tuple[int, ...]] = {}
    run_ns: dict[Bucket, int] = {}
    outstanding_ns: dict[Bucket, int] = {}
    for bucket, table in model.estimates.tables():
        if table.is_known and not table.is_guess:
            ends = table.prefix
            group_ns[bucket] = tuple([ends[i + 1] - ends[i] for i in range(model.group_count)])
            run_ns[bucket] = table.run_ns
            if table.outstanding_ns:
                outstanding_ns[bucket] = table.outstanding_ns
    run = model.operators_run
    return ModelProfile(
        group_count=model.group_count,
        group_ns=group_ns,
        run_ns=run_ns,
        operators=tuple([run[i + 1] - run[i] for i in range(len(run) - 1)]),
        layer_ends=tuple(model.layer_ends),
        outstanding_ns=outstanding_ns,
        frame_bytes=dict(model.frame_bytes_measured),
    )


def _arrived(cursor: Cursor) -> RequestArrived:
    return RequestArrived(
        request_id=cursor.members[0],
        tenant=cursor.tenant.name,
        model=cursor.model_key,
        priority_class=cursor.priority_class,
        bucket=cursor.bucket,
        arrived_ns=cursor.arrived_ns,
        deadline_ns=None if cursor.deadline_ns == NEVER_NS else cursor.deadline_ns,
        rows=cursor.rows,
        kind=cursor.kind,
        batch_key=cursor.batch_key,
    )
