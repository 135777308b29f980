"""How a program would be cut if it ran alone now: asked for by people, never by a decision.

One undisturbed run is played with the very rule that launches (`slicing.choose`) on a lane of its
own, in which slices pass as predicted. So an explanation can't differ from what is done. It must
not know run queues or frames, and changes nothing that is real but the plan of the program, which
it makes if it is not there.
"""

from itertools import pairwise
from typing import NamedTuple

from gpumuxd.core.bucket_table import BucketTable
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.explanation import Explanation
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.core.model import Model
from gpumuxd.core.slicing import UNBOUNDED, Bounds, choose, plan_of
from gpumuxd.core.slicing_mode import Mode, mode_of
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import Bucket, CursorKind, PriorityClass, Slice, SyncCost
from gpumuxd.settings import SchedulerSettings, format_slicing
from gpumuxd.units import ms_from_ns


class Rehearsal(NamedTuple):
    """What became of one run.

    ends                 the end group of each slice
    window               the most slices in flight
    preempt_ns           the most predicted time in flight
    preempt_expected_ns  what of that is left at a random moment, on average
    behind_ns            what is in flight behind each slice as it ends, while more is to come
    """

    ends: tuple[int, ...]
    window: int
    preempt_ns: int
    preempt_expected_ns: int
    behind_ns: tuple[int, ...] = ()


def rehearse(
    model: Model,
    table: BucketTable,
    bucket: Bucket,
    priority_class: PriorityClass,
    queue: LaunchQueue,
    bounds: Bounds,
    settings: SchedulerSettings,
) -> Rehearsal:
    """Play one run. `queue` is the real lane's, of which only its window is taken."""
    assert table.is_known, "what was never measured can't be rehearsed"
    lane = LaunchQueue(queue.lane, queue.window_max, 0, queue.window_fixed)
    lane.window = queue.window
    tenant = Tenant("")
    cursor = Cursor(0, CursorKind.INFER, model.key, bucket, (), tenant, priority_class, 0, 0, None)
    cursor.admit(model, table)
    ends: list[int] = []
    behind_ns: list[int] = []
    window = preempt_ns = left_ns = 0
    while cursor.next_group < cursor.group_count or lane.flights:
        while cursor.next_group < cursor.group_count and len(lane.flights) < lane.window:
            end, predicted_ns, why_not = choose(cursor, lane, bounds, settings)
            if why_not is not None:
                break
            work = Slice(
                len(ends),
                0,
                model.key,
                bucket,
                (),
                0,
                cursor.next_group,
                end,
                queue.lane,
                (),
                predicted_ns,
            )
            lane.launch(work, cursor, 0)
            cursor.moved_to(end)
            ends.append(end)
        in_flight_ns = lane.covered_ns[-1]
        window, preempt_ns = max(window, len(lane.flights)), max(preempt_ns, in_flight_ns)
        head = lane.flights[0]
        # A moment while the head runs finds half of it on average, and all that is behind it.
        left_ns += head.predicted_ns * (2 * in_flight_ns - head.predicted_ns)
        lane.failed(head, 0)  # it passes, and nothing is learnt of it
        if cursor.next_group < cursor.group_count:
            behind_ns.append(lane.covered_ns[-1])
    expected_ns = left_ns // (2 * table.prefix[-1])
    return Rehearsal(tuple(ends), window, preempt_ns, expected_ns, tuple(behind_ns))


def explain(
    model: Model,
    table: BucketTable,
    bucket: Bucket,
    priority_class: PriorityClass,
    queue: LaunchQueue,
    bounds: Bounds,
    settings: SchedulerSettings,
    costs: tuple[SyncCost, ...],
    are_costs_firm: bool,
) -> Explanation:
    """Everything that decides how this program is cut, in work of this class."""
    rank = int(priority_class)
    tier = bounds.tier_of(rank, table.longest_group_ns)
    covering_ns = bounds.tightest_from[rank] if tier is None else tier.tightest_ns
    bound_ns = None if covering_ns == UNBOUNDED else covering_ns
    origin = bounds.origin_from(rank)
    if tier is not None and tier.covering:
        origin = bounds.origins[min(tier.covering, key=_bound_ns)[0]]
    slo = bounds.decides
    laxity_ns = None if bounds.is_firm else slo.laxity_ns if slo and slo.rank >= rank else -1
    mode, reason = mode_of(
        settings.slicing,
        table.longest_group_ns,
        bound_ns,
        origin,
        laxity_ns,
        "" if slo is None else slo.model,
        format_slicing(settings.slicing, settings.slicing_operators, settings.slicing_window),
        _notes(bounds, rank, table.longest_group_ns, is_bounded=tier is not None),
    )
    if mode is not Mode.BOUNDED:
        bound_ns, origin = None, ""
    run, slice_ns, exec_ns = Rehearsal((), 0, 0, 0), 0, 0
    if table.is_known:
        if mode in (Mode.SLO, Mode.LEAST_DELAY):
            slice_ns = plan_of(model, table, rank, bounds).slice_ns
        run = rehearse(model, table, bucket, priority_class, queue, bounds, settings)
        exec_ns = _exec_ns(run, costs)
        if mode is Mode.BOUNDED:
            share_ns = settings.slice_ns_max if bound_ns is None else bound_ns // queue.window
            slice_ns = min(settings.slice_ns_max, share_ns)
    prefix = table.prefix
    return Explanation(
        model=model.key,
        bucket=bucket,
        mode=mode.value,
        reason=reason,
        priority_class=priority_class,
        group_ns=tuple(end - start for start, end in pairwise(prefix)),
        slice_ends=run.ends,
        window=run.window,
        slice_ns=slice_ns,
        bound_ns=bound_ns,
        bound_origin=origin,
        floor_ns=table.longest_group_ns,
        exec_ns=exec_ns,
        preempt_ns=run.preempt_ns,
        preempt_expected_ns=run.preempt_expected_ns,
        is_guess=table.is_guess,
        is_cost_doubtful=not are_costs_firm,
    )


def _bound_ns(covering: tuple[int, int]) -> int:
    return covering[1]


def _notes(bounds: Bounds, rank: int, longest_group_ns: int, *, is_bounded: bool) -> list[str]:
    """On SLOs that don't decide: those that can't be met, and those below what does."""
    notes = [each.in_words for each in bounds.hopeless if each.rank >= rank]
    if is_bounded:
        notes += [
            f"the laxity of {slo.model}, {ms_from_ns(slo.laxity_ns):.3f} ms, is less than its "
            "longest group takes and lifts no bound of a higher class"
            for slo in bounds.slos
            if slo.rank >= rank and slo.laxity_ns < longest_group_ns
        ]
    return notes


def _exec_ns(run: Rehearsal, costs: tuple[SyncCost, ...]) -> int:
    """What sync points add to the run, by the cost of the window that it uses; 0 if unknown.

    Where a bound lets a long group fly only alone, the device waits for the round trip, which is
    what a sync point costs with one in flight; where little is behind, for the rest of it.
    """
    if not costs:
        return 0
    cost = costs[min(run.window, len(costs)) - 1]
    bared_ns = costs[0].sync_ns - cost.sync_ns if costs[0].window == 1 else 0
    waits_ns = sum([max(0, bared_ns - behind_ns) for behind_ns in run.behind_ns])
    return cost.sync_ns * len(run.ends) + cost.base_ns + waits_ns
