"""What `explain` says of a model, against what is then really launched."""

import pytest

from gpumuxd.core.explanation import Explanation
from gpumuxd.domain import PriorityClass, Slice, SyncCost
from gpumuxd.events import DeviceMeasured, ModelProfile, ModelReady, SyncPointReached
from gpumuxd.settings import Order, Slicing, format_slicing
from tests.core.conversation import (
    BEST_EFFORT,
    MS,
    REALTIME,
    STANDARD,
    US,
    Conversation,
    ready,
    request,
)

COSTS = DeviceMeasured((SyncCost(1, 100 * US, 30 * US), SyncCost(2, 20 * US, 30 * US)))
LONG = ready("long", *[100 * US] * 40)


def explain(talk: Conversation, model: str = "long", **asked: object) -> Explanation:
    talk.say()  # bounds are those of the last poll
    explanation = talk.scheduler.explain(model, **asked)  # type: ignore[arg-type]  # by name
    assert explanation is not None
    return explanation


def test_least_delay() -> None:
    """40 groups of 0.1 ms: exec is 20 us for each slice, preempt two slices: k = 2 is best."""
    told = explain(Conversation(COSTS, LONG))
    assert (told.mode, told.bound_ns, told.bound_origin) == ("least_delay", None, "")
    assert told.reason.startswith("no model that could be ordered ahead of it has an slo_ms")
    assert told.group_ns == (100 * US,) * 40
    assert told.slice_ends == tuple(range(2, 41, 2))
    assert (told.window, told.slice_ns) == (2, 200 * US)
    assert told.exec_ns == 20 * 20 * US + 30 * US
    assert told.preempt_ns == 400 * US
    # The head is half done, and one more is behind it; nothing is behind the last one.
    assert told.preempt_expected_ns == 100 * US + 200 * US * 19 // 20
    assert (told.floor_ns, told.is_floor_over_bound, told.is_guess) == (100 * US, False, False)
    assert (told.bucket, told.priority_class) == ((1,), REALTIME)


class Gaps(Conversation):
    """A device that needs 20 us to begin a slice, queued or not."""

    def _launch(self, work: Slice) -> None:
        self._free_ns[work.lane] = max(self._free_ns.get(work.lane, 0), self.now_ns) + 20 * US
        super()._launch(work)


@pytest.mark.parametrize(
    ("fitted_us", "is_firm", "shown_us"),
    [
        (2, False, 20),
        (900, False, 20),
        # never below what was fitted with nobody else there
        (2, True, 20),
        (900, True, 900),
    ],
)
def test_costs_of_a_busy_machine_give_way_to_what_serving_shows(
    fitted_us: int, is_firm: bool, shown_us: int
) -> None:
    fitted = tuple(SyncCost(window, fitted_us * US, fitted_us * US) for window in (1, 2))
    talk = Gaps(DeviceMeasured(fitted, is_firm), LONG)
    before = explain(talk)
    assert before.is_cost_doubtful is not is_firm
    assert before.exec_ns == (len(before.slice_ends) + 1) * fitted_us * US
    talk.run(
        (10 * number * MS, request(number, "long", at=10 * number * MS)) for number in range(40)
    )
    told = explain(talk)
    base_us = fitted_us if is_firm else shown_us
    expected_ns = (len(told.slice_ends) * shown_us + base_us) * US
    assert abs(told.exec_ns - expected_ns) < expected_ns // 20


def test_bounded_by_a_stated_bound() -> None:
    talk = Conversation(COSTS, LONG, preemption_delay_ns_max=MS)
    told = explain(talk)
    assert (told.mode, told.bound_ns, told.bound_origin) == (
        "bounded", MS, "preemption_delay_ns_max",
    )  # fmt: skip
    assert told.reason == "at most 1.000 ms may be in flight: preemption_delay_ns_max"
    assert told.slice_ends == tuple(range(5, 41, 5))
    assert (told.window, told.slice_ns, told.preempt_ns) == (2, 500 * US, MS)


