"""Runs that calibration measures: small torch kernels through a scheduler and an executor.

A run is cut every k groups, with D slices in flight, as the baseline `window(k, D)` cuts a model's;
it is turned as the device loop turns, for one request at a time and without mail. It must not know
what is made of the times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpumuxd.clock import Clock
from gpumuxd.commands import Command, Finish, Launch, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import Outcome, OutcomeKind, PriorityClass
from gpumuxd.events import (
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SyncPointReached,
)
from gpumuxd.executors.cpu import CpuExecutor
from gpumuxd.settings import SchedulerSettings, Slicing
from gpumuxd.units import NS_PER_US

GROUPS = 8
GROUP_NS = 300 * NS_PER_US
"""Of each group of the program, about: as long as slices are in serving. A core that sleeps longer
sleeps deeper: with groups of 75 us the round trip took 18 us where slices of 700 us showed 90."""

NEVER = GROUPS + 1
"""Groups in a slice so that there is one slice: the last value of Deft's grid."""

_KEY = "calibration"
_SIDE = 128
_MODEL = ModelReady(
    _KEY,
    ModelProfile(GROUPS, {(): (GROUP_NS,) * GROUPS}, {(): GROUPS * GROUP_NS}),
    PriorityClass.BEST_EFFORT,
)


class CalibrationFailed(Exception):
    """A run of the program did not complete."""


@dataclass(slots=True)
class Run:
    """One run from its arrival to its end, the device's time in it and the host's in launching."""

    run_ns: int = 0
    groups_ns: int = 0
    launching_ns: int = 0
    outcome: Outcome | None = None

    @property
    def idle_ns(self) -> int:
        """How long the device was not in a group."""
        return self.run_ns - self.groups_ns


class Runner:
    """Turns as the device loop does, for one request at a time and without mail."""

    def __init__(self, executor: CpuExecutor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._schedulers: dict[tuple[int, int], DeviceScheduler] = {}
        self._program = Kernels()
        self._request_id = 0
        executor.load(_KEY, self._program)

    def warm_up(self) -> None:
        """Make groups as long as they should be. What is run first is slow in every library."""
        self.run(NEVER, 1)
        kernel_ns = min(self.run(NEVER, 1).groups_ns for _ in range(2)) // GROUPS
        self._program.repeats = min(max(GROUP_NS // max(kernel_ns, 1), 1), 64)
        self.run(1, 2)

    def run(self, length: int, window: int) -> Run:
        """One run, cut every `length` groups, with at most `window` slices in flight."""
        scheduler = self._schedulers.get((length, window))
        if scheduler is None:
            scheduler = self._schedulers[length, window] = self._scheduler(length, window)
        clock, executor = self._clock, self._executor
        self._request_id += 1
        run = Run()
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

    def _poll(self, scheduler: DeviceScheduler, run: Run) -> None:
        now_ns = self._clock()
        for command in scheduler.poll_fates(now_ns):
            self._carry_out(command, run)
        began_ns = self._clock()
        launches = scheduler.poll_launches(now_ns)
        for command in launches:
            self._carry_out(command, run)
        if launches:
            run.launching_ns += self._clock() - began_ns

    def _carry_out(self, command: Command, run: Run) -> None:
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


class Kernels:
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
