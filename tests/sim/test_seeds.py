"""Two hundred worlds, each with all eleven invariants checked after every step.

More: `make sim SEED=1000 SEEDS=5000`. A seed that fails here for a reason worth keeping goes to
`test_regressions.py`, with a sentence.
"""

import pytest

from gpumuxd.settings import Slicing
from gpumuxd.testing.runner import run
from gpumuxd.testing.swarm import draw

SEEDS = 200
SEEDS_PER_TEST = 20


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
    }.items():
        assert seen, what


def _has_both(values: list[int], low: int, high: int) -> bool:
    return min(values) < low and max(values) > high
