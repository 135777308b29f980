"""Where the next sync point goes: how many groups of a cursor are launched together, if any.

It knows what is in flight on the lane and what the loaded models could ask for; it must not know
who else is queued. Which rule holds is said in `slicing_mode`, how long slices of least delay are
in `slice_plan`; here is how each is kept, in `choose`.

A *bound* belongs to a class: no arrival of that class may find more than that much predicted work
in flight that it could be ordered ahead of, its own class included. A stated bound
(`preemption_delay_ns_max`) holds for every class that some loaded model may be asked in; `auto`
takes the smallest laxity of the models with an SLO whose `class_max` is that class, at most
`slice_ns_max`. Work with a group longer than that does not keep it: strictly, the highest class
that has an SLO decides whether its work is bounded (`Tier`), so that whatever lower classes declare
leaves that bound in place. An SLO that no waiting at all could meet asks for nothing, as if there
were none. While the device was not told what its sync points cost, and with the baselines, a
model without SLO asks for `slice_ns_max`; after that it asks for none, since least delay is
better. Work that nobody could be ordered ahead of is then only cut to keep slices at
`slice_ns_max`, `window` of them in flight.

With a window of w a slice is about 1/w of the tightest bound, so that w of them fit and the
pipeline never drains. If the next group alone is longer than a bound, that group is launched when
nothing else that the bound covers is in flight: one group is the least that makes progress.

A *plan* says the length of slices and how many of them may be in flight. Those of higher
classes count, since who follows them should not fill the lane; those of lower classes don't, since
who preempts them should not wait for them to drain before it is launched.

Decisions where the plan is silent. The laxity of a model is taken for its longest run that can meet
its SLO at all: larger batches than that have no laxity to protect. In flight counts whole until it
has passed; how far the head has run is not known well enough to be worth a shorter drain. Draining
models count until their release. Plans take long to make: one between two events, and who needs
another waits for what is in flight. The baseline `none` launches whole inferences and keeps the
measured window, the others keep the one they state. Measured work does not follow unmeasured work
in a lane before that has passed, nor the other way round."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from gpumuxd.core.arrival_rates import share_ppm
from gpumuxd.core.bucket_table import BucketTable
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.core.model import Model
from gpumuxd.core.slice_plan import Basis, SlicePlan, Slo, make_plan
from gpumuxd.core.slicing_mode import Mode
from gpumuxd.core.statistics import LAXITY_OF, LEAST_DELAY, SLICE_NS_MAX
from gpumuxd.domain import CursorKind, PriorityClass, SyncCost
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.units import ms_from_ns

_CLASSES = len(PriorityClass)

Covering = list[tuple[int, int]]
"""Bounds with their class."""
NOT_WEIGHED = (0,) * _CLASSES

UNBOUNDED = 1 << 62

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_ADAPTIVE = Slicing.ADAPTIVE
_WHOLE_RUNS = Slicing.NONE
_LAYER = Slicing.LAYER
_PROFILE = CursorKind.PROFILE
_UNKNOWN_ESTIMATE = Blocked.UNKNOWN_ESTIMATE
_OVER_BOUND = Blocked.OVER_BOUND
_WINDOW_FULL = Blocked.WINDOW_FULL


class Tier(NamedTuple):
    """Bounds that work of some class is kept to if none of its groups is longer than the limit."""

    limit_ns: int
    covering: Covering
    tightest_ns: int


class Hopeless(NamedTuple):
    """A model whose SLO not even a request that waits for nothing can meet."""

    model: str
    rank: int
    run_ns: int  # the shortest that is known, with the round trip
    slo_ns: int

    @property
    def in_words(self) -> str:
        return (
            f"{self.model} asks for no bound: its own run takes {ms_from_ns(self.run_ns):.3f} ms, "
            f"{'more than' if self.run_ns > self.slo_ns else 'all of'} its SLO of "
            f"{ms_from_ns(self.slo_ns):.3f} ms"
        )


class Asked(NamedTuple):
    """What bounds follow from."""

    by_class: list[int]
    """UNBOUNDED where no loaded model gives the class one."""
    origins: list[str]
    """What gave each class its bound, or that it has none."""
    pace_ns: list[int]
    """How long the device's own work may be in the way of each class: its bound, else
    `slice_ns_max` where some loaded model may be asked in it."""
    is_firm: bool = True
    """They are kept whatever groups take; no plans."""
    floor_ns: int = 0
    """The longest group that is known of any loaded model: whatever the bounds say, one such may be
    in flight, alone."""
    costs: tuple[SyncCost, ...] = ()
    slos: tuple[Slo, ...] = ()
    hopeless: tuple[Hopeless, ...] = ()
    arrival_gap_ns: tuple[int, ...] = NOT_WEIGHED
    """For work of each class: between arrivals that go ahead of it; 0 where not weighed."""


class Bounds:
    """What the loaded models ask of work in flight, by class. Replaced, never changed."""

    __slots__ = (
        "arrival_gap_ns",
        "asked",
        "by_class",
        "costs",
        "decides",
        "floor_ns",
        "has_planned",
        "hopeless",
        "is_firm",
        "origin",
        "origins",
        "pace_ns",
        "slos",
        "tiers",
        "tightest_from",
    )

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.by_class = by_class = asked.by_class
        self.origins = asked.origins
        self.origin = self.origin_from(0)
        self.is_firm = asked.is_firm
        self.pace_ns = asked.pace_ns
        self.floor_ns = asked.floor_ns
        self.costs = asked.costs
        self.slos = slos = asked.slos
        self.hopeless = asked.hopeless
        self.arrival_gap_ns = asked.arrival_gap_ns
        self.has_planned = False
        """Was a plan made since the launcher last began? The one thing here that changes."""
        top = max((slo.rank for slo in slos), default=-1)
        tightest = [slo for slo in slos if slo.rank == top]
        self.decides: Slo | None = min(tightest, key=_laxity_ns) if tightest else None
        """The tightest of the highest class: work with a longer group is cut by a plan."""
        self.tightest_from = [min(by_class[index:]) for index in range(_CLASSES)]
        """For work of each class: the smallest bound of those who could be ordered ahead."""
        self.tiers = [self._tiers(low) for low in range(_CLASSES)]
        """For work of each class: the bounds that it keeps, by its longest group, ascending. By a
        plan if that is longer than all limits (`slicing_mode`)."""

    def _tiers(self, low: int) -> list[Tier]:
        limits_ns = [UNBOUNDED] * _CLASSES
        if not self.is_firm:
            decides = self.decides
            if decides is None or decides.rank < low:
                return []
            for slo in self.slos:
                limits_ns[slo.rank] = min(limits_ns[slo.rank], slo.laxity_ns)
            top_ns = decides.laxity_ns
            limits_ns = [min(limit_ns, top_ns) for limit_ns in limits_ns]
        tiers = []
        for limit_ns in sorted(set(limits_ns[low:])):
            covering = [
                (rank, self.by_class[rank])
                for rank in range(low, _CLASSES)
                if self.by_class[rank] < UNBOUNDED and limits_ns[rank] >= limit_ns
            ]
            bounds_ns = [bound_ns for _, bound_ns in covering]
            tiers.append(Tier(limit_ns, covering, min(bounds_ns, default=UNBOUNDED)))
        return tiers

    def tier_of(self, rank: int, longest_group_ns: int) -> Tier | None:
        """The bounds that work of this class keeps; None: it goes by a plan."""
        for tier in self.tiers[rank]:
            if longest_group_ns <= tier.limit_ns:
                return tier
        return None

    def of(self, priority_class: PriorityClass) -> int | None:
        """The bound of one class, None where it has none."""
        return _known(self.by_class[priority_class])

    def pace_of(self, priority_class: PriorityClass) -> int | None:
        """How long the device's own work may be in the way of this class; None: as it likes."""
        return _known(self.pace_ns[priority_class])

    def origin_from(self, rank: int) -> str:
        """What gave the tightest bound on work of this class, or says why there is none."""
        return self.origins[min(range(rank, _CLASSES), key=self.by_class.__getitem__)]


