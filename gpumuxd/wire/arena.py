"""The arena: shared memory for the tensors of requests in flight on one device.

It belongs to the parent, which alone allocates and frees; the child maps it and goes where frames
tell it. It must not know what a block holds or when it may be freed: that is the node's rule
(inputs live until Finish, everything of a dead child until it is reaped). Invariants: blocks never
overlap, all are returned, the file can neither grow nor shrink under the other side.

The allocator takes the smallest free range that fits, lowest address first, and joins neighbours
at once. Both sorted lists are Python lists: the shift on insert is a memmove, and with the few
thousand ranges an arena ever has it costs less than any tree in Python.
"""

import contextlib
import fcntl
import mmap
import os
from bisect import bisect_left, insort

from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.wire.process import SEALS_SIZE, NotSealed

ALIGNMENT_BYTES = 64
"""A cache line, and the alignment that torch's vectorised kernels like best."""


def aligned(size_bytes: int) -> int:
    """A size rounded up, so that what comes behind it is aligned."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class ArenaFull(OutOfDeviceMemory):
    """No free range is large enough now; retrying later may help."""


class Allocator:
    """Ranges of `size_bytes` bytes; pure bookkeeping, touches no memory."""

    def __init__(self, size_bytes: int) -> None:
        assert size_bytes > 0, size_bytes
        self.size_bytes = size_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self.used_bytes = 0
        self._used: dict[int, int] = {}  # offset -> size
        self._free: dict[int, int] = {0: self.size_bytes}  # offset -> size
        self._by_offset: list[int] = [0]
        self._by_size: list[tuple[int, int]] = [(self.size_bytes, 0)]

    def allocate(self, size_bytes: int) -> int:
        """The offset of a new block of at least this size. Raises ArenaFull with the numbers."""
        assert size_bytes >= 0, size_bytes
        # An empty tensor has an address of its own too, so that free() needs no special case.
        size = max(aligned(size_bytes), ALIGNMENT_BYTES)
        index = bisect_left(self._by_size, (size, 0))
        if index == len(self._by_size):
            largest = self._by_size[-1][0] if self._by_size else 0
            raise ArenaFull(
                f"{size_bytes} bytes of request memory asked, {self.size_bytes - self.used_bytes} "
                f"of {self.size_bytes} free, largest range {largest}"
            )
        free_size, offset = self._by_size[index]
        self._remove_free(offset)
        if free_size > size:
            self._add_free(offset + size, free_size - size)
        self._used[offset] = size
        self.used_bytes += size
        return offset

    def free(self, offset: int) -> None:
        """Give a block back. Freeing twice, or what was never allocated, is a bug."""
        assert offset in self._used, f"no block at {offset}: freed twice?"
        size = self._used.pop(offset)
        self.used_bytes -= size
        index = bisect_left(self._by_offset, offset)
        if index < len(self._by_offset) and self._by_offset[index] == offset + size:
            size += self._remove_free(offset + size)
        if index > 0:
            before = self._by_offset[index - 1]
            if before + self._free[before] == offset:
                size += self._remove_free(before)
                offset = before
        self._add_free(offset, size)

    def block_bytes(self, offset: int) -> int:
        """The size of a block in use; a bug if there is none."""
        assert offset in self._used, f"no block at {offset}"
        return self._used[offset]

    @property
    def free_ranges(self) -> list[tuple[int, int]]:
        """(offset, size) of what is free, by offset."""
        return [(offset, self._free[offset]) for offset in self._by_offset]

    def _add_free(self, offset: int, size: int) -> None:
        self._free[offset] = size
        insort(self._by_offset, offset)
        insort(self._by_size, (size, offset))

    def _remove_free(self, offset: int) -> int:
        size = self._free.pop(offset)
        del self._by_offset[bisect_left(self._by_offset, offset)]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        return size


class Arena:
    """The parent's side: the memory, its map and its allocator."""

    def __init__(self, size_bytes: int) -> None:
        self._allocator = Allocator(size_bytes)
        self._fd = os.memfd_create("gpumuxd-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, self._allocator.size_bytes)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS_SIZE)
            self._map = mmap.mmap(self._fd, self._allocator.size_bytes)
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes = memoryview(self._map)

    @property
    def fd(self) -> int:
        """To be passed beside Start; stays ours."""
        assert self._fd >= 0, "the arena is closed"
        return self._fd

    @property
    def size_bytes(self) -> int:
        return self._allocator.size_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks in use, rounded up as they are."""
        return self._allocator.used_bytes

    def allocate(self, size_bytes: int) -> int:
        """The offset of a new block, aligned to ALIGNMENT_BYTES. Raises ArenaFull."""
        return self._allocator.allocate(size_bytes)

    def free(self, offset: int) -> None:
        """Give a block back; freeing twice is a bug."""
        self._allocator.free(offset)

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """The first `size_bytes` of the block at `offset`, writable."""
        assert size_bytes <= self._allocator.block_bytes(offset), (offset, size_bytes)
        return self._bytes[offset : offset + size_bytes]

    def close(self) -> None:
        """Close the file. The memory goes when the last view and the child have let go of it."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        # Someone may still hold a view; then the map closes when that one goes.
        with contextlib.suppress(BufferError):
            self._bytes.release()
            self._map.close()


class ArenaMap:
    """The child's side: a map of the same memory. Takes the descriptor and closes it."""

    def __init__(self, fd: int) -> None:
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if seals & SEALS_SIZE != SEALS_SIZE:
                raise NotSealed(f"arena seals {seals:#x}, expected {SEALS_SIZE:#x}")
            self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        self.buffer = memoryview(self._map)

    @property
    def size_bytes(self) -> int:
        return len(self._map)

    def close(self) -> None:
        """Let go of the memory; tensors that still lie in it keep the map alive."""
        with contextlib.suppress(BufferError):
            self.buffer.release()
            self._map.close()
