"""Conversations with the device scheduler: handle, poll, expect; the illegal next to the legal."""

import pytest

from gpumuxd.commands import Admit, Command, Finish, Launch, Release, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import Bucket, CursorKind, LaneKind, OutcomeKind, PriorityClass
from gpumuxd.domain import Lane as LaneName
from gpumuxd.events import (
    DeviceLost,
    Event,
    ModelDraining,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    RequestCancelled,
    SliceFailed,
    SyncPointReached,
    TenantChanged,
)
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from tests.core.conversation import (
    BEST_EFFORT,
    COMPUTE,
    COPY_IN,
    HIGH,
    MS,
    REALTIME,
    STANDARD,
    US,
    Conversation,
    ready,
    request,
)

MIB = 1 << 20
LONG = ready("long", *[MS // 4] * 8)
SHORT = ready("short", MS // 4, slo_ns=30 * MS)
ONE_MS = {"preemption_delay_ns_max": MS}


def kinds(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


# One request


def test_a_request_is_admitted_launched_finished_and_retired() -> None:
    talk = Conversation(ready("m", 300 * US, 300 * US), **ONE_MS)
    said = talk.say(request(7, "m", at=-5_000))
    assert kinds(said) == ["Admit", "Launch", "Launch"]
    first, second = talk.slices
    assert (first.first_group, first.end_group, second.end_group) == (0, 1, 2)
    assert first.members == (7,)
    assert first.lane == COMPUTE
    assert talk.step() == []
    said = talk.step()
    assert said is not None
    assert kinds(said) == ["Finish", "Retire"]
    finish = talk.finish(7)
    assert finish.outcome.kind is OutcomeKind.COMPLETED
    assert (finish.report.queue_ns, finish.report.compute_ns) == (5_000, 600_000)
    assert finish.report.predicted_ns == 600_000
    assert said[1] == Retire(first.cursor_id, "m", first.frame)


def test_the_predicted_end_is_told_at_admission() -> None:
    talk = Conversation(LONG, SHORT)
    talk.say(request(1, "long"))
    talk.say(request(2, "short", REALTIME), at=100 * US)
    in_flight_ns = sum(work.predicted_ns for work in talk.slices if work.members == (1,))
    assert talk.of_type(Admit)[0] == Admit(1, 2 * MS)
    assert talk.of_type(Admit)[1] == Admit(2, in_flight_ns + MS // 4)


def test_without_a_profile_there_is_no_prediction_and_one_group_in_flight() -> None:
    talk = Conversation(ModelReady("m", ModelProfile(3), REALTIME))
    talk.say(request(1, "m", deadline=5), request(2, "m"))
    assert talk.of_type(Admit) == [Admit(1, 0), Admit(2, 0)], "never refused"
    talk = Conversation(ModelReady("m", ModelProfile(3), REALTIME))
    talk.say(request(1, "m"), request(2, "m"))
    sizes = []
    while talk.step() is not None:
        sizes.append(talk.scheduler.statistics().in_flight_slices)
    assert max(sizes[:3]) == 1
    assert talk.order[:3] == [(1, 0, 1), (1, 1, 2), (1, 2, 3)]
    assert talk.order[3:] == [(2, 0, 3)], "learnt from the first run"
    assert set(talk.outcomes.values()) == {OutcomeKind.COMPLETED}


def test_a_bucket_that_was_never_seen_is_sliced_by_its_nearest_and_predicts_no_end() -> None:
    talk = Conversation(ready("m", 100 * US))
    other: Bucket = (4,)
    talk.say(RequestArrived(1, "t", "m", BEST_EFFORT, other, 0))
    assert talk.of_type(Admit) == [Admit(1, 0)]
    assert talk.slices[0].predicted_ns == 400 * US


@pytest.mark.parametrize("bucket", [(64,), (1,)])
def test_a_guess_refuses_nobody_and_real_runs_end_it_at_once(bucket: Bucket) -> None:
    """A guess is 5 times too high: the first requests meet their deadlines all the same, and from
    RUNS_TO_REFUSE runs on only what really can't end in time is refused."""
    is_measured = bucket == (1,)
    one = ready("m", 5 * MS if is_measured else 78_125)
    talk = Conversation(one, duration_ns=lambda work: MS)

    def ask(number: int, limit_ns: int) -> OutcomeKind:
        at = talk.now_ns
        talk.say(RequestArrived(number, "t", "m", REALTIME, bucket, at, at + limit_ns))
        while talk.step() is not None:
            pass
        return talk.outcomes[number]

    refused = OutcomeKind.DEADLINE_INFEASIBLE
    if is_measured:  # a profile is believed
        assert ask(1, 2 * MS) is refused
        return
    assert [ask(number, 2 * MS) for number in range(1, 6)] == [OutcomeKind.COMPLETED] * 5
    told_ns = [admit.predicted_finish_ns for admit in talk.of_type(Admit)]
    assert told_ns[:2] == [0, 0]
    assert abs(told_ns[2] - 3 * MS) < US, "of real runs alone, at once"
    assert ask(6, MS // 2) is refused, "now it is known"


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_a_guess_of_one_refuses_no_other(is_in_flight: bool) -> None:
    talk = Conversation(ready("m", MS), ready("blocks", MS), duration_ns=lambda work: MS)
    if not is_in_flight:  # then it waits in the queue behind these
        talk.say(request(8, "blocks"), request(9, "blocks"))
    wild = RequestArrived(1, "t", "m", REALTIME, (1_000,), 0, 10**12)  # a guess of a second
    talk.say(wild)
    talk.say(request(2, "blocks", REALTIME, deadline=10 * MS))
    talk.say(request(3, "blocks", STANDARD, deadline=20 * MS))
    assert {2, 3}.isdisjoint(talk.outcomes), "both are admitted"


def test_a_slow_first_run_of_unmeasured_sizes_locks_nobody_out() -> None:
    talk = Conversation(
        ModelReady("m", ModelProfile(1), REALTIME, None, 0, 0),
        duration_ns=lambda work: 50 * MS if work.slice_id == 1 else MS,
    )
    for number in range(1, 8):
        at = talk.now_ns
        limit_ns = 60 * MS if number == 1 else 5 * MS
        talk.say(request(number, "m", REALTIME, at=at, deadline=at + limit_ns))
        while talk.step() is not None:
            pass
    assert set(talk.outcomes.values()) == {OutcomeKind.COMPLETED}


def test_a_profile_run_takes_the_same_path_group_by_group() -> None:
    talk = Conversation(LONG)
    talk.run([(0, RequestArrived(-1, "", "long", BEST_EFFORT, (1,), 0, kind=CursorKind.PROFILE))])
    assert [end - first for _, first, end in talk.order] == [1] * 8
    assert talk.outcomes == {-1: OutcomeKind.COMPLETED}


def test_a_bucket_that_is_being_measured_is_not_guessed_at_the_cost_of_others() -> None:
    def talk(kind: CursorKind) -> Conversation:
        talk = Conversation(LONG, SHORT, duration_ns=lambda work: 100 * US)
        talk.say(RequestArrived(-1, "", "long", BEST_EFFORT, (1024,), 0, kind=kind))
        talk.say(request(1, "short", STANDARD, deadline=10 * MS))
        return talk

    assert talk(CursorKind.INFER).slices[0].predicted_ns == 1024 * MS // 4, "a guess"
    measured = talk(CursorKind.PROFILE)
    measured.run()
    assert measured.outcomes == {-1: OutcomeKind.COMPLETED, 1: OutcomeKind.COMPLETED}
    assert [end - first for request, first, end in measured.order if request == -1] == [1] * 8


# Order and preemption


def test_realtime_goes_next_and_the_other_resumes_where_it_stood() -> None:
    talk = Conversation(LONG, SHORT, **ONE_MS)
    talk.run(
        [
            (0, request(1, "long")),
            (600 * US, request(2, "short", REALTIME, at=600 * US)),
        ]
    )
    assert talk.order == [(1, 0, 2), (1, 2, 4), (1, 4, 6), (2, 0, 1), (1, 6, 8)]
    assert talk.finish(2).report.queue_ns == 900 * US, "within the bound"
    report = talk.finish(1).report
    assert (report.preemptions, report.preemption_wait_ns) == (1, MS // 4)


def test_two_preemptions_of_one_cursor() -> None:
    talk = Conversation(LONG, SHORT, **ONE_MS)
    arrivals = [(at * US, request(at, "short", REALTIME, at=at * US)) for at in (10, 1_100)]
    talk.run([(0, request(1, "long")), *arrivals])
    report = talk.finish(1).report
    assert (report.preemptions, report.preemption_wait_ns) == (2, MS // 2)
    assert talk.scheduler.statistics().preemptions == 2


def test_a_finished_cursor_is_not_preempted() -> None:
    talk = Conversation(SHORT)
    talk.run([(0, request(1, "short")), (0, request(2, "short"))])
    assert talk.finish(1).report.preemptions == 0


@pytest.mark.parametrize(
    ("slicing", "order", "expected"),
    [
        (Slicing.ADAPTIVE, Order.POLICY, [(1, 0, 2), (1, 2, 4), (2, 0, 1), (1, 4, 6), (1, 6, 8)]),
        (Slicing.ADAPTIVE, Order.FIFO, [(1, 0, 8), (2, 0, 1)]),
        (Slicing.NONE, Order.POLICY, [(1, 0, 8), (2, 0, 1)]),
        (Slicing.NONE, Order.FIFO, [(1, 0, 8), (2, 0, 1)]),
    ],
)
def test_baselines(slicing: Slicing, order: Order, expected: list[tuple[int, int, int]]) -> None:
    talk = Conversation(LONG, SHORT, slicing=slicing, order=order, **ONE_MS)
    talk.run([(0, request(1, "long")), (10, request(2, "short", REALTIME))])
    assert talk.order == expected


def test_requests_over_the_admitted_rate_are_ordered_as_standard() -> None:
    talk = Conversation(
        ready("m", MS),
        TenantChanged("flood", realtime_per_s=10, realtime_burst=2),
        TenantChanged("peer"),
    )
    flood = [request(n, "m", REALTIME, deadline=20 * MS, tenant="flood") for n in range(5)]
    talk.say(*flood, request(9, "m", REALTIME, deadline=90 * MS, tenant="peer"))
    talk.run()
    order = [members for members, _, _ in talk.order]
    assert order[:2] == [0, 1]
    assert order.index(9) == 2
    assert set(talk.outcomes.values()) == {OutcomeKind.COMPLETED}


def test_a_refused_request_does_not_use_up_the_rate() -> None:
    talk = Conversation(ready("m", MS), TenantChanged("t", realtime_per_s=1, realtime_burst=1))
    talk.say(request(1, "m", REALTIME, deadline=MS // 2))
    assert talk.outcomes == {1: OutcomeKind.DEADLINE_INFEASIBLE}
    talk.say(ready("other", 5 * MS), request(2, "other", STANDARD))
    talk.say(request(3, "m", REALTIME), request(4, "m", STANDARD))
    talk.run()
    order = [members for members, _, _ in talk.order]
    assert order.index(3) < order.index(4)


def test_tenants_share_the_device_slice_by_slice() -> None:
    long = ready("m", *[MS // 4] * 40)
    talk = Conversation(long, TenantChanged("a", weight=3), TenantChanged("b"), **ONE_MS)
    talk.run([(0, request(1, "m", tenant="a")), (0, request(2, "m", tenant="b"))], until=13 * MS)
    groups = {1: 0, 2: 0}
    for member, first, end in talk.order:
        groups[member] += end - first
    assert abs(groups[1] - 3 * groups[2]) <= 8


# Refusals


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (request(1, "stranger"), OutcomeKind.MODEL_NOT_READY),
        (request(1, "short", deadline=100 * US), OutcomeKind.DEADLINE_INFEASIBLE),
        (request(1, "short", deadline=0), OutcomeKind.DEADLINE_INFEASIBLE),
        (request(1, "huge"), OutcomeKind.OUT_OF_DEVICE_MEMORY),
    ],
)
def test_refusals_come_at_once_and_alone(event: Event, kind: OutcomeKind) -> None:
    huge = ready("huge", MS, frame_bytes=2 * MIB)
    talk = Conversation(SHORT, huge, memory_bytes_max=MIB)
    said = talk.say(event)
    assert kinds(said) == ["Finish"]
    assert talk.outcomes == {1: kind}
    assert talk.finish(1).outcome.reason
    assert talk.scheduler.statistics().refused == 1
    assert kinds(talk.say(request(2, "short"))) == ["Admit", "Launch"], "the next good one works"


def test_a_full_queue_refuses_and_has_room_again() -> None:
    talk = Conversation(SHORT, queue_requests_max=2)
    talk.say(*(request(n, "short") for n in (1, 2, 3)))
    assert talk.outcomes == {3: OutcomeKind.QUEUE_FULL}
    talk.run()
    talk.say(request(4, "short"))
    talk.run()
    assert talk.outcomes[4] is OutcomeKind.COMPLETED


def test_an_arrival_may_not_harm_an_admitted_request() -> None:
    talk = Conversation(ready("m", 4 * MS))
    talk.say(request(1, "m", REALTIME, deadline=9 * MS))
    talk.say(request(2, "m", REALTIME, deadline=8 * MS))
    talk.say(request(3, "m", REALTIME, deadline=8 * MS))
    assert talk.outcomes == {3: OutcomeKind.DEADLINE_INFEASIBLE}
    talk.run()
    assert talk.outcomes[1] is talk.outcomes[2] is OutcomeKind.COMPLETED


# Deadlines


def test_a_deadline_that_passes_in_the_queue_ends_it_then() -> None:
    talk = Conversation(ready("long", *[MS] * 8), ready("m", MS // 4), **ONE_MS)
    talk.say(request(1, "long", REALTIME), request(2, "m", deadline=3 * MS // 2))
    assert talk.scheduler.next_wakeup_ns() is None, "certain to miss: refused"
    talk = Conversation(ready("long", *[MS] * 8), ready("m", MS // 4), **ONE_MS)
    talk.say(request(2, "m", deadline=3 * MS // 2, at=0), request(1, "long", STANDARD))
    assert talk.scheduler.next_wakeup_ns() == 3 * MS // 2
    talk.run()
    assert talk.outcomes == {1: OutcomeKind.COMPLETED, 2: OutcomeKind.DEADLINE_MISSED}
    assert talk.finished_at[2] == 3 * MS // 2
    assert talk.finish(2).outcome.reason == "the deadline passed in the queue"
    assert talk.scheduler.next_wakeup_ns() is None
    assert talk.scheduler.statistics().deadline_missed == 1


def test_a_running_request_that_is_late_stops_at_the_next_sync_point() -> None:
    talk = Conversation(
        ready("m", *[MS] * 4), duration_ns=lambda work: 3 * work.predicted_ns, **ONE_MS
    )
    talk.run([(0, request(1, "m", deadline=5 * MS))])
    assert talk.order == [(1, 0, 1)], "after 3 ms three groups are left and 2 ms"
    assert talk.outcomes == {1: OutcomeKind.DEADLINE_MISSED}
    assert talk.finished_at[1] == 3 * MS
    assert len(talk.of_type(Retire)) == 1


@pytest.mark.parametrize(
    ("end_ns", "heard_ns", "kind"),
    [
        (MS, MS, OutcomeKind.COMPLETED),  # to the nanosecond
        (MS, 2 * MS, OutcomeKind.COMPLETED),  # in time, heard of late
        (MS + 1, MS + 1, OutcomeKind.DEADLINE_MISSED),
    ],
)
@pytest.mark.parametrize("woken_between", [False, True])
def test_what_counts_is_when_the_last_slice_ended(
    end_ns: int, heard_ns: int, kind: OutcomeKind, woken_between: bool
) -> None:
    talk = Conversation(ready("m", MS // 2))
    talk.say(request(1, "m", deadline=MS))
    if woken_between:
        assert talk.say(at=MS) == []
    (work,) = talk.slices
    said = talk.say(SyncPointReached(work.slice_id, 0, end_ns), at=heard_ns)
    assert kinds(said) == ["Finish", "Retire"]
    assert talk.outcomes == {1: kind}


def test_a_preempted_request_whose_deadline_passes_ends_then() -> None:
    talk = Conversation(ready("two", MS, MS), ready("rt", *[MS] * 6), **ONE_MS)
    talk.run(
        [
            (0, request(1, "two", STANDARD, deadline=4 * MS)),
            (10, request(2, "rt", REALTIME, deadline=9 * MS)),
        ]
    )
    assert talk.outcomes == {1: OutcomeKind.DEADLINE_MISSED, 2: OutcomeKind.COMPLETED}
    assert talk.finished_at[1] == 4 * MS
    report = talk.finish(1).report
    assert (report.preemptions, report.preemption_wait_ns) == (1, 3 * MS)
    outcome = talk.finish(1).outcome
    assert (outcome.reason, outcome.deadline_ns) == ("the deadline passed while it ran", 4 * MS)
    assert outcome.predicted_finish_ns == 5 * MS, "had its second group gone next"


# Cancellation


def test_a_waiting_request_is_cancelled_at_once() -> None:
    talk = Conversation(LONG)
    talk.say(request(1, "long"), request(2, "long"))
    said = talk.say(RequestCancelled(2))
    assert kinds(said) == ["Finish"]
    assert talk.outcomes == {2: OutcomeKind.CANCELLED}


def test_one_that_is_cancelled_before_it_is_decided_is_not_admitted() -> None:
    talk = Conversation(LONG)
    assert kinds(talk.say(request(1, "long"), RequestCancelled(1))) == ["Finish"]
    assert talk.outcomes == {1: OutcomeKind.CANCELLED}


def test_a_running_request_is_cancelled_at_its_next_sync_points() -> None:
    talk = Conversation(LONG, **ONE_MS)
    talk.say(request(1, "long"))
    assert talk.say(RequestCancelled(1)) == []
    assert talk.step() == [], "another slice of it is in flight"
    said = talk.step()
    assert said is not None
    assert kinds(said) == ["Finish", "Retire"]
    assert talk.order == [(1, 0, 2), (1, 2, 4)]
    assert talk.finish(1).report.compute_ns == MS


def test_one_that_completes_before_the_cancel_is_known_stays_completed() -> None:
    talk = Conversation(SHORT)
    talk.say(request(1, "short"))
    (work,) = talk.slices
    talk.say(SyncPointReached(work.slice_id, 0, MS // 4), RequestCancelled(1), at=MS // 4)
    assert talk.outcomes == {1: OutcomeKind.COMPLETED}


@pytest.mark.parametrize("request_id", [1, 99])
def test_cancelling_the_finished_and_the_unknown_does_nothing(request_id: int) -> None:
    talk = Conversation(SHORT)
    talk.run([(0, request(1, "short"))])
    assert talk.say(RequestCancelled(request_id)) == []


def test_the_cancelled_leave_the_device_to_others() -> None:
    talk = Conversation(LONG, SHORT, **ONE_MS)
    talk.say(request(1, "long"), request(2, "short"))
    talk.say(RequestCancelled(1))
    talk.run()
    assert talk.order[-1] == (2, 0, 1)
    assert talk.outcomes == {1: OutcomeKind.CANCELLED, 2: OutcomeKind.COMPLETED}


# Failures


def test_a_failed_slice_ends_its_request_and_no_other() -> None:
    talk = Conversation(LONG, SHORT, **ONE_MS)
    talk.say(request(1, "long"), request(2, "short"))
    first, second = talk.slices
    assert "Finish" not in kinds(talk.say(SliceFailed(first.slice_id, "boom")))
    said = talk.say(SliceFailed(second.slice_id, "boom, again"))
    assert kinds(said)[:2] == ["Finish", "Retire"]
    assert talk.finish(1).outcome.kind is OutcomeKind.MODEL_FAULTED
    assert talk.finish(1).outcome.reason == "boom"
    assert talk.order[2:] == [(2, 0, 1)]
    talk.say(request(3, "long"))
    assert talk.order[-1][0] == 3, "the model may try again"


def test_a_failure_outranks_a_cancellation() -> None:
    talk = Conversation(SHORT)
    talk.say(request(1, "short"))
    talk.say(RequestCancelled(1))
    talk.say(SliceFailed(talk.slices[0].slice_id, "boom"))
    assert talk.outcomes == {1: OutcomeKind.MODEL_FAULTED}


def test_a_lost_device_ends_everything_once_and_launches_nothing_again() -> None:
    talk = Conversation(LONG, SHORT, **ONE_MS)
    talk.say(request(1, "long"), request(2, "short"), request(3, "short"))
    talk.say(RequestCancelled(1))  # two slices of it are in flight
    said = talk.say(DeviceLost("fell off the bus"), request(4, "short"))
    assert talk.outcomes == dict.fromkeys((1, 2, 3, 4), OutcomeKind.DEVICE_LOST)
    assert kinds(said) == ["Finish", "Retire", "Finish", "Finish", "Finish"]
    assert talk.finish(2).outcome.reason == "fell off the bus"
    assert kinds(talk.say(request(5, "short"))) == ["Finish"]
    assert talk.say(SyncPointReached(talk.slices[0].slice_id, 0, 5)) == []
    assert kinds(talk.say(ModelDraining("long"))) == ["Release"]
    statistics = talk.scheduler.statistics()
    assert (statistics.frames_held, statistics.in_flight_slices, statistics.queued) == (0, 0, 0)


def test_what_was_over_before_the_loss_keeps_its_fate() -> None:
    talk = Conversation(SHORT)
    talk.say(request(1, "short"), request(2, "short"))
    first = talk.slices[0]
    talk.say(SyncPointReached(first.slice_id, 0, 5), RequestCancelled(99), DeviceLost("gone"), at=5)
    assert talk.outcomes == {1: OutcomeKind.COMPLETED, 2: OutcomeKind.DEVICE_LOST}


# Draining


def test_a_draining_model_finishes_what_it_admitted_and_is_released_once() -> None:
    talk = Conversation(LONG, SHORT)
    talk.say(request(1, "long"), request(2, "long"))
    talk.say(ModelDraining("long"), request(3, "long"), request(4, "short"))
    assert talk.outcomes == {3: OutcomeKind.DRAINING}
    talk.say(ModelDraining("long"))
    talk.run()
    assert talk.outcomes[1] is talk.outcomes[2] is talk.outcomes[4] is OutcomeKind.COMPLETED
    assert talk.of_type(Release) == [Release("long")]
    last_finish = max(talk.commands.index(talk.finish(n)) for n in (1, 2))
    assert talk.commands.index(Release("long")) > last_finish
    talk.say(request(5, "long"))
    assert talk.outcomes[5] is OutcomeKind.MODEL_NOT_READY


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        # What was said before one poll, in this order:             the fate of request 1
        ((request(1, "short"), ModelDraining("short")), OutcomeKind.COMPLETED),
        ((ModelDraining("short"), request(1, "short")), OutcomeKind.DRAINING),
        (
            (request(1, "short"), ModelDraining("short"), ModelDraining("short")),
            OutcomeKind.COMPLETED,
        ),
        (
            (ModelDraining("short"), request(1, "short"), ModelDraining("short")),
            OutcomeKind.DRAINING,
        ),
        (
            (request(1, "short"), RequestCancelled(1), ModelDraining("short")),
            OutcomeKind.CANCELLED,
        ),
        ((request(1, "short"), ModelDraining("short"), DeviceLost("")), OutcomeKind.DEVICE_LOST),
    ],
)
def test_only_what_arrived_after_a_drain_is_refused_for_it(
    said: tuple[Event, ...], outcome: OutcomeKind
) -> None:
    talk = Conversation(SHORT)
    talk.say(*said)
    talk.run()
    assert talk.outcomes == {1: outcome}
    assert talk.of_type(Release) == [Release("short")]
    assert talk.commands[-1] == Release("short")


def test_an_idle_model_is_released_at_once_and_its_key_may_be_used_again() -> None:
    talk = Conversation(SHORT)
    assert talk.say(ModelDraining("short")) == [Release("short")]
    assert talk.scheduler.statistics().models == ()
    talk.say(SHORT, request(1, "short"))
    talk.run()
    assert talk.outcomes == {1: OutcomeKind.COMPLETED}


def test_draining_the_unknown_changes_nothing() -> None:
    assert Conversation(SHORT).say(ModelDraining("stranger")) == []


# Frames and memory


def test_frames_are_kept_for_higher_classes() -> None:
    talk = Conversation(ready("m", *[MS] * 3), frames_max=3, frames_reserved=1, **ONE_MS)
    for number in range(6):
        talk.say(request(number, "m", BEST_EFFORT, tenant=f"t{number}"))
    for _ in range(4):
        talk.step()
        assert talk.scheduler.statistics().frames_held == 1
    talk.say(request(10, "m", STANDARD))
    talk.step()
    assert talk.scheduler.statistics().frames_held == 2
    talk.say(request(11, "m", REALTIME))
    talk.step()
    assert talk.scheduler.statistics().frames_held == 3
    talk.run()
    assert set(talk.outcomes.values()) == {OutcomeKind.COMPLETED}
    assert talk.scheduler.statistics().frames_held == 0


def test_a_cursor_keeps_its_frame_and_nobody_shares_it() -> None:
    talk = Conversation(LONG, **ONE_MS)
    talk.run([(0, request(n, "long", tenant=f"t{n}")) for n in range(4)])
    frames: dict[int, set[int]] = {}
    for work in talk.slices:
        frames.setdefault(work.cursor_id, set()).add(work.frame)
    assert sorted(frames.values(), key=min) == [{0}, {1}, {2}, {3}]


def test_memory_for_frames_is_waited_for_and_a_smaller_frame_passes() -> None:
    talk = Conversation(
        ready("big", MS, MS, weights_bytes=2 * MIB, frame_bytes=5 * MIB),
        ready("small", MS, frame_bytes=MIB),
        memory_bytes_max=10 * MIB,
    )
    talk.run([(0, request(n, model)) for n, model in enumerate(("big", "big", "small"))])
    starts = [member for member, first, _ in talk.order if first == 0]
    assert starts == [0, 2, 1]
    assert talk.scheduler.statistics().memory_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("frames_max", "bytes_max", "reason"), [(1, MIB, "no_frame"), (8, MIB, "no_memory")]
)
def test_what_keeps_waiting_cursors_from_starting_is_counted(
    frames_max: int, bytes_max: int, reason: str
) -> None:
    model = ready("m", MS, frame_bytes=MIB)
    talk = Conversation(model, frames_max=frames_max, memory_bytes_max=bytes_max)
    talk.say(request(1, "m"), request(2, "m"))
    counts = dict(talk.scheduler.statistics().blocked)
    assert [name for name, count in counts.items() if count] == [reason]


def test_weights_that_come_later_may_leave_no_room() -> None:
    talk = Conversation(ready("a", *[MS] * 2, frame_bytes=4 * MIB), memory_bytes_max=10 * MIB)
    talk.say(request(1, "a"), request(2, "a"))
    said = talk.say(ready("b", MS, weights_bytes=7 * MIB))
    assert kinds(said) == ["Finish"]
    assert talk.outcomes == {2: OutcomeKind.OUT_OF_DEVICE_MEMORY}
    talk.run()
    assert talk.outcomes[1] is OutcomeKind.COMPLETED, "it held its frame already"


# Lanes


def test_realtime_takes_the_high_lane_at_once_and_lower_work_holds() -> None:
    talk = Conversation(LONG, ready("rt", MS, MS), lanes=(COMPUTE, HIGH), **ONE_MS)
    talk.say(request(1, "long"))
    said = talk.say(request(2, "rt", REALTIME), at=100 * US)
    assert [c.slice.lane for c in said if isinstance(c, Launch)] == [HIGH]
    while 2 not in talk.finished_at:
        talk.step()
    lower = [work for work in talk.slices if work.lane == COMPUTE]
    assert len([w for w in lower if talk.launched_at[w.slice_id] < talk.finished_at[2]]) == 2
    talk.run()
    assert talk.finish(1).report.preemptions == 1
    assert talk.finish(1).report.preemption_wait_ns > 0
    assert dict(talk.scheduler.statistics().blocked)["held_for_realtime"] > 0


def test_lower_work_does_not_wait_for_realtime_that_has_no_frame() -> None:
    talk = Conversation(LONG, SHORT, lanes=(COMPUTE, HIGH), frames_max=1, **ONE_MS)
    talk.run([(0, request(1, "long")), (10, request(2, "short", REALTIME))])
    assert set(talk.outcomes.values()) == {OutcomeKind.COMPLETED}


def test_uploads_have_a_lane_of_their_own_if_there_is_one() -> None:
    upload = RequestArrived(-1, "", "w", BEST_EFFORT, (1,), 0, kind=CursorKind.UPLOAD)
    for lanes, lane in (((COMPUTE, COPY_IN), COPY_IN), ((COMPUTE,), COMPUTE)):
        talk = Conversation(ready("w", MS, MS), lanes=lanes)
        talk.run([(0, upload)])
        assert {work.lane for work in talk.slices} == {lane}
        assert talk.outcomes == {-1: OutcomeKind.COMPLETED}


def test_a_cursor_that_changes_lanes_waits_for_its_own_slices() -> None:
    talk = Conversation(ready("m", *[MS // 2] * 4), **ONE_MS)
    talk.say(request(1, "m", REALTIME))
    last = talk.slices[-1]
    talk.say(PartitionChanged(0, (COMPUTE, HIGH)))
    first, second = talk.slices[2:]
    assert (first.lane, first.after) == (HIGH, (last.slice_id,))
    assert (second.lane, second.after) == (HIGH, ()), "its own lane is in order"


def test_work_beside_another_lane_does_not_change_what_work_alone_takes() -> None:
    talk = Conversation(
        ready("low", 20 * MS),
        ready("rt", MS),
        lanes=(COMPUTE, HIGH),
        duration_ns=lambda work: 20 * MS if work.model == "low" else 3 * MS,
    )
    for number in range(0, 80, 2):
        talk.say(request(number, "low", at=talk.now_ns))
        talk.say(request(number + 1, "rt", REALTIME, at=talk.now_ns))
        talk.run()
    estimates = {m.model: m.estimates[0].run_ns for m in talk.scheduler.statistics().models}
    assert estimates == {"low": 20 * MS, "rt": MS}
    talk.say(request(90, "low", at=talk.now_ns))
    talk.say(request(91, "rt", REALTIME, at=talk.now_ns))
    predicted_ns = talk.of_type(Admit)[-1].predicted_finish_ns - talk.now_ns
    assert predicted_ns > MS * 5 // 4, "but what starts beside it is predicted to take longer"


def test_two_lanes_of_one_kind_are_a_bug() -> None:
    lane = LaneName(0, LaneKind.COMPUTE)
    with pytest.raises(AssertionError):
        Conversation(lanes=(lane, lane))


# Estimates at work


def test_slices_follow_what_groups_really_take() -> None:
    """Groups take four times their profile: soon a slice has a quarter of the groups."""
    talk = Conversation(
        ready("m", *[100 * US] * 20),
        duration_ns=lambda work: 400 * US * (work.end_group - work.first_group),
        **ONE_MS,
    )
    talk.run([(0, request(n, "m")) for n in range(12)])
    sizes = [end - first for _, first, end in talk.order]
    assert sizes[0] == 5
    assert sizes[-1] == 1


def test_the_bound_follows_the_laxity_of_loaded_models() -> None:
    talk = Conversation(LONG)
    statistics = talk.scheduler.statistics()
    assert (statistics.bound_ns, statistics.bound_origin) == (2 * MS, "slice_ns_max")
    talk.say(ready("tight", MS, slo_ns=1_500 * US))
    statistics = talk.scheduler.statistics()
    assert (statistics.bound_ns, statistics.bound_origin) == (500 * US, "laxity of tight")
    talk.say(ModelDraining("tight"))
    talk.say()
    assert talk.scheduler.statistics().bound_ns == 2 * MS


def test_the_bound_follows_the_measured_runs() -> None:
    talk = Conversation(ready("m", MS, slo_ns=3 * MS), duration_ns=lambda work: 5 * MS // 2)
    assert talk.scheduler.statistics().bound_ns == 2 * MS
    for number in range(8):
        talk.run([(talk.now_ns, request(number, "m"))])
    talk.say()
    assert talk.scheduler.statistics().bound_ns == MS // 2


def test_a_request_above_its_models_ceiling_raises_it() -> None:
    talk = Conversation(ready("m", MS, class_max=BEST_EFFORT), **ONE_MS)
    assert talk.scheduler._launcher.bounds.by_class[REALTIME] > 10**15
    talk.say(request(1, "m", REALTIME))
    talk.say()
    assert talk.scheduler._launcher.bounds.by_class[REALTIME] == MS


# Bugs of the caller


@pytest.mark.parametrize(
    "events",
    [
        [LONG, LONG],
        [LONG, request(1, "long"), request(1, "long")],
        [SyncPointReached(5, 0, 1)],
        [SliceFailed(5, "boom")],
        [PartitionChanged(1, (LaneName(1, LaneKind.COMPUTE),))],
        [TenantChanged("t", weight=0)],
        ["not an event"],
    ],
)
def test_impossible_events_are_bugs(events: list[Event]) -> None:
    talk = Conversation()
    with pytest.raises(AssertionError):
        talk.say(*events)


def test_an_arrival_before_any_lane_is_a_bug() -> None:
    scheduler = DeviceScheduler(SchedulerSettings())
    scheduler.handle(SHORT, 0)
    scheduler.handle(request(1, "short"), 0)
    with pytest.raises(AssertionError):
        scheduler.poll(0)


# Determinism and what people see


def test_same_events_same_commands() -> None:
    def told() -> list[Command]:
        talk = Conversation(LONG, SHORT, **ONE_MS)
        talk.run(
            [
                (n * 300 * US, request(n, ("long", "short")[n % 2], PriorityClass(n % 3)))
                for n in range(30)
            ]
        )
        return talk.commands

    assert told() == told()


def test_the_halves_of_a_poll_say_together_what_a_poll_says() -> None:
    whole, halves = (Conversation(LONG, SHORT).scheduler for _ in range(2))
    for scheduler in (whole, halves):
        for event in (request(1, "long"), request(2, "short", REALTIME), request(3, "stranger")):
            scheduler.handle(event, 5)
    fates = halves.poll_fates(5)
    assert kinds(fates) == ["Admit", "Admit", "Finish"]
    assert fates + halves.poll_launches(5) == whole.poll(5)


def test_handle_decides_nothing() -> None:
    """A batch of events is decided once: the later, more urgent arrival goes first."""
    talk = Conversation(LONG, SHORT)
    talk.say(request(1, "long"), request(2, "short", REALTIME))
    assert talk.order[0] == (2, 0, 1)


def test_why_waiting() -> None:
    talk = Conversation(LONG, frames_max=1, frames_reserved=0, **ONE_MS)
    talk.say(request(1, "long"), request(2, "long"))
    why = talk.scheduler.why_waiting
    assert why(2) == "no frame: 1 of 1 are held and BEST_EFFORT may use 1"
    assert why(1).startswith("lane 0/compute: in flight are 2 slices")
    assert why(99) == ""


def test_statistics_add_up() -> None:
    talk = Conversation(LONG, SHORT, **ONE_MS)
    talk.run([(0, request(1, "long")), (10, request(2, "short", REALTIME))])
    statistics = talk.scheduler.statistics()
    assert statistics.slices_launched == len(talk.slices)
    assert statistics.groups_launched == 9
    assert statistics.device_busy_ns == 9 * MS // 4
    assert [(m.model, m.completed, m.failed) for m in statistics.models] == [
        ("long", 1, 0),
        ("short", 1, 0),
    ]
    assert (statistics.queued, statistics.started, statistics.in_flight_slices) == (0, 0, 0)
    assert statistics.window == 2


def test_statistics_before_anything() -> None:
    statistics = DeviceScheduler(SchedulerSettings()).statistics()
    assert (statistics.queued, statistics.window, statistics.bound_ns) == (0, 0, 0)


def test_finish_is_the_last_word_on_a_request() -> None:
    talk = Conversation(LONG, **ONE_MS)
    talk.run([(0, request(n, "long", tenant=f"t{n}")) for n in range(6)])
    ended: set[int] = set()
    for command in talk.commands:
        match command:
            case Launch(work):
                assert not ended & set(work.members)
            case Finish(request_id, _, _):
                ended.add(request_id)
            case _:
                pass
    assert ended == set(range(6))
