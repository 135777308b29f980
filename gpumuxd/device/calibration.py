"""What launches and sync points cost on this device, measured before it is ready for models.

A program of small torch kernels is run through a device scheduler and an executor of its own, cut
every k groups with D slices in flight, which is what the baseline `window(k, D)` does with a model.
So a sync point costs here what it costs in serving: to be told, to wake up, `handle`, `poll` and
the next launch. From the runs over a grid of k the costs of each window D are fitted
(`cost_fit.py`).

It takes some tenths of a second, once per machine: what was measured is kept (`cost_cache.py`). A
device that can't be measured serves without, and its scheduler makes do with what it knows.
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpumuxd.clock import Clock
from gpumuxd.commands import Command, Finish, Launch, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.cost_fit import fit
from gpumuxd.device.log import log
from gpumuxd.domain import Outcome, OutcomeKind, PriorityClass
from gpumuxd.events import (
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SyncPointReached,
)
from gpumuxd.executors.cpu import CpuExecutor
from gpumuxd.programs.cost_cache import CostCache, DeviceCosts, costs_key
from gpumuxd.programs.profiler import median_ns
from gpumuxd.settings import DeviceSettings, SchedulerSettings, Slicing
from gpumuxd.units import NS_PER_MS, NS_PER_US

WINDOWS_MAX = 4
"""Slices in flight that costs are told for. Two hide a round trip that is shorter than a slice."""

GROUPS = 16
GROUP_NS = 100 * NS_PER_US
"""Of each group of the program, about: long enough that two in flight hide a round trip, as the
groups of models do, and short, so that the sync points are a good part of a run."""

NEVER = GROUPS + 1
LENGTHS = (1, 2, 4, 8)
"""Groups in a slice: the grid of Deft, as far as these groups go. NEVER is its last value."""

REPETITIONS_MIN = 3
"""Fewer give no median that is worth keeping."""
REPETITIONS_MAX = 5
TIME_NS_MAX = 250 * NS_PER_MS

_KEY = "calibration"
_SIDE = 128
_MODEL = ModelReady(
    _KEY,
    ModelProfile(GROUPS, {(): (GROUP_NS,) * GROUPS}, {(): GROUPS * GROUP_NS}),
    PriorityClass.BEST_EFFORT,
)


class CalibrationFailed(Exception):
    """A run of the program did not complete."""


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
    costs = measured.costs
    took_ms = (clock() - began_ns) // NS_PER_MS
    log("info", "device_measured", **_figures(settings, costs), took_ms=took_ms)
    if cache is not None and measured.is_steady and not cache.put(key, costs):
        log("warning", "device_costs_not_stored", device=settings.device)
    return costs


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
    """`is_steady`: there was time for enough repetitions, and they agree."""

    costs: DeviceCosts
    is_steady: bool


def measure(settings: DeviceSettings, clock: Clock) -> Measured:
    """Run the program over the grid, again and again until time is up. Raises CalibrationFailed.

    Each repetition goes over the whole grid, so that a machine that changes its pace changes all.
    """
    with closing(
        CpuExecutor(threads=settings.threads, launch_cost_ns=settings.launch_cost_ns)
    ) as executor:
        runner = _Runner(executor, clock)
        runner.warm_up()
        began_ns = clock()
        never: list[_Run] = []
        free: list[_Run] = []
        grid: dict[int, dict[int, list[int]]] = {
            window: {length: [] for length in LENGTHS}
            for window in range(1, _windows(settings) + 1)
        }
        while len(never) < REPETITIONS_MAX:
            repetition_began_ns = clock()
            never.append(runner.run(NEVER, 1))
            free.append(runner.run(1, GROUPS))
            for window, runs in grid.items():
                for length, times in runs.items():
                    times.append(runner.run(length, window).run_ns)
            now_ns = clock()
            if 2 * now_ns - repetition_began_ns - began_ns > TIME_NS_MAX:
                break
    whole_ns = [run.run_ns for run in never]
    by_window = {window: {**each, NEVER: whole_ns} for window, each in grid.items()}
    return _concluded(
        by_window, [run.groups_ns for run in never], [run.launching_ns for run in free]
    )


def _concluded(
    runs: Mapping[int, Mapping[int, Sequence[int]]],
    groups_ns: Sequence[int],
    launching_ns: Sequence[int],
) -> Measured:
    """What the repetitions say. Where they do not agree the machine was busy with others, and the
    quickest of each is nearest to what a run takes."""
    every = [times for of_window in runs.values() for times in of_window.values()]
    agree = sum(map(median_ns, every)) * 2 <= sum(map(min, every)) * 3
    is_steady = agree and len(groups_ns) >= REPETITIONS_MIN
    typical = median_ns if is_steady else min
    costs = fit(
        GROUPS,
        typical(groups_ns),
        {
            window: {length: typical(times) for length, times in of_window.items()}
            for window, of_window in runs.items()
        },
    )
    return Measured(DeviceCosts(costs, typical(launching_ns) // GROUPS), is_steady)


@dataclass(slots=True)
class _Run:
    """One run from its arrival to its end, the device's time in it and the host's in launching."""

    run_ns: int = 0
    groups_ns: int = 0
    launching_ns: int = 0
    outcome: Outcome | None = None


class _Runner:
    """Turns as the device loop does, for one request at a time and without mail."""

    def __init__(self, executor: CpuExecutor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._schedulers: dict[tuple[int, int], DeviceScheduler] = {}
        self._program = _Kernels()
        self._request_id = 0
        executor.load(_KEY, self._program)

    def warm_up(self) -> None:
        """Make groups as long as they should be. What is run first is slow in every library."""
        self.run(NEVER, 1)
        kernel_ns = min(self.run(NEVER, 1).groups_ns for _ in range(2)) // GROUPS
        self._program.repeats = min(max(GROUP_NS // max(kernel_ns, 1), 1), 64)
        self.run(1, 2)

    def run(self, length: int, window: int) -> _Run:
        """One run, cut every `length` groups, with at most `window` slices in flight."""
        scheduler = self._schedulers.get((length, window))
        if scheduler is None:
            scheduler = self._schedulers[length, window] = self._scheduler(length, window)
        clock, executor = self._clock, self._executor
        self._request_id += 1
        run = _Run()
        began_ns = now_ns = clock()
        executor.bind(self._request_id, (), ())
        scheduler.handle(_request(self._request_id, now_ns), now_ns)
        self._poll(scheduler, run)
        while run.outcome is None:
            completions = executor.wait(scheduler.next_wakeup_ns())
            now_ns = clock()
            for completion in completions:
                if isinstance(completion, SyncPointReached):
                    run.groups_ns += completion.device_ns
                scheduler.handle(completion, now_ns)
            self._poll(scheduler, run)
        run.run_ns = clock() - began_ns
        if run.outcome.kind is not OutcomeKind.COMPLETED:
            raise CalibrationFailed(run.outcome.reason)
        return run

    def _scheduler(self, length: int, window: int) -> DeviceScheduler:
        settings = SchedulerSettings(
            slicing=Slicing.WINDOW,
            slicing_operators=length,
            slicing_window=window,
            window_max=window,
        )
        scheduler = DeviceScheduler(settings)
        now_ns = self._clock()
        scheduler.handle(PartitionChanged(0, tuple(self._executor.lanes)), now_ns)
        scheduler.handle(_MODEL, now_ns)
        return scheduler

    def _poll(self, scheduler: DeviceScheduler, run: _Run) -> None:
        now_ns = self._clock()
        for command in scheduler.poll_fates(now_ns):
            self._carry_out(command, run)
        began_ns = self._clock()
        launches = scheduler.poll_launches(now_ns)
        for command in launches:
            self._carry_out(command, run)
        if launches:
            run.launching_ns += self._clock() - began_ns

    def _carry_out(self, command: Command, run: _Run) -> None:
        match command:
            case Launch(slice=work):
                self._executor.launch(work)
            case Finish(request_id=request_id, outcome=outcome):
                self._executor.unbind(request_id)
                run.outcome = outcome
            case Retire(cursor_id=cursor_id):
                self._executor.retire(cursor_id)
            case _:
                pass


def _request(request_id: int, now_ns: int) -> RequestArrived:
    return RequestArrived(request_id, "", _KEY, PriorityClass.BEST_EFFORT, (), now_ns)


class _Kernels:
    """A program whose groups are the same small product of matrices, `repeats` times each."""

    def __init__(self) -> None:
        self.repeats = 1
        left, right = torch.full((2, _SIDE, _SIDE), 1 / _SIDE)
        product = torch.empty(_SIDE, _SIDE)

        def group(slots: list[Any]) -> None:
            for _ in range(self.repeats):
                torch.mm(left, right, out=product)

        self.groups: Sequence[Callable[[list[Any]], None]] = [group] * GROUPS

    @property
    def group_count(self) -> int:
        return GROUPS

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return list(inputs)

    def outputs(self, slots: list[Any]) -> list[torch.Tensor]:
        return []

    def bytes_held(self, slots: list[Any]) -> int:
        return 0
