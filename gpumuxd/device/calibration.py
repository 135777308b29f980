"""What launches and sync points cost on this device, measured before it is ready for models.

A program of small torch kernels is run through a device scheduler and an executor of its own, cut
every k groups with D slices in flight, which is what the baseline `window(k, D)` does with a model.
So a sync point costs here what it costs in serving: to be told, to wake up, `handle`, `poll` and
the next launch. From the time in which the device idled in the runs over a grid of k the costs of
each window D are fitted (`cost_fit.py`): in whole runs a pace that changes by a few percent, as it
does on shared machines, outweighs what a sync point costs. What they cost inside of groups, where
the device waits for the GIL while the loop decides, is not in it: 10 to 20 us each were seen.

It takes a quarter of a second, once per machine: what was measured is kept (`cost_cache.py`), but
for what was measured while others used its cores. Of that the quickest runs are taken, no value is
believed beyond what is plausible, the log warns, and the scheduler is told that what it measures in
serving is better; the next start measures again. A device that can't be measured serves without,
and its scheduler makes do with what it knows.
"""

import os
import platform
import resource
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from gpumuxd.clock import Clock
from gpumuxd.device.calibration_runs import GROUPS, NEVER, CalibrationFailed, Run, Runner
from gpumuxd.device.cost_fit import fit
from gpumuxd.device.log import log
from gpumuxd.domain import SyncCost
from gpumuxd.executors.cpu import CpuExecutor
from gpumuxd.programs.cost_cache import CostCache, DeviceCosts, costs_key
from gpumuxd.programs.profiler import median_ns
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_MS, NS_PER_US

WINDOWS_MAX = 4
"""Slices in flight that costs are told for. Two hide a round trip that is shorter than a slice."""

LENGTHS = (1, 2, 4)
"""Groups in a slice: the grid of Deft, as far as the groups of the program go, and NEVER."""

REPETITIONS_MIN = 3
"""Fewer give no median that is worth keeping."""
REPETITIONS_MAX = 5
TIME_NS_MAX = 250 * NS_PER_MS

PLAUSIBLE_NS_MAX = NS_PER_MS
"""More than a sync point, the rest of a run or a launch costs, beside what the settings add to
each launch: 0.1 ms is usual. What a busy machine shows beyond it is others' work."""

TAKEN_SHARE = 8
"""A machine is busy when a core was taken away at more than each eighth slice. Measured on two
cores: 0.01 to 0.03 times a slice with nobody else there, when a sync point took 120 us with a
window of 1 and 15 us with more; 2.3 times on a busy one, when it took 80 us with any window."""


def device_costs(settings: DeviceSettings, clock: Clock) -> DeviceCosts | None:
    """The costs of this device: stored ones that fit, else measured. None if that failed."""
    key = key_of(settings)
    cache = CostCache(settings.profile_cache_dir) if settings.profile_cache_dir else None
    costs = cache.get(key) if cache is not None else None
    if costs is not None:
        log("debug", "device_costs_known", **_figures(settings, costs))
        return costs
    began_ns = clock()
    try:
        measured = measure(settings, clock)
    except CalibrationFailed as error:
        log("warning", "device_not_measured", device=settings.device, reason=str(error))
        return None
    took_ms = (clock() - began_ns) // NS_PER_MS
    if measured.doubt:
        costs = _plausible(measured.costs, PLAUSIBLE_NS_MAX + settings.launch_cost_ns)
        reason = (
            f"the machine was busy: {measured.doubt}; what serving measures will replace this, and "
            "the next start measures again"
        )
        figures = _figures(settings, costs)
        log("warning", "device_measured", **figures, took_ms=took_ms, reason=reason)
        return costs
    costs = measured.costs
    log("info", "device_measured", **_figures(settings, costs), took_ms=took_ms)
    if cache is not None and not cache.put(key, costs):
        log("warning", "device_costs_not_stored", device=settings.device)
    return costs


def _plausible(costs: DeviceCosts, limit_ns: int) -> DeviceCosts:
    """The least that these can mean: no cost beyond the limit, none that grows with the window."""
    syncs_ns = accumulate((cost.sync_ns for cost in costs.sync_costs), min, initial=limit_ns)
    next(syncs_ns)
    return DeviceCosts(
        tuple(
            SyncCost(cost.window, sync_ns, min(cost.base_ns, limit_ns))
            for cost, sync_ns in zip(costs.sync_costs, syncs_ns, strict=True)
        ),
        min(costs.launch_ns, limit_ns),
        is_firm=False,
    )


