"""The least share of best-effort work: its books, and conversations in which it goes ahead."""

from itertools import pairwise

import pytest

from gpumuxd.commands import Admit
from gpumuxd.core.best_effort_share import GRANTS_OWED_MAX, BestEffortShare, stretched_ns
from gpumuxd.domain import CursorKind, Lane, OutcomeKind, PriorityClass
from gpumuxd.events import Event, ModelProfile, ModelReady, RequestArrived, RequestCancelled
from gpumuxd.settings import Order
from gpumuxd.units import PPM
from tests.core.conversation import (
    BEST_EFFORT,
    COMPUTE,
    HIGH,
    MS,
    REALTIME,
    STANDARD,
    US,
    Conversation,
    ready,
    request,
)

COMPLETED, INFEASIBLE = OutcomeKind.COMPLETED, OutcomeKind.DEADLINE_INFEASIBLE
ONE_MS = {"preemption_delay_ns_max": MS}
LOW = ready("low", *[MS // 2] * 400)
HIGHER = ready("higher", *[MS // 2] * 8)
TENTH = PPM // 10


def books(share_ppm: int = PPM // 4, slice_ns: int = 1_000) -> BestEffortShare:
    share = BestEffortShare(share_ppm)
    share.slices_are(bound_ns=2 * slice_ns, slice_ns_max=10**9, window=2, floor_ns=0)
    return share


@pytest.mark.parametrize(
    ("passed", "debt_ns"),
    [
        # A quarter: 3,000 of others buy 1,000 of best effort. In ns of best-effort slices.
        ([(REALTIME, 3_000, True)], 1_000),
        ([(STANDARD, 1_500, True), (REALTIME, 1_500, True)], 1_000),
        # Nothing is owed while nobody waits, nor kept till later.
        ([(REALTIME, 3_000, False)], 0),
        ([(REALTIME, 3_000, True), (REALTIME, 1, False)], 0),
        # Its own turns pay, and earn no advance.
        ([(REALTIME, 3_000, True), (BEST_EFFORT, 400, True)], 600),
        ([(BEST_EFFORT, 9_000, True), (REALTIME, 3_000, True)], 1_000),
        # One long group of others pays for many slices, a pile of them no more than the limit.
        ([(REALTIME, 300_000, True)], 100_000),
        ([(REALTIME, 3_000, True)] * 100, GRANTS_OWED_MAX * 1_000 + 1_000),
    ],
)
def test_what_is_owed(passed: list[tuple[PriorityClass, int, bool]], debt_ns: int) -> None:
    share = books()
    for number, (priority_class, device_ns, is_waiting) in enumerate(passed):
        share.passed(number, int(priority_class), device_ns, is_waiting)
    assert share.debt == debt_ns * PPM * 3 // 4
    assert (share.debt >= share.due) == (debt_ns >= 1_000)


def test_a_grant_is_charged_when_it_is_launched_and_trued_when_it_has_passed() -> None:
    share = books()
    share.passed(1, REALTIME, 6_000, True)
    share.granted(2, 1_000)
    assert share.debt == share.due, "the second of two"
    share.passed(2, BEST_EFFORT, 1_200, True)
    assert share.debt == share.due * 8 // 10
    assert (share.grants, share.granted_ns) == (1, 1_200)
    share.granted(3, 500)
    share.failed(3)
    assert share.debt == share.due * 3 // 10, "the charge stays"
    assert (share.grants, share.granted_ns) == (2, 1_200)


def test_a_grant_longer_than_was_owed_is_paid_back_also_while_nobody_waits() -> None:
    share = books()
    share.passed(1, REALTIME, 3_000, True)
    share.granted(2, 10_000)
    share.passed(2, BEST_EFFORT, 10_000, False)
    assert share.debt == -9 * share.due
    share.passed(3, REALTIME, 24_000, False)
    assert share.debt == -share.due
    share.passed(4, REALTIME, 24_000, False)
    assert share.debt == 0, "and then nothing is owed"
    share.passed(5, BEST_EFFORT, 10_000, True)
    assert share.debt == 0, "its own turns are free"


def test_what_could_not_be_taken_is_owed_once() -> None:
    share = books()
    share.passed(1, REALTIME, 24_000, True)
    share.not_taken()
    assert share.debt == share.due


@pytest.mark.parametrize(
    ("own_ns", "higher_ns", "expected"),
    [
        # A slice of 1,000 may be granted at once; beyond it each 1,000 cost 3,000 of others.
        (1_000, 80_000, 0),
        (2_000, 80_000, 3_000),
        (100_000, 80_000, 60_000),  # all of the others, unstretched
        (2_000, 0, 0),
    ],
)
def test_the_least_that_goes_before_best_effort_work(
    own_ns: int, higher_ns: int, expected: int
) -> None:
    assert books().soonest_ahead_ns(own_ns, higher_ns) == expected
    assert stretched_ns(60_000, PPM // 4) == 80_000


@pytest.mark.parametrize(
    ("owed", "work", "expected"),
    [
        (0, 2_999, 0),  # the first grant is not due before
        (0, 3_000, 5_000),  # and may be of the longest group
        (0, 6_000, 6_000),
        (1_000, 0, 5_000),
        (2_000, 3_000, 7_000),
        (-1_000, 3_000, 0),  # the last one has to be paid back
        (-1_000, 6_000, 5_000),
    ],
)
def test_the_most_that_may_be_granted(owed: int, work: int, expected: int) -> None:
    share = BestEffortShare(PPM // 4)
    share.slices_are(bound_ns=2_000, slice_ns_max=10**9, window=2, floor_ns=5_000)
    share.debt = owed * PPM * 3 // 4
    assert share.grants_ns(work) == expected


def saturated(
    priority_class: PriorityClass = REALTIME,
    *events: Event,
    lanes: tuple[Lane, ...] = (COMPUTE,),
    requests: int = 100,
    **changes: object,
) -> Conversation:
    """100 requests of 4 ms each are there, and best-effort work that never ends."""
    settings = {**ONE_MS, "best_effort_share_min_ppm": TENTH} | changes
    talk = Conversation(LOW, HIGHER, *events, lanes=lanes, **settings)
    talk.say(
        request(0, "low"), *(request(n, "higher", priority_class) for n in range(1, 1 + requests))
    )
    return talk


def device_ns(talk: Conversation, model: str) -> int:
    return sum(work.predicted_ns for work in talk.slices if work.model == model)


@pytest.mark.parametrize("priority_class", [STANDARD, REALTIME])
@pytest.mark.parametrize("share_ppm", [0, 20_000, 50_000, 100_000, 330_000, 500_000])
def test_best_effort_work_gets_its_share_and_no_more(
    share_ppm: int, priority_class: PriorityClass
) -> None:
    talk = saturated(priority_class, best_effort_share_min_ppm=share_ppm)
    talk.run(until=100 * MS)
    low_ns, higher_ns = device_ns(talk, "low"), device_ns(talk, "higher")
    statistics = talk.scheduler.statistics()
    if share_ppm == 0:
        assert (low_ns, statistics.best_effort_grants) == (0, 0)
        return
    owed_ns = (low_ns + higher_ns) * share_ppm // PPM
    assert abs(low_ns - owed_ns) <= MS, "give or take what is in flight"
    grants = [work for work in talk.slices if work.model == "low"]
    assert statistics.best_effort_grants == len(grants)
    assert low_ns - statistics.best_effort_granted_ns in (0, MS // 2), "one may be in flight"
    assert max(work.end_group - work.first_group for work in grants) == 1, "half the bound"
    if share_ppm < PPM // 3:
        order = [work.model for work in talk.slices]
        assert ("low", "low") not in pairwise(order), "one at a time"


def test_a_grant_counts_as_a_preemption_of_whoever_moved() -> None:
    talk = saturated()
    talk.run(until=40 * MS)
    grants = talk.scheduler.statistics().best_effort_grants
    assert grants >= 3
    halved = sum(talk.finish(n).report.preemptions for n in talk.outcomes)
    assert 0 < halved <= grants


@pytest.mark.parametrize("share_ppm", [0, TENTH])
def test_without_best_effort_work_nothing_changes(share_ppm: int) -> None:
    talk = Conversation(LOW, HIGHER, **ONE_MS, best_effort_share_min_ppm=share_ppm)
    talk.say(*(request(n, "higher", REALTIME) for n in range(30)))
    talk.run()
    assert talk.scheduler.statistics().best_effort_grants == 0
    # What comes now is owed nothing for the 120 ms before.
    talk.say(request(90, "low"), *(request(n, "higher", REALTIME) for n in range(100, 110)))
    talk.run(until=122 * MS)
    assert device_ns(talk, "low") == 0


def test_in_its_own_turn_it_is_not_a_grant() -> None:
    talk = Conversation(LOW, HIGHER, **ONE_MS, best_effort_share_min_ppm=TENTH)
    talk.run([(0, request(0, "low"))], until=20 * MS)
    assert device_ns(talk, "low") > 10 * MS
    assert talk.scheduler.statistics().best_effort_grants == 0
    talk.say(*(request(n, "higher", REALTIME, at=20 * MS) for n in range(1, 20)))
    before_ns = device_ns(talk, "low")
    talk.run(until=24 * MS)
    assert device_ns(talk, "low") == before_ns, "and it is not owed anything yet"


def test_in_arrival_order_there_are_no_classes_to_except() -> None:
    talk = saturated(order=Order.FIFO, best_effort_share_min_ppm=PPM // 2)
    talk.run(until=50 * MS)
    assert talk.scheduler.statistics().best_effort_grants == 0
    assert device_ns(talk, "higher") == 0, "it came first and is not done"


def test_a_group_longer_than_the_bound_is_granted_alone_and_paid_back() -> None:
    long = ready("long", *[10 * MS] * 20)
    talk = Conversation(long, HIGHER, **ONE_MS, best_effort_share_min_ppm=TENTH)
    talk.say(request(0, "long"), *(request(n, "higher", REALTIME) for n in range(1, 100)))
    talk.run(until=300 * MS)
    grants = [work for work in talk.slices if work.model == "long"]
    starts = [talk.started_at[work.slice_id] for work in grants]
    assert [work.end_group - work.first_group for work in grants] == [1] * len(grants)
    gaps_ms = [(after - before) / MS for before, after in pairwise(starts)]
    assert len(gaps_ms) >= 2
    assert all(99 <= gap <= 102 for gap in gaps_ms), "10 of 100 ms, whatever the bound"
    for start in starts:  # nothing else was in flight
        assert not any(
            talk.launched_at[w.slice_id] <= start < talk.started_at[w.slice_id] + w.predicted_ns
            for w in talk.slices
            if w.model == "higher"
        )


def test_work_that_was_never_measured_is_granted_group_by_group() -> None:
    talk = Conversation(
        ModelReady("new", ModelProfile(50), BEST_EFFORT),
        HIGHER,
        **ONE_MS,
        best_effort_share_min_ppm=TENTH,
        duration_ns=lambda work: work.predicted_ns or 3 * MS,
    )
    talk.say(request(0, "new"), *(request(n, "higher", REALTIME) for n in range(1, 60)))
    talk.run(until=100 * MS)
    starts = [talk.started_at[work.slice_id] for work in talk.slices if work.model == "new"]
    assert [after - before for before, after in pairwise(starts)] == [30 * MS] * 3
    assert talk.scheduler.statistics().best_effort_granted_ns == 12 * MS


def test_one_that_can_not_start_for_want_of_a_frame_is_passed_over() -> None:
    talk = Conversation(
        LOW, HIGHER, **ONE_MS, best_effort_share_min_ppm=TENTH, frames_max=2, frames_reserved=0
    )
    talk.say(request(1, "higher", REALTIME, tenant="a"), request(2, "higher", STANDARD, tenant="b"))
    talk.say(request(0, "low"), *(request(n, "higher", REALTIME) for n in range(3, 6)))
    talk.run()
    assert talk.outcomes[0] is COMPLETED
    assert talk.scheduler._launcher.share is not None


def test_a_cancel_does_not_change_what_the_others_of_its_class_are_owed() -> None:
    talk = saturated()
    talk.run(until=12 * MS)
    talk.say(RequestCancelled(0), request(500, "low", at=talk.now_ns))
    talk.run(until=60 * MS)
    assert abs(device_ns(talk, "low") - 6 * MS) <= MS


def test_beside_a_high_lane_the_share_is_of_both() -> None:
    """REALTIME work keeps the compute lane empty, but for grants."""
    talk = saturated(lanes=(COMPUTE, HIGH))
    talk.run(until=50 * MS)
    low_ns, higher_ns = device_ns(talk, "low"), device_ns(talk, "higher")
    assert {work.lane for work in talk.slices if work.model == "low"} == {COMPUTE}
    assert abs(low_ns - (low_ns + higher_ns) // 10) <= MS
    assert talk.scheduler.statistics().best_effort_grants == len(
        [work for work in talk.slices if work.model == "low"]
    )


@pytest.mark.parametrize("share_ppm", [0, TENTH, PPM // 3, PPM // 2])
@pytest.mark.parametrize("is_low_there", [True, False])
@pytest.mark.parametrize("late_by", [0, 1])
def test_admitted_requests_are_in_time_whatever_is_granted(
    share_ppm: int, is_low_there: bool, late_by: int
) -> None:
    """The last deadline that is admitted is met, though best-effort work comes at the worst time;
    one nanosecond less is refused."""

    def finish_ns(deadline: int) -> tuple[int, OutcomeKind | None, Conversation]:
        talk = Conversation(LOW, HIGHER, **ONE_MS, best_effort_share_min_ppm=share_ppm)
        if is_low_there:
            talk.say(request(90, "low"), request(91, "higher", STANDARD))
            talk.run(until=10 * MS)
        at = talk.now_ns
        talk.say(*(request(n, "higher", REALTIME, at=at, deadline=deadline) for n in range(4)))
        told = talk.of_type(Admit)[-1].predicted_finish_ns
        outcome = talk.outcomes.get(3)
        talk.run([(at + 100 * US, request(92, "low", at=at, tenant="u"))], until=at + 80 * MS)
        return told, outcome, talk

    told, _, _ = finish_ns(10**9)
    _, refused, talk = finish_ns(told - late_by)
    assert (refused is INFEASIBLE) == bool(late_by)
    if not late_by:
        assert [talk.outcomes[n] for n in range(4)] == [COMPLETED] * 4
        assert talk.finished_at[3] <= told
        took_ns = told - talk.now_ns + 80 * MS
        assert told - talk.finished_at[3] <= MS + took_ns * share_ppm // PPM, "and no worse"


def test_an_arrival_that_would_make_another_late_counts_the_grants() -> None:
    """8 ms of REALTIME work and 10 ms time: with a third for best effort that is 12 ms and more."""

    def outcome(share_ppm: int) -> OutcomeKind | None:
        talk = Conversation(LOW, HIGHER, **ONE_MS, best_effort_share_min_ppm=share_ppm)
        talk.say(request(1, "higher", REALTIME, deadline=10 * MS))
        talk.say(request(2, "higher", REALTIME, deadline=9 * MS))
        return talk.outcomes.get(2)

    assert outcome(0) is None
    assert outcome(PPM // 3) is INFEASIBLE


def test_a_best_effort_arrival_may_count_on_its_share() -> None:
    """40 ms of REALTIME work are before it and it has 20 ms: enough for one slice, not for ten."""
    few, many = ready("few", MS // 2), ready("many", *[MS // 2] * 20)
    for share_ppm, expected in ((0, {1: INFEASIBLE, 2: INFEASIBLE}), (TENTH, {2: INFEASIBLE})):
        talk = Conversation(HIGHER, few, many, **ONE_MS, best_effort_share_min_ppm=share_ppm)
        talk.say(*(request(n, "higher", REALTIME) for n in range(10, 20)))
        talk.say(request(1, "few", deadline=20 * MS), request(2, "many", deadline=20 * MS))
        assert talk.outcomes == expected
        talk.run()
        assert share_ppm == 0 or talk.outcomes[1] is COMPLETED


@pytest.mark.parametrize("kind", [CursorKind.PROFILE, CursorKind.UPLOAD])
def test_the_devices_own_work_takes_no_grants(kind: CursorKind) -> None:
    """It is ahead of the tenant's in the order of its class, and only the tenant's is granted."""
    own_ready = ready("own", *[20 * MS] * 4)
    talk = Conversation(LOW, HIGHER, own_ready, **ONE_MS, best_effort_share_min_ppm=TENTH)
    talk.say(
        RequestArrived(999, "", "own", BEST_EFFORT, (1,), 0, None, 1, kind),
        request(0, "low"),
        *(request(n, "higher", REALTIME) for n in range(1, 30)),
    )
    talk.run(until=100 * MS)
    assert device_ns(talk, "own") == 0
    assert abs(device_ns(talk, "low") - 10 * MS) <= MS
    talk.run(until=400 * MS)
    assert device_ns(talk, "own") == 80 * MS, "it has its turn when nobody of a higher class waits"


def test_while_only_the_devices_own_work_waits_nothing_is_owed() -> None:
    talk = Conversation(LOW, HIGHER, **ONE_MS, best_effort_share_min_ppm=TENTH)
    own = RequestArrived(999, "", "low", BEST_EFFORT, (1,), 0, None, 1, CursorKind.PROFILE)
    talk.say(own, *(request(n, "higher", REALTIME) for n in range(1, 20)))
    talk.run(until=60 * MS)
    talk.say(request(0, "low", at=60 * MS), at=60 * MS)
    talk.run(until=63 * MS)
    assert device_ns(talk, "low") == 0
    assert talk.scheduler.statistics().best_effort_grants == 0
