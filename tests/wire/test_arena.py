"""Arena: blocks never overlap, all come back, both sides see the same bytes."""

import fcntl
import os
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpumuxd.wire.arena import ALIGNMENT_BYTES, Allocator, Arena, ArenaFull, ArenaMap
from gpumuxd.wire.process import NotSealed

BLOCK = ALIGNMENT_BYTES
SIZE = 32 * BLOCK


class AllocatorMachine(RuleBasedStateMachine):
    """Any order of allocate and free, against a plain list of what is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(SIZE)
        self.used: dict[int, int] = {}

    @rule(size=st.integers(0, SIZE + BLOCK))
    def allocate(self, size: int) -> None:
        rounded = max(-(-size // BLOCK), 1) * BLOCK
        largest = max((free for _, free in self.allocator.free_ranges), default=0)
        if rounded > largest:
            with pytest.raises(ArenaFull):
                self.allocator.allocate(size)
            return
        offset = self.allocator.allocate(size)
        assert offset % BLOCK == 0
        self.used[offset] = rounded

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.used)))
        self.allocator.free(offset)
        del self.used[offset]

    @invariant()
    def used_and_free_tile_the_arena(self) -> None:
        ranges = sorted([*self.used.items(), *self.allocator.free_ranges])
        end = 0
        for offset, size in ranges:
            assert offset == end
            assert size > 0
            end += size
        assert end == SIZE
        assert self.allocator.used_bytes == sum(self.used.values())

    @invariant()
    def free_neighbours_are_joined(self) -> None:
        ranges = self.allocator.free_ranges
        for (offset, size), (following, _) in pairwise(ranges):
            assert offset + size < following


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_smallest_range_that_fits_is_taken() -> None:
    allocator = Allocator(10 * BLOCK)
    blocks = [allocator.allocate(size * BLOCK) for size in (3, 1, 1, 1, 4)]
    allocator.free(blocks[0])  # 3 free at 0
    allocator.free(blocks[2])  # 1 free at 4
    assert allocator.allocate(BLOCK) == blocks[2]
    assert allocator.allocate(BLOCK) == blocks[0]


def test_full_says_what_was_asked_and_what_there_is() -> None:
    allocator = Allocator(4 * BLOCK)
    first, second, _ = (allocator.allocate(BLOCK) for _ in range(3))
    allocator.free(first)
    del second
    with pytest.raises(ArenaFull, match=r"129 bytes .* 128 of 256 free, largest range 64"):
        allocator.allocate(2 * BLOCK + 1)


def test_freeing_twice_or_what_was_never_allocated_is_a_bug() -> None:
    allocator = Allocator(4 * BLOCK)
    offset = allocator.allocate(1)
    with pytest.raises(AssertionError):
        allocator.free(offset + BLOCK)
    allocator.free(offset)
    with pytest.raises(AssertionError):
        allocator.free(offset)


def test_both_sides_see_the_same_bytes() -> None:
    arena = Arena(SIZE)
    child = ArenaMap(os.dup(arena.fd))
    offset = arena.allocate(5)
    arena.view(offset, 5)[:] = b"hello"
    assert bytes(child.buffer[offset : offset + 5]) == b"hello"
    child.buffer[offset] = ord("j")
    assert bytes(arena.view(offset, 5)) == b"jello"
    assert child.size_bytes == arena.size_bytes == SIZE
    child.close()
    arena.close()


def test_a_view_beyond_its_block_is_a_bug() -> None:
    arena = Arena(SIZE)
    offset = arena.allocate(BLOCK)
    with pytest.raises(AssertionError):
        arena.view(offset, BLOCK + 1)
    with pytest.raises(AssertionError):
        arena.view(offset + BLOCK, 1)
    arena.close()


@pytest.mark.parametrize("size", [0, SIZE - BLOCK, SIZE + BLOCK])
def test_the_file_can_neither_shrink_nor_grow(size: int) -> None:
    arena = Arena(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    arena.close()


def test_a_file_that_could_shrink_is_refused_and_closed() -> None:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    with pytest.raises(NotSealed):
        ArenaMap(fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_close_waits_for_nobody_and_leaves_views_usable() -> None:
    arena = Arena(SIZE)
    view = arena.view(arena.allocate(4), 4)
    fd = arena.fd
    arena.close()
    arena.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    view[:] = b"abcd"
    assert bytes(view) == b"abcd"