def _figures(settings: DeviceSettings, costs: DeviceCosts) -> dict[str, Any]:
    return {
        "device": settings.device,
        "sync_us": [round(cost.sync_ns / NS_PER_US, 1) for cost in costs.sync_costs],
        "base_us": [round(cost.base_ns / NS_PER_US, 1) for cost in costs.sync_costs],
        "launch_us": round(costs.launch_ns / NS_PER_US, 1),
    }


def key_of(settings: DeviceSettings) -> str:
    """Where the costs are stored. What a launch costs is torch's, Python's and the machine's."""
    parts = (
        settings.device,
        settings.threads,
        settings.launch_cost_ns,
        _windows(settings),
        str(torch.__version__),
        platform.python_version(),
        platform.release(),
        platform.machine(),
        _processor(),
        len(os.sched_getaffinity(0)),
    )
    return costs_key(parts)


def _windows(settings: DeviceSettings) -> int:
    return min(settings.scheduler.window_max, WINDOWS_MAX)


def _processor() -> str:
    """The processor's model, "" where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


@dataclass(frozen=True, slots=True)
class Measured:
    """`doubt`: why it is not steady. Empty: there was time for enough repetitions, they agree, and
    nobody was in the way."""

    costs: DeviceCosts
    doubt: str = ""


def measure(settings: DeviceSettings, clock: Clock) -> Measured:
    """Run the program over the grid, again and again until time is up. Raises CalibrationFailed.

    Each repetition goes over the whole grid, so that a machine that changes its pace changes all.
    """
    with closing(
        CpuExecutor(threads=settings.threads, launch_cost_ns=settings.launch_cost_ns)
    ) as executor:
        runner = Runner(executor, clock)
        runner.warm_up()
        began_ns, taken_before = clock(), _times_taken()
        never: list[Run] = []
        free: list[Run] = []
        grid: dict[int, dict[int, list[Run]]] = {
            window: {length: [] for length in LENGTHS}
            for window in range(1, _windows(settings) + 1)
        }
        while len(never) < REPETITIONS_MAX:
            repetition_began_ns = clock()
            never.append(runner.run(NEVER, 1))
            free.append(runner.run(1, GROUPS))
            for window, by_length in grid.items():
                for length, runs in by_length.items():
                    runs.append(runner.run(length, window))
            now_ns = clock()
            if 2 * now_ns - repetition_began_ns - began_ns > TIME_NS_MAX:
                break
        is_alone = _is_alone(settings, len(never), _times_taken() - taken_before)
    by_window = {window: {**each, NEVER: never} for window, each in grid.items()}
    return _concluded(by_window, [run.launching_ns for run in free], is_alone)


def _times_taken() -> int:
    """How often the kernel has taken a core from a thread of ours that was not done with it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _is_alone(settings: DeviceSettings, repetitions: int, times_taken: int) -> bool:
    """Did the loop and the device have cores of their own? Where others keep cores busy the kernel
    puts both on one, and a sync point costs the same in every window: the device stands still
    for it. With enough cores for both, that is not what the device is like."""
    slices = repetitions * (GROUPS + 1 + _windows(settings) * sum(GROUPS // k for k in LENGTHS))
    has_cores = len(os.sched_getaffinity(0)) > settings.threads
    return not has_cores or times_taken * TAKEN_SHARE <= slices


def _concluded(
    runs: Mapping[int, Mapping[int, Sequence[Run]]],
    launching_ns: Sequence[int],
    is_alone: bool,
) -> Measured:
    """What the repetitions say. Where the machine was busy with others, the least of each is
    nearest to how long the device has to idle."""
    doubt = _doubt(runs, len(launching_ns), is_alone)
    typical = min if doubt else median_ns
    costs = fit(
        GROUPS,
        {
            window: {
                length: typical([run.idle_ns for run in each]) for length, each in of_window.items()
            }
            for window, of_window in runs.items()
        },
    )
    return Measured(DeviceCosts(costs, typical(launching_ns) // GROUPS), doubt)


def _doubt(
    runs: Mapping[int, Mapping[int, Sequence[Run]]], repetitions: int, is_alone: bool
) -> str:
    """What says that others were in the way, "" if nothing does."""
    every = [
        [run.run_ns for run in each] for of_window in runs.values() for each in of_window.values()
    ]
    if repetitions < REPETITIONS_MIN:
        return f"there was time for {repetitions} of {REPETITIONS_MIN} repetitions"
    if not is_alone:
        return "others used its cores"
    if sum(map(median_ns, every)) * 2 > sum(map(min, every)) * 3:
        return "the same run took half as long again"
    return ""
