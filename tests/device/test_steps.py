"""Steps: work over several turns, and the bridge to a building thread."""

import sys
import threading

import pytest

from gpumuxd.device.steps import BUILD_SWITCH_INTERVAL_S, Steps, build


def finish(steps: Steps[int], woken: threading.Event) -> int:
    """Drive steps as the loop does: resume when the condition holds, else wait to be woken."""
    try:
        condition = next(steps)
        while True:
            while not condition():
                assert woken.wait(timeout=30)
            condition = next(steps)
    except StopIteration as stop:
        value: int = stop.value
        return value


def test_what_is_made_on_the_thread_is_the_value_of_the_steps() -> None:
    woken = threading.Event()
    seen: list[object] = []

    def make() -> int:
        seen.append(threading.current_thread().name)
        seen.append(sys.getswitchinterval())
        return 7

    before = sys.getswitchinterval()
    assert finish(build(make, woken.set), woken) == 7
    assert seen == ["builder", pytest.approx(BUILD_SWITCH_INTERVAL_S)]
    assert sys.getswitchinterval() == before


def test_what_is_raised_on_the_thread_is_raised_by_the_steps() -> None:
    woken = threading.Event()

    def make() -> int:
        raise ValueError("no")

    before = sys.getswitchinterval()
    with pytest.raises(ValueError, match="no"):
        finish(build(make, woken.set), woken)
    assert sys.getswitchinterval() == before


def test_the_loop_has_its_turns_while_the_thread_works() -> None:
    woken, go = threading.Event(), threading.Event()

    def make() -> int:
        assert go.wait(timeout=30)
        return 1

    steps = build(make, woken.set)
    condition = next(steps)
    assert not condition()
    go.set()
    assert woken.wait(timeout=30)
    assert condition()
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == 1
