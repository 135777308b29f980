"""A device child that stands by: started ahead, so that the next life of a device need not wait.

Most of what a device is away for after a loss is Python and torch being imported. A *spare* has
done that, with what nobody else wanted of the machine, and waits for the end of a channel; then it
is a device child like any other. One is kept for each environment that children run in, which is
the same for all devices with as many threads. It must not know devices or links.

A spare takes memory, what torch takes without a model: who has none to spare turns it off.
Invariant: a spare that is handed out is forgotten here; one that is not is killed and reaped here.
"""

import contextlib
import socket
from collections.abc import Mapping

import structlog

from gpumuxd.node.child_process import Child, Spawn
from gpumuxd.wire.starting import SERVE, WARM, WORD_BYTES_MAX

_log = structlog.get_logger()


class _Spare:
    """One process that stands by, and our end of the socket that it waits at."""

    def __init__(self, spawn: Spawn, environment: Mapping[str, str]) -> None:
        self._socket, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            with peer:
                self.child = spawn(peer, environment)
        except OSError:
            self._socket.close()
            raise
        self._is_warm = False

    def look(self) -> bool:
        """Is it of any use, now or later? Not when it has ended."""
        try:
            word = self._socket.recv(WORD_BYTES_MAX)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._is_warm |= word == WARM
        return bool(word)

    def hand_over(self, peer: socket.socket) -> bool:
        """Let it serve at this end of a channel; False if it can't."""
        if not self.look() or not self._is_warm:
            return False
        try:
            socket.send_fds(self._socket, [SERVE], [peer.fileno()])
        except OSError:
            return False
        self._socket.close()
        return True

    def end(self) -> None:
        self._socket.close()
        self.child.kill()
        self.child.reap()
        self.child.close()


class Standby:
    """Gives out children, from a spare where there is one. `spawn` is a `Spawn`. None stand by
    where `spawn_spare` is None."""

    def __init__(self, spawn: Spawn, spawn_spare: Spawn | None) -> None:
        self._spawn = spawn
        self._spawn_spare = spawn_spare
        self._spares: dict[frozenset[tuple[str, str]], _Spare] = {}

    def spawn(self, peer: socket.socket, environment: Mapping[str, str]) -> Child:
        """A child that serves at this end of a channel. Raises OSError."""
        key = frozenset(environment.items())
        spare = self._spares.get(key)
        if spare is None or not spare.hand_over(peer):
            return self._spawn(peer, environment)
        del self._spares[key]
        _log.debug("spare_taken", pid=spare.child.pid)
        return spare.child

    def prepare(self, environment: Mapping[str, str]) -> None:
        """See to it that one stands by for this environment. One that can't be started is not
        missed: the next life of a device then takes longer."""
        key = frozenset(environment.items())
        spare = self._spares.get(key)
        if self._spawn_spare is None or (spare is not None and spare.look()):
            return
        if spare is not None:
            self._spares.pop(key).end()
        with contextlib.suppress(OSError):
            self._spares[key] = _Spare(self._spawn_spare, environment)

    def close(self) -> None:
        """End all that stand by. Idempotent."""
        self._spawn_spare = None
        for spare in self._spares.values():
            spare.end()
        self._spares.clear()