def test_bounded_by_a_laxity_and_by_whom() -> None:
    talk = Conversation(COSTS, LONG, ready("voice", 200 * US, slo_ns=800 * US))
    told = explain(talk)
    assert (told.mode, told.bound_ns, told.bound_origin) == (
        "bounded", 600 * US, "laxity of voice",
    )  # fmt: skip
    assert told.preempt_ns == 600 * US


def test_where_one_group_is_longer_than_a_stated_bound() -> None:
    """The long group goes alone; the others fill the bound."""
    model = ready("long", *[100 * US] * 4, 3 * MS, *[100 * US] * 4)
    told = explain(Conversation(COSTS, model, preemption_delay_ns_max=400 * US))
    assert told.is_floor_over_bound
    assert told.floor_ns == told.preempt_ns == 3 * MS
    assert told.slice_ends == (2, 4, 5, 7, 9)


def test_a_laxity_with_room_for_the_longest_group_is_kept() -> None:
    """However short slice_ns_max is: what is promised is the larger of bound and longest group."""
    model = ready("long", *[100 * US] * 4, 3 * MS, *[100 * US] * 4)
    told = explain(Conversation(COSTS, model, ready("voice", 100 * US, slo_ns=5 * MS)))
    assert (told.mode, told.bound_ns, told.bound_origin) == ("bounded", 2 * MS, "slice_ns_max")
    assert told.is_floor_over_bound
    assert told.preempt_ns == 3 * MS
    assert told.reason.endswith("or one group alone: the longest takes 3.000 ms")


def test_slo_where_no_bound_can_be_kept() -> None:
    model = ready("long", *[100 * US] * 20, 3 * MS, *[100 * US] * 20)
    talk = Conversation(
        COSTS, model, ready("voice", 100 * US, slo_ns=600 * US), ready("short", *[100 * US] * 40)
    )
    told = explain(talk)
    assert (told.mode, told.bound_ns) == ("slo", None)
    assert told.reason == (
        "no bound can be kept: its longest group takes 3.000 ms, more than the laxity of voice, "
        "0.500 ms"
    )
    # All but the long group is cut so that voice's 0.5 ms are kept.
    slices_ns = [
        sum(told.group_ns[first:end])
        for first, end in zip((0, *told.slice_ends), told.slice_ends, strict=False)
    ]
    assert max(each for each in slices_ns if each < 3 * MS) * told.window <= 500 * US
    assert explain(talk, "short").mode == "bounded", "others keep the bound nevertheless"


@pytest.mark.parametrize(
    ("own_slo_ns", "other_slo_ns", "note"),
    [
        (None, None, None),
        # of a model that needs 1.1 ms with the round trip
        (None, US, "; other asks for no bound: its own run takes 1.100 ms, more than its SLO of"),
        (None, 1_200 * US, "; the laxity of other, 0.100 ms, is less than its longest group takes"),
        # of the long model itself, whose SLO so many sync points would cost
        (202 * MS, US, "; other asks for no bound"),
        (100_200 * US, None, "; the laxity of long, 0.100 ms, is less than its longest group"),
        (US, None, "; long asks for no bound: its own run takes 100.100 ms, more than its SLO of"),
    ],
)
def test_no_slo_of_a_lower_class_lifts_what_a_higher_one_was_promised(
    own_slo_ns: int | None, other_slo_ns: int | None, note: str | None
) -> None:
    """A tenant declares SLOs as it likes, and must not be able to lengthen its slices by them."""
    talk = Conversation(
        COSTS,
        ready("voice", MS, slo_ns=3 * MS),
        ready("long", *[MS] * 100, class_max=BEST_EFFORT, slo_ns=own_slo_ns),
        ready("other", MS, class_max=BEST_EFFORT, slo_ns=other_slo_ns),
        round_trip_ns=100 * US,
    )
    told = explain(talk)
    assert (told.mode, told.bound_ns, told.bound_origin, told.preempt_ns) == (
        "bounded", 1_900 * US, "laxity of voice", MS,
    )  # fmt: skip
    promise = "at most 1.900 ms may be in flight: laxity of voice"
    assert told.reason.startswith(promise + (note or ""))
    assert note is not None or told.reason == promise


