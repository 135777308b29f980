"""Models from LoadModel to ModelReleased: open, measure, cut, measure again, serve, let go.

One load goes on at a time, in short steps between turns of the device loop: nothing of it may be
felt by who is served meanwhile. What is long and computes, bringing the weights in and measuring,
is done by cursors, which yield to tenants (`own_runs.py`, `measuring.py`); what is long and does
not, opening a plan, on a thread of its own (`steps.build`). It must not know order or slices.
Invariants: every LoadModel is answered by exactly one of ModelLoaded, ModelFailed and ModelReleased
(unloaded before it was ready); a load that fails or is cancelled leaves nothing behind; maps of a
model are closed when it was released, not before.

    queued --> loading --> serving --> draining --> leaving --> gone
                  |  failed, cancelled                 ^
                  +------------------------------------+
"""

import gc
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpumuxd.clock import Clock
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device import process_memory
from gpumuxd.device.joining import Found, Joining
from gpumuxd.device.log import log
from gpumuxd.device.long_groups import longest_groups
from gpumuxd.device.measuring import INTERNAL_MARK, Measuring
from gpumuxd.device.own_runs import OwnRuns, RunFailed
from gpumuxd.device.profiling import Profiler
from gpumuxd.device.steps import Condition, Steps, build, next_turn
from gpumuxd.domain import Bucket, CursorKind
from gpumuxd.errors import GpumuxdError, OutOfDeviceMemory
from gpumuxd.events import ModelDraining, ModelReady
from gpumuxd.executors import upload
from gpumuxd.executors.cpu import CpuExecutor, short_reason
from gpumuxd.programs.profile_cache import ProfileCache, StoredProfile, profile_key
from gpumuxd.programs.profiler import model_profile
from gpumuxd.programs.served import AnyProgram, Served, open_model
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB
from gpumuxd.wire.frames import (
    NOTE_CHARACTERS_MAX,
    Frame,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelReleased,
    UnloadModel,
)
from gpumuxd.wire.process import map_sealed

_T = TypeVar("_T")

REASON_CHARACTERS_MAX = 2000
"""A reason travels in one frame and ends in an error message."""


class LoadCancelled(Exception):
    """The model was unloaded, or the device stopped, before it was ready."""


@dataclass(slots=True)
class _Model:
    """One model that was asked for, whatever its state."""

    frame: LoadModel
    plan: mmap.mmap
    weights: mmap.mmap | bytearray
    served: Served | None = None
    is_cancelled: bool = False
    is_draining: bool = False
    is_leaving: bool = False


