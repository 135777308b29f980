"""Runs that several requests share: the checkers catch what may go wrong."""

import pytest

from gpumuxd.testing.checkers import Invariant
from gpumuxd.testing.parameters import DeviceParameters
from gpumuxd.testing.runner import SchedulerOf
from tests.sim import broken_sharing as broken
from tests.sim.test_checkers import Needs, first_violation


def shares(device: DeviceParameters) -> bool:
    return any(model.batching is not None for model in device.models)


def waits(device: DeviceParameters) -> bool:
    return any(m.batching is not None and m.batching.delay_ns_max for m in device.models)


def has_poison(device: DeviceParameters) -> bool:
    return shares(device) and device.faults.poisoned_ppm > 0


@pytest.mark.parametrize(
    ("invariant", "scheduler_of", "needs", "said"),
    [
        (Invariant.ONE_FINISH, broken.MixesShapes, shares, "batch key is another"),
        (Invariant.ONE_FINISH, broken.TakesTooMany, shares, "rows, at most"),
        (Invariant.ONE_FINISH, broken.ForgetsRowsThatCame, shares, "rows"),
        (Invariant.WINDOWS_AND_BUDGETS, broken.ForgetsDeadlines, shares, "a deadline is at"),
        (Invariant.WINDOWS_AND_BUDGETS, broken.SharesOverTheBound, shares, "longest group"),
        (Invariant.WORK_CONSERVATION, broken.HoldsForEver, waits, "is eligible"),
        (Invariant.ONE_FINISH, broken.BlamesEverybody, has_poison, "shared with others"),
        (Invariant.ONE_FINISH, broken.TellsTooEarly, shares, "reads its inputs"),
        (Invariant.ONE_FINISH, broken.MisreportsRows, shares, "rows ran together"),
        (Invariant.ONE_FINISH, broken.CountsEverybody, shares, "count its execution"),
        (Invariant.ONE_FINISH, broken.CountsNobody, shares, "count its execution"),
    ],
)
def test_who_shares_wrongly_is_caught(
    invariant: Invariant, scheduler_of: SchedulerOf, needs: Needs, said: str
) -> None:
    violation = first_violation(scheduler_of, (invariant,), needs)
    assert violation is not None, "no world shows the fault"
    assert said in str(violation)
