"""Does a request's fate have its cause, and does its report tell what happened?

Pure questions about what was seen, half of invariant 6: exactly one `Finish`, and the right one.
"""

from gpumuxd.commands import Finish
from gpumuxd.domain import Bucket, CursorKind, Outcome, OutcomeKind
from gpumuxd.testing.seen import NEVER_NS, SeenCursor, SeenModel, SeenRequest
from gpumuxd.testing.world import World

_REFUSALS = frozenset(
    {
        OutcomeKind.DEADLINE_INFEASIBLE,
        OutcomeKind.QUEUE_FULL,
        OutcomeKind.MODEL_NOT_READY,
        OutcomeKind.DRAINING,
    }
)
"""Fates of requests that were never admitted, and of no others."""

FATES_OF_GIVEN_UP = (
    OutcomeKind.DEADLINE_MISSED,
    OutcomeKind.MODEL_FAULTED,
    OutcomeKind.DEVICE_LOST,
)
"""What becomes of a request that was given up; the last two outrank a missed deadline."""


def why_wrong_fate(world: World, request: SeenRequest, outcome: Outcome, now_ns: int) -> str | None:
    """What speaks against this fate now, None if nothing does."""
    kind = outcome.kind
    cursor = request.cursor
    is_shared = cursor is not None and cursor.is_shared
    if cursor is not None and cursor.in_flight and not world.is_lost and not is_shared:
        return f"{cursor.in_flight} slices of it are in flight"
    if kind in _REFUSALS and request.is_admitted:
        return "it was admitted before"
    if cursor is not None and cursor.is_complete and not cursor.failed:
        return _why_wrong_end(request, cursor, kind)
    if kind is OutcomeKind.COMPLETED:
        return "not all of its groups have passed"
    return _why_no_cause(world, request, kind, now_ns)


def _why_wrong_end(request: SeenRequest, cursor: SeenCursor, kind: OutcomeKind) -> str | None:
    """All groups have passed: what counts is when the last one did, not when that was heard."""
    is_late = cursor.last_end_ns > request.key[0]
    if kind is OutcomeKind.COMPLETED:
        return "it was late" if is_late else None
    if kind is OutcomeKind.DEADLINE_MISSED:
        return None if is_late else "all of its groups have passed in time"
    if kind is OutcomeKind.CANCELLED and request.cancelled:
        return None
    return "all of its groups have passed"


def _why_no_cause(world: World, request: SeenRequest, kind: OutcomeKind, now_ns: int) -> str | None:
    arrived = request.arrived
    model = world.models.get(arrived.model)
    has_deadline = request.key[0] != NEVER_NS
    settings = world.settings
    cause = {
        OutcomeKind.CANCELLED: request.cancelled,
        # Before that time it may be given up: whether rightly is asked in `early_stops.py`.
        OutcomeKind.DEADLINE_MISSED: has_deadline
        and (now_ns >= request.key[0] or request.arrived.kind is CursorKind.INFER),
        OutcomeKind.DEADLINE_INFEASIBLE: has_deadline
        and (now_ns >= request.key[0] or (model is not None and model.measured))
        and arrived.kind is CursorKind.INFER,
        OutcomeKind.QUEUE_FULL: len(world.requests) > settings.queue_requests_max,
        OutcomeKind.MODEL_NOT_READY: model is None,
        OutcomeKind.DRAINING: request.met_drain,
        OutcomeKind.OUT_OF_DEVICE_MEMORY: model is not None
        and _can_never_start(world, model, arrived.bucket),
        OutcomeKind.MODEL_FAULTED: request.cursor is not None and request.cursor.failed,
        OutcomeKind.DEVICE_LOST: world.is_lost,
    }[kind]
    return None if cause else "nothing that was seen is a cause of it"


def _can_never_start(world: World, model: SeenModel, bucket: Bucket) -> bool:
    """Would a frame go past a limit if no other were held?"""
    ready = [each.ready for each in world.models.values()]
    frame_bytes, tenant = model.frame_bytes(bucket), model.ready.tenant
    if sum(each.weights_bytes for each in ready) + frame_bytes > world.settings.memory_bytes_max:
        return True
    limit = world.memory_limit_of(tenant)
    own_bytes = sum(each.weights_bytes for each in ready if each.tenant == tenant)
    return limit is not None and own_bytes + frame_bytes > limit


def why_wrong_report(world: World, request: SeenRequest, finish: Finish) -> str | None:
    """What the report gets wrong about device time and waiting, None if nothing."""
    report = finish.report
    cursor = request.cursor
    compute_ns = 0 if cursor is None else cursor.compute_ns
    if report.compute_ns != compute_ns:
        return f"its slices took {compute_ns} ns"
    if cursor is not None and cursor.first_started_ns >= 0:
        queue_ns = max(0, cursor.first_started_ns - request.arrived.arrived_ns)
        if report.queue_ns != queue_ns:
            return f"its first slice started after {queue_ns} ns"
    if min(report.queue_ns, report.preemptions, report.preemption_wait_ns) < 0:
        return "its report has a negative figure"
    if cursor is not None and cursor.is_shared:
        return None  # how often it stood still depends on who was given up, and when
    if cursor is None or len(world.lanes) > 1:  # lanes beside each other hold each other up too
        return None
    # Who was given up is not preempted any more, but an onlooker can't tell when that was.
    was_given_up = finish.outcome.kind in FATES_OF_GIVEN_UP and request.may_be_given_up
    if not cursor.preemptions - was_given_up <= report.preemptions <= cursor.preemptions:
        return f"it was preempted {cursor.preemptions} times"
    is_over = cursor.is_complete and not cursor.is_interrupted
    waited_ns = cursor.preemption_wait_ns
    if report.preemption_wait_ns < waited_ns or (is_over and report.preemption_wait_ns > waited_ns):
        return f"it stood still for {waited_ns} ns"
    return None
