"""Measuring a program with requests of the device's own, through the scheduler like any other.

A profile run is a request of kind PROFILE on a program registered under an internal key, so it
yields to tenants at every kernel group and its samples are those of real serving. It must not know
what the figures are for. Invariant: whatever ends a measurement, its program is drained, released
and unloaded afterwards.

The program is a stranger's, so a measurement has a budget: of memory, looked at after each group,
and of device time, in which a slow program is measured less often and in fewer buckets. One kernel
that takes too much is noticed only when it has ended.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import torch

from gpumuxd.clock import Clock
from gpumuxd.commands import Finish
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.steps import Steps, next_turn
from gpumuxd.domain import Bucket, CursorKind, Outcome, OutcomeKind, PriorityClass, Slice
from gpumuxd.errors import GpumuxdError, InvalidModel, OutOfDeviceMemory
from gpumuxd.events import (
    ModelDraining,
    ModelProfile,
    ModelReady,
    RequestArrived,
    RequestCancelled,
    SyncPointReached,
)
from gpumuxd.executors.base import Completion
from gpumuxd.executors.cpu import CpuExecutor, Program
from gpumuxd.units import NS_PER_S

PASSES_NS_MAX = 2 * NS_PER_S
"""Passes over one bucket: when they took longer, no further one begins."""

RUN_NS_MAX = 5 * NS_PER_S
"""A bucket whose run would take longer, judged by the one before, is not measured."""

PROGRAM_NS_MAX = 60 * NS_PER_S
"""All runs of one program; beyond that its model can't be loaded."""


class ProfileFailed(InvalidModel):
    """A profile run did not complete, or the program takes too long to be measured."""


@dataclass(slots=True)
class ProfileRun:
    """One run: the time of each group, and the most bytes its frame held between two of them."""

    request_id: int
    group_ns: list[int] = field(default_factory=list)
    frame_bytes: int = 0
    outcome: Outcome | None = None
    refusal: GpumuxdError | None = None

    @property
    def run_ns(self) -> int:
        return sum(self.group_ns)


@dataclass(slots=True)
class _Budget:
    """What is left to the program that is measured now."""

    time_ns: int
    memory_bytes: int

    def why_over(self, held_bytes: int) -> GpumuxdError | None:
        if self.time_ns < 0:
            return ProfileFailed(
                f"its runs took over {PROGRAM_NS_MAX // NS_PER_S} s before all was measured"
            )
        if held_bytes > self.memory_bytes:
            return OutOfDeviceMemory(
                f"one run holds {held_bytes} bytes and more, {max(self.memory_bytes, 0)} are free"
            )
        return None


