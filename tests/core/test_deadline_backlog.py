"""The arrival test's structure against the obvious one: a sorted list, walked."""

import random

import pytest

from gpumuxd.core.cursor import Cursor
from gpumuxd.core.deadline_backlog import BLOCK_MAX, DeadlineBacklog
from tests.core.objects import make_cursor, make_model

MODEL = make_model()


def work_before_ns(cursors: list[Cursor], deadline_ns: int) -> int:
    return sum(each.remaining_ns for each in cursors if each.deadline_ns <= deadline_ns)


def is_any_late(cursors: list[Cursor], deadline_ns: int, start_ns: int, added_ns: int) -> bool:
    end_ns = start_ns + added_ns
    for cursor in sorted(cursors, key=lambda each: (each.deadline_ns, each.arrival)):
        end_ns += cursor.remaining_ns
        if cursor.deadline_ns > deadline_ns and end_ns > cursor.deadline_ns:
            return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_it_answers_like_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    backlog, cursors = DeadlineBacklog(), list[Cursor]()
    answers = set()
    for arrival in range(4 * BLOCK_MAX):
        action = rng.random()
        if action < 0.7 or not cursors:
            cursor = make_cursor(
                arrival,
                MODEL,
                deadline_ns=rng.randrange(0, 20_000),
                remaining_ns=rng.randrange(0, 60),
            )
            backlog.add(cursor)
            cursors.append(cursor)
        elif action < 0.85:
            cursor = cursors.pop(rng.randrange(len(cursors)))
            backlog.remove(cursor)
        else:
            cursor = rng.choice(cursors)
            cursor.remaining_ns //= 2
            backlog.touch(cursor)
        if arrival % 5 == 0:
            deadline_ns, start_ns = rng.randrange(0, 20_000), rng.randrange(0, 50)
            added_ns = rng.choice((0, 10, 1_000, 8_000))
            assert backlog.work_before_ns(deadline_ns) == work_before_ns(cursors, deadline_ns)
            late = backlog.first_late(deadline_ns, start_ns, added_ns)
            answers.add(late is None)
            assert (late is not None) == is_any_late(cursors, deadline_ns, start_ns, added_ns)
    assert len(backlog) == len(cursors)
    assert answers == {True, False}, "a test that always gets the same answer shows nothing"


def test_the_late_one_is_the_first_in_deadline_order() -> None:
    backlog = DeadlineBacklog()
    for arrival, (deadline_ns, remaining_ns) in enumerate([(100, 10), (30, 10), (50, 30)]):
        backlog.add(make_cursor(arrival, deadline_ns=deadline_ns, remaining_ns=remaining_ns))
    assert backlog.first_late(20, 0, 10) is None
    late = backlog.first_late(20, 0, 11)  # 11 + 10 + 30 > 50, while 11 + 10 <= 30
    assert late is not None
    assert late.deadline_ns == 50


def test_equal_deadlines_go_before_an_arrival_and_are_not_harmed() -> None:
    backlog = DeadlineBacklog()
    backlog.add(make_cursor(1, deadline_ns=100, remaining_ns=40))
    assert backlog.work_before_ns(100) == 40
    assert backlog.work_before_ns(99) == 0
    assert backlog.first_late(100, 0, 1_000) is None


def test_removing_a_stranger_is_a_bug() -> None:
    backlog = DeadlineBacklog()
    backlog.add(make_cursor(1, deadline_ns=100))
    with pytest.raises(AssertionError):
        backlog.remove(make_cursor(1, deadline_ns=100))
