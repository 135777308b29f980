"""Takes devices out of service while the node serves on, and puts them back.

A drained device takes no new models, and no requests that another one could take. Its models move,
the most urgent first: each is placed elsewhere, and only when it serves there does its old replica
finish what was admitted and go, so that nobody finds it away. One that can be placed nowhere is
refused as *draining*, finishes what it has and goes as well; the index says why, and it is loaded
again when the device is put back. The child keeps running: it is empty when all this is done.

Who was moved stays where it went. Nothing of this outlives the daemon. To put a device back stops a
drain before its next model; what the device lost when it ended meanwhile is loaded again then.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from gpumuxd.errors import DeviceLost, GpumuxdError
from gpumuxd.node.api import DrainedModel, ModelState
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.loads import Loads
from gpumuxd.node.model_table import ModelTable, VersionEntry
from gpumuxd.node.placing import Placing
from gpumuxd.node.recovery import Recovery

_log = structlog.get_logger()


class DeviceDraining:
    """The drained devices of one node. Who may ask, and for which devices, was checked before."""

    def __init__(
        self,
        table: ModelTable,
        placing: Placing,
        loads: Loads,
        recovery: Recovery,
        links: Callable[[], Mapping[str, DeviceLink | None]],
    ) -> None:
        self._table = table
        self._placing = placing
        self._loads = loads
        self._recovery = recovery
        self._links = links
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._going_back: dict[str, asyncio.Task[Sequence[DrainedModel]]] = {}
        self._fates: dict[str, dict[str, DrainedModel]] = {}  # by device and version
        self.on_change: Callable[[], None] = lambda: None  # a model may serve no more

    def state(self, device: str) -> str:
        """draining, drained, or empty for a device in service."""
        if device not in self._placing.drained:
            return ""
        return "drained" if self._tasks[device].done() else "draining"

    async def drain(self, device: str) -> Sequence[DrainedModel]:
        """Returns when the device is empty, and what became of its models; again the same."""
        while (back := self._going_back.get(device)) is not None and not back.done():
            await asyncio.wait([back])
        task = self._tasks.get(device)
        if task is None:
            self._placing.drained.add(device)
            self._fates[device] = {}
            task = self._loads.in_background(self._empty(device), f"drain {device}")
            self._tasks[device] = task
        await asyncio.shield(task)  # who goes away stops nothing
        return tuple(self._fates.get(device, {}).values())

    async def undrain(self, device: str) -> Sequence[DrainedModel]:
        """Put it back; returns what became of the models that had to go. Without effect on a
        device in service."""
        back = self._going_back.get(device)
        if back is None:
            if device not in self._tasks:
                return ()
            self._placing.drained.discard(device)
            back = self._loads.in_background(self._put_back(device), f"undrain {device}")
            self._going_back[device] = back
        return await asyncio.shield(back)  # who goes away leaves nothing half done

    async def _put_back(self, device: str) -> Sequence[DrainedModel]:
        try:
            await asyncio.wait([self._tasks.pop(device)])
            return await self._load_back(device)
        finally:
            del self._going_back[device]

    async def _load_back(self, device: str) -> Sequence[DrainedModel]:
        fates = self._fates.pop(device)
        _log.info("device_undrained", device=device)
        gone = self._gone()
        results = await asyncio.gather(*map(self._loads.load, gone), return_exceptions=True)
        if (link := self._links()[device]) is not None:
            await self._recovery.handle_device_started(link)
        self._loads.fill_all()
        whys = dict(zip(gone, results, strict=True))
        return tuple(_back(fate, whys) for fate in fates.values() if fate.name in whys)

    def handle_device_started(self, device: str) -> None:
        """Who had to go may come back: nothing that could take it was up until now."""
        for name in self._gone() if device not in self._placing.drained else ():
            self._loads.in_background(self._loads.load(name), f"load {name} again")

    def _gone(self) -> Sequence[str]:
        return sorted({entry.name for entry in self._table if entry.is_drained})

    async def _empty(self, device: str) -> None:
        _log.info("device_draining", device=device)
        here = [entry for entry in self._table if device in entry.replicas]
        async with asyncio.TaskGroup() as leaving:
            for entry in sorted(here, key=lambda entry: entry.rank):
                async with self._loads.locks[entry.name]:
                    if device not in self._placing.drained:  # put back while this waited
                        return
                    going = await self._move(entry, device)
                if going is not None:
                    leaving.create_task(going)
        _log.info("device_drained", device=device)

    async def _move(self, entry: VersionEntry, device: str) -> Coroutine[Any, Any, None] | None:
        """Have it served elsewhere, or refused. Returns what lets its old replica finish."""
        if device not in entry.replicas or entry.state is ModelState.UNLOADING:
            return None
        label, version = entry.label, str(entry.version)
        try:
            made = await self._loads.fill_entry(entry)
            if all(each.device in self._placing.drained for each in entry.alive):
                raise DeviceLost("its other device was lost meanwhile")
        except GpumuxdError as error:
            drained = f"device {device} is drained"
            why = "" if error.message == drained else f": {error.message}"
            reason = f"{drained}, and it can be nowhere else{why}"
            fate = DrainedModel(entry.name, version, "left", reason)
            going = self._loads.leave(entry, reason)
            self.on_change()
        else:
            going = self._loads.release(entry.replicas.pop(device))
            others = [each for each in entry.replicas if each not in self._placing.drained]
            fate = DrainedModel(
                entry.name, version, "moved" if made else "served elsewhere", ", ".join(others)
            )
        self._fates[device][label] = fate
        _log.info("model_drained", model=label, device=device, fate=fate.fate, where=fate.reason)
        return going


def _back(fate: DrainedModel, whys: Mapping[str, BaseException | None]) -> DrainedModel:
    why = whys[fate.name]
    return DrainedModel(fate.name, fate.version, "left" if why else "loaded", str(why or ""))
