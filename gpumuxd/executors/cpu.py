"""The CPU device: one thread plays the device and runs real torch kernels in order.

It behaves like a stream of a GPU: `launch` only enqueues, slices pass in the order they were
launched, and nothing that is enqueued can be taken back or stopped inside a kernel group. So every
scheduling property can be tested on it, and a node without a GPU serves real models with it. It
must not know requests' meaning, the arena or frames on the wire: tensors come in and go out.

Threads: the device thread touches a cursor only between `launch` of a slice and its completion
being returned by `wait`; everything else belongs to the loop's thread. torch gives up the GIL in
every operator, so the device thread keeps computing while the loop decides; what it does in Python
per slice is kept small because the loop's thread waits for the GIL meanwhile.
"""

import ctypes
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import Lane, LaneKind, Slice
from gpumuxd.events import SliceFailed, SyncPointReached
from gpumuxd.executors.base import Completion
from gpumuxd.executors.members import Binding, Fill, gathered, scatter
from gpumuxd.units import NS_PER_S, NS_PER_US

COMPUTE = Lane(0, LaneKind.COMPUTE)

_REASON_CHARACTERS_MAX = 300
_PATH = re.compile(r"(?<![\w])/[^\s'\",;:()]+")

_ring: Callable[[int, int], int] = ctypes.PyDLL(None).eventfd_write
"""`os.eventfd_write`, but without giving up the GIL. The kernel likes to run whom it wakes on the
core of the waker: the loop's thread would take the core and the GIL for its whole turn, and the
next slice, although enqueued, would start after that and not during it: 90 us later each time."""

_SPIN_NS = 20 * NS_PER_US
"""A sleep of the loop's thread ends up to this late; what is shorter is spun."""


class Program(Protocol):
    """What the executor asks of a program (`programs/program.py`)."""

    @property
    def group_count(self) -> int: ...

    @property
    def groups(self) -> Sequence[Callable[[list[Any]], None]]: ...

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]: ...

    def outputs(self, slots: list[Any]) -> list[torch.Tensor]: ...

    def bytes_held(self, slots: list[Any]) -> int: ...


class _Cursor:
    """What one run holds: its slots are the frame's content. `members` are in the order of their
    rows; `receivers` are those of them that are there at the end, None for one that is gone."""

    __slots__ = ("failed", "fills", "ids", "in_flight", "members", "program", "receivers", "slots")

    def __init__(
        self,
        program: Program,
        fills: Sequence[Fill],
        ids: Sequence[int],
        members: Sequence[Binding],
    ) -> None:
        self.program = program
        self.fills = fills
        self.ids = ids
        self.members = members
        self.receivers: Sequence[Binding | None] = members
        self.slots: list[Any] = []
        self.failed = False
        self.in_flight = 0


_Enqueued = tuple[int, _Cursor, int, int]  # slice id, cursor, first group, end group


