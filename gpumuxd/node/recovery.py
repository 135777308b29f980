"""What becomes of models whose device was lost, and when it is back.

Their replicas stay where they are, with their artifacts, to be placed again on the device's next
life. A model that ends its device again and again is left out: it would keep everyone else there
from being served. It must not know the repository.
"""

import asyncio
from collections.abc import Mapping

import structlog

from gpumuxd.errors import DeviceLost, GpumuxdError
from gpumuxd.node.api import ModelState
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.model_table import ModelTable, VersionEntry
from gpumuxd.node.placing import Placing

DEVICE_LOSSES_MAX = 2
"""Deaths of a device while it loaded a model again, after which the model is left out: more would
keep everyone else on the device from being served."""

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
        """What served there does not; it stays as it is, to be loaded again."""
        for entry in self._table:
            if entry.state is ModelState.READY and _is_on(entry, device):
                entry.move(ModelState.LOADING, f"device {device} was lost: {reason}")

    async def handle_device_started(self, link: DeviceLink) -> None:
        """Load again what served on this device before it was lost, one after the other."""
        device = link.settings.device
        waiting = [e for e in self._table if _is_on(e, device)]
        for entry in waiting:
            async with self._locks[entry.name]:
                if entry.state is ModelState.READY and entry.replica and not entry.replica.is_alive:
                    entry.move(ModelState.LOADING, f"device {device} was lost")
                if link.is_alive and entry.state is ModelState.LOADING and _is_on(entry, device):
                    await self._load_again(entry, link)

    async def _load_again(self, entry: VersionEntry, link: DeviceLink) -> None:
        assert entry.replica is not None
        old = entry.replica
        try:
            entry.replica = await self._placing.place_again(entry, link, old)
        except DeviceLost as error:
            entry.device_losses += 1
            if entry.device_losses >= DEVICE_LOSSES_MAX:
                self._leave_out(entry, f"its device was lost while loading it again: {error}")
        except GpumuxdError as error:
            self._leave_out(entry, error.message)
        else:
            entry.device_losses = 0
            entry.move(ModelState.READY)
            _log.info("model_loaded_again", model=entry.label, device=link.settings.device)

    def _leave_out(self, entry: VersionEntry, reason: str) -> None:
        assert entry.replica is not None
        entry.replica.artifact.close()
        entry.replica = None
        entry.device_losses = 0
        entry.move(ModelState.UNAVAILABLE, reason)
        _log.error("model_left_out", model=entry.label, reason=reason)


def _is_on(entry: VersionEntry, device: str) -> bool:
    return entry.replica is not None and entry.replica.device == device
