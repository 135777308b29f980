"""SIGHUP: the configuration is read again, and what can count at once counts.

All or nothing: a file that can't be used changes nothing, and what it can't change while it serves
(`changes.py` knows) is named, until the next start. Certificates are read again too, from where
they were at the start. systemd is told when it begins and when it is
over. It must not know what a key means. Invariant: `config` is what is in force.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from gpumuxd.clock import monotonic_ns
from gpumuxd.daemon.changes import apply, changes
from gpumuxd.daemon.config import Config
from gpumuxd.daemon.notify import Notifier
from gpumuxd.errors import ConfigError
from gpumuxd.node.node import Node
from gpumuxd.rpc.server import FrontDoor
from gpumuxd.rpc.tls import TlsMaterial, read_tls
from gpumuxd.units import NS_PER_US

_log = structlog.get_logger()


class Reloading:
    """The configuration of a daemon that serves."""

    def __init__(
        self, config: Config, read: Callable[[], Config], node: Node, front_door: FrontDoor
    ) -> None:
        """`read` reads the file again. Raises ConfigError."""
        self.config = config
        self._read = read
        self._node = node
        self._front_door = front_door

    async def run(self, asked: asyncio.Event, notifier: Notifier, status: str) -> None:
        """Reload whenever it is asked for, until cancelled. `status` is what systemd shows of a
        daemon that serves; the next one begins with it."""
        while True:
            await asked.wait()
            asked.clear()  # before the file is read: who asks from now on has changed it since
            notifier.send(RELOADING=1, MONOTONIC_USEC=monotonic_ns() // NS_PER_US)
            refused = await self.reload()
            text = f"{status}; the last reload was refused: {refused}" if refused else status
            notifier.send(READY=1, STATUS=text)

    async def reload(self) -> str:
        """Read, apply, and say what changed. Returns why it was refused, "" if it was not."""
        try:
            # A file may be on a disk that hangs.
            read, material = await asyncio.to_thread(self._read_all)
        except ConfigError as error:
            _log.error("reload_refused", reason=str(error))
            return str(error)
        found = changes(self.config.stated, read.stated)
        applied = [change for change in found if change.is_applied]
        self._node.apply(read.node)
        self._front_door.set_listeners(read.listeners)
        if material is not None:
            self._front_door.renew_tls(material)
        self.config = replace(
            self.config,
            drain_ns_max=read.drain_ns_max,
            stated=apply(self.config.stated, applied),
        )
        _log.info(
            "reloaded",
            changed=[str(change) for change in applied],
            needs_restart=[str(change) for change in found if not change.is_applied],
        )
        return ""

    def _read_all(self) -> tuple[Config, TlsMaterial | None]:
        files = self._front_door.tls_files
        return self._read(), None if files is None else read_tls(files)
