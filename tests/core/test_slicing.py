"""Where the next sync point goes, in columns: bounds, in flight, cursor, slice."""

import pytest

from gpumuxd.core import slicing
from gpumuxd.core.bucket_table import RUNS_PER_FOLD
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.core.model import Model
from gpumuxd.core.slice_plan import Slo
from gpumuxd.core.slicing import NOT_WEIGHED, UNBOUNDED, Asked, Bounds, Hopeless
from gpumuxd.domain import CursorKind, PriorityClass, SyncCost
from gpumuxd.events import ModelProfile
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from tests.core.conversation import BEST_EFFORT, COMPUTE, HIGH, MS, REALTIME, STANDARD
from tests.core.objects import fly, make_cursor, make_model

NONE = UNBOUNDED
SETTINGS = SchedulerSettings(slice_ns_max=1_000, window_max=4, round_trip_ns=0)
TENS = [10] * 20
OVER_BOUND, UNKNOWN = Blocked.OVER_BOUND, Blocked.UNKNOWN_ESTIMATE


def bounds_with(
    by_class: list[int],
    *,
    is_firm: bool = True,
    costs: tuple[SyncCost, ...] = (),
    slos: tuple[Slo, ...] = (),
    arrival_gap_ns: tuple[int, ...] = NOT_WEIGHED,
) -> Bounds:
    asked = Asked(by_class, [""] * 3, by_class, is_firm, 0, costs, slos, (), arrival_gap_ns)
    return Bounds(asked)


def choose(
    bounds: list[int] | Bounds,
    in_flight: list[tuple[PriorityClass, int]],
    priority_class: PriorityClass,
    group_ns: list[int],
    *,
    next_group: int = 0,
    window: int = 2,
    settings: SchedulerSettings = SETTINGS,
    kind: CursorKind = CursorKind.INFER,
    is_known: bool = True,
) -> tuple[int, int] | Blocked:
    queue = LaunchQueue(COMPUTE, 4, 0)
    queue.window = window
    for each_class, predicted_ns in in_flight:
        fly(queue, make_cursor(1, None, each_class), predicted_ns)
    measured = None if is_known else ModelProfile(len(group_ns))
    model = make_model(*group_ns, measured=measured)
    cursor = make_cursor(2, model, priority_class, kind=kind)
    cursor.next_group = next_group
    if not isinstance(bounds, Bounds):
        bounds = bounds_with(bounds)
    bounds.has_planned = False  # as at the begin of each poll
    end, predicted_ns, blocked = slicing.choose(cursor, queue, bounds, settings)
    return blocked or (end, predicted_ns)


