"""Requests of the device itself: profile runs and uploads, one at a time, as steps.

They go through the scheduler like any other request, so they yield to tenants at every kernel
group, and they have negative ids: the parent's have not. It must not know what a run is for.
Invariants: whatever ends a use of a program, the program is drained, released and unloaded
afterwards; nothing of a run is bound after its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from gpumuxd.clock import Clock
from gpumuxd.commands import Finish
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.steps import Steps
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

T = TypeVar("T")


class RunFailed(InvalidModel):
    """A run of the device's own did not complete."""


@dataclass(slots=True)
class OwnRun:
    """One run: the time of each group, the most bytes its frame held between two of them, and the
    outputs, if there was room for them."""

    request_id: int
    group_ns: list[int] = field(default_factory=list)
    frame_bytes: int = 0
    results: Sequence[torch.Tensor] = ()
    outcome: Outcome | None = None
    refusal: GpumuxdError | None = None

    @property
    def run_ns(self) -> int:
        return sum(self.group_ns)


WhyStop = Callable[[OwnRun, int], GpumuxdError | None]
"""Asked after each group, with the bytes that the frame holds: why the run must not go on."""


class OwnRuns:
    """The one run that goes on, if any, and the slices of it."""

    def __init__(self, scheduler: DeviceScheduler, executor: CpuExecutor, clock: Clock) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._last_id = 0
        self._run: OwnRun | None = None
        self._why_stop: WhyStop | None = None
        self._slices: dict[int, Slice] = {}
        self._released: set[str] = set()

    @property
    def is_running(self) -> bool:
        """True from the beginning of a run until its steps go on."""
        return self._run is not None

    # What the device loop tells

    def launched(self, work: Slice) -> None:
        """A slice of an own run was launched."""
        assert work.end_group - work.first_group == 1, "an own run goes group by group"
        self._slices[work.slice_id] = work

    def passed(self, completion: Completion) -> None:
        """Any slice has passed or failed; those of own runs are noted."""
        work = self._slices.pop(completion.slice_id, None)
        if work is None:
            return
        run = self._run
        assert run is not None, work
        assert work.members == (run.request_id,), work
        if not isinstance(completion, SyncPointReached):
            return
        run.group_ns.append(completion.device_ns)
        held_bytes = 0
        if not self._slices:
            held_bytes = self._executor.bytes_held(work.cursor_id)
            run.frame_bytes = max(run.frame_bytes, held_bytes)
        if self._why_stop is not None and run.refusal is None:
            run.refusal = self._why_stop(run, held_bytes)
            if run.refusal is not None:
                self.cancel()

    def finished(self, command: Finish) -> None:
        """The request of a run ended."""
        assert self._run is not None, command
        assert self._run.request_id == command.request_id, command
        self._run.outcome = command.outcome

    def released(self, key: str) -> None:
        """Nothing of an internal key is in flight any more."""
        self._released.add(key)

    # What loading asks

    def cancel(self) -> None:
        """End the run that goes on, if any, at its next sync point: its steps raise."""
        if self._run is not None:
            self._scheduler.handle(RequestCancelled(self._run.request_id), self._clock())

    def use(
        self, key: str, tenant: str, program: Program, weights_bytes: int, body: Steps[T]
    ) -> Steps[T]:
        """Take the steps of `body`, in which the program can be run under this key."""
        self._executor.load(key, program)
        ready = ModelReady(
            key,
            ModelProfile(program.group_count),
            PriorityClass.BEST_EFFORT,
            weights_bytes=weights_bytes,
            tenant=tenant,
        )
        self._scheduler.handle(ready, self._clock())
        try:
            return (yield from body)
        finally:
            self._scheduler.handle(ModelDraining(key), self._clock())
            yield lambda: key in self._released
            self._released.remove(key)
            self._executor.unload(key)

    def run(
        self,
        kind: CursorKind,
        key: str,
        bucket: Bucket,
        inputs: Sequence[torch.Tensor],
        why_stop: WhyStop | None = None,
        outputs: Sequence[torch.Tensor] = (),
    ) -> Steps[OwnRun]:
        """Run a program once. Raises what `why_stop` returned, RunFailed or OutOfDeviceMemory."""
        self._last_id -= 1
        run = self._run = OwnRun(self._last_id)
        self._why_stop = why_stop
        self._executor.bind(run.request_id, inputs, outputs)
        arrived = RequestArrived(
            request_id=run.request_id,
            tenant="",
            model=key,
            priority_class=PriorityClass.BEST_EFFORT,
            bucket=bucket,
            arrived_ns=self._clock(),
            kind=kind,
        )
        self._scheduler.handle(arrived, self._clock())
        yield lambda: run.outcome is not None
        self._run = None
        if outputs:
            _, run.results = self._executor.result(run.request_id)
        self._executor.unbind(run.request_id)
        assert run.outcome is not None
        if run.refusal is not None:
            raise run.refusal
        match run.outcome.kind:
            case OutcomeKind.COMPLETED:
                return run
            case OutcomeKind.OUT_OF_DEVICE_MEMORY:
                raise OutOfDeviceMemory(run.outcome.reason)
            case _:
                raise RunFailed(run.outcome.reason)
