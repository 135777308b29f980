"""What becomes of models whose device was lost, and when it is back.

Their replicas stay where they are, with their artifacts, to be placed again on the device's next
life: the most urgent models first, each of them serving as soon as it is back. A model that serves
on another device goes on meanwhile. One whose load is to blame for an end (`blame.py`) is left out:
it would keep everyone else there from being served. At any other end it waits for the next life.
It must not know the repository.
"""

import asyncio
from collections.abc import Mapping

import structlog

from gpumuxd.errors import DeviceLost, GpumuxdError
from gpumuxd.node.api import ModelState
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.model_table import ModelTable, Replica, VersionEntry
from gpumuxd.node.placing import Placing

_log = structlog.get_logger()


class Recovery:
    """Takes models through the loss of a device. `locks` order it with loads and unloads."""

    def __init__(
        self, table: ModelTable, placing: Placing, locks: Mapping[str, asyncio.Lock]
    ) -> None:
        self._table = table
        self._placing = placing
        self._locks = locks

    def handle_device_lost(self, device: str, reason: str) -> None:
        """What served there alone does not serve; it stays as it is, to be loaded again."""
        for entry in self._table:
            if entry.is_ready and device in entry.replicas and not entry.alive:
                entry.move(ModelState.LOADING, f"device {device} was lost: {reason}")

    async def handle_device_started(self, link: DeviceLink) -> None:
        """Load again what served on this device before it was lost, one after the other. Whose name
        is being loaded or unloaded comes last: nobody shall wait for that, and its disk."""
        device = link.settings.device
        if device in self._placing.drained:  # they are on their way elsewhere
            return
        waiting = [entry for entry in self._table if device in entry.replicas]
        while waiting:
            entry = min(waiting, key=lambda entry: (self._locks[entry.name].locked(), entry.rank))
            waiting.remove(entry)
            async with self._locks[entry.name]:
                if entry.is_ready and not entry.alive:
                    entry.move(ModelState.LOADING, f"device {device} was lost")
                lost = entry.replicas.get(device)
                if lost is None or lost.is_alive or not link.is_alive or entry.quarantined:
                    continue
                if entry.state in (ModelState.LOADING, ModelState.READY):
                    await self._load_again(entry, link, lost)

    async def _load_again(self, entry: VersionEntry, link: DeviceLink, lost: Replica) -> None:
        try:
            replica = await self._placing.place_again(entry, link, lost)
        except DeviceLost as error:
            reason = error.message
            _log.info("model_waits_for_device", model=entry.label, device=lost.device, why=reason)
        except GpumuxdError as error:
            self._leave_out(entry, lost, error.message)
        else:
            lost.artifact.close()
            entry.add(replica)
            _log.info("model_loaded_again", model=entry.label, device=link.settings.device)

    def _leave_out(self, entry: VersionEntry, lost: Replica, reason: str) -> None:
        lost.artifact.close()
        del entry.replicas[lost.device]
        if entry.replicas:
            entry.missing = f"it is not loaded again on {lost.device}: {reason}"
        else:
            entry.move(ModelState.UNAVAILABLE, reason)
        _log.error("model_left_out", model=entry.label, device=lost.device, reason=reason)
