"""Opening files that tenants may have made: never wait for one, never follow it elsewhere.

What lies under a name can change between a look and the open, so what was opened is looked at. It
must not know what the files hold. Invariant: a descriptor that comes out of here is of a regular
file, and getting it waited for nobody but the disk.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path


class NotRegular(Exception):
    """Something else than a file lies there: a pipe, a device, a directory, a link."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Tells, without reading it, whether a file is still what it was.

    The time of the last change of its status is no part of it: a backup that sets the access time,
    or a second hard link, would make it another file.
    """

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileStamp":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


def is_untouched(before: os.stat_result, after: os.stat_result) -> bool:
    """Did nobody touch the file between two looks at it? Stricter than its stamp: who writes to it
    and sets its time back can't undo the time of that."""
    return (before.st_dev, before.st_ctime_ns, FileStamp.of(before)) == (
        after.st_dev,
        after.st_ctime_ns,
        FileStamp.of(after),
    )


def open_regular(path: Path) -> int:
    """A descriptor to read from. `path` is a real path: a link at its end is refused.

    Raises FileNotFoundError, another OSError, or NotRegular. A pipe without a writer is no reason
    to wait: the open is non-blocking, which changes nothing for a regular file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    if not stat.S_ISREG(os.lstat(path).st_mode):  # also keeps devices from being opened at all
        raise NotRegular("is not a regular file")
    fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular("is not a regular file")
    return fd


def open_lock(path: Path, mode: int) -> int:
    """A descriptor to lock and write to, of a file that is made when there is none; a link is not
    followed. Raises OSError, also for what is no regular file: nothing else can be a lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    fd = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "the lock is not a regular file", str(path))
    return fd
