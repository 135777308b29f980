"""Loaders are forked by a small process, the starter: here it is kept alive and asked.

It must not know what a loader is told or answers. A starter that dies takes its loaders with it,
which is an error of these loads alone, and is replaced. A starter one of whose loaders crashed is
replaced too: loaders of one starter have the same memory layout and hash seed, and nobody shall
learn those by trying (`docs/security.md`). So is one that stands still, as loads would wait for it
in vain: one that is stopped while it has loaders, or does not tell the end of one that was killed.

Used on the loop of the main thread (see `child_process.py`).
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpumuxd.clock import Clock
from gpumuxd.node.child_process import (
    SPAWN_STARTER,
    Child,
    Mortal,
    Spawn,
    is_stopped,
    loader_environment,
)
from gpumuxd.node.settings import RestartSettings
from gpumuxd.node.watch import Backoff
from gpumuxd.units import NS_PER_S
from gpumuxd.wire.starting import NO_PROCESS, REQUEST, STATUS_BYTES_MAX

STARTER_ENDED = "its starter ended"
"""How a loader ended whose starter did."""

LOOK_S = 1.0
"""Between two looks at a starter that has loaders. One that is stopped at two of them is killed."""

TELL_S_MAX = 5.0
"""The end of a loader that was killed is told in this time, though its starter yields to all."""

_KILLED = "signal SIGKILL"

_log = structlog.get_logger()

SpawnLoader = Callable[[socket.socket], Mortal]
"""Starts a loader that owns the peer's end of a socket pair."""


class StartedLoader:
    """A loader, known by the status socket that its starter holds the other end of."""

    def __init__(
        self,
        status: socket.socket,
        on_crash: Callable[[], None],
        on_silence: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        """`on_silence`: its starter does not tell its end."""
        self._status = status
        self._on_crash = on_crash
        self._on_silence = on_silence
        self._on_close = on_close
        self._how = ""
        self._killed_s: float | None = None

    def fileno(self) -> int:
        return self._status.fileno()

    def kill(self) -> None:
        self._killed_s = asyncio.get_running_loop().time()
        with contextlib.suppress(OSError):  # its starter is gone, and so is it
            self._status.shutdown(socket.SHUT_WR)

    def reap(self) -> str:
        """How it ended. A loader that was killed may need a moment more: nobody waits for it."""
        if not self._how:
            self._how = self._hear()
            if self._how != "exit code 0" and not (
                self._killed_s is not None and self._how == _KILLED
            ):
                self._on_crash()
        return self._how

    def close(self) -> None:
        self._status.close()
        self._on_close()

    def _hear(self) -> str:
        try:
            said = self._status.recv(STATUS_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            assert self._killed_s is not None, "reaped while it runs"
            if asyncio.get_running_loop().time() - self._killed_s >= TELL_S_MAX:
                self._on_silence()
            return _KILLED
        except OSError:
            return STARTER_ENDED
        return said.decode() or STARTER_ENDED


@dataclass(slots=True, eq=False)
class _Running:
    """One starter."""

    child: Child
    control: socket.socket
    began_ns: int
    is_retired: bool = False
    loaders: int = 0
    was_stopped: bool = False
    look: asyncio.TimerHandle | None = None
    kill_reason: str = ""


class LoaderStarter:
    """Starts loaders through a process that is replaced when it ends."""

    def __init__(
        self, restart: RestartSettings, clock: Clock, spawn: Spawn = SPAWN_STARTER
    ) -> None:
        self._clock = clock
        self._spawn = spawn
        self._backoff = Backoff(restart)
        self._current: _Running | None = None
        self._all: set[_Running] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """Of the starter that new loaders will come from, 0 if there is none now."""
        return self._current.child.pid if self._current is not None else 0

    def start(self) -> None:
        """Have a starter ready before the first load; what keeps it from starting is logged."""
        try:
            self._start()
        except OSError as error:
            _log.warning("loader_starter_lost", reason=f"{NO_PROCESS}: {error.strerror}")

    def spawn(self, peer: socket.socket) -> Mortal:
        """A `SpawnLoader`. Raises OSError."""
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                running = self._ask([peer.fileno(), theirs.fileno()])
            except OSError:
                status.close()
                raise
        running.loaders += 1
        self._look_later(running)
        return StartedLoader(
            status,
            on_crash=lambda: self._retire(running),
            on_silence=lambda: self._kill(running, "it did not tell the end of a loader"),
            on_close=lambda: self._loader_closed(running),
        )

    def close(self) -> None:
        """End it, and with it every loader."""
        self._cancel_timer()
        for running in list(self._all):
            running.child.kill()
            self._forget(running)
        self._current = None

    def _ask(self, fds: list[int]) -> _Running:
        running = self._current or self._start()
        try:
            socket.send_fds(running.control, [REQUEST], fds)
        except ConnectionError:  # it ended a moment ago
            running = self._start()
            socket.send_fds(running.control, [REQUEST], fds)
        return running

    def _start(self) -> _Running:
        self._cancel_timer()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        with theirs:
            try:
                child = self._spawn(theirs, loader_environment())
            except OSError:
                control.close()
                raise
        running = self._current = _Running(child, control, self._clock())
        self._all.add(running)
        asyncio.get_running_loop().add_reader(child.fileno(), self._ended, running)
        return running

    def _retire(self, running: _Running) -> None:
        """No new loader from this one; it ends when those that it has ended."""
        if running is not self._current:
            return
        running.is_retired = True
        running.control.close()
        self._current = None
        self.start()

    def _loader_closed(self, running: _Running) -> None:
        running.loaders -= 1

    def _look_later(self, running: _Running) -> None:
        if running.look is None:
            loop = asyncio.get_running_loop()
            running.look = loop.call_later(LOOK_S, self._look, running)

    def _look(self, running: _Running) -> None:
        running.look = None
        is_still = running.loaders > 0 and is_stopped(running.child.pid)
        if is_still and running.was_stopped:
            self._kill(running, f"its process was stopped for {LOOK_S:g} s")
        elif running.loaders:
            self._look_later(running)
        running.was_stopped = is_still

    def _kill(self, running: _Running, reason: str) -> None:
        """One that stands still. Its loaders end with it, and whoever waits for them is told."""
        if running in self._all:
            running.kill_reason = reason
            running.child.kill()

    def _ended(self, running: _Running) -> None:
        how = self._forget(running)
        if running.kill_reason:
            how = f"{running.kill_reason} ({how})"
        if running.is_retired and how == "exit code 0":
            return
        delay_ns = self._backoff.delay_ns(self._clock() - running.began_ns)
        _log.warning("loader_starter_lost", reason=how, restart_in_ms=delay_ns // 1_000_000)
        if running is self._current:
            self._current = None
            # A load that comes before does not wait for it.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ns / NS_PER_S, self.start)

    def _forget(self, running: _Running) -> str:
        """Reap a starter that ended or is about to."""
        asyncio.get_running_loop().remove_reader(running.child.fileno())
        if running.look is not None:
            running.look.cancel()
        how = running.child.reap()
        running.child.close()
        running.control.close()
        self._all.discard(running)
        return how

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
