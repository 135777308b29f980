"""Records every call of a device scheduler into a memory file, while it serves.

    begin     the scheduler as it is now; from then on it is the scheduler's tap (`core/tap.py`)
    end       counts, a hash of all commands, and why it ended

It must not know what events mean, nor who reads the file: the parent does, while it grows. It never
waits. Invariant: what is in the file is a prefix of what happened, and the file never grows over
`bytes_max`: the recording ends before, and says so.
"""

import contextlib
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version

from msgspec.structs import replace

from gpumuxd import __version__
from gpumuxd.commands import Command
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.events import Event
from gpumuxd.replay import format as layout
from gpumuxd.replay.graph import NotPlain, freeze
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_MS
from gpumuxd.wire.frames import Frame, RecordingEnded

BUFFER_BYTES_MAX = 32 * 1024
"""Written when there is this much: a write of it takes 10 us."""

BUFFER_NS_MAX = 100 * NS_PER_MS
"""Or at the first call after this time, so that a recording that breaks off lacks little."""

END_BYTES = 1024
"""Kept free for the end, whose reason is cut to fit."""

_REASON_CHARS_MAX = 200

_encode = layout.encode
_CODE_OF_EVENT = layout.CODE_OF_EVENT


class Recorder:
    """One recording. `on_end` is called once, with the End that was written."""

    def __init__(
        self,
        scheduler: DeviceScheduler,
        fd: int,
        bytes_max: int,
        header: layout.Header,
        on_end: Callable[[layout.End], None],
    ) -> None:
        """Begins at once, and takes the descriptor over. Raises `graph.NotPlain`, or OSError when
        there is no room; then nothing goes on."""
        self._scheduler = scheduler
        self._fd = fd
        self._on_end = on_end
        self._buffer = bytearray()
        self._buffered = 0
        self._written_ns = header.began_ns
        self._records = 0
        self._hash = layout.CommandHash()
        self._written = self._end("", 0)  # as it would be if nothing more came to be written
        beginning = b"".join(
            [
                layout.MAGIC,
                layout.block(b"H", layout.encode(header)),
                layout.block(b"S", freeze(scheduler)),
            ]
        )
        self._room = bytes_max - END_BYTES - len(beginning)
        if self._room < 0:
            raise OSError(f"the scheduler's state alone takes {len(beginning)} bytes")
        self._write(beginning)
        self.is_on = True
        scheduler.tap = self

    # The scheduler's tap

    def handles(self, event: Event, now_ns: int) -> None:
        self._add(_encode((_CODE_OF_EVENT[type(event)], now_ns, event)), now_ns)

    def polls_fates(self, now_ns: int) -> None:
        self._add(_encode((layout.FATES, now_ns, self._hash.check)), now_ns)

    def polls_launches(self, now_ns: int) -> None:
        self._add(_encode((layout.LAUNCHES, now_ns, self._hash.check)), now_ns)

    def answers(self, commands: list[Command]) -> None:
        if commands:
            self._hash.update(commands)

    # Its life

    def end(self, reason: str, now_ns: int) -> None:
        """Write what is left and the end. Idempotent."""
        self.flush()
        if self.is_on:
            self._finish(reason, now_ns)

    def flush(self) -> None:
        """Write what is buffered, or end where it does not fit."""
        if not self._buffered:
            return
        data = layout.record_block(self._buffer, self._buffered)
        count, self._buffered = self._buffered, 0
        self._buffer.clear()
        if len(data) > self._room:
            self._finish("it reached its limit of bytes", self._written_ns)
            return
        try:
            self._write(data)
        except OSError as error:
            self._finish(f"no memory for it: {error.strerror}", self._written_ns)
            return
        self._room -= len(data)
        self._records += count
        self._written = self._end("", 0)

    def _add(self, data: bytes, now_ns: int) -> None:
        self._buffer += data
        self._buffered += 1
        if len(self._buffer) >= BUFFER_BYTES_MAX or now_ns - self._written_ns >= BUFFER_NS_MAX:
            self._written_ns = now_ns
            self.flush()

    def _finish(self, reason: str, now_ns: int) -> None:
        self.is_on = False
        self._scheduler.tap = None
        end = replace(self._written, reason=reason[:_REASON_CHARS_MAX], ended_ns=now_ns)
        with contextlib.suppress(OSError):  # then it is a recording without an end
            self._write(layout.block(b"E", layout.encode(end)))
        os.close(self._fd)
        self._on_end(end)

    def _end(self, reason: str, now_ns: int) -> layout.End:
        commands, digest = self._hash.count, self._hash.hexdigest()
        return layout.End(reason, now_ns, self._records, commands, digest)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


class Recordings:
    """The recordings of one device, one at a time. Each is answered with one RecordingEnded."""

    def __init__(
        self,
        scheduler: DeviceScheduler,
        settings: DeviceSettings,
        post: Callable[[Frame], None],
    ) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._torch_version = version("torch")  # reads a file
        self._post = post
        self._recorder: Recorder | None = None

    def start(self, fd: int, bytes_max: int, now_ns: int) -> None:
        """Begin one in this memory file, which belongs to the recording from now on."""
        assert self._recorder is None or not self._recorder.is_on, "one at a time"
        header = header_of(self._settings, self._torch_version, now_ns)
        try:
            self._recorder = Recorder(self._scheduler, fd, bytes_max, header, self._tell)
        except (NotPlain, OSError) as error:
            os.close(fd)
            self._post(RecordingEnded(f"it did not begin: {error}", 0, 0, has_begun=False))

    def stop(self, reason: str, now_ns: int) -> None:
        """End the one that goes on, if any."""
        if self._recorder is not None:
            self._recorder.end(reason, now_ns)
            self._recorder = None

    def flush(self) -> None:
        """Before a failure ends the child: what led to it is what people want to see."""
        if self._recorder is not None:
            self._recorder.flush()

    def _tell(self, end: layout.End) -> None:
        self._post(RecordingEnded(end.reason, end.records, end.commands))


def header_of(settings: DeviceSettings, torch_version: str, now_ns: int) -> layout.Header:
    """The header of a recording that begins now."""
    return layout.Header(
        gpumuxd_version=__version__,
        device=settings.device,
        settings=settings,
        python_version=platform.python_version(),
        torch_version=torch_version,
        machine=platform.machine(),
        began_ns=now_ns,
        began_unix_s=int(time.time()),
    )
