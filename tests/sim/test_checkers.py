"""The checkers can fail: a scheduler that is wrong in one way is caught by the invariant it breaks.

Each broken scheduler runs the first few worlds that have what its fault needs; one of them must
show it, and the first violation must be of that invariant. Where one fault breaks several, only
the one under test is asked.
"""

from collections.abc import Callable
from itertools import islice

import pytest

from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import PriorityClass
from gpumuxd.settings import Order, Slicing
from gpumuxd.testing.checkers import Invariant, Violation
from gpumuxd.testing.parameters import DeviceParameters
from gpumuxd.testing.runner import SchedulerOf, run
from gpumuxd.testing.swarm import draw
from gpumuxd.units import GIB
from tests.sim import broken

SEEDS = range(1, 400)
RUNS_MAX = 25

Needs = Callable[[DeviceParameters], bool]


def anything(device: DeviceParameters) -> bool:
    return True


def loses(device: DeviceParameters) -> bool:
    return device.faults.lost_ns is not None


def reloads(device: DeviceParameters) -> bool:
    return bool(device.faults.reloads)


def has_a_short_queue(device: DeviceParameters) -> bool:
    return device.settings.queue_requests_max < 20


def has_little_memory(device: DeviceParameters) -> bool:
    return device.settings.memory_bytes_max < 8 * GIB


def reserves_frames(device: DeviceParameters) -> bool:
    return device.settings.frames_reserved > 0


def is_bounded(device: DeviceParameters) -> bool:
    return device.settings.slicing is Slicing.ADAPTIVE and device.settings.order is Order.POLICY


def has_share(device: DeviceParameters) -> bool:
    """Best-effort work is sure of a share, and higher classes come too."""
    classes = {client.priority_class for client in device.clients}
    return (
        device.settings.best_effort_share_min_ppm >= 10_000
        and is_bounded(device)
        and not device.has_high_lane
        and len(classes) > 1
        and PriorityClass.BEST_EFFORT in classes
    )


def has_share_and_own_work(device: DeviceParameters) -> bool:
    return has_share(device) and any(model.profile_runs for model in device.models)


def has_deadlines(device: DeviceParameters) -> bool:
    return any(client.deadline_ns is not None for client in device.clients)


def counts_operators(device: DeviceParameters) -> bool:
    return device.settings.slicing in (Slicing.EVERY, Slicing.WINDOW)


def stops_and_waits(device: DeviceParameters) -> bool:
    return device.settings.slicing is Slicing.EVERY and device.settings.window_max > 1


def is_planned(device: DeviceParameters) -> bool:
    """No bound is stated and sync points were measured."""
    is_free = device.settings.preemption_delay_ns_max is None
    return is_bounded(device) and is_free and bool(device.sync_costs)


def cuts_layers(device: DeviceParameters) -> bool:
    return device.settings.slicing is Slicing.LAYER


def knows_little(device: DeviceParameters) -> bool:
    """Some model comes without a profile."""
    return is_bounded(device) and any(not model.profile.group_ns for model in device.models)


def is_shared(device: DeviceParameters) -> bool:
    """Two tenants of equal weight, the favoured one among them, that are never done."""
    return is_bounded(device) and device.is_contended


BROKEN: list[tuple[Invariant, SchedulerOf, Needs]] = [
    (Invariant.GROUPS_IN_ORDER, broken.LaunchesTwice, anything),
    (Invariant.GROUPS_IN_ORDER, broken.SkipsAGroup, anything),
    (Invariant.GROUPS_IN_ORDER, broken.GoesPastTheEnd, anything),
    (Invariant.WINDOWS_AND_BUDGETS, broken.IgnoresTheWindow, is_bounded),
    (Invariant.WINDOWS_AND_BUDGETS, broken.IgnoresTheBound, is_bounded),
    (Invariant.WINDOWS_AND_BUDGETS, broken.NeverCuts, is_bounded),
    (Invariant.WORK_CONSERVATION, broken.ForgetsToLaunch, anything),
    (Invariant.ORDER, broken.IgnoresDeadlines, is_bounded),
    (Invariant.ORDER, broken.GrantsTooMuch, has_share),
    (Invariant.FAIRNESS, broken.GrantsNothing, has_share),
    (Invariant.WINDOWS_AND_BUDGETS, broken.GrantsOverTheBound, has_share),
    (Invariant.ORDER, broken.GrantsOwnWork, has_share_and_own_work),
    (Invariant.RESOURCES, broken.MiscountsGrants, has_share),
    (Invariant.ONE_FINISH, broken.GivesUpTooSoon, has_deadlines),
    (Invariant.ONE_FINISH, broken.GivesUpInTime, has_deadlines),
    (Invariant.ONE_FINISH, broken.ForgetsTheDeadline, has_deadlines),
    (Invariant.ONE_FINISH, broken.DropsAFinish, anything),
    (Invariant.ONE_FINISH, broken.FinishesTwice, anything),
    (Invariant.ONE_FINISH, broken.FinishesAtOnce, anything),
    (Invariant.ONE_FINISH, broken.AdmitsSilently, anything),
    (Invariant.ONE_FINISH, broken.BlamesTheModel, anything),
    (Invariant.ONE_FINISH, broken.MisreportsTime, anything),
    (Invariant.ONE_FINISH, broken.MiscountsPreemptions, anything),
    (Invariant.ONE_FINISH, broken.MisreportsWaiting, anything),
    (Invariant.ONE_FINISH, broken.RefusesWithoutCause, anything),
    (Invariant.ONE_FINISH, broken.RefusesTheUnmeasured, knows_little),
    (Invariant.ONE_FINISH, broken.IgnoresCancels, anything),
    (Invariant.RESOURCES, broken.KeepsFrames, anything),
    (Invariant.RESOURCES, broken.IgnoresReservedFrames, reserves_frames),
    (Invariant.RESOURCES, broken.IgnoresMemory, has_little_memory),
    (Invariant.RESOURCES, broken.IgnoresTheQueueLimit, has_a_short_queue),
    (Invariant.RESOURCES, broken.SharesFrames, anything),
    (Invariant.RESOURCES, broken.ChangesFrames, anything),
    (Invariant.RESOURCES, broken.MiscountsSlices, anything),
    (Invariant.DRAINING, broken.IgnoresDraining, reloads),
    (Invariant.ONE_FINISH, broken.DrainsBeforeItDecides, reloads),
    (Invariant.DRAINING, broken.ReleasesTwice, reloads),
    (Invariant.DRAINING, broken.NeverReleases, reloads),
    (Invariant.LIVENESS, broken.NeverRests, anything),
]