def _laxity_ns(slo: Slo) -> int:
    return slo.laxity_ns


def _known(bound_ns: int) -> int | None:
    return None if bound_ns == UNBOUNDED else bound_ns


def bounds_of(
    models: Iterable[Model],
    settings: SchedulerSettings,
    round_trip_ns: int,
    before: Bounds | None = None,
    costs: tuple[SyncCost, ...] = (),
    arrival_gap_ns: tuple[int, ...] = NOT_WEIGHED,
) -> Bounds:
    """Derive the bounds; `before` again if they are the same, as they mostly are. Called when
    models or their estimates change, not at every decision. `costs`: of the windows that may be
    used; empty while unknown."""
    by_class, pace_ns = [UNBOUNDED] * _CLASSES, [UNBOUNDED] * _CLASSES
    if settings.order is Order.FIFO:
        origins = ["fifo: nobody is ordered ahead"] * _CLASSES
        return Bounds(Asked(by_class, origins, by_class))
    stated_ns, slice_ns_max = settings.preemption_delay_ns_max, settings.slice_ns_max
    is_firm = stated_ns is not None or settings.slicing is not _ADAPTIVE or not costs
    origins = [SLICE_NS_MAX if is_firm else LEAST_DELAY] * _CLASSES
    floor_ns = 0
    slos: list[Slo] = []
    hopeless: list[Hopeless] = []
    for model in models:
        rank = int(model.class_max)
        floor_ns = max([floor_ns, *(t.longest_group_ns for _, t in model.estimates.tables())])
        if stated_ns is not None:
            bound_ns, origin = stated_ns, "preemption_delay_ns_max"
        else:
            bound_ns, origin = slice_ns_max if is_firm else UNBOUNDED, origins[rank]
            slo = slo_of(model, round_trip_ns)
            if isinstance(slo, Hopeless):
                hopeless.append(slo)
            elif slo is not None:
                slos.append(slo)
                bound_ns, origin = slo.laxity_ns, f"{LAXITY_OF}{model.key}"
                if bound_ns >= slice_ns_max:
                    bound_ns, origin = slice_ns_max, SLICE_NS_MAX
        if bound_ns < by_class[rank]:
            by_class[rank], origins[rank] = bound_ns, origin
        pace_ns[rank] = min(pace_ns[rank], slice_ns_max if bound_ns == UNBOUNDED else bound_ns)
    asked = Asked(
        by_class,
        origins,
        pace_ns,
        is_firm,
        floor_ns,
        () if is_firm else costs,
        () if is_firm else tuple(slos),
        tuple(hopeless),
        arrival_gap_ns,
    )
    return before if before is not None and before.asked == asked else Bounds(asked)


