"""Models from LoadModel to ModelReleased: open, measure, cut, measure again, serve, let go.

One load goes on at a time, in short steps between turns of the device loop; what is long, making
code of a plan, is done on a thread of its own (`steps.build`). It must not know order or slices.
Invariants: every LoadModel is answered by exactly one of ModelLoaded, ModelFailed and ModelReleased
(unloaded before it was ready); a load that fails or is cancelled leaves nothing behind; maps of a
model are closed when it was released, not before.

    queued --> loading --> serving --> draining --> gone
                  |  failed, cancelled                ^
                  +-----------------------------------+
"""

import gc
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from gpumuxd.clock import Clock
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.log import log
from gpumuxd.device.profiling import PASSES_NS_MAX, Profiler, ProfileRun, is_affordable
from gpumuxd.device.steps import Condition, Steps, build, next_turn
from gpumuxd.domain import Bucket
from gpumuxd.errors import GpumuxdError, OutOfDeviceMemory
from gpumuxd.events import ModelDraining, ModelProfile, ModelReady
from gpumuxd.executors.cpu import CpuExecutor, short_reason
from gpumuxd.models.spec import evaluate_shape, tensor_bytes
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.profile_cache import ProfileCache, StoredProfile, profile_key
from gpumuxd.programs.profiler import cuts_from_passes, profile_from_passes
from gpumuxd.programs.program import Program
from gpumuxd.settings import DeviceSettings
from gpumuxd.wire.frames import (
    Frame,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelReleased,
    UnloadModel,
)
from gpumuxd.wire.process import map_sealed

_T = TypeVar("_T")

INTERNAL_MARK = "@"
"""In the key of a program that is only measured; no model name may contain it."""

REASON_CHARACTERS_MAX = 2000
"""A reason travels in one frame and ends in an error message."""


class LoadCancelled(Exception):
    """The model was unloaded, or the device stopped, before it was ready."""


@dataclass(slots=True)
class _Model:
    """One model that was asked for, whatever its state."""

    frame: LoadModel
    plan: bytes
    weights: mmap.mmap | bytearray
    served: ServedModel | None = None
    is_cancelled: bool = False
    is_draining: bool = False


