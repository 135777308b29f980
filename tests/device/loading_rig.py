"""All models of a device child, a real scheduler and a device that does what the test says, when it
says so: no kernel is run, every group passes when `pass_one` is called, and the clock is a number.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpumuxd.commands import Finish, Launch, Release
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.loading import Loading
from gpumuxd.domain import Bucket, Lane, LaneKind, PriorityClass, Slice
from gpumuxd.events import (
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SyncPointReached,
)
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_MS, NS_PER_US
from gpumuxd.wire.frames import Frame, LoadModel
from tests.device.support import SETTINGS, LoadedArtifact

TURNS_MAX = 20_000
WAIT_S = 30.0

URGENT = "urgent"
BOUND_NS = 4 * NS_PER_MS


class FakeExecutor:
    """Keeps what is loaded, bound and in flight; groups pass in their order, one by one."""

    def __init__(self, group_ns: Callable[[Slice], int]) -> None:
        self._group_ns = group_ns
        self.programs: dict[str, object] = {}
        self.bound: set[int] = set()
        self.in_flight: deque[Slice] = deque()
        self.launched: list[Slice] = []
        self.woken = threading.Event()

    def load(self, key: str, program: object, fills: object = ()) -> None:
        assert key not in self.programs
        self.programs[key] = program

    def unload(self, key: str) -> None:
        del self.programs[key]

    def bind(self, request_id: int, *_: object) -> None:
        self.bound.add(request_id)

    def unbind(self, request_id: int) -> None:
        self.bound.discard(request_id)

    def bytes_held(self, cursor_id: int) -> int:
        return 0

    def launch(self, work: Slice) -> None:
        self.launched.append(work)
        self.in_flight.append(work)

    def take_ns(self, work: Slice) -> int:
        return self._group_ns(work) * (work.end_group - work.first_group)

    def wake(self) -> None:
        self.woken.set()


class Rig:
    """A device loop in slow motion."""

    def __init__(
        self,
        group_ns: Callable[[Slice], int] = lambda work: NS_PER_MS // 10,
        settings: DeviceSettings = SETTINGS,
        cache: Path | None = None,
    ) -> None:
        scheduler = replace(settings.scheduler, preemption_delay_ns_max=BOUND_NS)
        folder = str(cache) if cache is not None else ""
        self.settings = replace(settings, scheduler=scheduler, profile_cache_dir=folder)
        self.now_ns = 0
        self.scheduler = DeviceScheduler(self.settings.scheduler)
        self.scheduler.handle(PartitionChanged(0, (Lane(0, LaneKind.COMPUTE),)), 0)
        self.executor = FakeExecutor(group_ns)
        self.told: list[Frame] = []
        executor: Any = self.executor
        self.loading = Loading(
            self.scheduler, executor, self.told.append, self.settings, lambda: self.now_ns
        )
        self._last_request = 0
        self.urgent_left: set[int] = set()

    # What the parent does

    def load(self, artifact: LoadedArtifact, model: str = "m/1", tenant: str = "tenant") -> None:
        frame = LoadModel(model, artifact.hash, PriorityClass.BEST_EFFORT, None, tenant)
        self.loading.handle_load(frame, [os.dup(artifact.plan_fd), os.dup(artifact.weights_fd)])

    def serve_urgent(self) -> None:
        """A REALTIME model is loaded; its runs are one group of a tenth of a millisecond."""
        group_ns = NS_PER_MS // 10
        profile = ModelProfile(1, {(1,): (group_ns,)}, {(1,): group_ns})
        self.scheduler.handle(ModelReady(URGENT, profile, PriorityClass.REALTIME), self.now_ns)
        self.turn()

    def ask_urgent(self) -> int:
        """A REALTIME request arrives."""
        self._last_request += 1
        arrived = RequestArrived(
            self._last_request, "t", URGENT, PriorityClass.REALTIME, (1,), self.now_ns
        )
        self.urgent_left.add(self._last_request)
        self.scheduler.handle(arrived, self.now_ns)
        return self._last_request

    # What the device and its loop do

    def turn(self) -> list[Slice]:
        """One turn without completions; what it launched."""
        self.now_ns += 10 * NS_PER_US
        self.loading.advance()
        before = len(self.executor.launched)
        for command in self.scheduler.poll(self.now_ns):
            match command:
                case Launch(slice=work):
                    if work.members[0] < 0:
                        self.loading.own.launched(work)
                    self.executor.launch(work)
                case Finish(request_id=request_id):
                    if request_id < 0:
                        self.loading.own.finished(command)
                    self.urgent_left.discard(request_id)
                case Release(model=model):
                    self.loading.released(model)
                case _:
                    pass
        return self.executor.launched[before:]

    def pass_one(self) -> Slice:
        """The slice at the head of the lane passes."""
        work = self.executor.in_flight.popleft()
        device_ns = self.executor.take_ns(work)
        completion = SyncPointReached(work.slice_id, self.now_ns, device_ns)
        self.now_ns += device_ns
        self.loading.own.passed(completion)
        self.scheduler.handle(completion, self.now_ns)
        return work

    def until(self, holds: Callable[[], bool]) -> None:
        """Let the load go on until something holds, or it has come to its end."""
        for _ in range(TURNS_MAX):
            self.executor.woken.clear()
            self.turn()
            if holds():
                return
            if self.executor.in_flight:
                self.pass_one()
            elif self.loading.is_runnable:
                continue
            elif (wakeup_ns := self.scheduler.next_wakeup_ns()) is not None:
                self.now_ns = max(self.now_ns, wakeup_ns)
            elif self.loading.is_loading:
                assert self.executor.woken.wait(WAIT_S), "a thread never ends"
            elif self.loading.is_empty or not self.loading.is_closing:
                return
        raise AssertionError("it does not end")

    def until_launch(self) -> Slice | None:
        """The next slice that is launched; None when there is none to come."""
        before = len(self.executor.launched)
        self.until(lambda: len(self.executor.launched) > before)
        return self.executor.launched[before] if len(self.executor.launched) > before else None

    def finish(self) -> None:
        """Let everything come to its end."""
        while self.until_launch() is not None:
            pass

    @property
    def own_launches(self) -> list[Slice]:
        return [work for work in self.executor.launched if work.members[0] < 0]

    def buckets_run(self, program: str) -> list[Bucket]:
        """In which a program of the device's own was run, each once, in order."""
        mine = (w.bucket for w in self.own_launches if w.model.endswith("@" + program))
        return list(dict.fromkeys(mine))


def is_gone(rig: Rig) -> bool:
    """Nothing of any load is left but the urgent model."""
    statistics = rig.scheduler.statistics()
    return (
        rig.loading.is_empty
        and not rig.executor.programs
        and not rig.executor.bound
        and not rig.executor.in_flight
        and statistics.memory_bytes == 0
        and statistics.frames_held == 0
        and not [m for m in statistics.models if m.model != URGENT]
    )


def kinds(slices: Sequence[Slice]) -> list[str]:
    """Which program of the device's own each was of."""
    return [work.model.rpartition("@")[2] for work in slices]
