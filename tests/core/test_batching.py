"""Requests that share a run: who joins, how large it becomes, who leaves it, and who pays."""

from dataclasses import replace

import pytest

from gpumuxd.commands import Finish, Launch, Retire
from gpumuxd.domain import Batching, Bucket, OutcomeKind, PriorityClass, RunReport, Slice
from gpumuxd.events import (
    DeviceLost,
    Event,
    ModelDraining,
    ModelProfile,
    ModelReady,
    RequestArrived,
    RequestCancelled,
    SliceFailed,
    TenantChanged,
)
from tests.core.conversation import (
    BEST_EFFORT,
    MS,
    REALTIME,
    STANDARD,
    US,
    Conversation,
    Release,
    ready,
    request,
)

COMPLETED, CANCELLED = OutcomeKind.COMPLETED, OutcomeKind.CANCELLED
SIZES = (1, 2, 4, 8)


def shared(
    *,
    sizes: tuple[int, ...] = SIZES,
    groups: int = 3,
    group_ns: int = 100 * US,
    per_row_ns: int = 0,
    delay: int = 0,
    slo_ns: int | None = None,
    frame_bytes: dict[Bucket, int] | None = None,
) -> ModelReady:
    """A model whose requests share runs; every size is measured."""
    times = {(size,): (group_ns + size * per_row_ns,) * groups for size in sizes}
    profile = ModelProfile(
        groups, times, {b: sum(ns) for b, ns in times.items()}, frame_bytes=frame_bytes or {}
    )
    return ModelReady(
        "m", profile, REALTIME, slo_ns, batching=Batching(0, sizes, delay_ns_max=delay)
    )


def ask(
    request_id: int,
    priority_class: PriorityClass = STANDARD,
    *,
    rows: int = 1,
    key: Bucket | None = (0,),
    at: int = 0,
    deadline: int | None = None,
    tenant: str = "t",
) -> RequestArrived:
    asked = request(request_id, "m", priority_class, at=at, deadline=deadline, tenant=tenant)
    return replace(asked, bucket=(rows,), rows=rows, batch_key=key)


def runs(talk: Conversation) -> list[tuple[int, ...]]:
    """The riders of each run, in the order of their start."""
    return [work.members for work in talk.slices if work.first_group == 0]


def began_with(*events: Event, **changes: object) -> Conversation:
    """A model that shares runs, a slice of other work in flight, and then these events together."""
    talk = Conversation(shared(), ready("other", MS), **changes)  # type: ignore[arg-type]
    talk.say(request(1000, "other", STANDARD), request(1001, "other", STANDARD))
    talk.say(*events)
    return talk


def slice_at_work(talk: Conversation) -> Slice:
    return talk.slices[-1]


# Who joins


def test_those_who_wait_together_run_together() -> None:
    talk = Conversation(shared())
    talk.say(*[ask(number) for number in range(1, 6)])
    talk.run()
    assert runs(talk) == [(1, 2, 3, 4, 5)]
    assert {work.bucket for work in talk.slices} == {(8,)}
    assert set(talk.outcomes.values()) == {COMPLETED}


def test_a_request_alone_keeps_its_bucket() -> None:
    talk = Conversation(shared())
    talk.say(ask(1, rows=3))
    talk.run()
    assert [(work.members, work.bucket) for work in talk.slices[:1]] == [((1,), (3,))]
    report = talk.finish(1).report
    assert (report.batch_rows, report.leads_batch) == (3, True)


def test_rows_count_and_who_has_too_many_is_skipped() -> None:
    talk = Conversation(shared())
    talk.say(ask(1, rows=4), ask(2, rows=5), ask(3, rows=2), ask(4, rows=2), ask(5))
    talk.run()
    assert runs(talk) == [(1, 3, 4), (2, 5)]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(ask(2, key=None), id="it runs alone"),
        pytest.param(ask(2, key=(1,)), id="of other shapes"),
        pytest.param(ask(2, REALTIME), id="of another class"),
        pytest.param(request(2, "n", STANDARD), id="of another model"),
        pytest.param(ask(2, rows=9), id="larger than any run"),
    ],
)
def test_others_run_by_themselves(other: RequestArrived) -> None:
    talk = Conversation(shared(), ready("n", US))
    talk.say(ask(1), other, ask(3))
    talk.run()
    assert sorted(runs(talk)) == [(1, 3), (2,)]


def test_a_model_that_does_not_share_runs_one_by_one() -> None:
    talk = Conversation(replace(shared(), batching=None))
    talk.say(ask(1), ask(2))
    talk.run()
    assert runs(talk) == [(1,), (2,)]


