"""Measuring a program with requests of the device's own (`own_runs.py`), of kind PROFILE.

A profile run yields to tenants at every kernel group, and its samples are those of real serving. It
must not know what the figures are for.

The program is a stranger's, so a measurement has limits. One run after the other, smaller buckets
first, and each bucket is judged by the one before:

- of time: a slow program is measured less often and in fewer buckets;
- of what REALTIME tenants were promised: a bucket in which one group would be longer than their
  bound is left out, because nothing preempts a group. The smallest one is always run, since a model
  can't be served unmeasured;
- of memory, looked at after each group.

One kernel that takes too much is noticed only when it has ended.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch

from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.own_runs import OwnRun, OwnRuns, RunFailed
from gpumuxd.device.steps import Steps, next_turn
from gpumuxd.domain import Bucket, CursorKind, PriorityClass
from gpumuxd.errors import GpumuxdError, InvalidModel, OutOfDeviceMemory
from gpumuxd.executors.cpu import Program
from gpumuxd.programs.profiler import position_ns
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
class _Budget:
    """What is left to the program that is measured now."""

    time_ns: int
    memory_bytes: int

    def why_over(self, run: OwnRun, held_bytes: int) -> GpumuxdError | None:
        self.time_ns -= run.group_ns[-1]
        if self.time_ns < 0:
            return ProfileFailed(
                f"its runs took over {PROGRAM_NS_MAX // NS_PER_S} s before all was measured"
            )
        if held_bytes > self.memory_bytes:
            return OutOfDeviceMemory(
                f"one run holds {held_bytes} bytes and more, {self.memory_bytes} are free"
            )
        return None


Runs = Mapping[Bucket, Sequence[OwnRun]]


class Profiler:
    """Runs programs in several buckets, several times, and tells what each group took."""

    def __init__(self, own: OwnRuns, scheduler: DeviceScheduler) -> None:
        self._own = own
        self._scheduler = scheduler

    def measure(
        self,
        key: str,
        tenant: str,
        program: Program,
        weights_bytes: int,
        buckets: Sequence[Bucket],
        example_inputs: Callable[[Bucket], Steps[list[torch.Tensor]]],
        passes: Callable[[Bucket], int],
    ) -> Steps[dict[Bucket, list[OwnRun]]]:
        """Run a program up to `passes(bucket)` times in each, and at least once in the first.

        Buckets grow; those beyond the limits are left out. Raises RunFailed, or OutOfDeviceMemory
        when a run needs more than is free.
        """
        body = self._passes(key, tenant, buckets, example_inputs, passes)
        return (yield from self._own.use(key, tenant, program, weights_bytes, body))

    def _passes(
        self,
        key: str,
        tenant: str,
        buckets: Sequence[Bucket],
        example_inputs: Callable[[Bucket], Steps[list[torch.Tensor]]],
        passes: Callable[[Bucket], int],
    ) -> Steps[dict[Bucket, list[OwnRun]]]:
        budget = _Budget(PROGRAM_NS_MAX, self._scheduler.free_bytes(tenant))
        runs: dict[Bucket, list[OwnRun]] = {}
        for bucket in self._allowed(buckets, runs):
            inputs = yield from example_inputs(bucket)
            yield next_turn
            runs[bucket] = []
            while len(runs[bucket]) < passes(bucket) and _total_ns(runs[bucket]) <= PASSES_NS_MAX:
                runs[bucket].append((yield from self._run(key, bucket, inputs, budget)))
        return runs

    def _run(
        self, key: str, bucket: Bucket, inputs: Sequence[torch.Tensor], budget: _Budget
    ) -> Steps[OwnRun]:
        kind = CursorKind.PROFILE
        try:
            return (yield from self._own.run(kind, key, bucket, inputs, budget.why_over))
        except RunFailed as error:
            reason = f"a run at sizes {list(bucket)} failed: {error.message}"
            raise ProfileFailed(reason) from error

    def is_allowed(self, bucket: Bucket, known: Bucket, runs: Sequence[OwnRun]) -> bool:
        """Does a run in this bucket keep the limits, judged by those in a known one?"""
        known_ns = min(run.run_ns for run in runs)
        if not is_affordable(bucket, known, known_ns):
            return False
        bound_ns = self._scheduler.bound_ns(PriorityClass.REALTIME)
        return bound_ns is None or longest_group_ns(bucket, known, runs) <= bound_ns

    def _allowed(self, buckets: Sequence[Bucket], runs: Runs) -> Iterator[Bucket]:
        """The first bucket, then each that the one before, which `runs` holds by then, allows."""
        yield buckets[0]
        for before, bucket in pairwise(buckets):
            if not self.is_allowed(bucket, before, runs[before]):
                return
            yield bucket


def is_affordable(bucket: Bucket, known: Bucket, known_ns: int) -> bool:
    """Should a run in this bucket stay within RUN_NS_MAX, judged by one in a known bucket?"""
    return known_ns * prod(bucket) <= RUN_NS_MAX * max(prod(known), 1)


def longest_group_ns(bucket: Bucket, known: Bucket, runs: Sequence[OwnRun]) -> int:
    """What the longest group should take in its first run in this bucket, judged by those in a
    known one: time grows with the sizes, and what the first run took beyond the others, for kernels
    that a library makes ready then, comes again."""
    size, known_size = prod(bucket), max(prod(known), 1)
    steady = position_ns([run.group_ns for run in runs[1:] or runs])
    return max(
        usual_ns * size // known_size + max(first_ns - usual_ns, 0)
        for first_ns, usual_ns in zip(runs[0].group_ns, steady, strict=True)
    )


def _total_ns(runs: Sequence[OwnRun]) -> int:
    return sum(run.run_ns for run in runs)