@pytest.mark.parametrize(
    ("bounds", "in_flight", "cursor_class", "group_ns", "next_group", "expected"),
    [
        # a slice is half of the bound with a window of two, and the end of the program ends it
        ([NONE, NONE, 100], [], BEST_EFFORT, TENS, 0, (5, 50)),
        ([NONE, NONE, 100], [], BEST_EFFORT, TENS, 17, (20, 30)),
        ([NONE, NONE, 100], [(BEST_EFFORT, 50)], BEST_EFFORT, TENS, 5, (10, 50)),
        ([NONE, NONE, 100], [(BEST_EFFORT, 51)], BEST_EFFORT, TENS, 5, (9, 40)),
        # groups longer than half of the bound go one by one while they fit
        ([NONE, NONE, 100], [], BEST_EFFORT, [60] * 3, 0, (1, 60)),
        ([NONE, NONE, 100], [(BEST_EFFORT, 40)], BEST_EFFORT, [60] * 3, 0, (1, 60)),
        ([NONE, NONE, 100], [(BEST_EFFORT, 41)], BEST_EFFORT, [60] * 3, 0, OVER_BOUND),
        # one group longer than the bound: alone
        ([NONE, NONE, 100], [], BEST_EFFORT, [300] * 3, 1, (2, 300)),
        ([NONE, NONE, 100], [(BEST_EFFORT, 1)], BEST_EFFORT, [300] * 3, 1, OVER_BOUND),
        ([NONE, NONE, 0], [], BEST_EFFORT, TENS, 0, (1, 10)),
        ([NONE, NONE, 0], [(BEST_EFFORT, 10)], BEST_EFFORT, TENS, 1, OVER_BOUND),
        # the bound of a class covers the work of lower classes and its own, not of higher ones
        ([NONE, 100, NONE], [(REALTIME, 500)], BEST_EFFORT, TENS, 0, (5, 50)),
        ([NONE, 100, NONE], [(STANDARD, 80)], BEST_EFFORT, TENS, 0, (2, 20)),
        ([100, NONE, NONE], [(STANDARD, 500)], BEST_EFFORT, TENS, 0, (5, 50)),
        ([100, NONE, NONE], [(BEST_EFFORT, 80)], BEST_EFFORT, TENS, 0, (2, 20)),
        ([NONE, NONE, 100], [(BEST_EFFORT, 80)], REALTIME, TENS, 0, (2, 20)),
        # the tightest of those that could be ordered ahead counts, and each for itself
        ([100, 40, 80], [], BEST_EFFORT, TENS, 0, (2, 20)),
        ([100, 40, 80], [], REALTIME, TENS, 0, (4, 40)),
        ([100, 400, 90], [(REALTIME, 60)], BEST_EFFORT, TENS, 0, (3, 30)),
        ([100, 400, 90], [(REALTIME, 60), (BEST_EFFORT, 30)], STANDARD, [10], 0, OVER_BOUND),
        # a group over one bound may still not join what another bound covers
        ([50, NONE, 100], [(REALTIME, 30)], BEST_EFFORT, [80], 0, OVER_BOUND),
        ([50, NONE, 200], [(REALTIME, 30)], BEST_EFFORT, [80], 0, (1, 80)),
        # nobody could be ordered ahead: slice_ns_max, and a window of them in flight
        ([100, NONE, NONE], [], STANDARD, [10] * 300, 0, (100, 1_000)),
        ([100, NONE, NONE], [(STANDARD, 1_500)], STANDARD, [10] * 300, 0, (50, 500)),
        ([100, NONE, NONE], [(STANDARD, 2_000)], STANDARD, [10] * 300, 0, OVER_BOUND),
        ([100, NONE, NONE], [], STANDARD, [9_000], 0, (1, 9_000)),
        ([100, NONE, NONE], [(STANDARD, 1)], STANDARD, [9_000], 0, OVER_BOUND),
        # a stated bound may be generous, a slice never is
        ([NONE, NONE, 9_000], [], BEST_EFFORT, [10] * 300, 0, (100, 1_000)),
    ],
)
def test_bounded(
    bounds: list[int],
    in_flight: list[tuple[PriorityClass, int]],
    cursor_class: PriorityClass,
    group_ns: list[int],
    next_group: int,
    expected: tuple[int, int] | Blocked,
) -> None:
    chosen = choose(bounds, in_flight, cursor_class, group_ns, next_group=next_group)
    assert chosen == expected


@pytest.mark.parametrize(("window", "end"), [(1, 10), (2, 5), (3, 3), (4, 2)])
def test_a_larger_window_means_shorter_slices(window: int, end: int) -> None:
    chosen = choose([NONE, NONE, 100], [], BEST_EFFORT, TENS, window=window)
    assert chosen == (end, 10 * end)


