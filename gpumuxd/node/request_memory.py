"""The arena blocks of one request, and what it holds of its tenant's limits.

All or nothing on the way in, once on the way out. Who may call `release` and when is the rule of
`device_link.py`: after `Finished`, or after the child that could write there was reaped.
"""

from collections.abc import Callable, Sequence

from gpumuxd.errors import QueueFull
from gpumuxd.node.limits import Ticket
from gpumuxd.node.validation import CheckedCall, CheckedTensor
from gpumuxd.wire.arena import Arena, ArenaFull
from gpumuxd.wire.frames import Block


class RequestMemory:
    """Blocks for the inputs (copied in here, once) and the outputs of a request."""

    def __init__(
        self, arena: Arena, call: CheckedCall, ticket: Ticket, on_release: Callable[[], None]
    ) -> None:
        """Takes the ticket over when it succeeds. Raises QueueFull when the arena has no room."""
        self._arena = arena
        self._ticket = ticket
        self._on_release = on_release
        self._offsets: list[int] = []
        try:
            self.inputs = self._reserve(call.inputs)
            self.outputs = self._reserve(call.outputs)
        except ArenaFull as error:
            self._free_blocks()
            raise QueueFull(f"no memory for the tensors of this request now: {error}") from error
        for block, tensor in zip(self.inputs, call.inputs, strict=True):
            if block.size_bytes:
                with arena.view(block.offset, block.size_bytes) as view:
                    view[:] = memoryview(tensor.data).cast("B")

    def read(self, block: Block) -> bytes:
        """A copy of an output."""
        with self._arena.view(block.offset, block.size_bytes) as view:
            return bytes(view)

    def release(self) -> None:
        """Give everything back. Idempotent."""
        if self._offsets:
            self._free_blocks()
            self._ticket.close()
            self._on_release()

    def _reserve(self, tensors: Sequence[CheckedTensor]) -> tuple[Block, ...]:
        blocks = []
        for tensor in tensors:
            offset = self._arena.allocate(tensor.size_bytes)
            self._offsets.append(offset)
            blocks.append(Block(offset, tensor.size_bytes, tensor.spec.datatype, tensor.shape))
        return tuple(blocks)

    def _free_blocks(self) -> None:
        for offset in self._offsets:
            self._arena.free(offset)
        self._offsets.clear()