class CpuExecutor:
    """An `Executor` of `Program`s whose tensors are torch tensors.

    `bind` takes the inputs in the program's order, and a dense tensor per output: its *region*,
    which is the room that is reserved for it and says what it will probably be. No regions at
    all: the outputs are dropped. Inputs are read in place and must not change until the request
    is unbound. Members of one run are put together in new memory, by its first slice.

    `mail_fd` is a descriptor whose readability ends a `wait` too: the loop's mail.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        launch_cost_ns: int = 0,
        mail_fd: int | None = None,
    ) -> None:
        self._threads = threads
        self._launch_cost_ns = launch_cost_ns
        self._programs: dict[str, tuple[Program, Sequence[Fill]]] = {}
        self._bindings: dict[int, Binding] = {}
        self._cursors: dict[int, _Cursor] = {}
        self._in_flight: dict[int, _Cursor] = {}
        self._lane_queue: SimpleQueue[_Enqueued | None] = SimpleQueue()
        self._done: deque[Completion] = deque()
        # One descriptor for completions and for `wake`: both only mean "look".
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wait_fds = [self._bell] if mail_fd is None else [self._bell, mail_fd]
        self._closed = False
        # A daemon, so that a process whose parent died need not wait for a kernel to end.
        self._thread = threading.Thread(target=self._play_device, name="device", daemon=True)
        self._thread.start()

    @property
    def lanes(self) -> Sequence[Lane]:
        return (COMPUTE,)

    def load(self, model: str, program: Program, fills: Sequence[Fill] = ()) -> None:
        assert model not in self._programs, f"{model} is loaded already"
        self._programs[model] = (program, fills)

    def unload(self, model: str) -> None:
        program, _ = self._programs[model]
        assert all(c.program is not program for c in self._cursors.values()), model
        del self._programs[model]

    def bind(
        self, request_id: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        assert request_id not in self._bindings, f"request {request_id} is bound already"
        self._bindings[request_id] = Binding(inputs, outputs)

    def unbind(self, request_id: int) -> None:
        self._bindings.pop(request_id, None)

    def result(self, request_id: int) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """The regions of a request whose last slice has passed, and the true outputs in them. An
        output that is as its region describes it is that very tensor."""
        binding = self._bindings[request_id]
        return binding.regions, binding.results

    def bytes_held(self, cursor_id: int) -> int:
        """Bytes of intermediates a cursor holds now; none of its slices is in flight."""
        cursor = self._cursors[cursor_id]
        assert cursor.in_flight == 0, cursor_id
        return cursor.program.bytes_held(cursor.slots)

    def launch(self, work: Slice) -> None:
        assert work.lane == COMPUTE, work.lane
        # `work.after` needs no waiting: there is one lane, and it is in order.
        if work.first_group == 0:
            assert work.cursor_id not in self._cursors, work
            program, fills = self._programs[work.model]
            bound = [self._bindings[each] for each in work.members]
            cursor = _Cursor(program, fills, work.members, bound)
            self._cursors[work.cursor_id] = cursor
        else:
            cursor = self._cursors[work.cursor_id]
        if len(cursor.ids) > 1 and work.end_group == cursor.program.group_count:
            cursor.receivers = [self._bindings.get(each) for each in cursor.ids]
        cursor.in_flight += 1
        self._in_flight[work.slice_id] = cursor
        if self._launch_cost_ns:
            _spend(self._launch_cost_ns)
        self._lane_queue.put((work.slice_id, cursor, work.first_group, work.end_group))

    def retire(self, cursor_id: int) -> None:
        cursor = self._cursors.get(cursor_id)
        if cursor is not None:
            assert cursor.in_flight == 0, f"slices of cursor {cursor_id} are in flight"
            del self._cursors[cursor_id]

    def wait(self, until_ns: int | None) -> list[Completion]:
        timeout_s = None if until_ns is None else max(until_ns - monotonic_ns(), 0) / NS_PER_S
        # select and not poll: poll rounds to milliseconds and was measured 870 us late.
        if self._bell in select.select(self._wait_fds, (), (), timeout_s)[0]:
            # Silenced before the deque is read, so that what comes after rings again.
            os.eventfd_read(self._bell)
        passed = []
        while self._done:
            completion = self._done.popleft()
            self._in_flight.pop(completion.slice_id).in_flight -= 1
            passed.append(completion)
        return passed

    def wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lane_queue.put(None)
        self._thread.join()
        self._cursors.clear()
        self._bindings.clear()
        self._programs.clear()
        os.close(self._bell)

    def _play_device(self) -> None:
        """The device thread: one slice after the other until `close`."""
        torch.set_num_threads(self._threads)
        # Brings up the pool of threads now: OpenMP ends the process when it can't have one later,
        # at the limit of memory.
        torch.zeros(self._threads << 16).add_(1)
        with torch.inference_mode():
            while (enqueued := self._lane_queue.get()) is not None:
                self._done.append(_run(*enqueued))
                # The last reference to a cursor must not linger here until the next slice comes.
                del enqueued
                _ring(self._bell, 1)


def _run(slice_id: int, cursor: _Cursor, first_group: int, end_group: int) -> Completion:
    started_ns = monotonic_ns()
    if cursor.failed:
        return SliceFailed(slice_id, "an earlier slice of the same run failed")
    program = cursor.program
    try:
        if first_group == 0:
            cursor.slots = program.start(_inputs(cursor))
        slots = cursor.slots
        for group in program.groups[first_group:end_group]:
            group(slots)
        if end_group == program.group_count:
            _write_outputs(cursor)
    except Exception as error:
        cursor.failed = True
        cursor.slots = []
        return SliceFailed(slice_id, short_reason(error))
    return SyncPointReached(slice_id, started_ns, monotonic_ns() - started_ns)


def _inputs(cursor: _Cursor) -> Sequence[torch.Tensor]:
    """What its program starts with."""
    if len(cursor.members) == 1:
        return cursor.members[0].inputs
    return gathered([member.inputs for member in cursor.members], cursor.fills)


def _write_outputs(cursor: _Cursor) -> None:
    if len(cursor.members) > 1:
        rows = [member.rows for member in cursor.members]
        outputs = cursor.program.outputs(cursor.slots)
        scatter(outputs, rows, cursor.receivers, bool(cursor.fills))
    elif cursor.members[0].regions:
        cursor.members[0].write(cursor.program.outputs(cursor.slots))


def _spend(duration_ns: int) -> None:
    """Keep the calling thread busy, and not the device: a launch on a GPU costs host time only.

    A plain spin would hold the GIL, which the device thread needs between operators, and so would
    cost device time. Hence a sleep with a short spin at its end.
    """
    end_ns = monotonic_ns() + duration_ns
    if duration_ns > _SPIN_NS:
        time.sleep((duration_ns - _SPIN_NS) / NS_PER_S)
    while monotonic_ns() < end_ns:
        pass


def short_reason(error: BaseException) -> str:
    """An error for the one who sent the request: its type and first line, without paths."""
    lines = str(error).strip().splitlines()
    first_line = _PATH.sub("<path>", lines[0]) if lines else ""
    return f"{type(error).__name__}: {first_line}"[:_REASON_CHARACTERS_MAX].removesuffix(": ")