@pytest.mark.parametrize(
    ("is_known", "in_flight", "expected"),
    [
        (False, [], (1, 0)),
        (False, [(BEST_EFFORT, 10)], UNKNOWN),  # what was measured is in flight
        (False, [(BEST_EFFORT, 0)], UNKNOWN),
        (True, [(BEST_EFFORT, 0)], UNKNOWN),
    ],
)
@pytest.mark.parametrize("mode", list(Slicing))
def test_unmeasured_work_is_alone_in_flight(
    mode: Slicing,
    is_known: bool,
    in_flight: list[tuple[PriorityClass, int]],
    expected: tuple[int, int] | Blocked,
) -> None:
    settings = SchedulerSettings(slicing=mode)
    chosen = choose(
        [NONE, NONE, 100], in_flight, BEST_EFFORT, TENS, is_known=is_known, settings=settings
    )
    assert chosen == expected


@pytest.mark.parametrize("mode", list(Slicing))
def test_profiles_run_group_by_group(mode: Slicing) -> None:
    settings = SchedulerSettings(slicing=mode)
    chosen = choose(
        [NONE, NONE, 100], [], BEST_EFFORT, TENS, kind=CursorKind.PROFILE, settings=settings
    )
    assert chosen == (1, 10)


def test_without_slicing_the_rest_of_the_inference_is_one_slice() -> None:
    settings = SchedulerSettings(slicing=Slicing.NONE)
    in_flight = [(BEST_EFFORT, 5_000)]
    assert choose([NONE, NONE, 1], in_flight, REALTIME, TENS, settings=settings) == (20, 200)


def with_runs(slo_ns: int | None, *runs_ns: int, key: str = "m", class_max: int = 2) -> Model:
    """A model with one bucket for each run time, one group each."""
    group_ns: dict[tuple[int, ...], tuple[int, ...]] = {
        (size,): (run_ns,) for size, run_ns in enumerate(runs_ns, start=1)
    }
    measured = ModelProfile(1, group_ns, {})
    return make_model(key=key, slo_ns=slo_ns, measured=measured, class_max=PriorityClass(class_max))


@pytest.mark.parametrize(
    ("slo_ns", "runs_ns", "round_trip_ns", "laxity_ns"),
    [
        (600, (500,), 0, 100),
        (600, (500,), 40, 60),
        (600, (500,), 99, 1),
        (600, (100, 200, 550), 0, 50),  # the longest that can be met
        (600, (100, 200, 700), 0, 400),  # 700 never can: nothing to protect
        (600, (), 0, 600),  # not measured yet
    ],
)
def test_laxity(slo_ns: int, runs_ns: tuple[int, ...], round_trip_ns: int, laxity_ns: int) -> None:
    slo = slicing.slo_of(with_runs(slo_ns, *runs_ns, class_max=1), round_trip_ns)
    assert isinstance(slo, Slo)
    assert (slo.model, slo.rank, slo.laxity_ns) == ("m", 1, laxity_ns)


@pytest.mark.parametrize(
    ("slo_ns", "runs_ns", "round_trip_ns", "run_ns"),
    [
        (600, (500,), 100, 600),
        (600, (500,), 101, 601),
        (600, (700, 900), 0, 700),  # the shortest
        (600, (600,), 0, 600),
        (600, (), 600, 600),
    ],
)
def test_who_could_not_even_wait_for_nothing_asks_for_no_bound(
    slo_ns: int, runs_ns: tuple[int, ...], round_trip_ns: int, run_ns: int
) -> None:
    model = with_runs(slo_ns, *runs_ns)
    assert slicing.slo_of(model, round_trip_ns) == Hopeless("m", 2, run_ns, slo_ns)
    bounds = slicing.bounds_of([model], SETTINGS, round_trip_ns, costs=COSTS)
    assert (bounds.by_class, bounds.slos, len(bounds.hopeless)) == ([NONE] * 3, (), 1)


