"""Where the next sync point goes: how many groups of a cursor are launched together, if any.

It knows what is in flight on the lane and what the loaded models could ask for; it must not know
who else is queued. One rule, in `choose`.

A *bound* belongs to a class: no arrival of that class may find more than that much predicted work
in flight that it could be ordered ahead of, its own class included. A stated bound
(`preemption_delay_ns_max`) holds for every class that some loaded model may be asked in; `auto`
takes the smallest laxity of the models whose `class_max` is that class, at most `slice_ns_max`.
A class that no loaded model reaches has no bound; work that nobody could be ordered ahead of is
only cut to keep slices at `slice_ns_max`, `window` of them in flight. (That is rare: a model of
the cursor's own class is enough to have a bound, and the cursor's own model counts.)

With a window of w a slice is about 1/w of the tightest bound, so that w of them fit and the
pipeline never drains. If the next group alone is longer than a bound, that group is launched when
nothing else that the bound covers is in flight: one group is the least that makes progress.

Decisions where the plan is silent. The laxity of a model is taken for its longest run that can
meet its SLO at all: larger batches than that have no laxity to protect. In flight counts whole
until it has passed; how far the head has run is not known well enough to be worth a shorter
drain. A model without SLO asks for `slice_ns_max`. Draining models count until their release.
The baseline `none` launches whole inferences and keeps the window. Measured work does not follow
unmeasured work in a lane before that has passed, nor the other way round.
"""

from bisect import bisect_right
from collections.abc import Iterable

from gpumuxd.core.cursor import Cursor
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.core.model import Model
from gpumuxd.core.statistics import LAXITY_OF
from gpumuxd.domain import CursorKind, PriorityClass
from gpumuxd.settings import Order, SchedulerSettings, Slicing

_CLASSES = len(PriorityClass)

UNBOUNDED = 1 << 62

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_WHOLE_RUNS = Slicing.NONE
_PROFILE = CursorKind.PROFILE
_UNKNOWN_ESTIMATE = Blocked.UNKNOWN_ESTIMATE
_OVER_BOUND = Blocked.OVER_BOUND


class Bounds:
    """What the loaded models ask of work in flight, by class. Replaced, never changed."""

    __slots__ = ("by_class", "covering", "origin", "tightest_from")

    def __init__(self, by_class: list[int], origin: str) -> None:
        self.by_class = by_class  # UNBOUNDED where no loaded model reaches the class
        self.origin = origin
        self.tightest_from = [min(by_class[index:]) for index in range(_CLASSES)]
        """For work of each class: the smallest bound of those who could be ordered ahead."""
        self.covering = [
            [
                (rank, bound)
                for rank, bound in enumerate(by_class)
                if bound < UNBOUNDED and rank >= low
            ]
            for low in range(_CLASSES)
        ]
        """For work of each class: the bounds that cover it, with their class."""

    def of(self, priority_class: PriorityClass) -> int | None:
        """The bound of one class, None where it has none."""
        bound_ns = self.by_class[priority_class]
        return None if bound_ns == UNBOUNDED else bound_ns


def bounds_of(
    models: Iterable[Model],
    settings: SchedulerSettings,
    round_trip_ns: int,
    before: Bounds | None = None,
) -> Bounds:
    """Derive the bounds; `before` again if they are the same, as they mostly are. Called when
    models or their estimates change, not at every decision."""
    by_class = [UNBOUNDED] * _CLASSES
    if settings.order is Order.FIFO:
        return Bounds(by_class, "fifo: nobody is ordered ahead")
    tightest_ns, origin = settings.slice_ns_max, "slice_ns_max"
    stated_ns = settings.preemption_delay_ns_max
    for model in models:
        if stated_ns is not None:
            bound_ns, origin = stated_ns, "preemption_delay_ns_max"
        else:
            bound_ns = min(settings.slice_ns_max, laxity_ns(model, settings, round_trip_ns))
            if bound_ns < tightest_ns:
                tightest_ns, origin = bound_ns, f"{LAXITY_OF}{model.key}"
        rank = int(model.class_max)
        if bound_ns < by_class[rank]:
            by_class[rank] = bound_ns
    if before is not None and before.by_class == by_class and before.origin == origin:
        return before
    return Bounds(by_class, origin)


def laxity_ns(model: Model, settings: SchedulerSettings, round_trip_ns: int) -> int:
    """How long a request of this model may wait and still meet its SLO; never negative."""
    if model.slo_ns is None:
        return settings.slice_ns_max
    budget_ns = model.slo_ns - round_trip_ns
    fitting_ns, is_known = 0, False
    for _, table in model.estimates.tables():
        run_ns = table.run_ns
        if run_ns:
            is_known = True
            if fitting_ns < run_ns <= budget_ns:
                fitting_ns = run_ns
    if is_known and not fitting_ns:
        return 0
    return max(0, budget_ns - fitting_ns)


def choose(
    cursor: Cursor, queue: LaunchQueue, bounds: Bounds, settings: SchedulerSettings
) -> tuple[int, int, Blocked | None]:
    """The end group and predicted time of the cursor's next slice, and why there is none now.

    The window has room: whoever asks has looked.
    """
    prefix = cursor.table.prefix
    next_group = cursor.next_group
    flights = queue.flights
    if not prefix:
        return next_group + 1, 0, _UNKNOWN_ESTIMATE if flights else None
    if flights and not flights[0].predicted_ns:  # as `has_unknown`
        return 0, 0, _UNKNOWN_ESTIMATE
    if settings.slicing is _WHOLE_RUNS and cursor.kind is not _PROFILE:
        return cursor.group_count, prefix[-1] - prefix[next_group], None

    covering, covered_ns = bounds.covering[cursor.rank], queue.covered_ns
    target_ns = settings.slice_ns_max
    if covering:
        room_ns = UNBOUNDED
        for rank, bound_ns in covering:
            left_ns = bound_ns - covered_ns[rank]
            if left_ns < room_ns:
                room_ns = left_ns
        share_ns = bounds.tightest_from[cursor.rank] // queue.window
        if share_ns < target_ns:
            target_ns = share_ns
    else:
        room_ns = target_ns * queue.window - covered_ns[-1]
    if room_ns < target_ns:
        target_ns = room_ns
    start_ns, end = prefix[next_group], next_group + 1
    predicted_ns = prefix[end] - start_ns
    if predicted_ns < target_ns and cursor.kind is not _PROFILE:
        end = bisect_right(prefix, start_ns + target_ns, end) - 1
        predicted_ns = prefix[end] - start_ns
    if predicted_ns > room_ns and not _is_alone(predicted_ns, covering, covered_ns):
        return end, predicted_ns, _OVER_BOUND
    return end, predicted_ns, None


def _is_alone(predicted_ns: int, covering: list[tuple[int, int]], covered_ns: list[int]) -> bool:
    """Is this the only work in flight that each bound covers which it passes?"""
    for rank, bound_ns in covering:
        if covered_ns[rank] and covered_ns[rank] + predicted_ns > bound_ns:
            return False
    return bool(covering) or covered_ns[-1] == 0
