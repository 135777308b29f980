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
    """The arena as torch sees it: one flat tensor of bytes that the others are views of."""

    def __init__(self, arena: ArenaMap) -> None:
        self._bytes = torch.frombuffer(arena.buffer, dtype=torch.uint8)

    def tensor(self, block: Block) -> torch.Tensor:
        """The tensor that a block describes."""
        dtype = DTYPES[block.datatype]
        if block.size_bytes == 0:
            return torch.empty(block.shape, dtype=dtype)
        return self.region(block).view(dtype).view(block.shape)

    def region(self, block: Block) -> torch.Tensor:
        """The bytes of a block, whatever it holds."""
        end = block.offset + block.size_bytes
        assert 0 <= block.offset <= end <= self._bytes.numel(), f"{block} outside the arena"
        return self._bytes[block.offset : end]


def blocks_of(reserved: Sequence[Block], results: Sequence[torch.Tensor]) -> tuple[Block, ...]:
    """The true outputs, each at the offset that was reserved for it."""
    return tuple(
        Block(block.offset, result.nbytes, DATATYPE_OF[result.dtype], tuple(result.shape))
        for block, result in zip(reserved, results, strict=True)
    )
