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


TENSORS_KEPT_MAX = 1024
"""Views of the arena that are kept for the next request that gets the same place."""


class ArenaTensors:
    """The arena as torch sees it: tensors whose memory is the arena's.

    The same block gives the same tensor: the allocator hands out the lowest place that fits, so
    requests of one model lie where the last ones lay. Making a view takes 5 to 20 us, between a
    request's admission and its first launch; finding one takes 0.2 us. They hold no memory of
    their own, so forgetting them all now and then is good enough.
    """

    def __init__(self, arena: ArenaMap) -> None:
        self._buffer = arena.buffer
        self._size_bytes = arena.size_bytes
        self._kept: dict[Block, torch.Tensor] = {}

    def tensor(self, block: Block) -> torch.Tensor:
        """The tensor that a block describes."""
        tensor = self._kept.get(block)
        if tensor is None:
            if len(self._kept) >= TENSORS_KEPT_MAX:
                self._kept.clear()
            tensor = self._kept[block] = self._view(block)
        return tensor

    def _view(self, block: Block) -> torch.Tensor:
        dtype = DTYPES[block.datatype]
        end = block.offset + block.size_bytes
        assert 0 <= block.offset <= end <= self._size_bytes, f"{block} outside the arena"
        count = block.size_bytes // dtype.itemsize
        if count == 0:  # which torch.frombuffer refuses
            return torch.empty(block.shape, dtype=dtype)
        # Not a view of one tensor over the whole arena: slicing and casting that takes 2.5 times
        # as long.
        flat = torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=block.offset)
        return flat.view(block.shape)


def blocks_of(
    reserved: Sequence[Block], regions: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> tuple[Block, ...]:
    """The true outputs, each at the offset that was reserved for it."""
    return tuple(
        block
        if result is region  # it came out exactly as it was reserved
        else Block(block.offset, result.nbytes, DATATYPE_OF[result.dtype], tuple(result.shape))
        for block, region, result in zip(reserved, regions, results, strict=True)
    )