class Loading:
    """All models of one device child."""

    def __init__(
        self,
        scheduler: DeviceScheduler,
        executor: CpuExecutor,
        post: Callable[[Frame], None],
        settings: DeviceSettings,
        clock: Clock,
        on_work: Callable[[str, bool], None] = lambda key, is_working: None,
    ) -> None:
        """`on_work` hears whose load is under way ("": nobody's), and whether it may do something
        now that no slice stands for: a step, or a thread that builds."""
        self._on_work = on_work
        self.own = OwnRuns(scheduler, executor, clock)
        self.launch_ns = settings.launch_cost_ns  # at least, while nobody has measured it
        self.kept_bytes: Callable[[], int] = lambda: 0  # held beside the books, by sequences
        self._profiler = Profiler(self.own, scheduler)
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
        self._leaving: deque[Steps[None]] = deque()

    @property
    def is_empty(self) -> bool:
        """True when nothing is loaded, being loaded or leaving."""
        return not self._models

    @property
    def is_runnable(self) -> bool:
        """True when `advance` has something to do now."""
        if self._leaving:
            return True
        return self._condition() if self._active is not None else bool(self._queue)

    @property
    def is_loading(self) -> bool:
        """True while a load goes on, whether or not it could go on now."""
        return self._active is not None

    @property
    def is_closing(self) -> bool:
        """True while maps of models that are over are being closed."""
        return bool(self._leaving)

    # What the parent asks

    def handle_load(self, frame: LoadModel, fds: Sequence[int]) -> None:
        """Begin a load. Takes the descriptors and closes them."""
        assert frame.model not in self._models, f"{frame.model} is loaded already"
        assert INTERNAL_MARK not in frame.model, frame.model
        try:
            plan_fd, weights_fd = fds
            model = _Model(frame, map_sealed(plan_fd), _map(weights_fd))
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
            self.own.released(key)
            return
        self._executor.unload(key)
        self._leave(self._models[key], ModelReleased(key))

    # The work itself

    def advance(self) -> None:
        """Do one step: of a model that leaves, of the load that goes on, or begin the next load.
        Well below a millisecond."""
        if self._leaving:
            if next(self._leaving[0], None) is None:
                self._leaving.popleft()
            return
        if self._active is None:
            if not self._queue:
                return
            model = self._queue.popleft()
            self._active = (model, self._load(model))
            self._condition = next_turn
        if not self._condition():
            return
        model, steps = self._active
        self._on_work(model.frame.model, True)
        try:
            self._condition = next(steps)
            self._on_work(model.frame.model, not self.own.is_running)
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
        self._on_work("", False)
        if failed is not None:
            self._fail(model, failed)

    def _load(self, model: _Model) -> Steps[None]:
        _check_wanted(model)
        self._check_memory(model)
        yield from self._upload(model)
        _check_wanted(model)
        served = yield from self._build(
            lambda: open_model(bytes(model.plan), memoryview(model.weights), self._settings.threads)
        )
        model.served = served
        _check_wanted(model)
        buckets = self._buckets(model, served)
        key = self._profile_key(model, served, buckets)
        stored = None
        if self._cache is not None:
            stored = self._cache.get(key, served.node_count, buckets)
        measuring = Measuring(
            model.frame.model,
            model.frame.tenant,
            served,
            buckets,
            self._settings,
            self._scheduler,
            self._profiler,
            self._executor.wake,
            lambda: _check_wanted(model),
        )
        cuts = (yield from measuring.cut()) if stored is None else list(stored.cuts)
        program = yield from self._build(lambda: served.grouped_program(cuts))
        profile = yield from measuring.profile(program, cuts, stored)
        if self._cache is not None and profile != stored and not self._cache.put(key, profile):
            log("warning", "profile_not_stored", model=model.frame.model)
        found = yield from self._try_joining(model, served, program, profile)
        _check_wanted(model)
        self._serve(model, served, program, profile, stored is not None, found)

    def _buckets(self, model: _Model, served: Served) -> list[Bucket]:
        """Those to measure: up to what runs alone, and to what shares a run."""
        batching = model.frame.batching
        joined = 0 if batching is None else batching.sizes[-1]
        return served.profile_buckets(max(self._settings.profile_batch_max, joined))

    def _try_joining(
        self, model: _Model, served: Served, program: AnyProgram, profile: StoredProfile
    ) -> Steps[Found]:
        frame = model.frame
        if frame.batching is None:
            return Found(0, "")
        trial = Joining(
            f"{frame.model}{INTERNAL_MARK}joined",
            frame.tenant,
            served,
            frame.batching,
            frame.fills,
            frame.padded,
            sorted(profile.run_ns),
            self.own,
            self._executor.wake,
            lambda: _check_wanted(model),
        )
        found = yield from trial.find(program)
        if not found.rows_max:
            log("warning", "batching_off", model=frame.model, reason=found.note)
        return found

    def _build(self, make: Callable[[], _T]) -> Steps[_T]:
        return build(make, self._executor.wake)

    def _upload(self, model: _Model) -> Steps[None]:
        """Bring the weights in, so that nobody's run is the first to touch them."""
        if not isinstance(model.weights, mmap.mmap):
            return
        key = f"{model.frame.model}{INTERNAL_MARK}upload"
        program = upload.UploadProgram(model.weights)
        body = self.own.run(CursorKind.UPLOAD, key, (), ())
        try:
            yield from self.own.use(key, model.frame.tenant, program, len(model.weights), body)
        except RunFailed as error:
            raise RunFailed(f"its weights can't be brought in: {error.message}") from error

    def _serve(
        self,
        model: _Model,
        served: Served,
        program: AnyProgram,
        profile: StoredProfile,
        was_cached: bool,
        found: Found,
    ) -> None:
        frame = model.frame
        self._executor.load(frame.model, program, frame.fills)
        ready = ModelReady(
            model=frame.model,
            profile=model_profile(
                profile, served.operator_ends(profile.cuts), served.layer_ends, self.launch_ns
            ),
            class_max=frame.class_max,
            slo_ns=frame.slo_ns,
            weights_bytes=served.weights_bytes,
            tenant=frame.tenant,
            batching=frame.batching if found.rows_max else None,
        )
        self._scheduler.handle(ready, self._clock())
        buckets = self._buckets(model, served)
        loaded = ModelLoaded(
            model=frame.model,
            group_count=program.group_count,
            longest_group_ns=max(max(times) for times in profile.group_ns.values()),
            run_ns=tuple(sorted(profile.run_ns.items())),
            weights_bytes=served.weights_bytes,
            frame_bytes=max(profile.frame_bytes.values()),
            profile_was_cached=was_cached,
            longest_groups=longest_groups(profile),
            left_out=tuple(each for each in buckets if each not in profile.run_ns),
            batch_rows_max=found.rows_max,
            batching_note=found.note[:NOTE_CHARACTERS_MAX],
        )
        self._post(loaded)
        log("debug", "program_ready", key=frame.model, groups=program.group_count)

    def _check_memory(self, model: _Model) -> None:
        needed = len(model.weights) + self.kept_bytes()
        reason = self._scheduler.why_no_room(needed, model.frame.tenant)
        if reason:
            arena_bytes = self._settings.arena_bytes
            whole = (self._settings.scheduler.memory_bytes_max + arena_bytes) / MIB
            raise OutOfDeviceMemory(
                f"weights of {len(model.weights) / MIB:.1f} MiB do not fit: {reason}; the device "
                f"has {whole:.0f} MiB (memory_mib_max), of which the arena takes "
                f"{arena_bytes / MIB:.0f}"
            )

    def _profile_key(self, model: _Model, served: Served, buckets: Sequence[Bucket]) -> str:
        settings = self._settings
        return profile_key(
            model.frame.artifact_hash,
            settings.device,
            settings.threads,
            served.runtime_version,
            settings.group_target_ns,
            buckets,
        )

    # The end of a model

    def _let_go(self, model: _Model) -> None:
        if self._active is not None and self._active[0] is model:
            model.is_cancelled = True
            self.own.cancel()
        elif model.is_leaving:
            model.is_cancelled = True
        elif model in self._queue:
            self._queue.remove(model)
            self._leave(model, ModelReleased(model.frame.model))
        elif not model.is_draining:
            model.is_draining = True
            self._scheduler.handle(ModelDraining(model.frame.model), self._clock())

    def _fail(self, model: _Model, failed: ModelFailed) -> None:
        if not model.is_cancelled:
            log("debug", "program_failed", key=failed.model, reason=failed.reason)
        self._leave(model, failed)

    def _leave(self, model: _Model, last: ModelReleased | ModelFailed) -> None:
        """Nothing runs on it any more: close what it had mapped, then say the last of it."""
        model.is_leaving = True
        self._leaving.append(self._close(model, last))

    def _close(self, model: _Model, last: ModelReleased | ModelFailed) -> Steps[None]:
        before_bytes = process_memory.resident_bytes()
        model.served = None
        _unmap(model.plan)
        if isinstance(model.weights, mmap.mmap):
            # Closing a map of 256 MiB takes 20 ms, in which no thread of ours gets memory.
            for address, size_bytes in upload.chunks(model.weights):
                upload.give_back(address, size_bytes)
                yield next_turn
            _unmap(model.weights)
        del self._models[model.frame.model]
        if not self._models:
            # Up to 400 ms, so only when there is nobody to serve. Beside others what is free stays
            # with malloc, for the next model, and cycles wait for the loop's next collection.
            gc.collect()
            process_memory.give_back_unused()
        if isinstance(last, ModelReleased) or model.is_cancelled:
            after_bytes = process_memory.resident_bytes()
            last = ModelReleased(model.frame.model, before_bytes, after_bytes)
        self._post(last)


def _check_wanted(model: _Model) -> None:
    if model.is_cancelled:
        raise LoadCancelled(model.frame.model)


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
