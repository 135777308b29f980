"""Core objects for tests of single modules, made without a scheduler around them."""

from collections.abc import Mapping
from itertools import count

from gpumuxd.core.cursor import Cursor
from gpumuxd.core.estimator import Estimates
from gpumuxd.core.launch_queue import Flight, LaunchQueue
from gpumuxd.core.model import Account, Model
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import Bucket, CursorKind, PriorityClass, Slice
from gpumuxd.events import ModelProfile
from tests.core.conversation import COMPUTE, REALTIME, STANDARD, profile

_numbers = count(1)


def make_model(
    *group_ns: int,
    key: str = "m",
    class_max: PriorityClass = REALTIME,
    slo_ns: int | None = None,
    weights_bytes: int = 0,
    frame_bytes: int = 0,
    measured: ModelProfile | None = None,
    frame_bytes_measured: Mapping[Bucket, int] | None = None,
    account: Account | None = None,
) -> Model:
    estimates = Estimates(measured or profile(*(group_ns or (1_000,))))
    return Model(
        key,
        next(_numbers),
        estimates,
        class_max,
        slo_ns,
        weights_bytes,
        frame_bytes,
        frame_bytes_measured=frame_bytes_measured,
        account=account,
    )


def make_cursor(
    arrival: int,
    model: Model | None = None,
    priority_class: PriorityClass = STANDARD,
    *,
    deadline_ns: int | None = None,
    tenant: Tenant | None = None,
    kind: CursorKind = CursorKind.INFER,
    remaining_ns: int | None = None,
) -> Cursor:
    """An admitted cursor that waits."""
    model = model or make_model()
    cursor = Cursor(
        cursor_id=arrival,
        kind=kind,
        model_key=model.key,
        bucket=(1,),
        members=(arrival,),
        tenant=tenant or Tenant("t"),
        priority_class=priority_class,
        arrival=arrival,
        arrived_ns=0,
        deadline_ns=deadline_ns,
    )
    cursor.admit(model, model.estimates.table((1,)))
    cursor.predicted_ns = cursor.table.run_ns
    cursor.remaining_ns = cursor.predicted_ns if remaining_ns is None else remaining_ns
    return cursor


def fly(queue: LaunchQueue, cursor: Cursor, predicted_ns: int, now_ns: int = 0) -> Flight:
    """Put a slice of the cursor's next group in flight."""
    number, first = next(_numbers), cursor.next_group
    work = Slice(
        number, cursor.cursor_id, "m", (1,), (1,), 0, first, first + 1, COMPUTE, (), predicted_ns
    )
    return queue.launch(work, cursor, now_ns)
