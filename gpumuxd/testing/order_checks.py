"""Who should have gone first: blocking, order, work conservation and fairness.

Invariants 3, 4, 5 and 11, each from what an onlooker knows (`world.py`). Each answers with the
reason why something is wrong, or None.

What is asked of order, and no more: a higher class before a lower one; in REALTIME the earlier
deadline first, then the earlier arrival; elsewhere the same within one tenant. Which tenant is
next follows from shares of device time and is asked by invariant 11, over time.
"""

from collections import deque
from itertools import combinations

from gpumuxd.core.launcher import HOLD_BOUNDS
from gpumuxd.domain import CursorKind, Lane, PriorityClass, Slice
from gpumuxd.events import SyncPointReached
from gpumuxd.settings import Order, Slicing
from gpumuxd.testing.early_stops import EarlyStops
from gpumuxd.testing.grant_checks import Grants
from gpumuxd.testing.seen import SeenRequest, SeenSlice
from gpumuxd.testing.world import World

_PASSED_KEPT = 256

_BEST_EFFORT = PriorityClass.BEST_EFFORT
_OWN_KINDS = (CursorKind.PROFILE, CursorKind.UPLOAD)


class OrderCheck:
    """Invariants 4 and 5."""

    def __init__(self, world: World, stops: EarlyStops, grants: Grants) -> None:
        self._world = world
        self._stops = stops
        self._grants = grants
        self.is_grant = False  # the slice that was asked about last
        self._held = (0, 0)  # the request that is held before which group,
        self._held_since_ns = 0  # and since when at the latest

    def why_wrong(self, work: Slice, now_ns: int, refused: set[int]) -> str | None:
        """Who should have gone before this slice."""
        self.is_grant = False
        world = self._world
        chosen = world.mover(work)
        if chosen is None:
            return None
        if chosen.was_passed_over:
            return f"{chosen.arrived} was passed over before, as if it had been given up"
        for request in self._ahead(chosen):
            if request is chosen or request.arrived.request_id in refused:
                continue
            if request.arrived.request_id in work.members or world.may_wait(request, now_ns):
                continue
            is_first = world.is_eligible(request, now_ns)
            may_be_granted = self._grants.is_on and chosen.effective_class is _BEST_EFFORT
            if is_first and may_be_granted and request.effective_class is not _BEST_EFFORT:
                self.is_grant |= not self._stops.may_have_stopped(request, now_ns)
                continue
            if is_first and not self._stops.may_be_passed_over(request, now_ns):
                return (
                    f"{request.arrived} as {request.effective_class.name} goes before "
                    f"{chosen.arrived} as {chosen.effective_class.name}"
                )
        if self.is_grant:
            return self._grants.why_not_due(chosen)
        for undecided in world.undecided.values():
            first = undecided.arrived.priority_class > chosen.effective_class
            if first and undecided.arrived.request_id not in refused:
                return f"request {undecided.arrived.request_id} of a higher class is undecided"
        return None

    def _ahead(self, chosen: SeenRequest) -> list[SeenRequest]:
        """Waiting requests that are ordered before this one, eligible or not."""
        world = self._world
        if world.settings.order is Order.FIFO:
            everyone = (r for one in world.waiting.values() for r in one.values())
            lane = world.has_lane_of_its_own(chosen)
            return [
                r
                for r in everyone
                if r.arrival < chosen.arrival and world.has_lane_of_its_own(r) == lane
            ]
        ahead = [
            request
            for higher in PriorityClass
            if higher > chosen.effective_class
            for request in world.waiting[higher].values()
        ]
        tenant = chosen.arrived.tenant
        is_realtime = chosen.effective_class is PriorityClass.REALTIME
        ahead += [
            request
            for request in world.waiting[chosen.effective_class].values()
            if request.key < chosen.key and (is_realtime or request.arrived.tenant == tenant)
        ]
        return ahead

    def why_idle(self, now_ns: int) -> str | None:
        """Who could run on a device that has nothing to do. One compute lane is enough."""
        world = self._world
        if world.slices or not world.lanes:
            return None
        for one_class in world.waiting.values():
            for request in one_class.values():
                if world.is_eligible(request, now_ns) and not (
                    self._is_held(request, now_ns) or world.may_wait(request, now_ns)
                ):
                    return f"nothing is in flight and {request.arrived} is eligible"
        return None

    def _is_held(self, request: SeenRequest, now_ns: int) -> bool:
        """The device's own work may wait for REALTIME requests that are expected: while it is the
        only work, and for so many bounds."""
        world = self._world
        settings = world.settings
        is_own = request.arrived.kind in _OWN_KINDS
        is_alone = sum(len(one_class) for one_class in world.waiting.values()) == 1
        is_expected = any(
            model.ready.class_max is PriorityClass.REALTIME for model in world.models.values()
        )
        if settings.order is Order.FIFO or not (is_own and is_alone and is_expected):
            return False
        place = (request.arrived.request_id, request.cursor.launched if request.cursor else 0)
        if place != self._held:
            self._held, self._held_since_ns = place, now_ns
        bound_ns = settings.preemption_delay_ns_max or settings.slice_ns_max
        return now_ns - self._held_since_ns < HOLD_BOUNDS * bound_ns


