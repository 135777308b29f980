"""A real starter, and loaders that it started, as processes of a test."""

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpumuxd.wire.channel import Channel, ChannelClosed
from gpumuxd.wire.frames import AnyFrame, Read
from gpumuxd.wire.starting import REQUEST, STATUS_BYTES_MAX

TIMEOUT_S = 60

PATCHED = """
import os, signal, sys
from gpumuxd.loader import main as loader, starter
run = loader.run
{changes}
sys.exit(starter.main(sys.argv[1:]))
"""
"""A starter whose loaders were changed: `loader.run` is a loader's whole life."""


class Loader:
    """Our end of a loader's channel, and how it ends."""

    def __init__(self, starter: "Starter") -> None:
        self.channel, theirs = Channel.pair()
        self.status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, status:
            socket.send_fds(starter.control, [REQUEST], [theirs.fileno(), status.fileno()])

    def ask(self, artifact: int, model_bytes_max: int = 1 << 30) -> tuple[AnyFrame, list[int]]:
        self.channel.send(Read(model_bytes_max), [artifact])
        return self.answer()

    def answer(self) -> tuple[AnyFrame, list[int]]:
        while (received := self.channel.receive()) is None:
            ready, _, _ = select.select([self.channel], [], [], TIMEOUT_S)
            assert ready, "the loader says nothing"
        return received

    def how_ended(self) -> str:
        """What the starter says; nothing if it is gone itself."""
        self.status.settimeout(TIMEOUT_S)
        return self.status.recv(STATUS_BYTES_MAX).decode()

    def channel_is_closed(self) -> bool:
        """Wait for what a loader never does before it has answered, unless it ended."""
        with contextlib.suppress(ChannelClosed):
            self.answer()
            return False
        return True

    def close(self) -> None:
        self.channel.close()
        self.status.close()


class Starter:
    """A starter; `changes` is a program that changes what its loaders do."""

    def __init__(self, changes: str = "") -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self.popen = subprocess.Popen(
                [*starter_command(changes), str(fd)], pass_fds=[fd], stderr=subprocess.PIPE
            )
        self._loaders: list[Loader] = []

    def load(self) -> Loader:
        loader = Loader(self)
        self._loaders.append(loader)
        return loader

    def children(self) -> list[int]:
        pid = self.popen.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def finish(self) -> str:
        """Ask for nothing more; what it and its loaders said on standard error."""
        self.control.close()
        _, errors = self.popen.communicate(timeout=TIMEOUT_S)
        assert self.popen.returncode == 0, errors
        return errors.decode()

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()
        self.control.close()
        self.popen.kill()
        self.popen.communicate(timeout=TIMEOUT_S)


@contextlib.contextmanager
def one_loader(changes: str = "") -> Iterator[Loader]:
    """A loader that is the only one of its starter."""
    starter = Starter(changes)
    try:
        yield starter.load()
    finally:
        starter.close()


def starter_command(changes: str = "") -> list[str]:
    """The command of a starter, but for its descriptor."""
    if not changes:
        return [sys.executable, "-m", "gpumuxd.loader"]
    return [sys.executable, "-c", PATCHED.format(changes=changes)]


def has_ended(pidfd: int) -> bool:
    """True as soon as the process has ended, False if it goes on. Closes the descriptor."""
    ready, _, _ = select.select([pidfd], [], [], TIMEOUT_S)
    os.close(pidfd)
    return bool(ready)
