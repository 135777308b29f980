"""Some of those that are refused whenever they come are admitted, to see whether that is right."""

import pytest

from gpumuxd.core.bucket_table import PROBE_ANYHOW_EVERY, PROBE_EVERY, RUNS
from gpumuxd.domain import OutcomeKind, Slice
from tests.core.conversation import MS, REALTIME, Admit, Conversation, ready, request

MISSED, COMPLETED = OutcomeKind.DEADLINE_MISSED, OutcomeKind.COMPLETED
REFUSED = OutcomeKind.DEADLINE_INFEASIBLE


def frames(talk: Conversation, deadline: int, count: int) -> list[OutcomeKind]:
    """One each 32 ms, on an idle device."""
    for number in range(count):
        at_ns = number * 32 * MS
        frame = request(number, "vad", REALTIME, at=at_ns, deadline=at_ns + deadline)
        talk.run([(at_ns, frame)])
    return [talk.finish(number).outcome.kind for number in range(count)]


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("hiccups", [{40, 50}, {40, 41, 42, 43}])
def test_hiccups_refuse_a_stream_for_a_while_and_not_for_ever(
    groups: int, hiccups: set[int]
) -> None:
    def device_ns(work: Slice) -> int:
        run_ns = 40 * MS if work.members[0] in hiccups else 3 * MS // 2
        return run_ns * (work.end_group - work.first_group) // groups

    talk = Conversation(ready("vad", *[3 * MS // 2 // groups] * groups), duration_ns=device_ns)
    kinds = frames(talk, 30 * MS, 300)
    last = max(hiccups) + 2
    assert kinds[: min(hiccups)] == [COMPLETED] * min(hiccups)
    assert REFUSED in kinds
    healed = last + RUNS * PROBE_EVERY
    assert kinds[healed:] == [COMPLETED] * (300 - healed)
    meanwhile = kinds[last : last + 10 * PROBE_EVERY]
    assert meanwhile.count(COMPLETED) == 10, "one in so many, and each is in time"


def test_a_profile_that_is_too_slow_is_found_out() -> None:
    """All runs are in time, and no run was ever seen: seldom at first, then as after hiccups."""
    talk = Conversation(ready("vad", 20 * MS), duration_ns=lambda work: MS)
    kinds = frames(talk, 6 * MS, PROBE_ANYHOW_EVERY + 33 * PROBE_EVERY + 20)
    assert kinds[:PROBE_ANYHOW_EVERY] == [REFUSED] * (PROBE_ANYHOW_EVERY - 1) + [COMPLETED]
    assert kinds[-20:] == [COMPLETED] * 20


def test_a_probe_that_is_late_after_all_is_told_so_and_stays_rare() -> None:
    talk = Conversation(ready("vad", *[5 * MS] * 4), duration_ns=lambda work: 5 * MS)
    kinds = frames(talk, 6 * MS, 4 * PROBE_ANYHOW_EVERY)
    assert kinds.count(MISSED) == 4
    assert kinds.count(REFUSED) == 4 * PROBE_ANYHOW_EVERY - 4


def test_where_the_others_are_the_reason_nobody_is_a_probe() -> None:
    """They go on and show how long runs take."""
    talk = Conversation(ready("vad", 4 * MS), ready("long", *[MS] * 100))
    talk.say(request(1000, "long", REALTIME, deadline=105 * MS))
    for number in range(2 * PROBE_ANYHOW_EVERY):
        talk.say(request(number, "vad", REALTIME, deadline=50 * MS))
    admitted = [each.request_id for each in talk.of_type(Admit)]
    assert admitted == [1000, 0], "5 ms to spare are taken by the first"


def test_a_probe_harms_no_admitted_request() -> None:
    """In time itself at the typical pace, and somebody behind it would not be."""

    def device_ns(work: Slice) -> int:
        is_slow = work.model == "vad" and work.members[0] in (10, 11)
        return 40 * MS if is_slow else work.predicted_ns if work.model == "long" else 4 * MS

    def stream(with_others: bool) -> set[int]:
        talk = Conversation(
            ready("vad", 4 * MS), ready("long", *[MS] * 20), duration_ns=device_ns, round_trip_ns=0
        )
        frames(talk, 30 * MS, 12)
        for number in range(100, 140):
            at_ns = number * 32 * MS
            frame = request(number, "vad", REALTIME, at=at_ns, deadline=at_ns + 22 * MS)
            other = request(number + 900, "long", REALTIME, at=at_ns, deadline=at_ns + 23 * MS)
            talk.run([(at_ns, other), (at_ns, frame)] if with_others else [(at_ns, frame)])
        admitted = {each.request_id for each in talk.of_type(Admit)}
        assert all(talk.outcomes[n] is COMPLETED for n in talk.outcomes if n >= 1000)
        return {number for number in admitted if 100 <= number < 900}

    assert len(stream(with_others=False)) == 40 // PROBE_EVERY
    assert stream(with_others=True) == set()