class Blocking:
    """Invariant 3: how long a request's first slice was kept back by work that should yield.

    That work is what was in flight when it arrived (and whatever wrongly followed). It may take
    the bound, or one group where that is longer, plus what the device took beyond the predictions.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._passed: dict[Lane, deque[tuple[SeenSlice, int, int]]] = {}

    def see_poll_done(self, now_ns: int) -> None:
        """Mark requests that had to wait for a frame or memory: nobody owed them the device."""
        world = self._world
        for priority_class in (PriorityClass.REALTIME, PriorityClass.STANDARD):
            for request in world.waiting[priority_class].values():
                if request.cursor is None and (
                    world.may_wait(request, now_ns) or not world.may_start(request)
                ):
                    request.was_held_back = True

    def see_passed(self, seen: SeenSlice, event: SyncPointReached) -> str | None:
        """A slice has passed. If it was a request's first: was that one blocked too long?"""
        passed = self._passed.setdefault(seen.work.lane, deque(maxlen=_PASSED_KEPT))
        settings = self._world.settings
        problem = None
        request = seen.cursor.request
        is_policy = settings.order is Order.POLICY and settings.slicing is Slicing.ADAPTIVE
        if seen.work.first_group == 0 and is_policy and not request.was_held_back:
            problem = self._why_blocked(request, passed, event.started_ns)
        passed.append((seen, event.started_ns, event.device_ns))
        return problem

    def _why_blocked(
        self,
        request: SeenRequest,
        passed: deque[tuple[SeenSlice, int, int]],
        started_ns: int,
    ) -> str | None:
        assert request.model is not None
        model_class = request.model.ready.class_max
        blocked_ns = error_ns = bound_ns = 0
        for other, other_started_ns, device_ns in reversed(passed):
            end_ns = other_started_ns + device_ns
            if end_ns <= request.seen_ns:
                break
            if not _should_yield(other.cursor.request, request):
                continue
            if other.may_be_grant and other.launched_ns >= request.seen_ns:
                continue  # an exception of its own, asked of in `grant_checks.py`
            work = other.work
            class_bound_ns = other.bounds_ns[model_class]
            if class_bound_ns is None:  # launched before there was such a model
                return None
            blocked_ns += min(end_ns, started_ns) - max(other_started_ns, request.seen_ns)
            error_ns += max(0, device_ns - work.predicted_ns)
            one_group_ns = work.predicted_ns if work.end_group - work.first_group == 1 else 0
            bound_ns = max(bound_ns, class_bound_ns, one_group_ns)
        if blocked_ns <= bound_ns + error_ns:
            return None
        return (
            f"{request.arrived} was kept back {blocked_ns} ns by work that should yield; the bound "
            f"is {bound_ns} ns, the device took {error_ns} ns more than predicted"
        )


def _should_yield(other: SeenRequest, request: SeenRequest) -> bool:
    if other.effective_class is not request.effective_class:
        return other.effective_class < request.effective_class
    return request.effective_class is PriorityClass.REALTIME and request.key < other.key


class _Pair:
    """Two tenants that have both been backlogged since `difference` was 0."""

    __slots__ = ("high_ns", "low_ns", "start_ns")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.low_ns = 0
        self.high_ns = 0


class _Share:
    """Device time of one tenant in one class: what has passed, and what is predicted in flight."""

    __slots__ = ("error_ns", "group_ns", "served_ns", "shared_ns", "slice_ns")

    def __init__(self) -> None:
        self.served_ns = 0
        self.slice_ns = 0  # the longest slice
        self.group_ns = 0  # the longest group, as far as slices of one group tell
        self.shared_ns = 0  # the longest run that it shared
        self.error_ns = 0  # the largest difference between a prediction and the truth


