"""Weights of the CPU device, chunk by chunk: a program that brings them in, and their way out.

Weights arrive as sealed memory that was mapped privately, and the first touch of each page of a map
is a fault. Without this program the faults would lie in whichever run comes first, a tenant's or a
measurement. Run as a cursor of kind UPLOAD it is work like any other: on the device thread, one
chunk a slice, with tenants going ahead between two chunks.

It must not know models. Invariant: it reads the map, never writes it, and holds no export of its
buffer, so whoever owns the map may close it as soon as the program is unloaded.
"""

import ctypes
import mmap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gpumuxd.units import MIB

CHUNK_BYTES = 4 * MIB
"""0.3 ms on a slow core, where the pages are in memory already and only have to be mapped; copied
over PCIe it would be some 0.1 ms. Far below any bound worth stating, and a few times the 0.1 ms in
which a sync point becomes the next launch: smaller ones would mostly wait."""

MADV_POPULATE_READ = 22
"""Linux 5.14: map the pages of a range for reading, as if each had been read. Not in `mmap`."""

MADV_DONTNEED = 4

Touch = Callable[[int, int], None]
"""Bring in the pages of an address range."""

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(address: int, size_bytes: int) -> None:
    """One system call, without the GIL (`mmap.madvise` keeps it). Reads a byte of each page where
    the kernel is older or refuses."""
    if _madvise(address, size_bytes, MADV_POPULATE_READ) != 0:
        read_pages(address, size_bytes)


def read_pages(address: int, size_bytes: int) -> None:
    """Read a byte of each page. Three times as slow; torch gives up the GIL meanwhile."""
    buffer = (ctypes.c_ubyte * size_bytes).from_address(address)
    torch.frombuffer(buffer, dtype=torch.uint8)[:: mmap.PAGESIZE].sum()


def give_back(address: int, size_bytes: int) -> None:
    """Unmap the pages of a range that nobody reads any more; the map itself stays. If the kernel
    refuses, they go with the map."""
    _madvise(address, size_bytes, MADV_DONTNEED)


def chunks(weights: mmap.mmap) -> list[tuple[int, int]]:
    """Address and size of each chunk of a map."""
    export = ctypes.c_ubyte.from_buffer(weights)
    begin = ctypes.addressof(export)
    del export  # a map with an export can't be closed
    size = len(weights)
    return [
        (begin + offset, min(CHUNK_BYTES, size - offset)) for offset in range(0, size, CHUNK_BYTES)
    ]


class UploadProgram:
    """The program of one map. In the form of every program of the CPU device; it has no tensors."""

    def __init__(self, weights: mmap.mmap, touch: Touch = populate) -> None:
        self.groups: Sequence[Callable[[list[Any]], None]] = tuple(
            partial(_bring, touch, address, size_bytes) for address, size_bytes in chunks(weights)
        )

    @property
    def group_count(self) -> int:
        return len(self.groups)

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return []

    def outputs(self, slots: list[Any]) -> list[torch.Tensor]:
        return []

    def bytes_held(self, slots: list[Any]) -> int:
        return 0


def _bring(touch: Touch, address: int, size_bytes: int, slots: list[Any]) -> None:
    touch(address, size_bytes)