@pytest.mark.parametrize(
    ("priority_class", "mode"),
    # voice may be asked in STANDARD at most: it is ordered ahead of those and of lower ones
    [
        (BEST_EFFORT, "bounded"),
        (STANDARD, "bounded"),
        (REALTIME, "least_delay"),
        (None, "least_delay"),
    ],
)
def test_the_rule_is_one_for_each_class(priority_class: PriorityClass | None, mode: str) -> None:
    voice = ready("voice", 200 * US, slo_ns=1_200 * US, class_max=STANDARD)
    told = explain(Conversation(COSTS, LONG, voice), priority_class=priority_class)
    assert told.mode == mode
    assert told.priority_class == (REALTIME if priority_class is None else priority_class)


def test_without_costs_a_bound_of_slice_ns_max_is_kept() -> None:
    told = explain(Conversation(LONG))
    assert (told.mode, told.bound_ns, told.bound_origin) == ("bounded", 2 * MS, "slice_ns_max")
    assert told.exec_ns == 0, "nobody knows"


@pytest.mark.parametrize(
    ("slicing", "operators", "window", "ends"),
    [
        (Slicing.NONE, 0, 2, (6,)),
        (Slicing.LAYER, 0, 1, (2, 3, 6)),
        # operators 3 1 1 5 2 2: a sync point where at least so many have run
        (Slicing.EVERY, 1, 1, (1, 2, 3, 4, 5, 6)),
        (Slicing.EVERY, 3, 1, (1, 4, 6)),
        (Slicing.EVERY, 4, 1, (2, 4, 6)),
        (Slicing.EVERY, 99, 1, (6,)),
        (Slicing.WINDOW, 4, 2, (2, 4, 6)),
        (Slicing.WINDOW, 4, 3, (2, 4, 6)),
    ],
)
def test_baselines(slicing: Slicing, operators: int, window: int, ends: tuple[int, ...]) -> None:
    measured = ModelProfile(
        6, {(1,): (10,) * 6}, {(1,): 60}, operators=(3, 1, 1, 5, 2, 2), layer_ends=(2, 3, 6)
    )
    talk = Conversation(
        COSTS,
        ModelReady("m", measured, REALTIME),
        slicing=slicing,
        slicing_operators=operators,
        slicing_window=0 if slicing is Slicing.NONE else window,
    )
    told = explain(talk, "m")
    assert (told.mode, told.bound_ns, told.slice_ends) == (slicing.value, None, ends)
    assert told.window == min(window, len(ends))
    name = format_slicing(slicing, operators, window)
    assert told.reason == f"the baseline slicing = {name} is configured"


def test_baselines_of_a_profile_that_counts_nothing() -> None:
    for slicing, ends in ((Slicing.LAYER, (1, 2, 3)), (Slicing.EVERY, (2, 3))):
        talk = Conversation(ready("m", 10, 10, 10), slicing=slicing, slicing_operators=2)
        assert explain(talk, "m").slice_ends == ends


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("slicing", list(Slicing))
@pytest.mark.parametrize("stated_ns", [None, 500 * US])
@pytest.mark.parametrize("slo_ns", [None, MS, 210 * US])
def test_it_is_what_then_happens(
    order: Order, slicing: Slicing, stated_ns: int | None, slo_ns: int | None
) -> None:
    talk = Conversation(
        COSTS,
        ready("m", *[70 * US] * 9, 400 * US, *[30 * US] * 30),
        ready("voice", 200 * US, slo_ns=slo_ns),
        order=order,
        slicing=slicing,
        slicing_operators=4,
        preemption_delay_ns_max=stated_ns,
    )
    told = explain(talk, "m", priority_class=BEST_EFFORT)
    most, in_flight_ns = 0, 0
    talk.say(request(1, "m"))
    while not talk.outcomes:
        flights = talk.scheduler._launcher.flights.values()
        most = max(most, len(flights))
        in_flight_ns = max(in_flight_ns, sum(flight.predicted_ns for flight in flights))
        talk.step()
    assert told.slice_ends == tuple(end for _, _, end in talk.order)
    assert (told.window, told.preempt_ns) == (most, in_flight_ns)


