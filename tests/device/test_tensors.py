"""Tensors in the arena: every datatype and shape, in place, never outside."""

import os
from collections.abc import Iterator

import pytest
import torch

from gpumuxd.device.tensors import DATATYPE_OF, TENSORS_KEPT_MAX, ArenaTensors, blocks_of
from gpumuxd.models.spec import ITEM_BYTES
from gpumuxd.wire.arena import Arena, ArenaMap
from gpumuxd.wire.frames import Block


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(4096)
    yield arena
    arena.close()


@pytest.fixture
def tensors(arena: Arena) -> ArenaTensors:
    return ArenaTensors(ArenaMap(os.dup(arena.fd)))


@pytest.mark.parametrize("datatype", sorted(ITEM_BYTES))
def test_every_datatype_is_read_in_place(
    arena: Arena, tensors: ArenaTensors, datatype: str
) -> None:
    size = 6 * ITEM_BYTES[datatype]
    block = Block(arena.allocate(size), size, datatype, (2, 3))
    tensor = tensors.tensor(block)
    assert DATATYPE_OF[tensor.dtype] == datatype
    assert tensor.shape == (2, 3)
    arena.view(block.offset, size)[:] = b"\x01" * size
    again = tensors.tensor(block)
    assert tensor.data_ptr() == again.data_ptr()
    assert bytes(tensor.view(torch.uint8).flatten().tolist()) == b"\x01" * size


@pytest.mark.parametrize(
    ("size", "shape"), [(4, ()), (4, (1,)), (0, (0,)), (0, (3, 0)), (24, (1, 3, 2))]
)
def test_shapes(tensors: ArenaTensors, size: int, shape: tuple[int, ...]) -> None:
    tensor = tensors.tensor(Block(64, size, "FP32", shape))
    assert tensor.shape == shape
    assert tensor.is_contiguous()


@pytest.mark.parametrize(("offset", "size"), [(-4, 4), (4096, 4), (4092, 8), (8, -4)])
def test_a_block_outside_the_arena_is_a_bug(tensors: ArenaTensors, offset: int, size: int) -> None:
    with pytest.raises(AssertionError, match="outside the arena"):
        tensors.tensor(Block(offset, size, "FP32", (size // 4,)))


def test_the_same_block_is_the_same_tensor(arena: Arena, tensors: ArenaTensors) -> None:
    block = Block(arena.allocate(8), 8, "INT64", (1,))
    assert tensors.tensor(block) is tensors.tensor(Block(block.offset, 8, "INT64", (1,)))
    for other in (Block(block.offset, 8, "FP64", (1,)), Block(block.offset, 8, "INT64", ())):
        assert tensors.tensor(other) is not tensors.tensor(block)
    first = tensors.tensor(block)
    for length in range(TENSORS_KEPT_MAX):  # enough of them, and it is forgotten
        tensors.tensor(Block(0, 0, "FP32", (length, 0)))
    assert tensors.tensor(block) is not first
    assert tensors.tensor(block).data_ptr() == first.data_ptr()


def test_true_outputs_keep_the_offset_that_was_reserved() -> None:
    reserved = [Block(64, 400, "FP32", (100,)), Block(512, 8, "INT64", ())]
    regions = [torch.zeros(100), torch.tensor(3)]
    results = [torch.zeros(2, 5), regions[1]]
    assert blocks_of(reserved, regions, results) == (
        Block(64, 40, "FP32", (2, 5)),
        Block(512, 8, "INT64", ()),
    )
    with pytest.raises(ValueError, match="zip"):
        blocks_of(reserved, regions, results[:1])
