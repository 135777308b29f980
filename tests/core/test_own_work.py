"""Profile runs and uploads keep out of the way of REALTIME requests that are expected."""

from itertools import pairwise

import pytest

from gpumuxd.core.launcher import HOLD_BOUNDS
from gpumuxd.domain import CursorKind, Lane, OutcomeKind, PriorityClass, Slice
from gpumuxd.events import ModelProfile, ModelReady, RequestArrived, RequestCancelled
from tests.core.conversation import (
    BEST_EFFORT,
    COMPUTE,
    COPY_IN,
    HIGH,
    MS,
    REALTIME,
    US,
    Conversation,
    ready,
    request,
)

OWN = -1
PERIOD = 10 * MS
BOUND = 4 * MS
FRAMES = 12
LAST = (FRAMES - 1) * PERIOD
VOICE = ready("voice", MS)


def own_group_takes(duration_ns: int) -> Conversation:
    """A stream of FRAMES requests, each 1 ms long, has gone by; then the device measures."""
    talk = Conversation(
        VOICE,
        ModelReady("new@groups", ModelProfile(8), BEST_EFFORT),
        preemption_delay_ns_max=BOUND,
        duration_ns=lambda work: MS if work.model == "voice" else duration_ns,
    )
    talk.run([frame(i) for i in range(FRAMES)], until=LAST + 2 * MS)
    return talk


def frame(i: int) -> tuple[int, RequestArrived]:
    return i * PERIOD, request(i + 1, "voice", REALTIME, at=i * PERIOD)


def own(kind: CursorKind, at: int, model: str = "new@groups") -> RequestArrived:
    return RequestArrived(OWN, "", model, BEST_EFFORT, (1,), at, kind=kind)


def started(talk: Conversation) -> list[int]:
    return [talk.started_at[work.slice_id] for work in talk.slices if work.members == (OWN,)]


@pytest.mark.parametrize("kind", [CursorKind.PROFILE, CursorKind.UPLOAD])
def test_a_group_is_launched_only_if_it_should_have_passed_before_the_next_frame(
    kind: CursorKind,
) -> None:
    talk = own_group_takes(3 * MS)
    frames = [frame(i) for i in range(FRAMES, FRAMES + 8)]
    talk.run([(LAST + 2 * MS, own(kind, LAST + 2 * MS)), *frames])
    assert talk.outcomes[OWN] is OutcomeKind.COMPLETED
    # Never measured, so taken to be as long as the bound: at 2 and 5 ms of a period, not at 8.
    assert {at % PERIOD for at in started(talk)[:6]} <= {MS, 2 * MS, 4 * MS, 5 * MS}
    assert all(talk.finish(i + 1).report.queue_ns == 0 for i in range(FRAMES, FRAMES + 8))


def test_the_others_are_kept_waiting_without_the_rule_that_is_tested_here() -> None:
    """The same work of a tenant is within its rights: it has no time to give away."""
    talk = own_group_takes(3 * MS)
    frames = [frame(i) for i in range(FRAMES, FRAMES + 4)]
    talk.run([(LAST + 2 * MS, request(99, "new@groups", at=LAST + 2 * MS)), *frames])
    assert any(talk.finish(i + 1).report.queue_ns > 0 for i in range(FRAMES, FRAMES + 4))


def test_what_nobody_foresees_holds_it_for_a_few_bounds_only() -> None:
    talk = own_group_takes(5 * MS)
    # Two bursts: from now on the shortest gap is nothing, and one is always expected.
    burst = [
        (LAST + 3 * MS, request(100 + i, "voice", REALTIME, at=LAST + 3 * MS)) for i in range(9)
    ]
    begin = LAST + 30 * MS
    # The longest gap is 27 ms: without one more the stream would be over at twice that.
    talk.run([*burst, (begin, request(200, "voice", REALTIME, at=begin))], until=begin + 2 * MS)
    talk.run([(begin + 2 * MS, own(CursorKind.PROFILE, begin + 2 * MS))], until=begin + 50 * MS)
    first, second, *_ = started(talk)
    assert first == begin + 2 * MS + HOLD_BOUNDS * BOUND
    assert second == first + 5 * MS + HOLD_BOUNDS * BOUND
    assert dict(talk.scheduler.statistics().blocked)["realtime_expected"] > 0


def test_only_what_is_held_is_said_to_be() -> None:
    talk = own_group_takes(3 * MS)
    at = LAST + 2 * MS
    talk.say(own(CursorKind.PROFILE, at), at=at)
    assert talk.scheduler.statistics().in_flight_slices == 1
    assert "REALTIME request is expected" not in talk.scheduler.why_waiting(OWN)