@pytest.mark.parametrize(
    ("lower_ns", "longest_ns", "expected"),
    [
        # REALTIME may wait 100: that holds whatever lower classes may wait
        (None, 100, (100, 2)),
        (1, 100, (100, 2)),
        (99, 100, (100, 2)),
        (60, 100, (100, 2)),
        # what a lower class can keep it keeps, and it makes nothing longer
        (60, 60, (60, 0)),
        (60, 61, (100, 2)),
        (500, 100, (100, 2)),
        # a group that REALTIME's laxity has no room for: by a plan, whatever lower classes say
        (None, 101, None),
        (500, 101, None),
    ],
)
@pytest.mark.parametrize("lower", [BEST_EFFORT, STANDARD])
def test_the_highest_class_decides_and_no_lower_one_lifts_its_bound(
    lower: PriorityClass, lower_ns: int | None, longest_ns: int, expected: tuple[int, int] | None
) -> None:
    models = [with_runs(110, 10, key="voice")]
    if lower_ns is not None:
        models.append(with_runs(lower_ns + 10, 10, key="other", class_max=lower))
    bounds = slicing.bounds_of(models, SETTINGS, 0, costs=COSTS)
    tier = bounds.tier_of(0, longest_ns)
    if expected is None:
        assert tier is None
        return
    assert tier is not None
    tightest_ns, rank = expected
    assert tier.tightest_ns == tightest_ns
    assert (REALTIME, 100) in tier.covering
    assert ((lower, lower_ns) in tier.covering) == (lower_ns is not None and lower_ns >= longest_ns)
    assert rank == REALTIME or (lower, tightest_ns) in tier.covering


def test_one_plan_is_made_at_a_time() -> None:
    """Who needs another waits for what is in flight, if anything is."""
    bounds = bounds_with([NONE] * 3, is_firm=False, costs=COSTS)
    queue = LaunchQueue(COMPUTE, 4, 0)
    first, second = (make_cursor(n, make_model(*TENS), BEST_EFFORT) for n in (1, 2))
    assert slicing.choose(first, queue, bounds, SETTINGS) == (3, 30, None)
    fly(queue, first, 30)
    assert slicing.choose(first, queue, bounds, SETTINGS) == (3, 30, None), "its plan is made"
    assert slicing.choose(second, queue, bounds, SETTINGS)[2] is Blocked.WINDOW_FULL
    bounds.has_planned = False  # the next poll
    assert slicing.choose(second, queue, bounds, SETTINGS) == (3, 30, None)
    third = make_cursor(3, make_model(*TENS), BEST_EFFORT)
    empty = LaunchQueue(HIGH, 4, 0)
    assert slicing.choose(third, empty, bounds, SETTINGS) == (3, 30, None), "or nothing would run"


@pytest.mark.parametrize(
    ("models", "stated_ns", "expected", "origin"),
    [
        ([], None, [NONE, NONE, NONE], "slice_ns_max"),
        ([(0, None)], None, [1_000, NONE, NONE], "slice_ns_max"),
        ([(0, None), (2, 700)], None, [1_000, NONE, 600], "laxity of 1"),
        ([(2, 9_000), (2, 300), (2, 400)], None, [NONE, NONE, 200], "laxity of 1"),
        ([(1, 400), (2, 9_000)], None, [NONE, 300, 1_000], "laxity of 0"),
        ([(0, None), (2, 300)], 50, [50, NONE, 50], "preemption_delay_ns_max"),
        ([(0, None)], 7_000, [7_000, NONE, NONE], "preemption_delay_ns_max"),
        ([(2, 50)], 0, [NONE, NONE, 0], "preemption_delay_ns_max"),
    ],
)
def test_bounds(
    models: list[tuple[int, int | None]],
    stated_ns: int | None,
    expected: list[int],
    origin: str,
) -> None:
    settings = SchedulerSettings(slice_ns_max=1_000, preemption_delay_ns_max=stated_ns)
    loaded = [
        with_runs(slo_ns, 100, key=str(number), class_max=class_max)
        for number, (class_max, slo_ns) in enumerate(models)
    ]
    bounds = slicing.bounds_of(loaded, settings, round_trip_ns=0)
    assert bounds.by_class == expected
    assert bounds.tightest_from == [min(expected), min(expected[1:]), expected[2]]
    assert bounds.origin == origin