def test_it_is_formed_late() -> None:
    """What came while others ran is in it."""
    talk = Conversation(shared(), ready("other", MS, MS, MS), window_max=1)
    talk.say(request(9, "other", STANDARD))
    talk.run([(US, ask(1)), (2 * MS, ask(2)), (2 * MS + 1, ask(3))])
    assert (1, 2, 3) in runs(talk)


def test_the_size_is_the_widest_of_all_and_rows_stand_in_its_place() -> None:
    profile = ModelProfile(1, {(16, 4): (US,)}, {(16, 4): US})
    talk = Conversation(ModelReady("m", profile, REALTIME, batching=Batching(1, (1, 2, 4))))
    talk.say(
        replace(ask(1), bucket=(16, 1)),
        replace(ask(2, rows=2), bucket=(64, 2)),
    )
    talk.run()
    assert [work.bucket for work in talk.slices] == [(64, 4)]


# How large


def test_no_larger_than_meets_the_earliest_deadline() -> None:
    """Sizes take 0.3, 0.6, 1.2 and 2.4 ms; the second request has 1 ms."""
    talk = Conversation(shared(group_ns=0, per_row_ns=100 * US))
    talk.say(ask(1), ask(2, deadline=MS), ask(3), ask(4), ask(5))
    talk.run()
    # By deadline it is first, and takes one along; the rest have none.
    assert runs(talk) == [(2, 1), (3, 4, 5)]
    assert set(talk.outcomes.values()) == {COMPLETED}


def test_no_longer_groups_than_the_bound() -> None:
    """Groups of 0.1 ms a row, and 0.25 ms may be in the way of a REALTIME request."""
    talk = Conversation(shared(group_ns=0, per_row_ns=100 * US), preemption_delay_ns_max=250 * US)
    talk.say(*[ask(number, BEST_EFFORT) for number in range(1, 6)])
    talk.run()
    assert runs(talk) == [(1, 2), (3, 4), (5,)]


def test_whose_own_groups_break_the_bound_runs_alone() -> None:
    talk = Conversation(shared(group_ns=MS), preemption_delay_ns_max=250 * US)
    talk.say(ask(1, BEST_EFFORT), ask(2, BEST_EFFORT))
    talk.run()
    assert runs(talk) == [(1,), (2,)]


def test_what_is_not_known_keeps_no_deadline() -> None:
    unknown = replace(shared(), profile=ModelProfile(2))
    talk = Conversation(unknown, preemption_delay_ns_max=MS)
    talk.say(ask(1, deadline=MS), ask(2))
    talk.run()
    assert runs(talk) == [(1,), (2,)]


def test_no_larger_than_memory_that_is_free() -> None:
    frames = {(1,): 10, (2,): 20, (4,): 40, (8,): 80}
    talk = Conversation(shared(frame_bytes=frames), memory_bytes_max=50)
    talk.say(*[ask(number) for number in range(1, 8)])
    talk.run()
    assert runs(talk) == [(1, 2, 3, 4), (5,), (6, 7)]  # 10 bytes are left beside the first
    assert set(talk.outcomes.values()) == {COMPLETED}
    assert talk.scheduler.statistics().memory_bytes == 0


# Fair between tenants


def test_each_tenant_has_its_part_of_a_run() -> None:
    talk = Conversation(shared(sizes=(1, 2, 4)))
    talk.say(*[ask(number, tenant="a") for number in range(1, 7)])
    assert runs(talk)[0] == (1, 2, 3, 4)
    talk = Conversation(shared(sizes=(1, 2, 4)))
    talk.say(
        *[ask(number, tenant="a") for number in range(1, 7)],
        *[ask(number, tenant="b") for number in range(11, 14)],
    )
    talk.run()
    assert runs(talk)[0] == (1, 11, 2, 12)


def test_who_does_not_fit_keeps_nobody_from_joining() -> None:
    """However many there are of its kind: only so many are looked at."""
    talk = Conversation(shared())
    talk.say(
        ask(1, rows=2, tenant="b"),
        *[ask(100 + number, rows=7, tenant="a") for number in range(40)],
        *[ask(number, tenant="b") for number in range(2, 10)],
    )
    assert runs(talk)[0] == (1, 2, 3, 4, 5, 6, 7)


def test_parts_follow_weights() -> None:
    talk = Conversation(shared(sizes=(1, 2, 4, 8)), TenantChanged("a", weight=3))
    talk.say(
        *[ask(number, tenant="a") for number in range(1, 9)],
        *[ask(number, tenant="b") for number in range(11, 19)],
    )
    first = runs(talk)[0]
    assert sum(number < 10 for number in first) == 6


def test_device_time_is_paid_by_rows() -> None:
    """Tenant a brought three of four rows: b is next, although a asked first."""
    talk = Conversation(shared(), ready("other", 100 * US), window_max=1)
    talk.say(ask(1, rows=3, tenant="a"), ask(2, tenant="b"))
    talk.say(request(3, "other", STANDARD, tenant="a"), request(4, "other", STANDARD, tenant="b"))
    talk.run()
    assert runs(talk) == [(1, 2), (4,), (3,)]


