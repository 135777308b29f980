"""Weights chunk by chunk: what a program brings in, and what is given back."""

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import Slice
from gpumuxd.events import SliceFailed, SyncPointReached
from gpumuxd.executors import upload
from gpumuxd.executors.base import Completion
from gpumuxd.executors.cpu import COMPUTE, CpuExecutor
from gpumuxd.executors.upload import CHUNK_BYTES, UploadProgram
from gpumuxd.wire.process import map_sealed, sealed_memfd

NEIGHBOURS_KIB = 128
"""The kernel maps some neighbours of a page that is read."""

SIZE = 2 * CHUNK_BYTES + 3 * mmap.PAGESIZE + 5


@pytest.fixture
def weights() -> Iterator[mmap.mmap]:
    fd = sealed_memfd("gpumuxd-weights", lambda file: file.write(b"w" * SIZE))
    mapped = map_sealed(fd)
    os.close(fd)
    yield mapped
    mapped.close()


@pytest.fixture
def executor() -> Iterator[CpuExecutor]:
    executor = CpuExecutor()
    yield executor
    executor.close()


def resident_kib(mapped: mmap.mmap) -> int:
    """How much of a map has pages that were touched through it."""
    begin = upload.chunks(mapped)[0][0]
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(line.startswith(f"{begin:x}-") for line in lines), "it is mapped"
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def run(executor: CpuExecutor, first: int, end: int) -> list[Completion]:
    """Launch one slice a group, of cursor 1, and wait for all."""
    for group in range(first, end):
        executor.launch(Slice(group, 1, "m", (), (-1,), 0, group, group + 1, COMPUTE, (), 0))
    told: list[Completion] = []
    while len(told) < end - first:
        told += executor.wait(monotonic_ns() + 10**10)
    return told


@pytest.mark.parametrize("touch", [upload.populate, upload.read_pages])
def test_each_group_brings_in_one_chunk_and_all_of_them_everything(
    executor: CpuExecutor, weights: mmap.mmap, touch: Callable[[int, int], None]
) -> None:
    program = UploadProgram(weights, touch)
    assert program.group_count == 3
    assert resident_kib(weights) == 0
    executor.load("m", program)
    executor.bind(-1, (), ())
    seen = []
    for group in range(3):
        assert isinstance(run(executor, group, group + 1)[0], SyncPointReached)
        seen.append(resident_kib(weights))
    chunk_kib = CHUNK_BYTES // 1024
    assert chunk_kib <= seen[0] < seen[1]
    assert seen[1] >= 2 * chunk_kib
    assert seen[2] * 1024 == -(-SIZE // mmap.PAGESIZE) * mmap.PAGESIZE
    assert executor.bytes_held(1) == 0, "weights are no part of the frame"


def test_a_kernel_without_the_call_is_helped_by_reading(
    weights: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "MADV_POPULATE_READ", 10_000)  # which no kernel knows
    for address, size_bytes in upload.chunks(weights):
        upload.populate(address, size_bytes)
    assert resident_kib(weights) * 1024 >= SIZE


def test_what_was_brought_in_is_what_was_there_and_can_be_given_back(weights: mmap.mmap) -> None:
    for address, size_bytes in upload.chunks(weights):
        upload.populate(address, size_bytes)
        assert resident_kib(weights) > 0
        upload.give_back(address, size_bytes)
        assert resident_kib(weights) < NEIGHBOURS_KIB
    assert weights[:] == b"w" * SIZE


def test_nothing_of_it_keeps_a_map_open(executor: CpuExecutor) -> None:
    fd = sealed_memfd("gpumuxd-weights", lambda file: file.write(b"w" * SIZE))
    mapped = map_sealed(fd)
    os.close(fd)
    program = UploadProgram(mapped)
    executor.load("m", program)
    executor.bind(-1, (), ())
    run(executor, 0, 1)
    mapped.close()  # the program is still there: BufferError if it held the buffer


def test_a_chunk_that_fails_ends_the_upload(executor: CpuExecutor, weights: mmap.mmap) -> None:
    def fail(address: int, size_bytes: int) -> None:
        raise OSError("Cannot allocate memory")

    executor.load("m", UploadProgram(weights, fail))
    executor.bind(-1, (), ())
    failed, next_one = run(executor, 0, 2)
    assert isinstance(failed, SliceFailed)
    assert failed.reason == "OSError: Cannot allocate memory"
    assert isinstance(next_one, SliceFailed)
