"""A model whose longest group exceeds the bound: whoever arrives behind it is told the truth.

A lower slice is launched only when nobody of a higher class waits, so nothing can be put ahead of
an arrival after it came: what is in flight at that moment is all that it has to wait for, however
long that is. Here the predicted end is compared with the true one, at every moment of an arrival.
"""

import pytest

from gpumuxd.commands import Admit
from gpumuxd.domain import CursorKind, OutcomeKind, PriorityClass
from gpumuxd.events import Event, RequestArrived
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

BOUND = 1 * MS
VOICE = ready("voice", 200 * US, 300 * US)
LOWER = {
    # group times in units of 100 us; the bound is 10
    "one long group": ready("low", *[n * 100 * US for n in (100,)]),
    "long among short": ready("low", *[n * 100 * US for n in (2, 3, 100, 4, 1, 1, 35, 2)]),
    "all just over": ready("low", *[n * 100 * US for n in (11, 12, 11)]),
    "short alone": ready("low", *[n * 100 * US for n in (5, 5, 5, 5, 5, 5)]),
}
MOMENTS = [*range(0, 12 * MS, 130 * US), 1, MS - 1, MS, MS + 1, 10 * MS - 1, 10 * MS, 10 * MS + 1]


def behind(
    lower: Event, kind: CursorKind, low: PriorityClass, at: int, deadline: int | None, window: int
) -> Conversation:
    """A REALTIME request comes at this moment, while two lower ones keep the device busy."""
    talk = Conversation(VOICE, lower, preemption_delay_ns_max=BOUND, window_max=window)
    talk.say(
        RequestArrived(1, "t", "low", low, (1,), 0, kind=kind),
        RequestArrived(2, "u", "low", low, (1,), 0, kind=kind),
    )
    talk.run([(at, request(3, "voice", REALTIME, at=at, deadline=deadline))])
    return talk


def told(talk: Conversation) -> int:
    return next(a.predicted_finish_ns for a in talk.of_type(Admit) if a.request_id == 3)


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("name", LOWER)
def test_the_predicted_end_is_the_true_one_at_every_moment(name: str, window: int) -> None:
    waited = 0
    for at in MOMENTS:
        talk = behind(LOWER[name], CursorKind.INFER, BEST_EFFORT, at, None, window)
        assert told(talk) == talk.finished_at[3], at
        waited = max(waited, talk.finish(3).report.queue_ns)
    longest_ns = {"one long group": 10 * MS, "long among short": 10 * MS}.get(name, 1_200 * US)
    assert longest_ns - 200 * US <= waited <= longest_ns, "the group was in the way, and no more"


@pytest.mark.parametrize("low", [BEST_EFFORT, STANDARD])
@pytest.mark.parametrize("kind", [CursorKind.INFER, CursorKind.PROFILE, CursorKind.UPLOAD])
def test_a_deadline_at_the_predicted_end_is_met_and_one_before_it_refused(
    kind: CursorKind, low: PriorityClass
) -> None:
    """Also behind the device's own work, which runs group by group."""
    for at in MOMENTS[::4]:
        lower = LOWER["long among short"]
        end_ns = told(behind(lower, kind, low, at, None, 2))
        met = behind(lower, kind, low, at, end_ns, 2)
        assert (met.outcomes[3], met.finished_at[3]) == (OutcomeKind.COMPLETED, end_ns)
        refused = behind(lower, kind, low, at, end_ns - 1, 2).finish(3).outcome
        assert refused.kind is OutcomeKind.DEADLINE_INFEASIBLE
        assert (refused.predicted_finish_ns, refused.deadline_ns) == (end_ns, end_ns - 1)


def test_a_group_that_runs_over_is_the_only_thing_that_is_not_foreseen() -> None:
    """10 ms were predicted, 12 it takes: the end told is exactly as wrong, and not after it."""
    for at, late_ns in ((5 * MS, 2 * MS), (11 * MS, MS), (12 * MS - 1, 1)):
        talk = Conversation(
            VOICE,
            LOWER["one long group"],
            preemption_delay_ns_max=BOUND,
            duration_ns=lambda work: 12 * MS if work.model == "low" else work.predicted_ns,
        )
        talk.say(request(1, "low"))
        talk.run([(at, request(3, "voice", REALTIME, at=at))])
        assert talk.finished_at[3] - told(talk) == late_ns
