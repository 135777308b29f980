"""What may be asked of a run that several requests share: who rides, how large it is, who leaves.

From what is seen alone, but for what the scheduler believes of times, which is its own word. Each
question is answered with the reason why something is wrong, or None.
"""

from collections.abc import Callable

from gpumuxd.core.explanation import BOUNDED
from gpumuxd.domain import CursorKind, OutcomeKind, Slice
from gpumuxd.testing.launch_checks import Explain, StatisticsSeen
from gpumuxd.testing.seen import SeenCursor, SeenRequest
from gpumuxd.testing.world import World


class SharingCheck:
    """Asks of each run when it starts, and of each rider when it ends."""

    def __init__(
        self, world: World, statistics: Callable[[], StatisticsSeen], explain: Explain
    ) -> None:
        self._world = world
        self._statistics = statistics
        self._explain = explain

    def why_wrong_company(self, work: Slice) -> str | None:
        """When a run starts: may these ride together, and is its size theirs?"""
        world = self._world
        riders = [world.requests[member] for member in work.members if member in world.requests]
        if work.cursor_id in world.cursors or len(riders) < len(work.members):
            return None  # asked before; or somebody is not there, which is said elsewhere
        leader = riders[0]
        if len(riders) == 1:
            return None if leader.arrived.bucket == work.bucket else "its bucket is another"
        if len(set(work.members)) < len(riders):
            return "somebody rides twice"
        batching = world.models[work.model].ready.batching
        if batching is None:
            return "its model shares no runs"
        for rider in riders:
            problem = _why_not_with(leader, rider)
            if problem is not None:
                return f"request {rider.arrived.request_id} rides: {problem}"
        rows = sum(rider.arrived.rows for rider in riders)
        if rows > batching.sizes[-1]:
            return f"{rows} rows, at most {batching.sizes[-1]} run together"
        widest = [max(sizes) for sizes in zip(*(r.arrived.bucket for r in riders), strict=True)]
        widest[batching.place] = next(size for size in batching.sizes if size >= rows)
        if work.bucket != tuple(widest):
            return f"{rows} rows need the bucket {tuple(widest)}"
        return None

    def why_too_large(self, work: Slice, now_ns: int) -> str | None:
        """When a run that is shared starts: is it within the bound, and in time for all?"""
        world = self._world
        if work.first_group or len(work.members) == 1 or work.cursor_id in world.cursors:
            return None
        riders = [world.requests[member] for member in work.members if member in world.requests]
        if not riders:
            return None
        told = self._explain(work.model, work.bucket, riders[0].effective_class)
        if told is not None and told.mode == BOUNDED and told.is_floor_over_bound:
            return f"its longest group takes {told.floor_ns} ns, the bound is {told.bound_ns}"
        earliest_ns = min(rider.key[0] for rider in riders)
        in_flight_ns = sum(seen.work.predicted_ns for seen in world.lanes.get(work.lane, ()))
        end_ns = now_ns + in_flight_ns + self._run_ns(work)
        if end_ns > earliest_ns:
            return f"it is predicted to end at {end_ns}, a deadline is at {earliest_ns}"
        return None

    def _run_ns(self, work: Slice) -> int:
        for model in self._statistics().models:
            if model.model == work.model:
                return next(
                    (each.run_ns for each in model.estimates if each.bucket == work.bucket), 0
                )
        return 0

    def why_wrong_ride(self, work: Slice, now_ns: int) -> str | None:
        """Later: does anybody still wait for it?"""
        cursor = self._world.cursors.get(work.cursor_id)
        if cursor is None or not cursor.is_shared:
            return None
        if cursor.failed:
            return "its run has failed"
        for rider in cursor.riders:
            if self._world.is_in_run(rider) and not rider.cancelled and now_ns < rider.key[0]:
                return None
        return "nobody waits for it any more"

    def why_told_too_early(self, request: SeenRequest) -> str | None:
        """A rider ends: does anything in flight touch its memory?"""
        cursor, world = request.cursor, self._world
        if cursor is None or not cursor.is_shared or world.is_lost:
            return None
        count = cursor.model.ready.profile.group_count
        for seen in world.in_flight():
            work = seen.work
            if seen.cursor is cursor and (work.first_group == 0 or work.end_group == count):
                return f"{work} reads its inputs or writes its outputs"
        return None

    def why_wrong_count(self, cursor: SeenCursor) -> str | None:
        """A run ends: is its execution counted once?"""
        expected = 1 if cursor.is_complete and not cursor.failed else 0
        if not cursor.is_shared or self._world.is_lost or cursor.leads == expected:
            return None
        return f"{cursor.leads} of its riders count its execution"


def why_wrong_rows(request: SeenRequest, told_rows: int) -> str | None:
    """What a report says of who ran together."""
    rows = 0 if request.cursor is None else request.cursor.rows
    return None if told_rows == rows else f"{rows} rows ran together"


def is_blameless(request: SeenRequest, kind: OutcomeKind) -> bool:
    """Is it told of a fault that it shared with others?"""
    cursor = request.cursor
    return kind is OutcomeKind.MODEL_FAULTED and cursor is not None and cursor.is_shared


def _why_not_with(leader: SeenRequest, rider: SeenRequest) -> str | None:
    own, other = leader.arrived, rider.arrived
    if other.kind is not CursorKind.INFER or other.model != own.model:
        return "it is of another model"
    if rider.effective_class is not leader.effective_class:
        return "it is of another class"
    if other.batch_key is None or other.batch_key != own.batch_key:
        return "its batch key is another"
    if rider.ran_with_others:
        return "its run failed before beside others"
    return None
