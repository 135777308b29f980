"""Who is given up before the deadline, who is not, and what they are told."""

import pytest

from gpumuxd.commands import Launch, Release, Retire
from gpumuxd.core import lateness
from gpumuxd.core.bucket_table import STOP_SPARED_EVERY
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.domain import OutcomeKind, PriorityClass, Slice
from gpumuxd.events import ModelDraining, ModelProfile, ModelReady, RequestCancelled
from gpumuxd.settings import Order
from tests.core.conversation import (
    BEST_EFFORT,
    COMPUTE,
    MS,
    REALTIME,
    STANDARD,
    Conversation,
    ready,
    request,
)
from tests.core.objects import fly, make_cursor, make_model

MISSED, COMPLETED = OutcomeKind.DEADLINE_MISSED, OutcomeKind.COMPLETED
ONE_MS = {"preemption_delay_ns_max": MS}


def eight_groups(deadline: int, runs: list[int], so_far: int | None) -> Cursor:
    """Eight groups of 1,000 each. Runs that were seen before, each evenly long over its groups,
    fill the window of 32; `so_far` is what its own first four took, if they have passed."""
    model = make_model(*[1_000] * 8)
    cursor = make_cursor(1, model, deadline_ns=deadline)
    for number in range(32 if runs else 0):
        column, run_ns = cursor.table.new_column(number), runs[number % len(runs)]
        cursor.table.record_slice(column, 0, 8, run_ns)
        cursor.table.record_run(column, run_ns, number)
    if so_far is not None:
        cursor.moved_to(4)
        cursor.slice_passed(4, 0, so_far, is_resumption=False)
    return cursor


@pytest.mark.parametrize(
    ("runs", "so_far", "in_flight", "soonest"),
    [
        # A profile alone, or runs that never vary: 1/8 less than typical.
        ([], None, [], 7_000),
        ([8_000], None, [], 7_000),
        # The median counts, not the slow ones that the p95 keeps.
        ([8_000, 8_000, 8_000, 80_000], None, [], 7_000),
        # Runs that vary: the quickest of them.
        ([8_000, 8_000, 4_000], None, [], 3_500),  # and 1/8 less
        ([8_000, 7_000], None, [], 6_125),
        # Half of it has passed; at its own pace if that is quicker, never if it is slower.
        ([], 4_000, [], 3_500),
        ([], 2_000, [], 2_000),
        ([], 9_000, [], 3_500),
        ([8_000, 8_000, 4_000], 3_000, [], 1_750),
        ([8_000, 8_000, 4_000], 9_000, [], 1_750),
        # In flight before it: groups of others, at their soonest.
        ([], None, [1_000], 7_875),
        ([], None, [1_000, 1_000], 8_750),
    ],
)
def test_the_soonest_end(
    runs: list[int], so_far: int | None, in_flight: list[int], soonest: int
) -> None:
    queue = LaunchQueue(COMPUTE, 4, 0)
    other = make_cursor(9, make_model(*in_flight or [1]))
    for predicted_ns in in_flight:
        fly(queue, other, predicted_ns)
        other.moved_to(other.next_group + 1)
    for deadline, is_given_up in ((soonest, False), (soonest - 1, True)):
        cursor = eight_groups(deadline, runs, so_far)
        outcome = lateness.why_given_up(cursor, queue, 0)
        assert (outcome is not None) == is_given_up
        # The quick question misses nobody.
        assert not is_given_up or lateness.may_be_late(cursor, queue, 0)


@pytest.mark.parametrize(
    ("profile", "run", "left_at", "soonest"),
    [
        # Its end is quicker than its beginning, and the whole no quicker than the profile.
        ([1_000] * 4, [1_800, 1_800, 200, 200], 2, 350),
        # The profile has a slow last group, and no run ever had.
        ([1_000, 1_000, 1_000, 20_000], [1_000] * 4, 1, 2_625),
        ([1_000, 1_000, 1_000, 20_000], [1_000] * 4, 3, 875),
        # The profile has a slow first group: the rest is not hoped to be 4/23 of what it is.
        ([20_000, 1_000, 1_000, 1_000], [1_000] * 4, 1, 2_625),
    ],
)
def test_the_rest_is_judged_by_the_rests_of_earlier_runs(
    profile: list[int], run: list[int], left_at: int, soonest: int
) -> None:
    """Not by a pace of the whole, spread over groups that do not follow it."""
    model = make_model(*profile)
    for deadline, is_given_up in ((soonest + 3, False), (soonest - 3, True)):
        cursor = make_cursor(1, model, deadline_ns=deadline)
        for number in range(16):
            column = cursor.table.new_column(number)
            for group, time_ns in enumerate(run):
                cursor.table.record_slice(column, group, group + 1, time_ns)
            cursor.table.record_run(column, sum(run), number)
        cursor.moved_to(left_at)
        cursor.slice_passed(left_at, 0, 2 * sum(run[:left_at]), is_resumption=False)
        outcome = lateness.why_given_up(cursor, LaunchQueue(COMPUTE, 2, 0), 0)
        assert (outcome is not None) == is_given_up
        assert outcome is None or outcome.predicted_finish_ns > deadline, "what it is told is late"