def test_asking_changes_nothing() -> None:
    talk = Conversation(LONG, COSTS)
    for _ in range(3):
        explain(talk)
    assert talk.scheduler.statistics().slices_launched == 0
    talk.run([(0, request(1, "long"))])
    asked = Conversation(LONG, COSTS)
    asked.run([(0, request(1, "long"))])
    assert talk.order == asked.order


@pytest.mark.parametrize("bucket", [None, (1,), (8,)])
def test_of_what_is_not_known_nothing_is_told(bucket: tuple[int, ...] | None) -> None:
    talk = Conversation(LONG)
    assert talk.scheduler.explain("other", bucket) is None
    assert (talk.scheduler.explain("long", bucket) is None) == (bucket == (8,))
    talk.say(ModelReady("new", ModelProfile(3), REALTIME))
    assert talk.scheduler.explain("new", bucket) is None


def test_before_it_was_measured_only_the_rule_is_told() -> None:
    talk = Conversation(ModelReady("new", ModelProfile(3), REALTIME))
    talk.say(request(1, "new"))
    told = explain(talk, "new")
    assert (told.mode, told.is_guess) == ("bounded", True)
    assert told.group_ns == told.slice_ends == ()
    assert told.floor_ns == told.exec_ns == told.preempt_ns == told.preempt_expected_ns == 0


def test_sync_points_that_cost_more_than_was_fitted() -> None:
    """The device leaves 80 us before each queued slice: 20 were fitted, so slices get longer."""
    talk = Conversation(COSTS, LONG)
    before = explain(talk)
    talk.duration_ns = lambda work: work.predicted_ns
    free_ns, number = 0, 0
    for _ in range(300):
        for flight in list(talk.scheduler._launcher.flights.values()):
            work = flight.slice
            started_ns = free_ns + 80 * US
            free_ns = started_ns + work.predicted_ns
            talk.say(SyncPointReached(work.slice_id, started_ns, work.predicted_ns), at=free_ns)
        if not talk.scheduler._launcher.flights:
            number += 1
            talk.say(request(number, "long"), at=free_ns)
    after = explain(talk)
    assert len(after.slice_ends) < len(before.slice_ends)
    assert after.exec_ns // len(after.slice_ends) > 3 * before.exec_ns // len(before.slice_ends)


@pytest.mark.parametrize(("gap_ms", "is_longer"), [(1, False), (400, True)])
def test_rare_preemptions_make_longer_slices_if_that_is_asked_for(
    gap_ms: int, is_longer: bool
) -> None:
    def slices(weigh: bool) -> int:
        talk = Conversation(
            COSTS, LONG, ready("voice", 100 * US), weigh_preemption_by_arrivals=weigh
        )
        times = [gap_ms * MS * number for number in range(20)]
        talk.run((at, request(at, "voice", REALTIME, at=at)) for at in times)
        talk.say(ModelReady("other", ModelProfile(1), BEST_EFFORT))  # bounds are looked at anew
        return len(explain(talk, priority_class=BEST_EFFORT).slice_ends)

    assert (slices(weigh=True) < slices(weigh=False)) == is_longer


def test_a_group_that_may_only_fly_alone_costs_a_round_trip() -> None:
    """A bound of 1 ms holds one group of 0.7 ms: ten are launched on an idle device, and the first
    finds it idle anyway."""
    told = explain(Conversation(COSTS, ready("long", *[700 * US] * 10), preemption_delay_ns_max=MS))
    assert (told.mode, len(told.slice_ends), told.window) == ("bounded", 10, 1)
    assert told.exec_ns == 10 * 100 * US + 30 * US
    # A window of two is used where it can be: 0.3 and 0.6 fit, then 0.7 finds 0.6 in its way.
    mixed = [300 * US, 600 * US, 700 * US]
    told = explain(Conversation(COSTS, ready("long", *mixed), preemption_delay_ns_max=MS))
    assert (len(told.slice_ends), told.window) == (3, 2)
    assert told.exec_ns == 3 * 20 * US + 80 * US + 30 * US