class Fairness:
    """Invariant 11: backlogged tenants of equal weight get the same, but a slice and a group.

    Over any stretch in which both had something eligible after every poll, the difference of
    their device time may swing by one slice and one group to either side; where predictions were
    wrong, by as much more as the slices in flight were mispredicted. A tenant that was held back
    for want of a frame is owed time and may catch up, so it is left out until its backlog is gone.
    Where best-effort work has a share, the device's own work takes no part in it: it is left out.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._shares: dict[tuple[PriorityClass, str], _Share] = {}
        self._pairs: dict[tuple[PriorityClass, str, str], _Pair] = {}
        self._held_back: dict[PriorityClass, set[str]] = {one: set() for one in PriorityClass}

    def see_launched(self, seen: SeenSlice) -> None:
        work = seen.work
        for share, part_ns in self._shares_of(seen, work.predicted_ns):
            share.served_ns += part_ns
            share.slice_ns = max(share.slice_ns, work.predicted_ns)

    def see_passed(self, seen: SeenSlice, device_ns: int) -> None:
        work = seen.work
        for share, part_ns in self._shares_of(seen, device_ns - work.predicted_ns):
            share.served_ns += part_ns
            share.slice_ns = max(share.slice_ns, device_ns)
            share.error_ns = max(share.error_ns, abs(device_ns - work.predicted_ns))
            if work.end_group - work.first_group == 1:
                share.group_ns = max(share.group_ns, device_ns)
            if seen.cursor.is_shared:
                share.shared_ns = max(share.shared_ns, seen.cursor.compute_ns + device_ns)

    def begin_anew(self) -> None:
        """Weights changed, or a slice failed and nobody knows what it took."""
        self._pairs.clear()

    def see_poll_done(self, now_ns: int) -> str | None:
        """Compare every pair of backlogged tenants of equal weight."""
        if self._world.settings.order is Order.FIFO:
            return None
        kept: dict[tuple[PriorityClass, str, str], _Pair] = {}
        problem = None
        for priority_class in (PriorityClass.BEST_EFFORT, PriorityClass.STANDARD):
            backlogged = self._backlogged(priority_class, now_ns)
            for one, other in combinations(backlogged, 2):
                key = (priority_class, one, other)
                kept[key], unfair = self._compare(key)
                problem = problem or unfair
        self._pairs = kept
        return problem

    def _backlogged(self, priority_class: PriorityClass, now_ns: int) -> list[str]:
        """Tenants with something eligible, ever since they had something at all."""
        world = self._world
        could_run: dict[str, bool] = {}
        has_frame = world.may_take_frame(priority_class)
        has_share = world.settings.best_effort_share_min_ppm > 0
        for request in world.waiting[priority_class].values():
            tenant = request.arrived.tenant
            if has_share and request.arrived.kind in _OWN_KINDS:
                continue
            if not could_run.get(tenant, False):
                may_run = has_frame or request.cursor is not None
                may_run = may_run and not request.may_be_given_up
                may_run = may_run and not world.may_wait(request, now_ns)
                could_run[tenant] = may_run and world.is_eligible(request, now_ns)
        held_back = self._held_back[priority_class]
        held_back.intersection_update(could_run)
        held_back.update(tenant for tenant, could in could_run.items() if not could)
        return sorted(could_run.keys() - held_back)

    def _compare(self, key: tuple[PriorityClass, str, str]) -> tuple[_Pair, str | None]:
        priority_class, one, other = key
        first = self._share_of(priority_class, one)
        second = self._share_of(priority_class, other)
        difference_ns = first.served_ns - second.served_ns
        pair = self._pairs.get(key)
        if pair is None or self._weight(one) != self._weight(other):
            return _Pair(difference_ns), None
        swing_ns = difference_ns - pair.start_ns
        pair.low_ns = min(pair.low_ns, swing_ns)
        pair.high_ns = max(pair.high_ns, swing_ns)
        slice_ns = max(first.slice_ns, second.slice_ns)
        group_ns = max(first.group_ns, second.group_ns)
        error_ns = max(first.error_ns, second.error_ns) * self._world.settings.window_max
        shared_ns = max(first.shared_ns, second.shared_ns)  # one may be taken along by others
        allowed_ns = 2 * (slice_ns + group_ns + error_ns + shared_ns)
        if pair.high_ns - pair.low_ns <= allowed_ns:
            return pair, None
        return pair, (
            f"tenants {one!r} and {other!r} are both backlogged in {priority_class.name} and swing "
            f"by {pair.high_ns - pair.low_ns} ns, allowed are {allowed_ns}: longest slice "
            f"{slice_ns}, group {group_ns}, misprediction {error_ns} ns"
        )

    def _weight(self, tenant: str) -> int:
        seen = self._world.tenants.get(tenant)
        return 1 if seen is None else seen.changed.weight

    def _shares_of(self, seen: SeenSlice, time_ns: int) -> list[tuple[_Share, int]]:
        """Who pays which part of a slice: each rider by its rows."""
        cursor = seen.cursor
        rows_of: dict[str, int] = {}
        for rider in cursor.riders:
            tenant = rider.arrived.tenant
            rows_of[tenant] = rows_of.get(tenant, 0) + rider.arrived.rows
        rank = cursor.request.effective_class
        return [
            (self._share_of(rank, tenant), time_ns * rows // cursor.rows)
            for tenant, rows in rows_of.items()
        ]

    def _share_of(self, priority_class: PriorityClass, tenant: str) -> _Share:
        key = (priority_class, tenant)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share()
        return share
