"""One process that the parent started: a device child or the starter of loaders.

Its death is an event on a descriptor (pidfd), never polled for, and killing it can't hit another
process that got its number. It must not know what is said over the socket.

Spawned from the main thread alone: PR_SET_PDEATHSIG in the child follows the *thread* that
started it, and a worker thread of asyncio may end long before the daemon does.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import gpumuxd
from gpumuxd.wire.slices import USUAL_NS, set_slice
from gpumuxd.wire.starting import SPARE, how_ended

_PACKAGE_PARENT = str(Path(gpumuxd.__file__).resolve().parent.parent)

_DAEMON_ONLY = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "CREDENTIALS_DIRECTORY",
)
"""Said by systemd to the parent and to nobody else."""


class Mortal(Protocol):
    """What the parent may do with a process that runs for it."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process has ended."""
        ...

    def kill(self) -> None:
        """SIGKILL. No error when it has ended already."""
        ...

    def reap(self) -> str:
        """After the end: collect it and tell how it ended. Idempotent."""
        ...

    def close(self) -> None:
        """Close the descriptor; the process must have been reaped."""
        ...


class Child(Mortal, Protocol):
    """A process that the parent started itself."""

    @property
    def pid(self) -> int: ...


Spawn = Callable[[socket.socket, Mapping[str, str]], Child]
"""Starts a child that owns the peer's end of a socket pair, with this environment."""


class ChildProcess:
    """A `python -m <module> <fd>` process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._pidfd

    def kill(self) -> None:
        # The number can't have been given to another process: only `reap` frees it.
        if self._process.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def reap(self) -> str:
        return how_ended(self._process.wait())

    def close(self) -> None:
        assert self._process.returncode is not None, "reap before close"
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


LOADER_NICE = 19
"""Reading artifacts has all the time of the machine that nobody else wants, and about a hundredth
of a core beside whatever wants all of it: it gets done, and nobody served feels it. The kernel
takes the order of disk reads from it too."""


def spawn_module(module: str, *arguments: str, is_background: bool = False) -> Spawn:
    """A Spawn of `python -m module`, with the socket's number and these arguments; in the
    background it yields to everything else."""

    def spawn(peer: socket.socket, environment: Mapping[str, str]) -> Child:
        assert threading.current_thread() is threading.main_thread()
        fd = peer.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(fd), *arguments],
            pass_fds=(fd,),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            # Its own group: Ctrl-C in a terminal goes to the daemon, which drains.
            process_group=0,
        )
        child = ChildProcess(process)
        if is_background:
            yield_to_others(process.pid)
        return child

    return spawn


def yield_to_others(pid: int) -> None:
    """A process, by its first thread, or a thread alone, by its native id. Threads that it starts
    later inherit this.

    For a child from here and not by itself: what it does first is to start Python. It may have
    ended already, and not every kernel lets us.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, LOADER_NICE)
        # It does not take a core from anybody by waking up either.
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
        set_slice(USUAL_NS, pid)


SPAWN_DEVICE = spawn_module("gpumuxd.device")
SPAWN_SPARE_DEVICE = spawn_module("gpumuxd.device", SPARE)
SPAWN_STARTER = spawn_module("gpumuxd.loader", is_background=True)


def is_stopped(pid: int) -> bool:
    """Does this process stand still because of a signal or a debugger?"""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False  # it is gone
    return text.rpartition(")")[2].split()[0] in ("T", "t")


def device_environment(threads: int) -> dict[str, str]:
    """What a device child inherits: all but what is meant for the daemon itself."""
    environment = {key: value for key, value in os.environ.items() if key not in _DAEMON_ONLY}
    environment["PYTHONPATH"] = _python_path()
    # Thread pools of the maths libraries are sized when they are imported.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[variable] = str(threads)
    return environment


def loader_environment() -> dict[str, str]:
    """What a loader inherits: nothing but what Python needs. It reads what tenants made."""
    kept = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "PYTHONHOME", "TMPDIR")
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    environment["PYTHONPATH"] = _python_path()
    return environment


def _python_path() -> str:
    """Children import the very package that runs here, installed or not."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([_PACKAGE_PARENT, *([inherited] if inherited else [])])
