"""What an arrival must pass in the child before it is admitted, check by check.

It answers with an Outcome or None and books nothing; `device_scheduler` carries the answer out.
The parent has checked identity and the tenant's limits before.
"""

from gpumuxd.core import feasibility
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.domain import Outcome, OutcomeKind


def why_no_place(
    cursor: Cursor, model: Model | None, live: int, requests_max: int, ledger: Ledger
) -> Outcome | None:
    """Is there a model, a place in the queue and memory for it at all?"""
    if model is None:
        return Outcome(
            OutcomeKind.MODEL_NOT_READY, f"model {cursor.model_key!r} is not ready on this device"
        )
    if model.is_closed_to(cursor.arrival):
        return Outcome(OutcomeKind.DRAINING, f"model {model.key!r} is being unloaded")
    if live >= requests_max:
        return Outcome(
            OutcomeKind.QUEUE_FULL, f"{live} requests are queued or running, the limit is reached"
        )
    reason = ledger.why_never(model.frame_size(cursor.bucket))
    return Outcome(OutcomeKind.OUT_OF_DEVICE_MEMORY, reason) if reason else None


def why_too_late(
    cursor: Cursor, ahead: feasibility.Ahead, now_ns: int, finish_ns: int
) -> Outcome | None:
    """Can its deadline be met, without harm to those admitted?"""
    reason = feasibility.why_infeasible(cursor, ahead, now_ns, finish_ns)
    if not reason:
        return None
    told_ns = finish_ns if cursor.predicted_ns else 0
    return Outcome(OutcomeKind.DEADLINE_INFEASIBLE, reason, told_ns, cursor.deadline_ns)
