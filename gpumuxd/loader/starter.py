"""The starter: a small process that forks loaders, so that no load waits for Python's imports.

To start Python and import what reads artifacts takes 0.2 s of a core, of the 0.3 s that a small
load takes, beside what serves; here it is done once. Each request on the control socket brings the
loader's end of a channel and one end of a status socket. The loader is forked, and how it ended is
said on the status socket; whoever hangs that up wants the loader dead. It never sees an artifact.

It must not know what a loader says or why one is wanted. Invariants: one thread, as what another
thread holds at a fork stays held in the child; a loader has no descriptor of the starter's but its
channel; loaders die with the starter, and the starter with the daemon.
"""

import gc
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass

from gpumuxd.loader import main as loader
from gpumuxd.wire.process import set_parent_death_signal
from gpumuxd.wire.starting import REQUEST_BYTES_MAX, how_ended, no_process

_FD_STDERR = 2


def main(arguments: list[str]) -> int:
    """`python -m gpumuxd.loader <fd>`; ends when the other end of its socket is closed and the
    loaders it started have ended."""
    if len(arguments) != 1 or not arguments[0].isdecimal():
        print("usage: python -m gpumuxd.loader <fd of a SOCK_SEQPACKET socket>", file=sys.stderr)
        return 2
    set_parent_death_signal()
    with socket.socket(fileno=int(arguments[0])) as control:
        os.set_inheritable(control.fileno(), False)
        loader.prepare()
        # A collection in a loader would write to every page that it shares with the starter.
        gc.collect()
        gc.freeze()
        Starter(control).run()
    return 0


@dataclass(slots=True)
class _Life:
    """One loader that runs."""

    pid: int
    pidfd: int
    status: socket.socket


class Starter:
    """Forks loaders on request and tells how they ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._by_pidfd: dict[int, _Life] = {}
        self._by_status: dict[int, _Life] = {}

    def run(self) -> None:
        """Until nobody asks any more and all loaders ended."""
        is_asked = True
        self._poll.register(self._control, select.POLLIN)
        while is_asked or self._by_pidfd:
            ready = {fd for fd, _ in self._poll.poll()}
            for fd in ready:
                if fd in self._by_pidfd:
                    self._reap(self._by_pidfd[fd])
                elif fd in self._by_status:
                    self._kill(self._by_status[fd])
            # Last, since new descriptors get the numbers of those just closed.
            if is_asked and self._control.fileno() in ready:
                is_asked = self._hear()

    def _hear(self) -> bool:
        """Take one request. False when there will be no more."""
        request, fds, _, _ = socket.recv_fds(self._control, REQUEST_BYTES_MAX, 2)
        if not request:
            self._poll.unregister(self._control)
            return False
        channel_fd, status_fd = fds
        status = socket.socket(fileno=status_fd)
        try:
            pid = self._fork(channel_fd)
        except OSError as error:
            _tell(status, no_process(error))
        else:
            life = _Life(pid, os.pidfd_open(pid), status)
            self._by_pidfd[life.pidfd] = self._by_status[status_fd] = life
            self._poll.register(life.pidfd, select.POLLIN)
            self._poll.register(status, select.POLLIN)
        finally:
            os.close(channel_fd)
        return True

    def _fork(self, channel_fd: int) -> int:
        """The loader's process id; the loader itself never returns."""
        starter_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _close_all_but(channel_fd)
                code = loader.run(channel_fd, starter_pid)
            except BaseException:  # whatever it is, the loop of the starter is no place for it
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        return pid

    def _kill(self, life: _Life) -> None:
        """Its status socket was hung up."""
        self._poll.unregister(life.status)
        del self._by_status[life.status.fileno()]
        # The number is still its own: only `_reap` frees it.
        os.kill(life.pid, signal.SIGKILL)

    def _reap(self, life: _Life) -> None:
        _, wait_status = os.waitpid(life.pid, 0)
        self._poll.unregister(life.pidfd)
        del self._by_pidfd[life.pidfd]
        os.close(life.pidfd)
        if self._by_status.pop(life.status.fileno(), None) is not None:
            self._poll.unregister(life.status)
        _tell(life.status, how_ended(os.waitstatus_to_exitcode(wait_status)))


def _tell(status: socket.socket, how: str) -> None:
    with status, suppress(OSError):  # perhaps nobody wants to know
        status.send(how.encode())


def _close_all_but(fd: int) -> None:
    """Also what the starter will have one day. The objects that held them are never finalised
    here: a loader ends without unwinding the starter's stack."""
    os.closerange(_FD_STDERR + 1, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
