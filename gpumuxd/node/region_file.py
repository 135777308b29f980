"""A shared memory object of a client, as a file: opened, read and written, never mapped.

Who maps a file gets SIGBUS where its owner truncates it. Reading and writing it says so instead,
and costs the one copy that is needed anyway: between the object and the arena.

A tenant gives a name, and the daemon opens it with its own rights. So that it can't be made to
reach what is not the tenant's: the name is one component of the directory of POSIX shared memory;
no symbolic link is followed and nothing waits for a fifo or a lease; what was opened must be a
regular file of that very file system, and its owner one of the users whose objects the tenant may
name. Whether something else is there is not told.

All functions here may block for as long as the owner of the file likes (`fallocate`, memory that
was swapped out), so they run in threads of its tenant. It must not know regions, requests or
tenants.
"""

import errno
import os
import resource
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from gpumuxd.errors import InvalidRequest, QueueFull, UnknownRegion, limit_facts
from gpumuxd.node.validation import elide

DIRECTORY = "/dev/shm"
"""Where glibc's shm_open keeps its objects."""

NAME_BYTES_MAX = 255
"""NAME_MAX of every file system of Linux."""

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class RegionFile:
    """An open object. Whoever has it closes it."""

    fd: int
    is_writable: bool


def open_object(key: str, uids: Sequence[int], end: int) -> RegionFile:
    """The object of this name that belongs to one of these users and has at least `end` bytes.
    Raises InvalidRequest, UnknownRegion or QueueFull."""
    name = key.removeprefix("/")
    try:
        size_bytes = len(os.fsencode(name))
    except UnicodeEncodeError:
        size_bytes = 0
    if name in (".", "..") or "/" in name or "\0" in name or not 0 < size_bytes <= NAME_BYTES_MAX:
        raise InvalidRequest(
            f"expected a key of 1 to {NAME_BYTES_MAX} bytes without a slash but the first, "
            f"got {elide(key)}"
        )
    file = _open(key, f"{DIRECTORY}/{name}")
    try:
        found = os.fstat(file.fd)
        is_file = stat.S_ISREG(found.st_mode) and found.st_dev == os.stat(DIRECTORY).st_dev
        if not is_file or found.st_uid not in uids:
            raise _unknown(key)
        if found.st_size < end:
            raise InvalidRequest(
                f"object {elide(key)} has {found.st_size} bytes, the region ends at {end}"
            )
    except BaseException:
        os.close(file.fd)
        raise
    return file


def _open(key: str, path: str) -> RegionFile:
    """For reading alone where the daemon may not write."""
    for is_writable in (True, False):
        try:
            return RegionFile(
                os.open(path, _FLAGS | (os.O_RDWR if is_writable else os.O_RDONLY)), is_writable
            )
        except OSError as error:
            if error.errno == errno.EMFILE:
                files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise QueueFull(
                    f"the daemon has {files_max} files open, which is its limit",
                    limit_facts("open_files", files_max, "files"),
                ) from None
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                break
    raise _unknown(key)


def _unknown(key: str) -> UnknownRegion:
    return UnknownRegion(
        f"no shared memory object {elide(key)} that this tenant may use: it has to exist, be a "
        "regular file of a user whose objects the tenant may name ([shared_memory] uids), and be "
        "readable for the daemon"
    )


def read_into(file: RegionFile, position: int, view: memoryview, label: str) -> None:
    """Fill the view with what lies there. Raises InvalidRequest when the file is shorter."""
    done = 0
    while done < view.nbytes:
        try:
            count = os.preadv(file.fd, [view[done:]], position + done)
        except OSError as error:
            raise _failed(label, error) from None
        if not count:
            raise InvalidRequest(
                f"{label}: expected {view.nbytes} bytes, the object ends after {done} of them: "
                "it was made smaller"
            )
        done += count


def write_from(file: RegionFile, position: int, view: memoryview, label: str) -> None:
    """Write the view there. Raises InvalidRequest when the file is shorter: it must not grow.

    Its owner may make it smaller between the look and the write. Then it has a hole where there was
    nothing, which is all that comes of it.
    """
    done = 0
    try:
        size_bytes = os.fstat(file.fd).st_size
        if view.nbytes and size_bytes < position + view.nbytes:
            raise InvalidRequest(
                f"{label}: expected room for {view.nbytes} bytes at {position} of the object, "
                f"it has {size_bytes} bytes now: it was made smaller"
            )
        while done < view.nbytes:
            done += os.pwritev(file.fd, [view[done:]], position + done)
    except OSError as error:
        raise _failed(label, error) from None


def _failed(label: str, error: OSError) -> InvalidRequest:
    """The object is its owner's, and so is what is wrong with it: full, sealed, immutable."""
    return InvalidRequest(f"{label}: its shared memory object: {error.strerror}")
