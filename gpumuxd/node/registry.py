"""The models of the node: which versions there are, what state they are in, who may use them.

Loading a version: find it in the repository, have it read and placed (`placing.py`), let it serve.
One lock per name orders loads, unloads and
reloads, so that each of them sees a settled state. It must not know requests; those ask for the
`Replica` that serves and hold on to it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn

import structlog

from gpumuxd.errors import (
    GpumuxdError,
    InvalidModel,
    InvalidRequest,
    ModelNotReady,
    PermissionDenied,
    UnknownModel,
)
from gpumuxd.models.names import version_number
from gpumuxd.models.repository import ModelVersion, Repository
from gpumuxd.node.api import IndexEntry, ModelState, ModelView, Tenant
from gpumuxd.node.catalogue import Catalogue
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.loading import Loading
from gpumuxd.node.model_table import (
    NOT_LOADED,
    ArtifactStamp,
    ModelTable,
    Replica,
    VersionEntry,
    may_manage,
    may_see,
)
from gpumuxd.node.placing import Placing
from gpumuxd.node.recovery import Recovery
from gpumuxd.node.tenants import TenantDirectory

_log = structlog.get_logger()


class Registry:
    """All models of one node."""

    def __init__(
        self,
        repository: Repository,
        loading: Loading,
        tenants: TenantDirectory,
        links: Callable[[], Mapping[str, DeviceLink | None]],
    ) -> None:
        """`links` tells the link of each configured device, None where it is not up."""
        self._catalogue = Catalogue(repository)
        self._table = ModelTable()
        self._placing = Placing(self._table, loading, tenants, links)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.recovery = Recovery(self._table, self._placing, self._locks)
        self._loads: dict[str, asyncio.Task[None]] = {}  # that a new caller may join
        self._chosen: dict[str, VersionEntry] = {}  # the version that was loaded last
        self._tasks: set[asyncio.Task[None]] = set()

    # Who serves

    def is_serving(self, name: str) -> bool:
        return self._table.serving(name, None) is not None

    def is_ready(self, tenant: Tenant, name: str, version: str) -> bool:
        """Would `view` return something. Touches no disk."""
        try:
            number = version_number(version) if version else None
        except InvalidRequest:
            return False
        entry = self._table.serving(name, number)
        if entry is None or entry.replica is None:
            return False
        return entry.replica.is_alive and may_see(entry.replica.manifest, tenant)

    def reason(self, name: str) -> str:
        """Why its newest version does not serve; "" for a model that was never asked for."""
        newest = next(iter(self._table.versions(name)), None)
        return newest.reason if newest is not None else ""

    def replica(self, tenant: Tenant, name: str, version: str) -> Replica | None:
        """What serves this model now; None: nothing does, and `raise_absence` tells why. Touches
        no disk. Raises UnknownModel, InvalidRequest or PermissionDenied."""
        replica = self._visible_replica(tenant, name, version)
        if replica is None:
            return None
        permitted = replica.manifest.tenants
        if permitted is not None and tenant.name not in permitted:
            # An admin sees and loads it; running it would break the class it was loaded for.
            raise PermissionDenied(f"model {name!r} is not for tenant {tenant.name!r} to run")
        return replica

    async def raise_absence(self, tenant: Tenant, name: str, version: str) -> NoReturn:
        """Say why nothing serves this model: UnknownModel, ModelNotReady or InvalidModel."""
        found = await self._find(tenant, name, version)
        absent = self._table.entry(name, found.version)
        reason = absent.reason or "it was loaded only just now; retry"
        raise ModelNotReady(f"model {name!r} version {found.version}: {reason}")

    async def view(self, tenant: Tenant, name: str, version: str) -> ModelView:
        """A loaded model. Raises UnknownModel or ModelNotReady."""
        replica = self._visible_replica(tenant, name, version)
        if replica is None:
            await self.raise_absence(tenant, name, version)
        ready = [e for e in self._table.versions(name) if e.state is ModelState.READY]
        serving = next(e for e in ready if e.replica is replica)
        return ModelView(
            name=name,
            version=str(serving.version),
            versions=tuple(str(entry.version) for entry in reversed(ready)),
            platform="pytorch_pt2",
            spec=replica.artifact.spec,
            group_count=replica.loaded.group_count,
            longest_group_ns=replica.loaded.longest_group_ns,
            run_ns=replica.loaded.run_ns,
            weights_bytes=replica.loaded.weights_bytes,
        )

    async def index(self, tenant: Tenant) -> list[IndexEntry]:
        """Every version that the tenant may see, on disk or loaded."""
        scan = await self._catalogue.scan()
        entries: dict[tuple[str, str], IndexEntry] = {}
        if tenant.is_admin:  # who may see a model is not known where its manifest can't be read
            for broken in scan.broken:
                entries[broken.name, broken.version] = IndexEntry(
                    broken.name, broken.version, ModelState.UNAVAILABLE, broken.reason
                )
        for found in scan.models:
            if may_see(found.manifest, tenant):
                entry = self._table.entry(found.name, found.version)
                entries[found.name, str(found.version)] = entry.view()
        for entry in self._table:  # what serves is shown, whatever became of its files
            if entry.replica is not None and may_see(entry.replica.manifest, tenant):
                entries[entry.name, str(entry.version)] = entry.view()
        return [entries[key] for key in sorted(entries, key=lambda key: (key[0], key[1].zfill(9)))]

    # Loading and unloading

    async def load(self, tenant: Tenant, name: str) -> None:
        """Load the newest version; return when it serves. Loads of one name become one."""
        found = await self._find(tenant, name, "")
        if not may_manage(found.manifest, tenant):
            raise PermissionDenied(f"tenant {tenant.name!r} may not load model {name!r}")
        await self.load_unchecked(name)

    async def load_unchecked(self, name: str) -> None:
        """As `load`, for the node itself."""
        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = self._in_background(self._load(name), f"load {name}")
        await asyncio.shield(task)  # a caller that goes away takes nobody's load with it

    async def unload(self, tenant: Tenant, name: str) -> None:
        """Unload all versions and return when they are gone. No error when none is loaded."""
        entries = [e for e in self._table.versions(name) if e.replica is not None]
        manifests = [e.replica.manifest for e in entries if e.replica is not None]
        if not manifests:
            manifests = [(await self._find(tenant, name, "")).manifest]
        if not all(may_see(manifest, tenant) for manifest in manifests):
            raise UnknownModel(f"no model {name!r}")
        if not all(may_manage(manifest, tenant) for manifest in manifests):
            raise PermissionDenied(f"tenant {tenant.name!r} may not unload model {name!r}")
        # A load that is asked for from now on comes after this and joins none before it.
        self._loads.pop(name, None)
        await asyncio.shield(self._in_background(self._unload(name), f"unload {name}"))

    async def close(self) -> None:
        """Give up loads that run and let go of all artifacts. The devices have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._catalogue.close()
        for entry in self._table:
            if entry.replica is not None:
                entry.replica.artifact.close()
                entry.replica = None

    # One load

    async def _load(self, name: str) -> None:
        try:
            async with self._locks[name]:
                await self._load_newest(name)
        finally:
            if self._loads.get(name) is asyncio.current_task():
                del self._loads[name]

    async def _load_newest(self, name: str) -> None:
        found = await self._catalogue.find(name)
        entry = self._table.entry(name, found.version)
        stamp = await asyncio.to_thread(ArtifactStamp.of, found.artifact)
        if self._is_current(entry, found, stamp):
            return
        if entry.state is ModelState.UNLOADING:  # replaced a moment ago, and wanted back
            await self._take_down(entry, NOT_LOADED)
        if entry.state is ModelState.UNAVAILABLE:
            entry.move(ModelState.LOADING)
        try:
            replica = await self._placing.make(entry, found, stamp)
        except BaseException as error:
            if entry.replica is None:
                reason = error.message if isinstance(error, GpumuxdError) else "load stopped"
                entry.move(ModelState.UNAVAILABLE, reason)
            _log.error("model_not_loaded", model=entry.label, reason=str(error))
            raise
        self._replace(entry, replica)

    def _replace(self, entry: VersionEntry, replica: Replica) -> None:
        """From now on this one serves; what it replaces finishes what it has."""
        old, entry.replica = entry.replica, replica
        entry.device_losses = 0
        if entry.state is ModelState.LOADING:
            entry.move(ModelState.READY)
        assert entry.state is ModelState.READY, entry
        if old is not None:
            self._in_background(_release(old), "release a replica")
        self._chosen[entry.name] = entry
        others = [e for e in self._table.versions(entry.name) if e.replica and e is not entry]
        for other in others:
            if other.state is ModelState.READY:
                other.move(ModelState.UNLOADING, f"being replaced by version {entry.version}")
        if others:
            self._in_background(self._retire_others(entry.name), f"retire {entry.name}")
        _log.info(
            "model_loaded",
            model=entry.label,
            device=replica.device,
            groups=replica.loaded.group_count,
            longest_group_us=replica.loaded.longest_group_ns // 1000,
            profile_was_cached=replica.loaded.profile_was_cached,
        )

    def _is_current(self, entry: VersionEntry, found: ModelVersion, stamp: ArtifactStamp) -> bool:
        replica = entry.replica
        return (
            entry.state is ModelState.READY
            and replica is not None
            and replica.is_alive
            and replica.stamp == stamp
            and replica.manifest == found.manifest
        )

    async def _unload(self, name: str) -> None:
        async with self._locks[name]:
            await asyncio.gather(
                *(self._take_down(e, "unloaded") for e in self._table.versions(name) if e.replica)
            )

    async def _take_down(self, entry: VersionEntry, reason: str) -> None:
        """Refuse new requests of a version at once, and let go of it when its last one ended.

        Only in tasks of our own: one that a caller could cancel would leave it half down.
        """
        replica = entry.replica
        assert replica is not None
        if entry.state is ModelState.READY:
            entry.move(ModelState.UNLOADING)
        try:
            await _release(replica)
        finally:
            replica.artifact.close()
            entry.replica = None
            entry.move(ModelState.UNAVAILABLE, reason)
        _log.info("model_unloaded", model=entry.label, reason=reason)

    async def _retire_others(self, name: str) -> None:
        """One version of a model serves, the one loaded last; the others drain without anybody
        waiting."""
        async with self._locks[name]:
            chosen = self._chosen[name]
            for entry in self._table.versions(name):
                if entry is not chosen and entry.replica:
                    await self._take_down(entry, f"replaced by version {chosen.version}")

    # Finding

    def _visible_replica(self, tenant: Tenant, name: str, version: str) -> Replica | None:
        number = version_number(version) if version else None
        entry = self._table.serving(name, number)
        if entry is None or entry.replica is None:
            return None
        if not may_see(entry.replica.manifest, tenant):
            raise UnknownModel(f"no model {name!r}")
        return entry.replica

    async def _find(self, tenant: Tenant, name: str, version: str) -> ModelVersion:
        """In the repository, as far as this tenant may know."""
        try:
            found = await self._catalogue.find(name, version)
        except InvalidModel:
            if tenant.is_admin:
                raise
            raise UnknownModel(f"no model {name!r}") from None
        if not may_see(found.manifest, tenant):
            raise UnknownModel(f"no model {name!r}")
        return found

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """A task of our own, which nothing but `close` cancels."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # asked for here, so that one that nobody awaits is not reported


async def _release(replica: Replica) -> None:
    await replica.link.unload(replica.key)
    replica.artifact.close()