COSTS = (SyncCost(1, 18, 0), SyncCost(2, 8, 0), SyncCost(3, 8, 0))


@pytest.mark.parametrize(
    ("models", "stated_ns", "expected", "origins", "slos", "pace"),
    [
        # who has no SLO asks for nothing, but the device's own work yields to it all the same
        ([], None, [NONE] * 3, ["least_delay"] * 3, [], [NONE] * 3),
        ([(0, None)], None, [NONE] * 3, ["least_delay"] * 3, [], [1_000, NONE, NONE]),
        (
            [(0, None), (2, 700), (2, None)],
            None,
            [NONE, NONE, 600],
            ["least_delay", "least_delay", "laxity of 1"],
            [("1", 2, 600, 100)],
            [1_000, NONE, 600],
        ),
        (
            [(1, 400), (2, 9_000)],
            None,
            [NONE, 300, 1_000],
            ["least_delay", "laxity of 0", "slice_ns_max"],
            [("0", 1, 300, 100), ("1", 2, 8_900, 100)],
            [NONE, 300, 1_000],
        ),
        # a stated bound is one for all, and nothing is planned
        (
            [(0, None), (2, 300)],
            50,
            [50, NONE, 50],
            ["preemption_delay_ns_max", "slice_ns_max", "preemption_delay_ns_max"],
            [],
            [50, NONE, 50],
        ),
    ],
)
def test_bounds_where_sync_points_were_measured(
    models: list[tuple[int, int | None]],
    stated_ns: int | None,
    expected: list[int],
    origins: list[str],
    slos: list[tuple[str, int, int, int]],
    pace: list[int],
) -> None:
    settings = SchedulerSettings(slice_ns_max=1_000, preemption_delay_ns_max=stated_ns)
    loaded = [
        with_runs(slo_ns, 100, key=str(number), class_max=class_max)
        for number, (class_max, slo_ns) in enumerate(models)
    ]
    bounds = slicing.bounds_of(loaded, settings, 0, costs=COSTS)
    assert (bounds.by_class, bounds.origins) == (expected, origins)
    assert (list(bounds.slos), bounds.pace_ns) == (slos, pace)
    assert bounds.is_firm == (stated_ns is not None) == (not bounds.costs)
    assert bounds.floor_ns == (100 if models else 0)
    assert slicing.bounds_of(loaded, settings, 0, bounds, COSTS) is bounds
    assert slicing.bounds_of(loaded, settings, 0, bounds, COSTS[:1]) is not bounds or stated_ns


LEAST_DELAY = bounds_with([NONE] * 3, is_firm=False, costs=COSTS)
"""TENS has 200 in all: slices of 30, two in flight: 7 * 8 + 60."""


@pytest.mark.parametrize(
    ("in_flight", "cursor_class", "next_group", "expected"),
    [
        ([], BEST_EFFORT, 0, (3, 30)),
        ([], BEST_EFFORT, 18, (20, 20)),
        ([(BEST_EFFORT, 900)], BEST_EFFORT, 3, (6, 30)),  # slices are counted, not time
        ([(BEST_EFFORT, 30)] * 2, BEST_EFFORT, 6, Blocked.WINDOW_FULL),
        # who follows higher work waits as for its own; who preempts lower work does not
        ([(REALTIME, 30)] * 2, BEST_EFFORT, 0, Blocked.WINDOW_FULL),
        ([(REALTIME, 30), (STANDARD, 30)], STANDARD, 0, Blocked.WINDOW_FULL),
        ([(BEST_EFFORT, 30)] * 2, REALTIME, 0, (3, 30)),
        ([(BEST_EFFORT, 30), (REALTIME, 30)], REALTIME, 0, (3, 30)),
        ([(BEST_EFFORT, 30), (REALTIME, 30), (REALTIME, 30)], REALTIME, 0, Blocked.WINDOW_FULL),
    ],
)
def test_planned(
    in_flight: list[tuple[PriorityClass, int]],
    cursor_class: PriorityClass,
    next_group: int,
    expected: tuple[int, int] | Blocked,
) -> None:
    chosen = choose(LEAST_DELAY, in_flight, cursor_class, TENS, next_group=next_group, window=4)
    assert chosen == expected