class Loading:
    """All models of one device child."""

    def __init__(
        self,
        scheduler: DeviceScheduler,
        executor: CpuExecutor,
        post: Callable[[Frame], None],
        settings: DeviceSettings,
        clock: Clock,
    ) -> None:
        self.profiler = Profiler(scheduler, executor, clock, settings.scheduler.memory_bytes_max)
        self._scheduler = scheduler
        self._executor = executor
        self._post = post
        self._settings = settings
        self._clock = clock
        self._cache = (
            ProfileCache(settings.profile_cache_dir) if settings.profile_cache_dir else None
        )
        self._models: dict[str, _Model] = {}
        self._queue: deque[_Model] = deque()
        self._active: tuple[_Model, Steps[None]] | None = None
        self._condition: Condition = next_turn

    @property
    def is_empty(self) -> bool:
        """True when nothing is loaded, being loaded or leaving."""
        return not self._models

    @property
    def is_runnable(self) -> bool:
        """True when `advance` has something to do now."""
        return self._condition() if self._active is not None else bool(self._queue)

    # What the parent asks

    def handle_load(self, frame: LoadModel, fds: Sequence[int]) -> None:
        """Begin a load. Takes the descriptors and closes them."""
        assert frame.model not in self._models, f"{frame.model} is loaded already"
        assert INTERNAL_MARK not in frame.model, frame.model
        try:
            plan_fd, weights_fd = fds
            model = _Model(frame, _read(plan_fd), _map(weights_fd))
        except Exception as error:
            self._post(ModelFailed(frame.model, short_reason(error)))
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._models[frame.model] = model
        self._queue.append(model)

    def handle_unload(self, frame: UnloadModel) -> None:
        """Drain a model; one that nobody knows is gone already."""
        model = self._models.get(frame.model)
        if model is None:
            self._post(ModelReleased(frame.model))
        else:
            self._let_go(model)

    def handle_stop(self) -> None:
        """Drain all models."""
        for model in list(self._models.values()):
            self._let_go(model)

    # What the scheduler says

    def released(self, key: str) -> None:
        """The last request of a draining program ended."""
        if INTERNAL_MARK in key:
            self.profiler.released(key)
            return
        self._executor.unload(key)
        self._forget(self._models[key])
        self._post(ModelReleased(key))

    # The work itself

    def advance(self) -> None:
        """Do one step of the load that goes on, or begin the next. A few milliseconds."""
        if self._active is None:
            if not self._queue:
                return
            model = self._queue.popleft()
            self._active = (model, self._load(model))
            self._condition = next_turn
        if not self._condition():
            return
        model, steps = self._active
        try:
            self._condition = next(steps)
            return
        except StopIteration:
            failed = None
        except Exception as error:
            # The error's traceback would keep the model's tensors, so only words of it remain.
            reason = error.message if isinstance(error, GpumuxdError) else short_reason(error)
            failed = ModelFailed(
                model.frame.model,
                reason[:REASON_CHARACTERS_MAX],
                isinstance(error, OutOfDeviceMemory),
            )
        self._active = None
        if failed is not None:
            self._fail(model, failed)

    def _load(self, model: _Model) -> Steps[None]:
        _check_wanted(model)
        self._check_memory(model)
        served = yield from self._build(
            lambda: ServedModel.open(model.plan, memoryview(model.weights))
        )
        model.served, model.plan = served, b""
        _check_wanted(model)
        buckets = served.profile_buckets(self._settings.profile_batch_max)
        key = self._profile_key(model, buckets)
        profile = self._cache.get(key) if self._cache is not None else None
        was_cached = profile is not None
        if profile is None:
            cuts = yield from self._cut(model, served, buckets)
            program = yield from self._build(lambda: served.grouped_program(cuts))
            profile = yield from self._profile(model, served, program, cuts, buckets)
            if self._cache is not None and not self._cache.put(key, profile):
                log("warning", "profile_not_stored", model=model.frame.model)
        else:
            cuts = list(profile.cuts)
            program = yield from self._build(lambda: served.grouped_program(cuts))
            # One pass in each bucket, so that nobody's request is the first at its shape.
            known = [bucket for bucket in buckets if bucket in profile.run_ns]
            yield from self._measure(model, served, "warm", program, known or buckets[:1], 1)
        _check_wanted(model)
        self._serve(model, served, program, profile, was_cached)

    def _build(self, make: Callable[[], _T]) -> Steps[_T]:
        return build(make, self._executor.wake)

    def _cut(
        self, model: _Model, served: ServedModel, buckets: Sequence[Bucket]
    ) -> Steps[list[int]]:
        """Where the groups end: by the node times of the largest bucket, where they matter.

        The smallest one first, once: it says how large a bucket may be to be run at all.
        """
        program = yield from self._build(served.node_program)
        passes = self._settings.profile_passes
        bucket = buckets[0]
        runs = yield from self._measure(model, served, "nodes", program, [bucket], 1)
        run_ns = runs[bucket][0].run_ns
        if run_ns <= PASSES_NS_MAX:
            bucket = [each for each in buckets if is_affordable(each, bucket, run_ns)][-1]
            runs = yield from self._measure(model, served, "nodes", program, [bucket], passes + 1)
        return cuts_from_passes(_passes(runs[bucket]), self._settings.group_target_ns)

    def _profile(
        self,
        model: _Model,
        served: ServedModel,
        program: Program,
        cuts: Sequence[int],
        buckets: Sequence[Bucket],
    ) -> Steps[StoredProfile]:
        passes = self._settings.profile_passes
        runs = yield from self._measure(model, served, "groups", program, buckets, passes + 1)
        return profile_from_passes(
            cuts,
            {bucket: _passes(passes) for bucket, passes in runs.items()},
            max(run.frame_bytes for passes in runs.values() for run in passes),
        )

    def _measure(
        self,
        model: _Model,
        served: ServedModel,
        purpose: str,
        program: Program,
        buckets: Sequence[Bucket],
        passes: int,
    ) -> Steps[dict[Bucket, list[ProfileRun]]]:
        _check_wanted(model)
        return (
            yield from self.profiler.measure(
                f"{model.frame.model}{INTERNAL_MARK}{purpose}",
                program,
                served.weights_bytes,
                buckets,
                lambda bucket: self._example_inputs(served, bucket),
                passes,
            )
        )

    def _serve(
        self,
        model: _Model,
        served: ServedModel,
        program: Program,
        profile: StoredProfile,
        was_cached: bool,
    ) -> None:
        frame = model.frame
        self._executor.load(frame.model, program)
        ready = ModelReady(
            model=frame.model,
            profile=ModelProfile(program.group_count, profile.group_ns, profile.run_ns),
            class_max=frame.class_max,
            slo_ns=frame.slo_ns,
            weights_bytes=served.weights_bytes,
            frame_bytes=profile.frame_bytes,
        )
        self._scheduler.handle(ready, self._clock())
        loaded = ModelLoaded(
            model=frame.model,
            group_count=program.group_count,
            longest_group_ns=max(max(times) for times in profile.group_ns.values()),
            run_ns=tuple(sorted(profile.run_ns.items())),
            weights_bytes=served.weights_bytes,
            frame_bytes=profile.frame_bytes,
            profile_was_cached=was_cached,
        )
        self._post(loaded)
        log("debug", "program_ready", key=frame.model, groups=program.group_count)

    def _check_memory(self, model: _Model) -> None:
        used = self._scheduler.statistics().memory_bytes
        limit = self._settings.scheduler.memory_bytes_max
        if used + len(model.weights) > limit:
            raise OutOfDeviceMemory(
                f"weights of {len(model.weights)} bytes do not fit: {used} of {limit} bytes in use"
            )

    def _example_inputs(self, served: ServedModel, bucket: Bucket) -> list[torch.Tensor]:
        """Made here, on the loop's thread, so only when they fit."""
        sizes = dict(zip([each.name for each in served.spec.symbols], bucket, strict=True))
        needed = sum(
            tensor_bytes(each.datatype, evaluate_shape(each.shape, sizes))
            for each in served.spec.inputs
        )
        free = self._settings.scheduler.memory_bytes_max
        free -= self._scheduler.statistics().memory_bytes
        if needed > free:
            raise OutOfDeviceMemory(
                f"inputs at sizes {list(bucket)} take {needed} bytes, {max(free, 0)} are free"
            )
        return served.example_inputs(bucket)

    def _profile_key(self, model: _Model, buckets: Sequence[Bucket]) -> str:
        settings = self._settings
        return profile_key(
            model.frame.artifact_hash,
            settings.device,
            settings.threads,
            str(torch.__version__),
            settings.group_target_ns,
            buckets,
        )

    # The end of a model

    def _let_go(self, model: _Model) -> None:
        if self._active is not None and self._active[0] is model:
            model.is_cancelled = True
            self.profiler.cancel()
        elif model in self._queue:
            self._queue.remove(model)
            self._forget(model)
            self._post(ModelReleased(model.frame.model))
        elif not model.is_draining:
            model.is_draining = True
            self._scheduler.handle(ModelDraining(model.frame.model), self._clock())

    def _fail(self, model: _Model, failed: ModelFailed) -> None:
        key = model.frame.model
        self._forget(model)
        if model.is_cancelled:
            self._post(ModelReleased(key))
            return
        log("debug", "program_failed", key=key, reason=failed.reason)
        self._post(failed)

    def _forget(self, model: _Model) -> None:
        """Close what a model had mapped; nothing runs on it any more."""
        del self._models[model.frame.model]
        model.served = None
        if isinstance(model.weights, mmap.mmap):
            _unmap(model.weights)


def _check_wanted(model: _Model) -> None:
    if model.is_cancelled:
        raise LoadCancelled(model.frame.model)


def _passes(runs: Sequence[ProfileRun]) -> list[list[int]]:
    """The first run at a shape is slow in every library below; the others count, if any."""
    return [run.group_ns for run in runs[1:] or runs]


def _read(fd: int) -> bytes:
    with map_sealed(fd) as mapped:
        return bytes(mapped)


def _map(fd: int) -> mmap.mmap | bytearray:
    """A model without weights has an empty file, which can't be mapped, and needs some buffer."""
    return map_sealed(fd) if os.fstat(fd).st_size > 0 else bytearray(1)


def _unmap(mapped: mmap.mmap) -> None:
    try:
        mapped.close()
    except BufferError:
        # A reference cycle holds a tensor, and nothing is collected while the loop serves.
        gc.collect()
        try:
            mapped.close()
        except BufferError:
            log("warning", "map_kept", bytes=len(mapped))  # it goes with whatever holds it
