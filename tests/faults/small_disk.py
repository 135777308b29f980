"""A file system of a megabyte, to be filled. Only root may mount one."""

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A folder that is a small disk inside of the block, or just a folder where that is denied."""
    path.mkdir()
    is_mounted = _LIBC.mount(b"tmpfs", bytes(path), b"tmpfs", 0, b"size=1m,mode=700") == 0
    if not is_mounted and ctypes.get_errno() != errno.EPERM:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        if is_mounted:
            _LIBC.umount2(bytes(path), _MNT_DETACH)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Not a byte is left on a small disk inside of the block."""
    filler = disk / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(512)):
                pass
        yield
    finally:
        filler.unlink()