def test_plans_do_not_cut_profiles() -> None:
    assert choose(LEAST_DELAY, [], BEST_EFFORT, TENS, kind=CursorKind.PROFILE) == (1, 10)


@pytest.mark.parametrize(
    ("group_ns", "expected"),
    [
        (TENS, (5, 50)),  # bounded: half of 100
        ([100] * 20, (1, 100)),
        ([101] * 20, (1, 101)),  # slo: as short as it goes, and
    ],
)
def test_a_derived_bound_is_kept_where_one_group_fits(
    group_ns: list[int], expected: tuple[int, int]
) -> None:
    slos = (Slo("voice", 2, 100, 10),)
    bounds = bounds_with([NONE, NONE, 100], is_firm=False, costs=COSTS, slos=slos)
    assert choose(bounds, [], BEST_EFFORT, group_ns) == expected
    # The same beside 60 in flight: a bound has no room for a group of 100; least delay has.
    beside = choose(bounds, [(BEST_EFFORT, 60)], BEST_EFFORT, group_ns)
    assert beside == {10: (4, 40), 100: OVER_BOUND, 101: Blocked.WINDOW_FULL}[group_ns[0]]


def test_a_plan_is_kept_until_something_noticeable_moves() -> None:
    model = make_model(*TENS)
    table = model.estimates.table((1,))
    plan = slicing.plan_of(model, table, 0, LEAST_DELAY)
    other = bounds_with([NONE] * 3, is_firm=False, costs=COSTS)
    assert slicing.plan_of(model, table, 0, other) is plan
    assert (plan.bounds, plan.prefix) == (other, table.prefix)
    assert slicing.plan_of(model, table, 2, other) is not plan, "each class has its own"
    dearer = bounds_with([NONE] * 3, is_firm=False, costs=(SyncCost(1, 9_000, 0),))
    longer = slicing.plan_of(model, table, 0, dearer)
    assert (longer.window, longer.slice_ns) == (1, 200)
    # Groups become ten times as long, fold by fold.
    for _ in range(20):
        column = table.new_column(0)
        table.record_slice(column, 0, 20, 2_000)
        table.record_run(column, 2_000, 0)
    assert slicing.plan_of(model, table, 0, other).slice_ns > 2 * plan.slice_ns


def test_rare_arrivals_make_longer_slices() -> None:
    model = make_model(*TENS)
    table = model.estimates.table((1,))
    rare = bounds_with([NONE] * 3, is_firm=False, costs=COSTS, arrival_gap_ns=(200_000,) * 3)
    assert slicing.plan_of(model, table, 0, rare).slice_ns == 200
    often = bounds_with([NONE] * 3, is_firm=False, costs=COSTS, arrival_gap_ns=(200,) * 3)
    assert slicing.plan_of(model, table, 0, often).slice_ns == 30


def test_in_arrival_order_nobody_is_ordered_ahead() -> None:
    settings = SchedulerSettings(order=Order.FIFO, preemption_delay_ns_max=MS)
    bounds = slicing.bounds_of([with_runs(300, 100)], settings, 0)
    assert bounds.by_class == [NONE] * 3


def test_laxity_follows_the_estimates() -> None:
    model = with_runs(600, 100)
    table = model.estimates.table((1,))
    for _ in range(RUNS_PER_FOLD):
        column = table.new_column(0)
        table.record_slice(column, 0, 1, 300)
        table.record_run(column, 300, 0)
    slo = slicing.slo_of(model, 0)
    assert isinstance(slo, Slo)
    assert slo.laxity_ns == 300