def slo_of(model: Model, round_trip_ns: int) -> Slo | Hopeless | None:
    """How long a request of this model may wait, more than 0, and still meet its SLO, if any."""
    slo_ns = model.slo_ns
    if slo_ns is None:
        return None
    budget_ns = slo_ns - round_trip_ns
    fitting_ns = shortest_ns = 0
    for _, table in model.estimates.tables():
        run_ns = table.run_ns
        if run_ns:
            shortest_ns = min(shortest_ns or run_ns, run_ns)
            if fitting_ns < run_ns < budget_ns:
                fitting_ns = run_ns
    rank = int(model.class_max)
    if budget_ns <= 0 or (shortest_ns > 0 and fitting_ns == 0):
        return Hopeless(model.key, rank, shortest_ns + round_trip_ns, slo_ns)
    return Slo(model.key, rank, budget_ns - fitting_ns, fitting_ns)


def choose(
    cursor: Cursor, queue: LaunchQueue, bounds: Bounds, settings: SchedulerSettings
) -> tuple[int, int, Blocked | None]:
    """The end group and predicted time of the cursor's next slice, and why there is none now.

    The window has room: whoever asks has looked.
    """
    table = cursor.table
    prefix = table.prefix
    next_group = cursor.next_group
    flights = queue.flights
    if not prefix:
        return next_group + 1, 0, _UNKNOWN_ESTIMATE if flights else None
    if flights and not flights[0].predicted_ns:  # as `has_unknown`
        return 0, 0, _UNKNOWN_ESTIMATE
    if settings.slicing is not _ADAPTIVE and cursor.kind is not _PROFILE:
        end = _fixed_end(cursor, settings)
        return end, prefix[end] - prefix[next_group], None

    tier = bounds.tier_of(cursor.rank, table.longest_group_ns)
    if tier is None:
        return _planned(cursor, queue, bounds)
    covering, covered_ns = tier.covering, queue.covered_ns
    target_ns = settings.slice_ns_max
    if covering:
        room_ns = UNBOUNDED
        for rank, bound_ns in covering:
            left_ns = bound_ns - covered_ns[rank]
            if left_ns < room_ns:
                room_ns = left_ns
        share_ns = tier.tightest_ns // queue.window
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


