"""What every child process does for itself: die with its parent, and share memory that can't move.

A parent can be killed with SIGKILL at any moment and then cleans nothing up, so a child must not
depend on being told. `prctl(PR_SET_PDEATHSIG)` is set by the child itself: a `preexec_fn` in the
parent would be unsafe with threads. It names the *thread* that spawned, so children are spawned
from the parent's main thread.
"""

import ctypes
import fcntl
import mmap
import os
import signal
from collections.abc import Callable
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29

SEALS_SIZE = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
"""Size fixed, contents not. A file that can shrink is SIGBUS in whoever has it mapped."""

SEALS_ALL = SEALS_SIZE | fcntl.F_SEAL_WRITE
"""Nothing can change it any more, not even its writer."""


EXIT_PARENT_GONE = 3
EXIT_BUG = 70
EXIT_WATCHDOG = 71
"""How a device child ends that was not told to stop (`device/main.py`)."""


class ParentGone(Exception):
    """The parent died before the child could ask to die with it."""


class NotSealed(Exception):
    """A shared file that its sender could still change."""


def set_parent_death_signal(expected_parent_pid: int | None = None) -> None:
    """Ask the kernel for SIGKILL when the parent dies; raise ParentGone if it is dead already.

    Without a pid nothing is checked: call it again as soon as the parent has told its own.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if expected_parent_pid is not None and os.getppid() != expected_parent_pid:
        raise ParentGone(f"expected parent {expected_parent_pid}, have {os.getppid()}")


def set_timer_slack(slack_ns: int) -> None:
    """How late the kernel may end this thread's sleeps to batch them; 50 us unless set.

    Measured overshoot of a 0.2 ms select: 64 us by default, 12 us with a slack of 1 ns. Threads
    started later inherit it.
    """
    _prctl(_PR_SET_TIMERSLACK, slack_ns)


def sealed_memfd(name: str, write: Callable[[BinaryIO], object]) -> int:
    """A descriptor of anonymous memory that holds what `write` wrote and can't change any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            write(file)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS_ALL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_sealed(fd: int, required: int = SEALS_ALL) -> mmap.mmap:
    """Map a sealed file, privately: its pages are shared until someone writes to them.

    The descriptor stays the caller's. Raises NotSealed if a seal is missing, ValueError if empty.
    """
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if seals & required != required:
        raise NotSealed(f"seals {seals:#x}, expected {required:#x}")
    return mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_COPY)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
