"""Work that takes several turns of the device loop, written as generators.

A generator of steps yields a *condition* and is resumed in a turn in which that holds, so a long
affair reads from top to bottom and never blocks the loop. `build` is the bridge to a thread, for
what would hold the loop up for tens of milliseconds.
"""

import sys
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

from gpumuxd.wire.slices import PATIENT_NS, set_slice

T = TypeVar("T")

Condition = Callable[[], bool]
Steps = Generator[Condition, None, T]

BUILD_SWITCH_INTERVAL_S = 0.0005
"""How long a building thread may keep the GIL from the loop, 5 ms by default. The code of a model
of 500 nodes takes about 50 ms, in many short calls to `compile` that each keep it to their end."""


def next_turn() -> bool:
    """The condition of work that could go on at once but lets the loop have its turn."""
    return True


def build(make: Callable[[], T], wake: Callable[[], None]) -> Steps[T]:
    """Call `make` on a thread of its own, then `wake`; the value of the steps is what it made."""
    made: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        set_slice(PATIENT_NS)
        try:
            made.append(make())
        except Exception as error:
            failures.append(error)
        wake()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(BUILD_SWITCH_INTERVAL_S)
    thread = threading.Thread(target=run, name="builder", daemon=True)
    thread.start()
    yield lambda: bool(made or failures)
    thread.join()
    sys.setswitchinterval(interval_s)
    if failures:
        raise failures.pop()
    return made.pop()