class Profiler:
    """Runs one profile request at a time. Its requests have negative ids: the parent's have not."""

    def __init__(
        self,
        scheduler: DeviceScheduler,
        executor: CpuExecutor,
        clock: Clock,
        memory_bytes_max: int,
    ) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._budget = _Budget(0, 0)
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._last_id = 0
        self._run: ProfileRun | None = None
        self._slices: dict[int, Slice] = {}
        self._released: set[str] = set()

    # What the device loop tells

    def launched(self, work: Slice) -> None:
        """A slice of a profile run was launched."""
        assert work.end_group - work.first_group == 1, "a profile run measures group by group"
        self._slices[work.slice_id] = work

    def passed(self, completion: Completion) -> None:
        """Any slice has passed or failed; those of profile runs are samples."""
        work = self._slices.pop(completion.slice_id, None)
        if work is None:
            return
        run = self._run
        assert run is not None, work
        assert work.members == (run.request_id,), work
        if isinstance(completion, SyncPointReached):
            run.group_ns.append(completion.device_ns)
            self._budget.time_ns -= completion.device_ns
            held_bytes = 0
            if not self._slices:
                held_bytes = self._executor.bytes_held(work.cursor_id)
                run.frame_bytes = max(run.frame_bytes, held_bytes)
            if run.refusal is None and (refusal := self._budget.why_over(held_bytes)):
                run.refusal = refusal
                self.cancel()

    def finished(self, command: Finish) -> None:
        """The profile request ended."""
        assert self._run is not None, command
        assert self._run.request_id == command.request_id, command
        self._run.outcome = command.outcome

    def released(self, key: str) -> None:
        """Nothing of an internal key is in flight any more."""
        self._released.add(key)

    # What loading asks

    def cancel(self) -> None:
        """End the run that goes on, if any: its measurement raises ProfileFailed."""
        if self._run is not None:
            self._scheduler.handle(RequestCancelled(self._run.request_id), self._clock())

    def measure(
        self,
        key: str,
        program: Program,
        weights_bytes: int,
        buckets: Sequence[Bucket],
        example_inputs: Callable[[Bucket], Sequence[torch.Tensor]],
        passes: int,
    ) -> Steps[dict[Bucket, list[ProfileRun]]]:
        """Run a program up to `passes` times for each bucket, and at least once for the first.

        Buckets grow; the large ones of a slow program are left out. Raises ProfileFailed, or
        OutOfDeviceMemory when a run needs more than is free.
        """
        self._executor.load(key, program)
        ready = ModelReady(
            key,
            ModelProfile(program.group_count),
            PriorityClass.BEST_EFFORT,
            weights_bytes=weights_bytes,
        )
        self._scheduler.handle(ready, self._clock())
        self._budget = _Budget(PROGRAM_NS_MAX, self._free_bytes())
        try:
            runs: dict[Bucket, list[ProfileRun]] = {}
            for bucket in _affordable(buckets, runs):
                inputs = example_inputs(bucket)
                yield next_turn
                runs[bucket] = []
                while len(runs[bucket]) < passes and _total_ns(runs[bucket]) <= PASSES_NS_MAX:
                    runs[bucket].append((yield from self._run_once(key, bucket, inputs)))
            return runs
        finally:
            self._scheduler.handle(ModelDraining(key), self._clock())
            yield lambda: key in self._released
            self._released.remove(key)
            self._executor.unload(key)

    def _run_once(
        self, key: str, bucket: Bucket, inputs: Sequence[torch.Tensor]
    ) -> Steps[ProfileRun]:
        self._last_id -= 1
        run = self._run = ProfileRun(self._last_id)
        self._executor.bind(run.request_id, inputs, ())
        arrived = RequestArrived(
            request_id=run.request_id,
            tenant="",
            model=key,
            priority_class=PriorityClass.BEST_EFFORT,
            bucket=bucket,
            arrived_ns=self._clock(),
            kind=CursorKind.PROFILE,
        )
        self._scheduler.handle(arrived, self._clock())
        yield lambda: run.outcome is not None
        self._run = None
        self._executor.unbind(run.request_id)
        assert run.outcome is not None
        if run.refusal is not None:
            raise run.refusal
        if run.outcome.kind is not OutcomeKind.COMPLETED:
            raise ProfileFailed(f"a run at sizes {list(bucket)} failed: {run.outcome.reason}")
        return run

    def _free_bytes(self) -> int:
        """What a frame may take beside the weights that are there, its model's among them."""
        return self._memory_bytes_max - self._scheduler.statistics().memory_bytes


def is_affordable(bucket: Bucket, known: Bucket, known_ns: int) -> bool:
    """Should a run in this bucket stay within RUN_NS_MAX, judged by one in a known bucket?"""
    return known_ns * prod(bucket) <= RUN_NS_MAX * max(prod(known), 1)


def _affordable(
    buckets: Sequence[Bucket], runs: Mapping[Bucket, Sequence[ProfileRun]]
) -> Iterator[Bucket]:
    """The first bucket, then each that the one before, which `runs` holds by then, allows."""
    yield buckets[0]
    for before, bucket in pairwise(buckets):
        if not is_affordable(bucket, before, min(run.run_ns for run in runs[before])):
            return
        yield bucket


def _total_ns(runs: Sequence[ProfileRun]) -> int:
    return sum(run.run_ns for run in runs)