def test_realtime_riders_come_by_deadline() -> None:
    talk = Conversation(shared(sizes=(1, 2)), window_max=1)
    talk.say(
        ask(1, REALTIME, deadline=40 * MS),
        ask(2, REALTIME, deadline=20 * MS),
        ask(3, REALTIME, deadline=30 * MS),
    )
    talk.run()
    assert runs(talk) == [(2, 3), (1,)]


# Who is told what


def test_each_has_a_report_of_its_own_and_one_leads() -> None:
    talk = Conversation(shared())
    talk.say(ask(1, rows=2, at=-50 * US), ask(2))
    talk.run()
    reports = {number: talk.finish(number).report for number in (1, 2)}
    assert [reports[n].queue_ns for n in (1, 2)] == [50 * US, 0]
    assert [reports[n].batch_rows for n in (1, 2)] == [3, 3]
    assert [reports[n].leads_batch for n in (1, 2)] == [True, False]
    assert [reports[n].compute_ns for n in (1, 2)] == [300 * US, 300 * US]


def test_who_was_late_is_told_so_and_another_leads() -> None:
    talk = Conversation(shared(), duration_ns=lambda work: 4 * work.predicted_ns)
    talk.say(ask(1, deadline=MS), ask(2))
    talk.run()
    assert talk.outcomes == {1: OutcomeKind.DEADLINE_MISSED, 2: COMPLETED}
    assert [talk.finish(n).report.leads_batch for n in (1, 2)] == [False, True]


def test_who_never_ran_counts_no_rows() -> None:
    talk = began_with(ask(1))
    talk.say(RequestCancelled(1))
    assert talk.finish(1).report == RunReport(predicted_ns=300 * US)


# Who leaves


def test_who_is_cancelled_before_is_not_in_it() -> None:
    talk = began_with(ask(1), ask(2), ask(3))
    talk.say(RequestCancelled(2))
    talk.run()
    assert (1, 3) in runs(talk)
    assert talk.outcomes[2] is CANCELLED


def run_of_two(**changes: object) -> Conversation:
    """Requests 1 and 2 ride together in slices of one group, the first one in flight."""
    talk = Conversation(shared(), window_max=1, slice_ns_max=100 * US, **changes)  # type: ignore[arg-type]
    talk.say(ask(1), ask(2))
    assert runs(talk) == [(1, 2)]
    return talk


def test_who_leaves_is_told_when_its_inputs_were_read() -> None:
    talk = run_of_two()
    assert talk.say(RequestCancelled(1)) == []
    assert 1 not in talk.outcomes
    said = talk.step()
    assert said is not None
    assert isinstance(said[0], Finish)
    assert said[0].request_id == 1
    talk.run()
    assert talk.outcomes == {1: CANCELLED, 2: COMPLETED}
    assert {work.members for work in talk.slices} == {(1, 2)}  # rows stay where they are
    assert talk.finish(2).report.leads_batch


def test_who_leaves_between_is_told_at_once() -> None:
    talk = run_of_two()
    talk.step()
    assert [type(each) for each in talk.say(RequestCancelled(2))] == [Finish]
    talk.run()
    assert talk.outcomes == {1: COMPLETED, 2: CANCELLED}
    assert len(talk.of_type(Retire)) == 1


def test_who_leaves_when_outputs_are_written_is_told_at_the_end() -> None:
    talk = run_of_two()
    talk.step()
    talk.step()
    assert slice_at_work(talk).end_group == 3
    assert talk.say(RequestCancelled(1)) == []
    talk.run()
    assert talk.outcomes == {1: CANCELLED, 2: COMPLETED}
    assert talk.finished_at[1] == talk.finished_at[2]


def test_it_stops_when_everybody_has_left() -> None:
    talk = run_of_two()
    talk.step()
    talk.say(RequestCancelled(1), RequestCancelled(2))
    talk.run()
    assert set(talk.outcomes.values()) == {CANCELLED}
    assert [work.end_group for work in talk.slices] == [1, 2]
    assert len(talk.of_type(Retire)) == 1
    assert talk.scheduler.statistics().frames_held == 0


def test_a_deadline_ends_a_rider_and_not_the_run() -> None:
    talk = Conversation(
        shared(),
        window_max=1,
        slice_ns_max=100 * US,
        duration_ns=lambda work: 20 * work.predicted_ns,
    )
    talk.say(ask(1), ask(2, deadline=MS))
    talk.run()
    assert talk.outcomes == {1: COMPLETED, 2: OutcomeKind.DEADLINE_MISSED}


# Failures and losses


