"""The arena memory of one request, and what it holds of its tenant's limits.

All or nothing on the way in, once on the way out. Who may call `release` and when is the rule of
`device_link.py`: after `Finished`, or after the child that could write there was reaped.
"""

import asyncio
from collections.abc import Callable, Sequence

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import InvalidRequest, QueueFull, limit_facts
from gpumuxd.node.api import RegionRef
from gpumuxd.node.limits import Ticket
from gpumuxd.node.shared_memory import Copy, copy_in, place_of
from gpumuxd.node.validation import CheckedCall, CheckedTensor
from gpumuxd.units import MIB
from gpumuxd.wire.arena import Arena, ArenaFull, aligned
from gpumuxd.wire.frames import Block

COPY_BYTES_MAX = MIB
"""Bytes that are copied in one turn of the event loop: 0.12 ms of it, or 0.65 ms where the pages of
the arena are touched for the first time. In pieces and not by a thread: an assignment to a view
keeps the GIL, and a thread would outlive a request that is cancelled."""


class RequestMemory:
    """Blocks for the inputs (copied in here, once) and the outputs of a request. Inputs that lie in
    shared memory, and those that would hold the event loop for long, are copied by `read_rest`.

    They lie side by side in one range of the arena: the allocator is asked once for a request and
    not once for each tensor.
    """

    def __init__(
        self, arena: Arena, call: CheckedCall, ticket: Ticket, on_release: Callable[[], None]
    ) -> None:
        """Holds the ticket when it succeeds. Raises QueueFull when the arena has no room, and
        InvalidRequest when it never will have."""
        self._arena = arena
        self._ticket = ticket
        self._on_release = on_release
        inputs, outputs = call.fit.inputs, call.fit.outputs
        size_bytes = sum([aligned(tensor.size_bytes) for tensor in (*inputs, *outputs)])
        if size_bytes > arena.size_bytes:
            raise InvalidRequest(
                f"the tensors of this request take {size_bytes} bytes; "
                f"its device has {arena.size_bytes} for all requests together (arena_mib)",
                limit_facts("arena_mib", arena.size_bytes, "bytes", asked=size_bytes),
            )
        try:
            self._offset = arena.allocate(size_bytes)
        except ArenaFull as error:
            raise QueueFull(
                f"no memory for the tensors of this request now: {error}",
                limit_facts(
                    "arena_mib",
                    arena.size_bytes,
                    "bytes",
                    current=arena.used_bytes,
                    asked=size_bytes,
                ),
            ) from error
        self._view = arena.view(self._offset, size_bytes)
        self._views: list[memoryview] = []
        self._is_held = True
        ticket.hold()
        self.inputs, behind = _blocks(inputs, self._offset)
        self.outputs, _ = _blocks(outputs, behind)
        began_ns = monotonic_ns()
        self._unread: list[Copy] = []
        self._large: list[tuple[memoryview, memoryview]] = []
        left_bytes = COPY_BYTES_MAX
        for tensor, block, data in zip(inputs, self.inputs, call.data, strict=True):
            view = self.view(block)
            if isinstance(data, RegionRef):
                label = f"input {tensor.spec.name!r}"
                self._unread.append(Copy(label, block.datatype, place_of(data), view))
            elif block.size_bytes > left_bytes:
                self._large.append((view, memoryview(data)))
            else:
                left_bytes -= block.size_bytes
                view[:] = data
        self.copied_in_ns = monotonic_ns() - began_ns

    @property
    def is_unread(self) -> bool:
        """Are there inputs that were not copied in yet."""
        return bool(self._unread or self._large)

    async def read_rest(self) -> None:
        """Copy in what was not yet, and let others have their turn meanwhile. Raises
        InvalidRequest."""
        began_ns = monotonic_ns()
        for view, data in self._large:
            for begin in range(0, view.nbytes, COPY_BYTES_MAX):
                await asyncio.sleep(0)
                view[begin : begin + COPY_BYTES_MAX] = data[begin : begin + COPY_BYTES_MAX]
        self._large.clear()
        await copy_in(self._unread)
        self._unread.clear()
        self.copied_in_ns += monotonic_ns() - began_ns

    def view(self, block: Block) -> memoryview:
        """A tensor where it lies. Nobody can look there after `release`."""
        begin = block.offset - self._offset
        view = self._view[begin : begin + block.size_bytes]
        self._views.append(view)
        return view

    def release(self) -> None:
        """Give everything back. Idempotent."""
        if self._is_held:
            self._is_held = False
            for view in self._views:
                view.release()
            self._view.release()
            self._arena.free(self._offset)
            self._ticket.close()
            self._on_release()


def _blocks(tensors: Sequence[CheckedTensor], offset: int) -> tuple[tuple[Block, ...], int]:
    """One block after the other from an offset on, and the offset behind the last."""
    blocks = []
    for tensor in tensors:
        blocks.append(Block(offset, tensor.size_bytes, tensor.spec.datatype, tensor.shape))
        offset += aligned(tensor.size_bytes)
    return tuple(blocks), offset