BROKEN_WHERE_NO_BOUND_IS: list[tuple[Invariant, SchedulerOf, Needs]] = [
    (Invariant.WINDOWS_AND_BUDGETS, broken.CountsOneOperatorMore, counts_operators),
    (Invariant.WINDOWS_AND_BUDGETS, broken.DoesNotWait, stops_and_waits),
    (Invariant.WINDOWS_AND_BUDGETS, broken.SaysAnotherLength, is_planned),
    (Invariant.WINDOWS_AND_BUDGETS, broken.NeverCuts, is_planned),
    (Invariant.WINDOWS_AND_BUDGETS, broken.SaysAShorterWindow, is_planned),
    (Invariant.WINDOWS_AND_BUDGETS, broken.IgnoresMeasurements, is_planned),
    (Invariant.WINDOWS_AND_BUDGETS, broken.NamesAnotherRule, anything),
    (Invariant.WINDOWS_AND_BUDGETS, broken.MissesALayer, cuts_layers),
    (Invariant.WINDOWS_AND_BUDGETS, broken.InventsAProfile, knows_little),
    (Invariant.WINDOWS_AND_BUDGETS, broken.ProfilesInOne, knows_little),
]

BROKEN_MORE_WAYS: list[tuple[Invariant, SchedulerOf, Needs]] = [
    (Invariant.BLOCKING, broken.IgnoresTheBound, is_bounded),
    (Invariant.BLOCKING, broken.NeverCuts, is_bounded),
    (Invariant.BLOCKING, broken.FirstComeFirstServed, is_bounded),
    (Invariant.WORK_CONSERVATION, broken.SleepsBetween, anything),
    (Invariant.ORDER, broken.FirstComeFirstServed, is_bounded),
    (Invariant.LOST_DEVICE, broken.IgnoresTheLoss, loses),
    (Invariant.LIVENESS, broken.FallsAsleep, anything),
    (Invariant.FAIRNESS, broken.FavoursOne, is_shared),
    (Invariant.FAIRNESS, broken.FirstComeFirstServed, is_shared),
    (Invariant.FAIRNESS, broken.ForgetsToCharge, is_shared),
]


def first_violation(
    scheduler_of: SchedulerOf,
    check: tuple[Invariant, ...] = tuple(Invariant),
    needs: Needs = anything,
    runs_max: int = RUNS_MAX,
) -> Violation | None:
    """Of the first worlds in which the fault can show at all, the first in which it does."""
    worlds = (parameters for parameters in map(draw, SEEDS) if any(map(needs, parameters.devices)))
    for parameters in islice(worlds, runs_max):
        try:
            run(parameters, scheduler_of, check)
        except Violation as violation:
            return violation
    return None


@pytest.mark.parametrize(
    ("invariant", "scheduler_of", "needs"), [*BROKEN, *BROKEN_WHERE_NO_BOUND_IS]
)
def test_a_broken_scheduler_is_caught(
    invariant: Invariant, scheduler_of: SchedulerOf, needs: Needs
) -> None:
    violation = first_violation(scheduler_of, needs=needs)
    assert violation is not None, "no world shows the fault"
    assert violation.invariant is invariant, violation


@pytest.mark.parametrize(("invariant", "scheduler_of", "needs"), BROKEN_MORE_WAYS)
def test_one_invariant_alone_catches_it_too(
    invariant: Invariant, scheduler_of: SchedulerOf, needs: Needs
) -> None:
    violation = first_violation(scheduler_of, (invariant,), needs)
    assert violation is not None, "no world shows the fault"
    assert violation.invariant is invariant


def test_the_wrapper_itself_breaks_nothing() -> None:
    assert first_violation(broken.Bent, runs_max=10) is None


def test_a_violation_names_invariant_seed_device_and_step() -> None:
    with pytest.raises(Violation, match=r"invariant 6 ONE_FINISH: .*seed 1, cpu:0, step \d+"):
        run(draw(1), broken.FinishesTwice)


def test_without_checkers_nothing_is_asked() -> None:
    result = run(draw(1), broken.MiscountsSlices, check=())
    assert result.trace_hash == run(draw(1), DeviceScheduler).trace_hash
