"""Which arrivals are refused, and what they are told."""

import pytest

from gpumuxd.core import feasibility
from gpumuxd.core.bucket_table import ONE
from gpumuxd.core.deadline_backlog import DeadlineBacklog
from gpumuxd.core.feasibility import Ahead
from gpumuxd.domain import PriorityClass
from tests.core.conversation import BEST_EFFORT, REALTIME, STANDARD
from tests.core.objects import make_cursor, make_model

NOW = 1_000_000


def ask(
    priority_class: PriorityClass,
    run_ns: int,
    deadline: int | None,
    *,
    residual: int = 0,
    realtime: list[tuple[int | None, int]] | None = None,
    backlog: tuple[int, int, int] = (0, 0, 0),
    interference: int = ONE,
    is_fifo: bool = False,
) -> tuple[int, str]:
    """The predicted time to its end and the reason to refuse. Deadlines are from now."""
    queue = DeadlineBacklog()
    for arrival, (due, remaining_ns) in enumerate(realtime or []):
        due_ns = None if due is None else NOW + due
        queue.add(make_cursor(arrival, deadline_ns=due_ns, remaining_ns=remaining_ns))
    ahead = Ahead(residual, list(backlog), queue, interference, is_fifo)
    deadline_ns = None if deadline is None else NOW + deadline
    cursor = make_cursor(99, make_model(run_ns or 1), priority_class, deadline_ns=deadline_ns)
    cursor.predicted_ns = cursor.remaining_ns = run_ns
    finish_ns = feasibility.predicted_finish_ns(cursor, ahead, NOW)
    return finish_ns - NOW, feasibility.why_infeasible(cursor, ahead, NOW, finish_ns)


@pytest.mark.parametrize(
    ("run_ns", "deadline", "residual", "realtime", "takes", "is_refused"),
    [
        (100, 100, 0, [], 100, False),
        (100, 99, 0, [], 100, True),
        (100, None, 900, [], 1_000, False),
        # what is in flight and what is due earlier go first
        (100, 150, 50, [], 150, False),
        (100, 150, 51, [], 151, True),
        (100, 300, 50, [(200, 150)], 300, False),
        (100, 300, 50, [(200, 151)], 301, True),
        (100, 300, 0, [(300, 200)], 300, False),  # equal deadlines: earlier arrivals first
        (100, 300, 0, [(300, 201)], 301, True),
        (100, 300, 0, [(301, 1)], 100, False),  # due later: goes behind
        # whom it would harm: those due later
        (100, 200, 0, [(300, 200)], 100, False),
        (100, 200, 0, [(300, 201)], 100, True),
        (100, 200, 50, [(300, 151)], 150, True),
        (100, 200, 0, [(250, 50), (260, 110), (900, 10)], 100, False),
        (100, 200, 0, [(250, 50), (260, 111), (900, 10)], 100, True),
        (100, 200, 0, [(None, 10**9)], 100, False),  # no deadline, no harm
        (100, None, 0, [(5, 5)], 105, False),
        # without an estimate nobody is refused, and a past deadline always is
        (0, 10, 500, [(5, 5)], 505, False),
        (0, 0, 0, [], 0, True),
        (100, -5, 0, [], 100, True),
    ],
)
def test_realtime_is_exact(
    run_ns: int,
    deadline: int | None,
    residual: int,
    realtime: list[tuple[int | None, int]],
    takes: int,
    is_refused: bool,
) -> None:
    predicted, reason = ask(REALTIME, run_ns, deadline, residual=residual, realtime=realtime)
    assert predicted == takes
    assert bool(reason) == is_refused, reason


@pytest.mark.parametrize(
    ("priority_class", "deadline", "residual", "backlog", "is_refused"),
    [
        (STANDARD, 200, 40, (10**6, 10**6, 60), False),  # only what surely goes first counts
        (STANDARD, 199, 40, (10**6, 10**6, 60), True),
        (BEST_EFFORT, 230, 40, (10**6, 30, 60), False),
        (BEST_EFFORT, 229, 40, (10**6, 30, 60), True),
        (BEST_EFFORT, None, 10**9, (0, 0, 0), False),
    ],
)
def test_other_classes_refuse_what_is_certain_to_miss(
    priority_class: PriorityClass,
    deadline: int | None,
    residual: int,
    backlog: tuple[int, int, int],
    is_refused: bool,
) -> None:
    _, reason = ask(priority_class, 100, deadline, residual=residual, backlog=backlog)
    assert bool(reason) == is_refused


@pytest.mark.parametrize("priority_class", [BEST_EFFORT, STANDARD])
def test_lower_classes_do_not_harm_higher_ones(priority_class: PriorityClass) -> None:
    _, reason = ask(priority_class, 100, 500, realtime=[(600, 590)])
    assert reason == ""


@pytest.mark.parametrize("priority_class", list(PriorityClass))
def test_in_arrival_order_all_that_is_queued_goes_first(priority_class: PriorityClass) -> None:
    for deadline, is_refused in ((206, False), (205, True)):
        predicted, reason = ask(
            priority_class, 100, deadline, residual=100, backlog=(1, 2, 3), is_fifo=True
        )
        assert predicted == 206
        assert bool(reason) == is_refused


def test_beside_another_lane_work_takes_longer() -> None:
    predicted, reason = ask(REALTIME, 100, 149, interference=ONE * 3 // 2)
    assert predicted == 150
    assert reason


def test_the_reason_tells_the_predicted_end() -> None:
    _, reason = ask(REALTIME, 12_300_000, 10_000_000)
    assert reason == "predicted to finish in 12.300 ms, the deadline is in 10.000 ms"


def test_the_reason_tells_who_would_be_late() -> None:
    _, reason = ask(REALTIME, 2_000_000, 3_000_000, realtime=[(4_000_000, 2_500_000)])
    assert reason == (
        "predicted to finish in 2.000 ms, but then an admitted request due in 4.000 ms "
        "would be late"
    )


def test_the_reason_tells_how_long_ago_the_deadline_passed() -> None:
    _, reason = ask(STANDARD, 0, -500_000)
    assert reason == "the deadline passed 0.500 ms ago"
