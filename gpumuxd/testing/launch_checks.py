"""What may be asked of one launch: its groups, its riders, its window, its budget, its frame.

Invariants 1, 2 and the launching half of 6 and 7. Each question is answered with the reason why
the launch is wrong, or None. They know the world as it was before the launch.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from gpumuxd.core.estimator import BUCKETS_MAX
from gpumuxd.core.explanation import BOUNDED, LEAST_DELAY, SLO, Explanation
from gpumuxd.core.statistics import LAXITY_OF, ModelStatistics
from gpumuxd.domain import Bucket, CursorKind, PriorityClass, Slice
from gpumuxd.events import ModelProfile
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.testing.seen import Bounds, SeenSlice
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
    @property
    def best_effort_grants(self) -> int: ...
    @property
    def models(self) -> tuple[ModelStatistics, ...]: ...


Explain = Callable[[str, Bucket, PriorityClass], Explanation | None]
"""The scheduler's own word on how work of a class is cut: `DeviceScheduler.explain`."""


class LaunchCheck:
    """Asks every question of a launch that can be answered at once.

    Where a device's sync points were measured and no bound is stated, the scheduler may choose
    slices itself. That it may is asked of what an onlooker knows; what it chose is its own word.
    """

    def __init__(
        self, world: World, statistics: Callable[[], StatisticsSeen], explain: Explain
    ) -> None:
        self._world = world
        self._settings = world.settings
        self._statistics = statistics
        self._explain = explain
        self._asked = (-1, PriorityClass.BEST_EFFORT)
        self._told: Explanation | None = None  # of the slice that was asked about last

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
        """Only for admitted, unfinished requests that somebody still waits for in time. Of a run
        that is shared it is asked when it starts."""
        cursor = self._world.cursors.get(work.cursor_id)
        if cursor is not None and cursor.is_shared:
            return None
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
            if request.arrived.model != work.model:
                return f"request {member} is of another model"
        return None

    def why_wrong_window(self, work: Slice) -> str | None:
        """Invariant 2, first half: slices in flight, and how long one may be."""
        settings = self._settings
        lane = self._world.lanes.get(work.lane)
        if lane is None:
            return "there is no such lane"
        if len(lane) >= settings.window_max:
            return f"{len(lane)} slices are in flight, window_max is {settings.window_max}"
        request = self._world.mover(work)
        is_profile = request is not None and request.arrived.kind is CursorKind.PROFILE
        if settings.slicing is not Slicing.ADAPTIVE:
            return self._why_not_as_stated(work, len(lane), is_profile)
        chosen = None
        if request is not None and not is_profile:
            chosen = self._chosen(work, request.effective_class)
        if request is not None and chosen is not None:
            problem = _why_over_plan(chosen, request.effective_class, lane)
            if problem is not None:
                return problem
        if work.end_group - work.first_group == 1:
            return None
        if is_profile:
            return "profiles run group by group"
        if not self._world.models[work.model].measured:
            return "what was never measured runs one group at a time"
        if self._is_unlearnt(work):
            return None
        slice_ns_max = settings.slice_ns_max if chosen is None else chosen.slice_ns
        if work.predicted_ns > slice_ns_max:
            return f"the longest slice is {slice_ns_max} ns"
        return None

    def _why_not_as_stated(self, work: Slice, in_flight: int, is_profile: bool) -> str | None:
        """A baseline cuts at places that can be counted, and has a window of its own."""
        settings = self._settings
        window = settings.window_fixed or settings.window_max
        if in_flight >= window:
            return f"{in_flight} slices are in flight, slicing = {settings.slicing} has {window}"
        if is_profile or not work.predicted_ns:
            end = work.first_group + 1  # group by group
        else:
            end = _stated_end(work, self._world.models[work.model].ready.profile, settings)
        if work.end_group == end:
            return None
        return f"slicing = {settings.slicing} has a sync point after group {end}"

    def why_wrong_mode(self, work: Slice) -> str | None:
        """Does the scheduler name the rule that holds for this work?"""
        request = self._world.mover(work)
        if request is None or request.arrived.kind is not CursorKind.INFER:
            return None
        told = self._explain(work.model, work.bucket, request.effective_class)
        expected = self._modes(request.effective_class)
        if told is None or told.mode in expected:
            return None
        return f"it is said to be cut by {told.mode}, what holds is {' or '.join(expected)}"

    def _modes(self, priority_class: PriorityClass) -> tuple[str, ...]:
        """The rules that may hold for work of a class, as far as an onlooker knows.

        Whether a laxity can be kept or not, bounded or slo, depends on what the scheduler believes.
        """
        settings = self._settings
        if settings.slicing is not Slicing.ADAPTIVE:
            return (settings.slicing.value,)
        if not self._may_choose():
            return (BOUNDED,)
        has_slo = any(
            model.ready.slo_ns is not None and model.ready.class_max >= priority_class
            for model in self._world.models.values()
        )
        # Whether an SLO can be met at all does, too; if not there is none.
        return (SLO, LEAST_DELAY, BOUNDED) if has_slo else (LEAST_DELAY,)

    def _may_choose(self) -> bool:
        settings = self._settings
        is_policy = settings.order is Order.POLICY and settings.slicing is Slicing.ADAPTIVE
        is_stated = settings.preemption_delay_ns_max is not None
        return is_policy and not is_stated and bool(self._world.sync_costs)

    def _chosen(self, work: Slice, priority_class: PriorityClass) -> Explanation | None:
        """What the scheduler says it chose for this work, if it may choose at all."""
        if not self._may_choose():
            return None
        asked = (work.slice_id, priority_class)
        if self._asked != asked:  # an explanation takes longer than a decision
            told = self._explain(work.model, work.bucket, priority_class)
            is_chosen = told is not None and told.mode in (SLO, LEAST_DELAY)
            self._asked, self._told = asked, told if is_chosen else None
        return self._told

    def _is_unlearnt(self, work: Slice) -> bool:
        """Is it of one size too many, of which nothing is kept that could be explained?"""
        model = self._world.models[work.model]
        is_told = work.bucket in model.ready.profile.group_ns
        return self._may_choose() and not is_told and len(model.buckets) > BUCKETS_MAX

    def why_wrong_budget(self, work: Slice, bounds_ns: Bounds) -> str | None:
        """Invariant 2, second half: no class may find more in flight that should yield to it.

        Of the work in a lane that arrivals of a class could be ordered ahead of, more than the
        bound is allowed to exactly one group, alone; so is work without a prediction.
        """
        request = self._world.mover(work)
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
        request = world.mover(work)
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
        return world.why_no_memory(world.models[work.model], work.bucket)

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

    def bounds_ns(self, work: Slice) -> Bounds:
        """By class: the bound on work that its arrivals could be ordered ahead of, for this slice.

        A class has one if some loaded model may be asked in it at most, and a derived bound is the
        scheduler's own word for the tightest class, and at most `slice_ns_max` for all. Where the
        device's sync points were measured and none is stated, see `_by_laxity`.
        """
        settings = self._settings
        if settings.slicing is not Slicing.ADAPTIVE or settings.order is Order.FIFO:
            return _NO_BOUNDS
        request = self._world.mover(work)
        if request is not None and self._chosen(work, request.effective_class) is not None:
            return _NO_BOUNDS
        if self._is_unlearnt(work):
            return _NO_BOUNDS
        if request is not None and self._may_choose():
            return self._by_laxity(work, request.effective_class)
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

    def _by_laxity(self, work: Slice, priority_class: PriorityClass) -> Bounds:
        """Promised is the highest class that has an SLO which can be met, whatever others ask, and
        the class that is said to be the tightest of those that this work keeps."""
        told = self._explain(work.model, work.bucket, priority_class)
        if told is None or told.bound_ns is None:
            return _NO_BOUNDS
        models = self._world.models
        holders = [
            model.ready.class_max
            for key, model in models.items()
            if model.ready.slo_ns is not None
            and model.ready.class_max >= priority_class
            and f"{key} asks for no bound" not in told.reason
        ]
        bounds_ns: list[int | None] = [None] * len(PriorityClass)
        if holders:
            bounds_ns[max(holders)] = self._settings.slice_ns_max
        tightest = models.get(told.bound_origin.removeprefix(LAXITY_OF))
        if tightest is not None:
            bounds_ns[tightest.ready.class_max] = told.bound_ns
        return tuple(bounds_ns)


def _why_over_plan(
    chosen: Explanation, priority_class: PriorityClass, lane: Iterable[SeenSlice]
) -> str | None:
    """Of its own class and above, no more slices are in flight than an undisturbed run has; one of
    fewer slices than that does not say how many there may be."""
    before = sum(seen.cursor.request.effective_class >= priority_class for seen in lane)
    if before < chosen.window or len(chosen.slice_ends) <= chosen.window:
        return None
    return f"{before} slices are in flight before it, said was a window of {chosen.window}"


def _stated_end(work: Slice, profile: ModelProfile, settings: SchedulerSettings) -> int:
    """Where this slice ends under a baseline, counted group by group."""
    count, first = profile.group_count, work.first_group
    if settings.slicing is Slicing.NONE:
        return count
    if settings.slicing is Slicing.LAYER:
        ends = profile.layer_ends or range(1, count + 1)
        return next((end for end in ends if end > first), count)
    operators = profile.operators or (1,) * count
    run, end = operators[first], first + 1
    while end < count and run < max(1, settings.slicing_operators):
        run, end = run + operators[end], end + 1
    return end
