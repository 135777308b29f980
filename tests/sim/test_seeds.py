"""Two hundred worlds, each with all eleven invariants checked after every step.

More: `make sim SEED=1000 SEEDS=5000`. A seed that fails here for a reason worth keeping goes to
`test_regressions.py`, with a sentence.
"""

from collections import Counter

import pytest

from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.estimator import BUCKETS_MAX
from gpumuxd.domain import OutcomeKind
from gpumuxd.settings import SchedulerSettings, Slicing
from gpumuxd.testing.parameters import PPM
from gpumuxd.testing.runner import Scheduler, run
from gpumuxd.testing.swarm import draw
from gpumuxd.units import NS_PER_MS

SEEDS = 200
SEEDS_PER_TEST = 20
SEEDS_WITH_MUCH = (157, 6, 53, 68, 14, 2)


@pytest.mark.parametrize("first", range(1, SEEDS + 1, SEEDS_PER_TEST))
def test_no_invariant_is_violated(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        parameters = draw(seed)
        print("\n".join(parameters.lines()))
        result = run(parameters)
        assert result.events > 0
        capsys.readouterr()  # only the world that fails is worth reading


def test_the_worlds_differ_and_visit_their_extremes() -> None:
    """Swarm testing is only as good as its draws: each kind of world is among the fixed seeds."""
    devices = [device for seed in range(1, SEEDS + 1) for device in draw(seed).devices]
    settings = [device.settings for device in devices]
    faults = [device.faults for device in devices]
    for what, seen in {
        "one to four devices": {len(draw(seed).devices) for seed in range(1, SEEDS + 1)}
        == {1, 2, 3, 4},
        "every window": {one.window_max for one in settings} == {1, 2, 3, 4},
        "derived bounds": any(one.preemption_delay_ns_max is None for one in settings),
        "tight and wide bounds": _has_both(
            [one.preemption_delay_ns_max or 1_000_000 for one in settings], 200_000, 5_000_000
        ),
        "every slicing": {one.slicing for one in settings} == set(Slicing),
        "sync points that were measured, at once and later": _has_both(
            [device.measured_ns for device in devices if device.sync_costs], 1, 1_000_000
        ),
        "slices of least delay": any(
            device.sync_costs
            and device.settings.preemption_delay_ns_max is None
            and not any(model.slo_ns for model in device.models)
            for device in devices
        ),
        "laxity that must be kept by plan": any(
            device.sync_costs
            and device.settings.preemption_delay_ns_max is None
            and any(model.slo_ns for model in device.models)
            for device in devices
        ),
        "both orders": len({one.order for one in settings}) == 2,
        "a share for best-effort work": any(
            device.settings.best_effort_share_min_ppm for device in devices
        ),
        "one frame only": any(one.frames_max == 1 for one in settings),
        "a high lane": any(device.has_high_lane for device in devices),
        "slow groups": any(one.slow_ppm for one in faults),
        "late notices": any(one.late_ppm for one in faults),
        "failures": any(one.failure_ppm for one in faults),
        "storms": any(one.storms_ns for one in faults),
        "lost devices": any(one.lost_ns is not None for one in faults),
        "devices that are lost twice": any(
            one.lost_ns is not None
            and one.lost_ns + one.restart_ns + (one.lost_again_ns or one.end_ns) < one.end_ns
            for one in faults
        ),
        "devices lost after a drain began": any(
            0 < (one.lost_ns or 0) - drain_ns <= NS_PER_MS
            for one in faults
            for _, drain_ns, _ in one.reloads
        ),
        "reloads": any(one.reloads for one in faults),
        "vanishing clients": any(
            client.vanish_ns is not None for device in devices for client in device.clients
        ),
        "loads while others serve": any(
            0 < model.load_ns < device.faults.end_ns
            for device in devices
            for model in device.models
        ),
        "weights brought in during a loss or a storm": any(
            model.chunk_ns and (device.faults.lost_ns is not None or device.faults.storms_ns)
            for device in devices
            for model in device.models
        ),
        "models without a profile": any(
            not model.profile.group_ns for device in devices for model in device.models
        ),
        "preemption weighed by arrivals": any(
            device.sync_costs and device.settings.weigh_preemption_by_arrivals for device in devices
        ),
        "devices measured twice, for fewer windows": any(
            len(costs) < len(device.sync_costs)
            for device in devices
            for _, costs in device.measured_again
        ),
        "costs of sync points from next to nothing to most of a millisecond": _has_both(
            [cost.sync_ns for device in devices for cost in device.sync_costs], 1_000, 300_000
        ),
        "launches that take longer than groups": any(
            device.launch_cost_ns > max(min(times) for times in model.group_ns.values())
            for device in devices
            for model in device.models
        ),
        "what piles up when groups are launched freely": any(
            device.sync_costs and model.profile.outstanding_ns
            for device in devices
            for model in device.models
        ),
        "everything slower, everything faster": _has_both(
            [ppm for one in faults for _, ppm in one.clocks], PPM // 2, 2 * PPM
        ),
        "loads that run out of memory": any(one.starved for one in faults),
    }.items():
        assert seen, what


def test_models_visit_their_extremes() -> None:
    pairs = [
        (device, model)
        for seed in range(1, SEEDS + 1)
        for device in draw(seed).devices
        for model in device.models
    ]
    dimensions = {len(bucket) for _, model in pairs for bucket in model.group_ns}
    for what, seen in {
        "shapes of one to three dimensions": dimensions == {1, 2, 3},
        "sizes that nobody profiled": any(
            model.profile.group_ns and model.group_ns.keys() - model.profile.group_ns.keys()
            for _, model in pairs
        ),
        "more sizes than are learnt": any(len(model.group_ns) > BUCKETS_MAX for _, model in pairs),
        "an SLO that can't be met": any(
            model.slo_ns is not None and model.slo_ns < min(map(sum, model.group_ns.values()))
            for _, model in pairs
        ),
        "a tight SLO": any(
            model.slo_ns is not None
            and 1.0 < model.slo_ns / max(map(sum, model.group_ns.values())) < 1.3
            for _, model in pairs
        ),
        "no SLO": any(model.slo_ns is None for _, model in pairs),
        "a group longer than the bound": any(
            (device.settings.preemption_delay_ns_max or device.settings.slice_ns_max)
            < max(max(times) for times in model.group_ns.values())
            for device, model in pairs
        ),
        "estimates wrong by a factor": any(
            model.estimates.startswith("wrong") for _, model in pairs
        ),
    }.items():
        assert seen, what


def test_what_is_drawn_happens_too() -> None:
    """Every fate, every reason to wait, every exception: in some that were picked because they show
    much. If one does not any more, look for another among the fixed seeds."""
    fates, blocked, told = set[str](), set[str](), Counter[str]()
    for seed in SEEDS_WITH_MUCH:
        made: list[DeviceScheduler] = []

        def remember(settings: SchedulerSettings, made: list[DeviceScheduler] = made) -> Scheduler:
            made.append(DeviceScheduler(settings))
            return made[-1]

        fates |= run(draw(seed), remember, check=()).fates.keys()
        for statistics in (one.statistics() for one in made):
            blocked |= {reason for reason, count in statistics.blocked if count}
            told["grants"] += statistics.best_effort_grants
            told["rescales"] += statistics.rescales
            told["preemptions"] += statistics.preemptions
    assert fates == {*OutcomeKind}
    assert blocked == {*Blocked}
    assert min(told[name] for name in ("grants", "rescales", "preemptions")) > 0, told


def _has_both(values: list[int], low: int, high: int) -> bool:
    return min(values) < low and max(values) > high
