"""Opening files that tenants may have made: never wait for one, never follow it elsewhere.

What lies under a name can change between a look and the open, so what was opened is looked at. It
must not know what the files hold. Invariant: a descriptor that comes out of here is of a regular
file, and getting it waited for nobody but the disk.
"""

import os
import stat
from pathlib import Path


class NotRegular(Exception):
    """Something else than a file lies there: a pipe, a device, a directory, a link."""


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
