"""One daemon per state directory: a lock that dies with its holder, and says who that is.

gRPC would let two daemons share one port or take over a Unix socket without a word, so the lock
comes before any listener. `flock` is released by the kernel, also after SIGKILL.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gpumuxd.models.files import open_lock


class AlreadyRunning(Exception):
    """Another daemon has this state directory."""


@contextlib.contextmanager
def state_lock(state_dir: Path) -> Iterator[None]:
    """Hold `state_dir/lock`. Raises AlreadyRunning naming the holder, OSError without access: on a
    read-only file system nothing would keep a second daemon away."""
    path = state_dir / "lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        fd = open_lock(path, 0o640)
    except OSError as error:
        needed = "[node].state_dir must be a directory that the daemon may write to"
        raise OSError(error.errno, f"{needed}: {error.strerror}", str(path)) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise AlreadyRunning(f"{path} is held by the gpumuxd with pid {holder}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(fd)
