"""Recordings of simulated devices, made by the recorder that a device child uses."""

import io
import os
from collections.abc import Callable

from gpumuxd.commands import Command
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.core.explanation import Explanation
from gpumuxd.core.statistics import DeviceStatistics
from gpumuxd.device.recorder import Recorder, header_of
from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.events import Event
from gpumuxd.replay.format import CommandHash, Contents, End, read
from gpumuxd.settings import DeviceSettings, SchedulerSettings
from gpumuxd.testing.runner import run
from gpumuxd.testing.swarm import draw

BYTES_MAX = 1 << 26


class Recorded:
    """A device scheduler that is recorded from its `begin_at`th poll on, and the file of that."""

    def __init__(
        self, settings: SchedulerSettings, begin_at: int = 0, bytes_max: int = BYTES_MAX
    ) -> None:
        self.scheduler = DeviceScheduler(settings)
        self.recorder: Recorder | None = None
        self.ends: list[End] = []
        self.hash = CommandHash()
        self._settings = DeviceSettings(scheduler=settings)
        self._begin_at = begin_at
        self._bytes_max = bytes_max
        self._polls = 0
        self._fd = -1

    def handle(self, event: Event, now_ns: int) -> None:
        if self._polls >= self._begin_at and self._fd < 0:
            self._begin(now_ns)
        self.scheduler.handle(event, now_ns)

    def poll(self, now_ns: int) -> list[Command]:
        self._polls += 1
        fates = self.scheduler.poll_fates(now_ns)
        launches = self.scheduler.poll_launches(now_ns)
        for commands in (fates, launches):
            if self._fd >= 0 and commands:
                self.hash.update(commands)
        return fates + launches

    def next_wakeup_ns(self) -> int | None:
        return self.scheduler.next_wakeup_ns()

    def statistics(self) -> DeviceStatistics:
        return self.scheduler.statistics()

    def explain(
        self, model_key: str, bucket: Bucket | None, priority_class: PriorityClass | None
    ) -> Explanation | None:
        return self.scheduler.explain(model_key, bucket, priority_class)

    def _begin(self, now_ns: int) -> None:
        self._fd = os.memfd_create("recording")
        header = header_of(self._settings, "2", now_ns)
        fd = os.dup(self._fd)
        self.recorder = Recorder(self.scheduler, fd, self._bytes_max, header, self.ends.append)

    def data(self, *, ends: bool = True) -> bytes:
        """The file, once. With an end, or as it is when its device is killed."""
        assert self.recorder is not None, "it never began"
        if ends:
            self.recorder.end("the test wants it", 1 << 40)
        else:
            self.recorder.flush()
        size_bytes = os.fstat(self._fd).st_size
        data = os.pread(self._fd, size_bytes, 0)
        os.close(self._fd)
        if not ends:
            self.recorder.end("so that nothing leaks", 0)
        return data


def record(seed: int, begin_at: int = 0, bytes_max: int = BYTES_MAX) -> tuple[list[Recorded], str]:
    """The devices of a seed that got far enough to be recorded, and the trace hash of the run."""
    devices: list[Recorded] = []

    def make(settings: SchedulerSettings) -> Recorded:
        devices.append(Recorded(settings, begin_at, bytes_max))
        return devices[-1]

    of: Callable[[SchedulerSettings], Recorded] = make
    result = run(draw(seed), of, check=())
    return [device for device in devices if device.recorder is not None], result.trace_hash


def parse(data: bytes) -> Contents:
    return read(io.BytesIO(data), len(data))