def stream(
    talk: Conversation, model: str, deadline: int, count: int, first: int = 1, gap: int = 32 * MS
) -> list[OutcomeKind]:
    """Requests at a steady pace, each on an idle device."""
    start_ns = talk.now_ns + gap
    at = [start_ns + number * gap for number in range(count)]
    talk.run(
        (at_ns, request(first + number, model, REALTIME, at=at_ns, deadline=at_ns + deadline))
        for number, at_ns in enumerate(at)
    )
    return [talk.finish(first + number).outcome.kind for number in range(count)]


def test_a_first_run_with_a_slow_group_stops_nobody_later() -> None:
    """Its shape is the base for good; it must not be taken for the shape of all runs."""

    def device_ns(work: Slice) -> int:
        slow_ns = 19 * MS if work.cursor_id == 1 and work.end_group == 4 else 0
        return MS * (work.end_group - work.first_group) + slow_ns

    talk = Conversation(ModelReady("m", ModelProfile(4), REALTIME), duration_ns=device_ns, **ONE_MS)
    talk.run([(0, request(100, "m")), (0, request(101, "m")), (0, request(102, "m"))])
    assert stream(talk, "m", 5 * MS, 40) == [COMPLETED] * 40


def test_runs_that_begin_slowly_and_end_quickly_are_spared_until_that_is_known() -> None:
    """None of them would ever end otherwise, so that nobody could learn how quick its rest is."""

    def device_ns(work: Slice) -> int:
        return sum(
            9 * MS // 5 if g < 4 else MS // 5 for g in range(work.first_group, work.end_group)
        )

    talk = Conversation(ready("m", *[MS] * 8), duration_ns=device_ns, **ONE_MS)
    kinds = stream(talk, "m", 8 * MS + MS // 2, 60)
    assert kinds[:STOP_SPARED_EVERY] == [MISSED] * (STOP_SPARED_EVERY - 1) + [COMPLETED]
    assert kinds.count(MISSED) <= 2 * STOP_SPARED_EVERY, "and from then on they are not stopped"
    assert kinds[-20:] == [COMPLETED] * 20


def test_one_that_was_spared_and_is_late_is_no_reason_to_refuse_others() -> None:
    slow = {number for number in range(200) if number % 2}
    talk = Conversation(
        ready("m", *[MS] * 8),
        duration_ns=lambda work: (
            MS * (work.end_group - work.first_group) * (2 if work.members[0] in slow else 1)
        ),
        **ONE_MS,
    )
    kinds = stream(talk, "m", 10 * MS, 100)
    assert kinds == [MISSED if number % 2 else COMPLETED for number in range(1, 101)]


def test_of_what_is_in_flight_only_the_rest_counts() -> None:
    queue = LaunchQueue(COMPUTE, 4, 0)
    fly(queue, make_cursor(9, make_model(1_000)), 1_000, now_ns=100)
    cursor = eight_groups(0, [], None)
    assert lateness.predicted_finish_ns(cursor, queue, 400) == 400 + 700 + 8_000
    assert lateness.predicted_finish_ns(cursor, queue, 4_000) == 4_000 + 8_000, "overdue: now"


def test_work_that_was_never_measured_gives_up_nobody() -> None:
    """Neither its own guess nor one in flight before it."""
    queue = LaunchQueue(COMPUTE, 4, 0)
    guessed = make_model(1_000).estimates.table((64,))
    assert guessed.is_guess
    cursor = eight_groups(10, [], None)
    cursor.table = guessed
    assert lateness.why_given_up(cursor, queue, 0) is None
    assert lateness.predicted_finish_ns(cursor, queue, 0) == 0, "told as unknown"
    other = make_cursor(9, make_model(1_000))
    other.table = guessed
    fly(queue, other, 64_000)
    assert lateness.why_given_up(eight_groups(7_000, [], None), queue, 0) is None


def late_in_the_queue(order: Order, late: PriorityClass) -> Conversation:
    """4 ms of work with 6 ms time, behind 8 ms of work that takes twice as long as predicted."""
    talk = Conversation(
        ready("first", *[MS] * 4),
        ready("late", *[MS] * 4),
        order=order,
        slice_ns_max=MS,
        window_max=1,
        duration_ns=lambda work: work.predicted_ns * (2 if work.model == "first" else 1),
        **ONE_MS,
    )
    first = late if order is Order.POLICY else BEST_EFFORT
    talk.say(
        request(1, "first", first, deadline=9 * MS), request(2, "late", late, deadline=11 * MS)
    )
    talk.run()
    return talk


@pytest.mark.parametrize("late", list(PriorityClass))
@pytest.mark.parametrize("order", list(Order))
def test_one_that_is_late_before_it_starts_is_given_up_when_it_would_be_next(
    order: Order, late: PriorityClass
) -> None:
    talk = late_in_the_queue(order, late)
    assert talk.outcomes == {1: COMPLETED, 2: MISSED}
    assert [member for member, _, _ in talk.order if member == 2] == [], "no device time for it"
    assert talk.finished_at[2] <= 8 * MS < 11 * MS
    outcome = talk.finish(2).outcome
    assert outcome.deadline_ns == 11 * MS
    assert outcome.predicted_finish_ns > 11 * MS
    assert outcome.reason.endswith("stopped in the queue")
    assert talk.scheduler.statistics().deadline_missed == 1


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("priority_class", list(PriorityClass))
def test_one_that_runs_too_slowly_is_given_up_and_the_next_one_gains(
    priority_class: PriorityClass, order: Order
) -> None:
    talk = Conversation(
        ready("slow", *[MS] * 8),
        ready("next", MS),
        order=order,
        slice_ns_max=MS,
        window_max=1,
        duration_ns=lambda work: work.predicted_ns * (3 if work.model == "slow" else 1),
        **ONE_MS,
    )
    talk.say(request(1, "slow", priority_class, deadline=10 * MS))
    talk.say(request(2, "next", priority_class, deadline=30 * MS))
    talk.run()
    assert talk.outcomes == {1: MISSED, 2: COMPLETED}
    outcome = talk.finish(1).outcome
    assert outcome.reason.startswith("predicted to finish in ")
    assert outcome.reason.endswith("stopped while it ran")
    assert outcome.predicted_finish_ns > outcome.deadline_ns == 10 * MS
    assert talk.finished_at[2] < 10 * MS, "it had to wait till the deadline otherwise"


def test_the_reason_has_both_times() -> None:
    talk = Conversation(
        ready("m", *[MS] * 4), duration_ns=lambda work: 3 * work.predicted_ns, **ONE_MS
    )
    talk.run([(0, request(1, "m", deadline=5 * MS))])
    assert talk.finish(1).outcome.reason == (
        "predicted to finish in 3.000 ms, the deadline is in 2.000 ms: stopped while it ran"
    )
    assert talk.finish(1).outcome.predicted_finish_ns == 6 * MS


def test_one_that_has_a_real_chance_goes_on() -> None:
    """A tenth too slow by the estimates, which is within what counts as typical."""
    talk = Conversation(ready("m", *[MS] * 4), duration_ns=lambda work: MS, **ONE_MS)
    talk.say(request(1, "m", deadline=4 * MS))
    assert len(talk.slices) == 1
    talk.say(at=300_000)  # the host slept, and the device began late by as much
    talk.run()
    assert talk.outcomes == {1: COMPLETED}
    late = Conversation(ready("m", *[MS] * 10), duration_ns=lambda work: MS * 21 // 20, **ONE_MS)
    late.say(request(1, "m", deadline=10 * MS))
    late.run()
    assert late.outcomes == {1: MISSED}
    assert late.finished_at[1] > 5 * MS, "5 percent too slow is not hopeless from the start"


def test_what_is_in_flight_of_it_passes_before_its_finish() -> None:
    """Two slices are in flight when the third would be launched: one Finish, after the second."""
    talk = Conversation(
        ready("m", *[MS // 2] * 8), duration_ns=lambda work: 4 * work.predicted_ns, **ONE_MS
    )
    talk.say(request(1, "m", deadline=4 * MS))
    assert len(talk.slices) == 2
    assert talk.step() == [], "given up: 6 groups are left and 2 ms"
    talk.say(RequestCancelled(1))
    said = talk.step() or []
    assert [type(each).__name__ for each in said] == ["Finish", "Retire"]
    assert talk.outcomes == {1: MISSED}, "what is over keeps its fate"
    assert talk.finished_at[1] == 4 * MS


def test_its_frame_goes_to_the_next_one_in_the_same_poll() -> None:
    talk = Conversation(
        ready("m", *[MS] * 4),
        ready("next", MS),
        duration_ns=lambda work: 3 * work.predicted_ns,
        frames_max=1,
        frames_reserved=0,
        **ONE_MS,
    )
    talk.say(request(1, "m", deadline=5 * MS), request(2, "next"))
    said = talk.step() or []
    assert [type(each).__name__ for each in said] == ["Finish", "Retire", "Launch"]
    assert isinstance(said[-1], Launch)
    assert said[-1].slice.members == (2,)


def test_a_deadline_in_the_queue_tells_when_it_would_have_ended() -> None:
    talk = Conversation(ready("long", *[MS] * 8), ready("m", MS // 4), **ONE_MS)
    talk.say(request(2, "m", deadline=3 * MS // 2), request(1, "long", STANDARD))
    talk.run()
    outcome = talk.finish(2).outcome
    assert outcome.reason == "the deadline passed in the queue"
    # At 1.5 ms: the second half of the group in flight, then its own quarter.
    assert (outcome.predicted_finish_ns, outcome.deadline_ns) == (9 * MS // 4, 3 * MS // 2)


def test_one_that_was_never_measured_is_told_no_predicted_end() -> None:
    talk = Conversation(ModelReady("m", ModelProfile(4), REALTIME), duration_ns=lambda work: MS)
    talk.run([(0, request(1, "m", deadline=3 * MS // 2))])
    assert talk.order == [(1, 0, 1), (1, 1, 2)]
    outcome = talk.finish(1).outcome
    assert (outcome.kind, outcome.predicted_finish_ns, outcome.deadline_ns) == (
        MISSED,
        0,
        3 * MS // 2,
    )


def test_one_that_ended_late_tells_when() -> None:
    talk = Conversation(ready("m", MS), duration_ns=lambda work: 2 * MS)
    talk.run([(0, request(1, "m", deadline=3 * MS // 2))])
    outcome = talk.finish(1).outcome
    assert outcome.reason == "finished 0.500 ms after the deadline"
    assert (outcome.predicted_finish_ns, outcome.deadline_ns) == (2 * MS, 3 * MS // 2)


@pytest.mark.parametrize(
    ("deadline", "finish"),
    [
        (2 * MS, 6 * MS),  # it would be late itself
        (7 * MS, 6 * MS),  # it would make another one late
        (0, 6 * MS),  # it is late already
    ],
)
def test_a_refusal_tells_both_times(deadline: int, finish: int) -> None:
    talk = Conversation(ready("m", *[MS] * 4), ready("two", MS, MS), **ONE_MS)
    talk.say(request(1, "two", REALTIME, deadline=MS * 5 // 2))
    talk.say(request(2, "m", REALTIME, deadline=8 * MS))
    talk.say(request(3, "m", REALTIME, deadline=deadline))
    outcome = talk.finish(3).outcome
    assert outcome.kind is OutcomeKind.DEADLINE_INFEASIBLE
    finish = finish if deadline > MS * 5 // 2 else 4 * MS + MS
    assert (outcome.predicted_finish_ns, outcome.deadline_ns) == (finish, deadline)


def test_who_is_given_up_may_be_the_last_of_a_model_that_drains() -> None:
    """Its release comes in the same poll: nothing else might ever happen."""
    talk = Conversation(ready("m", *[MS] * 4), duration_ns=lambda work: 9 * MS // 2, **ONE_MS)
    talk.say(request(1, "m", deadline=5 * MS))
    talk.say(ModelDraining("m"))
    assert talk.step() == [talk.finish(1), *talk.of_type(Retire), Release("m")]
    assert talk.outcomes == {1: MISSED}