@pytest.mark.parametrize(
    ("busy_ns", "jitter_ns"),
    [
        (9 * MS, 0),  # there never is room for a group before the next frame
        (9 * MS, 3 * MS),
        (6 * MS, 5 * MS),  # and nothing can be foreseen
    ],
)
def test_beside_a_stream_that_leaves_hardly_any_room_a_load_still_ends(
    busy_ns: int, jitter_ns: int
) -> None:
    """Each group waits HOLD_BOUNDS bounds, then for the end of what is being served; no longer."""
    talk = Conversation(
        VOICE,
        ModelReady("new@groups", ModelProfile(8), BEST_EFFORT),
        preemption_delay_ns_max=BOUND,
        duration_ns=lambda work: busy_ns if work.model == "voice" else 3 * MS,
    )
    times = [i * PERIOD + (i * 7 % 5) * jitter_ns // 4 for i in range(FRAMES + 60)]
    frames = [(at, request(i + 1, "voice", REALTIME, at=at)) for i, at in enumerate(times)]
    begin = times[FRAMES] + MS
    # The frames that come while a group runs are served one after the other before the next one.
    each = HOLD_BOUNDS * BOUND + 3 * MS + 3 * PERIOD
    end = begin + 8 * each
    assert end < times[-1], "the stream goes on all the time"
    talk.run([*frames, (begin, own(CursorKind.PROFILE, begin))], until=end)
    assert talk.outcomes[OWN] is OutcomeKind.COMPLETED
    assert max(talk.finish(i + 1).report.queue_ns for i in range(FRAMES, FRAMES + 40)) > 0


def test_a_stream_that_has_ended_holds_nothing() -> None:
    talk = own_group_takes(3 * MS)
    at = LAST + 2 * PERIOD
    talk.run([(at, own(CursorKind.PROFILE, at))])
    assert started(talk) == [at + i * 3 * MS for i in range(8)]


def test_beside_work_of_others_there_is_nothing_to_spare() -> None:
    talk = own_group_takes(3 * MS)
    at = LAST + 8 * MS
    talk.say(request(99, "new@groups", at=at), own(CursorKind.PROFILE, at), at=at)
    assert talk.scheduler.statistics().in_flight_slices == 1
    talk.run()
    assert talk.outcomes[OWN] is talk.outcomes[99] is OutcomeKind.COMPLETED


@pytest.mark.parametrize(
    ("lanes", "class_max", "is_held"),
    [
        ((COMPUTE,), REALTIME, True),
        ((COMPUTE, COPY_IN), REALTIME, False),  # copies are in nobody's way
        ((COMPUTE,), BEST_EFFORT, False),  # nobody who could be ordered ahead is loaded
    ],
)
def test_only_what_is_in_the_way_is_held(
    lanes: tuple[Lane, ...], class_max: PriorityClass, is_held: bool
) -> None:
    def takes(work: Slice) -> int:
        return 100 * US

    talk = Conversation(
        ready("voice", MS, class_max=class_max),
        ModelReady("new@upload", ModelProfile(1), BEST_EFFORT),
        lanes=lanes,
        preemption_delay_ns_max=BOUND,
        duration_ns=takes,
    )
    kind = REALTIME if class_max is REALTIME else BEST_EFFORT
    for i in range(FRAMES):
        talk.run([(i * PERIOD, request(i + 1, "voice", kind, at=i * PERIOD))])
    at = LAST + 9 * MS
    talk.run(until=at)
    talk.say(own(CursorKind.UPLOAD, at, "new@upload"), at=at)
    assert (not started(talk)) is is_held


def test_a_hold_ends_with_its_request() -> None:
    talk = own_group_takes(3 * MS)
    at = LAST + 8 * MS
    talk.say(own(CursorKind.PROFILE, at), at=at)
    assert talk.scheduler.next_wakeup_ns() == at + HOLD_BOUNDS * BOUND
    assert "REALTIME request is expected" in talk.scheduler.why_waiting(OWN)
    assert "at most 16.000 ms" in talk.scheduler.why_waiting(OWN)
    talk.say(RequestCancelled(OWN))
    assert talk.outcomes[OWN] is OutcomeKind.CANCELLED
    assert talk.scheduler.next_wakeup_ns() is None


def test_who_holds_the_frame_that_a_request_waits_for_is_not_held_back_for_its_sake() -> None:
    """The request has a lane of its own, so nobody else is in the way of the device."""
    talk = Conversation(
        VOICE,
        ModelReady("new@groups", ModelProfile(8), BEST_EFFORT),
        lanes=(COMPUTE, HIGH),
        frames_max=1,
        frames_reserved=0,
        preemption_delay_ns_max=BOUND,
        duration_ns=lambda work: MS if work.model == "voice" else 3 * MS,
    )
    talk.run([frame(i) for i in range(FRAMES)], until=LAST + 2 * MS)
    talk.say(own(CursorKind.PROFILE, LAST + 2 * MS))
    talk.run([frame(FRAMES)])
    begun = started(talk)
    waiting = [at for at in begun if at > LAST + PERIOD]
    assert len(waiting) > 1, "the request waits for a frame"
    assert [b - a for a, b in pairwise(waiting)] == [3 * MS] * (len(waiting) - 1)