def fails(talk: Conversation, reason: str = "boom") -> None:
    """The slice in flight fails."""
    work = slice_at_work(talk)
    talk._ends = [each for each in talk._ends if each[1] != work.slice_id]
    talk._free_ns.clear()
    talk.say(SliceFailed(work.slice_id, reason))


def test_one_that_fails_its_run_fails_nobody_else() -> None:
    talk = run_of_two()
    fails(talk)
    assert talk.outcomes == {}
    assert [type(each) for each in talk.commands[-2:]] == [Retire, Launch]
    assert runs(talk) == [(1, 2), (1,)]
    assert slice_at_work(talk).bucket == (1,)
    fails(talk, "it is the first one")
    assert talk.outcomes == {1: OutcomeKind.MODEL_FAULTED}
    talk.run()
    assert talk.outcomes == {1: OutcomeKind.MODEL_FAULTED, 2: COMPLETED}
    assert runs(talk) == [(1, 2), (1,), (2,)]
    cursors = [each.cursor_id for each in talk.of_type(Retire)]
    assert len(set(cursors)) == len(cursors) == 3
    (model,) = talk.scheduler.statistics().models
    assert (model.completed, model.failed, model.started, model.queued) == (1, 1, 0, 0)


def test_who_left_a_run_that_fails_is_told_its_own_fate() -> None:
    talk = run_of_two()
    talk.say(RequestCancelled(1))
    fails(talk)
    talk.run()
    assert talk.outcomes == {1: CANCELLED, 2: COMPLETED}


def test_a_loss_ends_all() -> None:
    talk = run_of_two()
    talk.say(ask(3))
    talk.say(DeviceLost("gone"))
    assert set(talk.outcomes.values()) == {OutcomeKind.DEVICE_LOST}
    assert len(talk.outcomes) == 3


def test_a_model_drains_with_its_runs() -> None:
    talk = run_of_two()
    talk.say(ModelDraining("m"))
    talk.step()
    talk.say(RequestCancelled(1), RequestCancelled(2))
    assert talk.of_type(Release) == []  # a slice of it is in flight
    talk.run()
    assert [each.model for each in talk.of_type(Release)] == ["m"]
    assert isinstance(talk.commands[-1], Release)


# Held for others


def test_it_waits_for_others_as_long_as_it_may() -> None:
    talk = Conversation(shared(delay=MS))
    talk.say(ask(1))
    assert talk.slices == []
    assert talk.scheduler.next_wakeup_ns() == MS
    assert "share its run, at most 1.000 ms" in talk.scheduler.why_waiting(1)
    talk.run([(MS // 2, ask(2)), (MS + 1, ask(3))])
    assert runs(talk) == [(1, 2), (3,)]
    assert talk.launched_at[1] == MS
    assert talk.scheduler.next_wakeup_ns() is None


def test_it_waits_no_longer_when_enough_have_come() -> None:
    talk = Conversation(shared(delay=MS))
    talk.say(ask(1, rows=5), ask(2, rows=2))
    assert talk.slices == []
    talk.say(ask(3))
    assert runs(talk) == [(1, 2, 3)]


def test_it_waits_no_longer_than_its_deadline_allows() -> None:
    """A full run takes 0.3 ms: so long before, and once more for what comes between."""
    talk = Conversation(shared(delay=10 * MS))
    talk.say(ask(1, deadline=2 * MS))
    assert talk.scheduler.next_wakeup_ns() == 1_400 * US
    talk.run()
    assert talk.outcomes == {1: COMPLETED}


def test_lower_work_goes_meanwhile() -> None:
    talk = Conversation(shared(delay=MS), ready("other", 100 * US))
    talk.say(ask(1, STANDARD), request(2, "other", BEST_EFFORT))
    talk.run()
    assert runs(talk) == [(2,), (1,)]


def test_who_is_held_may_be_cancelled_and_drained() -> None:
    talk = Conversation(shared(delay=MS))
    talk.say(ask(1), ask(2))
    talk.say(RequestCancelled(1))
    assert talk.outcomes == {1: CANCELLED}
    talk.say(ModelDraining("m"))
    assert runs(talk) == [(2,)]
    talk.run()
    assert isinstance(talk.commands[-1], Release)


def test_a_new_scheduler_is_told_how_runs_are_shared() -> None:
    talk = run_of_two()
    talk.say(ask(3, rows=2, key=(7,)))
    fresh = Conversation()
    for event in talk.scheduler.inventory()[1:]:
        fresh.say(event)
    told = [each for each in talk.scheduler.inventory() if isinstance(each, RequestArrived)]
    assert [(each.rows, each.batch_key) for each in told] == [(1, (0,)), (1, (0,)), (2, (7,))]
    fresh.run()
    assert set(fresh.outcomes.values()) == {COMPLETED}
