"""What may be asked of one launch: its groups, its riders, its window, its budget, its frame.

Invariants 1, 2 and the launching half of 6 and 7. Each question is answered with the reason why
the launch is wrong, or None. They know the world as it was before the launch.
"""

from collections.abc import Callable
from typing import Protocol

from gpumuxd.core.statistics import LAXITY_OF
from gpumuxd.domain import CursorKind, PriorityClass, Slice
from gpumuxd.settings import Order, Slicing
from gpumuxd.testing.seen import Bounds
from gpumuxd.testing.world import World

_NO_BOUNDS: Bounds = (None,) * len(PriorityClass)


class StatisticsSeen(Protocol):
    """What the checkers read of a statistics snapshot."""

    @property
    def queued(self) -> int: ...
    @property
    def started(self) -> int: ...
    @property
    def in_flight_slices(self) -> int: ...
    @property
    def slices_launched(self) -> int: ...
    @property
    def groups_launched(self) -> int: ...
    @property
    def frames_held(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def bound_ns(self) -> int: ...
    @property
    def bound_origin(self) -> str: ...
    @property
    def rescales(self) -> int: ...


class LaunchCheck:
    """Asks every question of a launch that can be answered at once."""

    def __init__(self, world: World, statistics: Callable[[], StatisticsSeen]) -> None:
        self._world = world
        self._settings = world.settings
        self._statistics = statistics

    def why_wrong_groups(self, work: Slice) -> str | None:
        """Invariant 1, and `passed <= launched <= groups`."""
        world = self._world
        cursor = world.cursors.get(work.cursor_id)
        launched = cursor.launched if cursor else 0
        count = world.models[work.model].ready.profile.group_count
        if not work.first_group == launched < work.end_group <= count:
            return f"{launched} of {count} groups were launched"
        if work.slice_id <= world.slice_id_max:
            return "the slice id was used before"
        if work.cursor_id in world.cursors_ended:
            return "the cursor was retired"
        if cursor is None:
            return None
        was = cursor.sample
        if (work.model, work.bucket, work.members) != (was.model, was.bucket, was.members):
            return f"the cursor began as {was}"
        for seen in world.in_flight():
            is_before = seen.cursor is cursor and seen.work.lane != work.lane
            if is_before and seen.work.slice_id not in work.after:
                return f"it does not wait for {seen.work} on another lane"
        return None

    def why_wrong_members(self, work: Slice, now_ns: int) -> str | None:
        """Only for admitted, unfinished requests that somebody still waits for in time."""
        for member in work.members:
            request = self._world.requests.get(member)
            if request is None:
                return f"request {member} has finished or never arrived"
            if not request.is_admitted:
                return f"request {member} was not admitted"
            if request.cancelled:
                return f"request {member} was cancelled"
            if now_ns >= request.key[0]:
                return f"request {member} is past its deadline"
            if request.cursor is not None and request.cursor.failed:
                return f"request {member} failed"
            if request.cursor is not None and request.cursor.sample.cursor_id != work.cursor_id:
                return f"request {member} rides on another cursor"
            if (request.arrived.model, request.arrived.bucket) != (work.model, work.bucket):
                return f"request {member} is of another model or bucket"
        return None

    def why_wrong_window(self, work: Slice) -> str | None:
        """Invariant 2, first half: slices in flight, and how long one may be."""
        settings = self._settings
        lane = self._world.lanes.get(work.lane)
        if lane is None:
            return "there is no such lane"
        if len(lane) >= settings.window_max:
            return f"{len(lane)} slices are in flight, window_max is {settings.window_max}"
        is_single = work.end_group - work.first_group == 1
        if is_single:
            return None
        request = self._world.requests.get(work.members[0])
        if request is not None and request.arrived.kind is CursorKind.PROFILE:
            return "profiles run group by group"
        if settings.slicing is Slicing.NONE:
            return None
        if not self._world.models[work.model].measured:
            return "what was never measured runs one group at a time"
        if work.predicted_ns > settings.slice_ns_max:
            return f"slice_ns_max is {settings.slice_ns_max}"
        return None

    def why_wrong_budget(self, work: Slice, bounds_ns: Bounds) -> str | None:
        """Invariant 2, second half: no class may find more in flight that should yield to it.

        Of the work in a lane that arrivals of a class could be ordered ahead of, more than the
        bound is allowed to exactly one group, alone; so is work without a prediction.
        """
        request = self._world.requests.get(work.members[0])
        if request is None or work.lane not in self._world.lanes:
            return None
        is_single = work.end_group - work.first_group == 1
        lane = self._world.lanes[work.lane]
        for arriving, bound_ns in enumerate(bounds_ns):
            if bound_ns is None or arriving < request.effective_class:
                continue
            covered = [s for s in lane if s.cursor.request.effective_class <= arriving]
            if is_single and not covered:
                continue
            in_flight_ns = sum(s.work.predicted_ns for s in covered) + work.predicted_ns
            is_known = work.predicted_ns and all(s.work.predicted_ns for s in covered)
            if in_flight_ns > bound_ns or not is_known:
                return (
                    f"it makes it {in_flight_ns} ns in {len(covered) + 1} slices in flight before "
                    f"an arrival of {PriorityClass(arriving).name}; the bound is {bound_ns} ns"
                )
        return None

    def why_wrong_start(self, work: Slice) -> str | None:
        """Invariant 7 at a cursor's first slice: a free frame, one for its class, and memory."""
        world, settings = self._world, self._settings
        request = world.requests.get(work.members[0])
        if request is None or work.cursor_id in world.cursors:
            return None
        holder = world.cursor_of_frame.get(work.frame)
        if holder is not None:
            return f"cursor {holder} holds its frame"
        if not 0 <= work.frame < settings.frames_max:
            return f"there are {settings.frames_max} frames"
        limit = world.frames_for[request.effective_class]
        if len(world.cursors) >= limit:
            return (
                f"{len(world.cursors)} frames are held, {request.effective_class.name} "
                f"may start while fewer than {limit} are"
            )
        needed = world.memory_bytes + world.models[work.model].ready.frame_bytes
        if needed > settings.memory_bytes_max:
            return f"it makes it {needed} of {settings.memory_bytes_max} bytes"
        return None

    def why_wrong_frame(self, work: Slice) -> str | None:
        """Invariant 7 later: a cursor keeps its frame."""
        cursor = self._world.cursors.get(work.cursor_id)
        if cursor is None or cursor.frame == work.frame:
            return None
        return f"the cursor holds frame {cursor.frame}"

    def why_wrong_bound(self) -> str | None:
        """A derived bound is never above `slice_ns_max`."""
        if self._settings.preemption_delay_ns_max is not None:
            return None
        bound_ns = self._statistics().bound_ns
        if bound_ns <= self._settings.slice_ns_max:
            return None
        return f"a derived bound of {bound_ns} ns, slice_ns_max {self._settings.slice_ns_max}"

    def bounds_ns(self) -> Bounds:
        """By class: the bound on work that its arrivals could be ordered ahead of.

        A class has one if some loaded model may be asked in it at most. A derived bound is the
        scheduler's own word for the tightest class, and at most `slice_ns_max` for all.
        """
        settings = self._settings
        if settings.slicing is Slicing.NONE or settings.order is Order.FIFO:
            return _NO_BOUNDS
        models = self._world.models.values()
        reached = {model.ready.class_max for model in models}
        stated_ns = settings.preemption_delay_ns_max
        ceiling_ns = settings.slice_ns_max if stated_ns is None else stated_ns
        bounds_ns = [ceiling_ns if one in reached else None for one in PriorityClass]
        if stated_ns is None and any(model.ready.slo_ns is not None for model in models):
            told = self._statistics()
            tightest = self._world.models.get(told.bound_origin.removeprefix(LAXITY_OF))
            if tightest is not None:
                bounds_ns[tightest.ready.class_max] = told.bound_ns
        return tuple(bounds_ns)