def _fixed_end(cursor: Cursor, settings: SchedulerSettings) -> int:
    """Where the next slice ends under a baseline."""
    model, next_group = cursor.model, cursor.next_group
    if settings.slicing is _WHOLE_RUNS:
        return cursor.group_count
    if settings.slicing is _LAYER:
        ends = model.layer_ends
        if not ends:
            return next_group + 1
        place = bisect_right(ends, next_group)
        return ends[place] if place < len(ends) else cursor.group_count
    run = model.operators_run
    operators = max(1, settings.slicing_operators)
    if not run:
        return min(next_group + operators, cursor.group_count)
    return min(bisect_left(run, run[next_group] + operators, next_group + 1), cursor.group_count)


def _planned(cursor: Cursor, queue: LaunchQueue, bounds: Bounds) -> tuple[int, int, Blocked | None]:
    """The cursor's next slice by its plan."""
    rank, table, next_group = cursor.rank, cursor.table, cursor.next_group
    prefix = table.prefix
    plan = table.plans[rank]
    if plan is None or plan.prefix is not prefix or plan.bounds is not bounds:
        if bounds.has_planned and queue.flights:  # there is time until those have passed
            return 0, 0, _WINDOW_FULL
        plan = plan_of(cursor.model, table, rank, bounds)
        bounds.has_planned |= plan.is_new
        plan.is_new = False
    flights, window = queue.flights, plan.window
    if len(flights) >= window:
        for flight in flights:
            window -= flight.cursor.rank >= rank
        if window <= 0:
            return 0, 0, _WINDOW_FULL
    start_ns, end = prefix[next_group], next_group + 1
    if prefix[end] - start_ns < plan.slice_ns and cursor.kind is not _PROFILE:
        end = bisect_right(prefix, start_ns + plan.slice_ns, end) - 1
    return end, prefix[end] - start_ns, None


def plan_of(model: Model, table: BucketTable, rank: int, bounds: Bounds) -> SlicePlan:
    """The plan for work of this class, made anew if what it was made from has moved."""
    slos = tuple(slo for slo in bounds.slos if slo.rank >= rank)
    basis = Basis(
        Mode.SLO if slos else Mode.LEAST_DELAY,
        bounds.costs,
        slos,
        (model.slo_ns or 0) if slos else 0,
        share_ppm(table.prefix[-1], bounds.arrival_gap_ns[rank]),
        rank,
    )
    plan = table.plans[rank]
    if plan is None or not plan.is_current(basis, table.prefix[-1], table.longest_group_ns):
        plan = table.plans[rank] = make_plan(basis, table.prefix, table.outstanding_ns)
    plan.prefix, plan.bounds = table.prefix, bounds
    return plan
