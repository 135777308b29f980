"""Tensors that lie in the arena: from blocks of a frame to torch and back, without a copy.

It must not know requests. Invariant: a tensor handed out lies wholly inside the arena, at an
offset its items can be read from; a block that says otherwise is a bug of the parent.
"""

from collections.abc import Sequence

import torch

from gpumuxd.programs.operators import DTYPES
from gpumuxd.wire.arena import ArenaMap
from gpumuxd.wire.frames import Block

DATATYPE_OF = {dtype: name for name, dtype in DTYPES.items()}


class ArenaTensors:
    """The arena as torch sees it: tensors whose memory is the arena's."""

    def __init__(self, arena: ArenaMap) -> None:
        self._buffer = arena.buffer
        self._size_bytes = arena.size_bytes

    def tensor(self, block: Block) -> torch.Tensor:
        """The tensor that a block describes."""
        return self._flat(block, DTYPES[block.datatype]).view(block.shape)

    def region(self, block: Block) -> torch.Tensor:
        """The bytes of a block, whatever it holds."""
        return self._flat(block, torch.uint8)

    def _flat(self, block: Block, dtype: torch.dtype) -> torch.Tensor:
        end = block.offset + block.size_bytes
        assert 0 <= block.offset <= end <= self._size_bytes, f"{block} outside the arena"
        count = block.size_bytes // dtype.itemsize
        if count == 0:  # which torch.frombuffer refuses
            return torch.empty(0, dtype=dtype)
        # Not a view of one tensor over the whole arena: slicing and casting that takes 2.5 times
        # as long, between a request's admission and its first launch.
        return torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=block.offset)


def blocks_of(reserved: Sequence[Block], results: Sequence[torch.Tensor]) -> tuple[Block, ...]:
    """The true outputs, each at the offset that was reserved for it."""
    return tuple(
        Block(block.offset, result.nbytes, DATATYPE_OF[result.dtype], tuple(result.shape))
        for block, result in zip(reserved, results, strict=True)
    )
