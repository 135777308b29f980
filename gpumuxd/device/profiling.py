"""Measuring a program with requests of the device's own, through the scheduler like any other.

A profile run is a request of kind PROFILE on a program registered under an internal key, so it
yields to tenants at every kernel group and its samples are those of real serving. It must not know
what the figures are for. Invariant: whatever ends a measurement, its program is drained, released
and unloaded afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from gpumuxd.clock import Clock
from gpumuxd.commands import Finish
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.steps import Steps, next_turn
from gpumuxd.domain import Bucket, CursorKind, Outcome, OutcomeKind, PriorityClass, Slice
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


class ProfileFailed(Exception):
    """A profile run did not complete."""


@dataclass(slots=True)
class ProfileRun:
    """One run: the time of each group, and the most bytes its frame held between two of them."""

    request_id: int
    group_ns: list[int] = field(default_factory=list)
    frame_bytes: int = 0
    outcome: Outcome | None = None


class Profiler:
    """Runs one profile request at a time. Its requests have negative ids: the parent's have not."""

    def __init__(self, scheduler: DeviceScheduler, executor: CpuExecutor, clock: Clock) -> None:
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
            if not self._slices:
                run.frame_bytes = max(run.frame_bytes, self._executor.bytes_held(work.cursor_id))

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
        """Run a program `passes` times for each bucket. Raises ProfileFailed."""
        self._executor.load(key, program)
        ready = ModelReady(
            key,
            ModelProfile(program.group_count),
            PriorityClass.BEST_EFFORT,
            weights_bytes=weights_bytes,
        )
        self._scheduler.handle(ready, self._clock())
        try:
            runs: dict[Bucket, list[ProfileRun]] = {}
            for bucket in buckets:
                inputs = example_inputs(bucket)
                yield next_turn
                runs[bucket] = []
                for _ in range(passes):
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
        if run.outcome.kind is not OutcomeKind.COMPLETED:
            raise ProfileFailed(f"at sizes {list(bucket)}: {run.outcome.reason}")
        return run
