"""The models of the node: which versions there are, what state they are in, who may use them.

What serves is in `model_table.py`, what is on disk in `catalogue.py`, what changes it in
`loads.py`; here is what a tenant may see and do of all that. It must not know requests; those ask
for the `Replica` that serves and hold on to it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from gpumuxd.clock import Clock
from gpumuxd.core.placement import Placement
from gpumuxd.domain import PriorityClass
from gpumuxd.errors import (
    Draining,
    InvalidModel,
    InvalidRequest,
    ModelNotReady,
    ModelQuarantined,
    OutOfDeviceMemory,
    PermissionDenied,
    UnknownModel,
)
from gpumuxd.models.listing import BrokenEntry, ModelListing, Scan, no_model
from gpumuxd.models.manifest import Manifest
from gpumuxd.models.names import check_model_name, is_model_name, version_number
from gpumuxd.models.repository import Repository
from gpumuxd.models.version_policy import DEFAULT_POLICY
from gpumuxd.node.api import IndexEntry, ModelState, ModelView, Tenant, UnloadedReplica
from gpumuxd.node.blame import Blame
from gpumuxd.node.bound_watch import BoundWatch
from gpumuxd.node.catalogue import Catalogue
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.draining import DeviceDraining
from gpumuxd.node.holders import with_holders
from gpumuxd.node.journal import Journal
from gpumuxd.node.loading import Loading
from gpumuxd.node.loads import Loads
from gpumuxd.node.memory import memory_of
from gpumuxd.node.memory_view import DeviceMemory
from gpumuxd.node.model_statistics import Statistics
from gpumuxd.node.model_table import (
    NOT_LOADED,
    ModelTable,
    Replica,
    VersionEntry,
    VersionFacts,
    may_manage,
    may_see,
)
from gpumuxd.node.placing import Placing
from gpumuxd.node.quarantine import Quarantine
from gpumuxd.node.recovery import Recovery
from gpumuxd.node.settings import RecoverySettings
from gpumuxd.node.signal import Signal
from gpumuxd.node.tenants import TenantDirectory


class Registry:
    """All models of one node."""

    def __init__(
        self,
        repositories: Sequence[Repository],
        loading: Loading,
        tenants: TenantDirectory,
        links: Callable[[], Mapping[str, DeviceLink | None]],
        journal: Journal,
        placement: Placement,
        clock: Clock,
        settings: RecoverySettings,
        blame: Blame,
    ) -> None:
        """`links` tells the link of each configured device, None where it is not up."""
        self._placement = placement
        self._clock = clock
        self.catalogue = Catalogue(repositories)
        self._table = ModelTable()
        self.statistics = Statistics(self._table, clock)
        self._journal = journal
        placing = Placing(self._table, loading, tenants, links, placement, blame)
        self.loads = Loads(self.catalogue, self._table, placing, journal)
        self.recovery = Recovery(self._table, placing, self.loads.locks)
        self.draining = DeviceDraining(self._table, placing, self.loads, self.recovery, links)
        self._drained = placing.drained
        self.quarantine = Quarantine(self._table, settings, clock, self.loads.take_down)
        self.bound_watch = BoundWatch(self._table)
        self.failures: dict[str, str] = {}
        """Why models that the node loads by itself can't be loaded."""

    # Who serves

    def is_serving(self, name: str) -> bool:
        return self._table.serving(name, None) is not None

    @property
    def changed(self) -> Signal:
        """Given when something serves that did not, or the other way round."""
        return self._table.changed

    def with_holders(
        self, error: OutOfDeviceMemory, device: str, tenant: Tenant
    ) -> OutOfDeviceMemory:
        """The same error, with who holds the memory of that device, as far as a tenant may know."""
        return with_holders(error, device, self._table, lambda other: may_see(other, tenant))

    async def memory(
        self, tenant: Tenant, links: Mapping[str, DeviceLink | None]
    ) -> Sequence[DeviceMemory]:
        """Who holds the memory of these devices, as far as a tenant may know."""
        return await memory_of(tenant, links, self._table)

    def is_coming(self, name: str, version: str) -> bool:
        """Does nothing serve this model now, while something is about to?"""
        return any(
            version in ("", str(entry.version))
            and (entry.state is ModelState.LOADING or (entry.is_ready and not entry.alive))
            for entry in self._table.versions(name)
        )

    def is_ready(self, tenant: Tenant, name: str, version: str) -> bool:
        """Would `view` return something. Touches no disk."""
        try:
            number = version_number(version) if version else None
        except InvalidRequest:
            return False
        replica = self._visible_replica(tenant, name, number)
        return replica is not None and replica.is_alive

    def reason(self, name: str) -> str:
        """Why its newest version does not serve; "" for a model that was never asked for."""
        newest = next(iter(self._table.versions(name)), None)
        return newest.reason if newest is not None else self.failures.get(name, "")

    def replica(self, tenant: Tenant, name: str, version: str, priority: int = 0) -> Replica | None:
        """What serves a request of this model and priority best now; None: nothing does that the
        tenant may see, and `raise_absence` tells why. Touches no disk. Raises InvalidRequest or
        PermissionDenied."""
        entry = self._visible_entry(tenant, name, version_number(version) if version else None)
        if entry is None or entry.quarantined:
            return None
        replica = self._best(entry, tenant, priority)
        permitted = replica.manifest.tenants
        if permitted is not None and tenant.name not in permitted:
            # An admin sees and loads it; running it would break the class it was loaded for.
            raise PermissionDenied(f"model {name!r} is not for tenant {tenant.name!r} to run")
        return replica

    def is_in_force(self, name: str, replica: Replica) -> bool:
        """Would this very replica still serve a request?"""
        entry = self._table.entry(name, int(replica.version))
        is_there = entry.replicas.get(replica.device) is replica and replica.is_alive
        return is_there and entry.is_ready and not entry.quarantined

    def _best(self, entry: VersionEntry, tenant: Tenant, priority: int) -> Replica:
        """Of the replicas whose devices are up and in service, by the placement policy."""
        alive = entry.alive or list(entry.replicas.values())
        alive = [each for each in alive if each.device not in self._drained] or alive
        if len(alive) == 1:
            return alive[0]
        wire = priority if priority > 0 else tenant.priority_default
        priority_class = min(PriorityClass.from_wire(wire), alive[0].class_max)
        candidates = [(each.link.backlog, each.run_ns()) for each in alive]
        return alive[
            self._placement.replica(entry.label, candidates, priority_class, self._clock())
        ]

    async def raise_absence(self, tenant: Tenant, name: str, version: str) -> NoReturn:
        """Say why nothing serves this model: UnknownModel, ModelNotReady or InvalidModel."""
        number = version_number(version) if version else None
        listing = await self._find(tenant, name)
        if number is None and not _is_visible(listing, tenant):
            loaded = self._loaded(name)
            number = next(n for n in loaded if may_see(loaded[n].manifest, tenant))
        if number is None:
            selection = listing.select()
            if not selection.versions:
                newest = selection.broken[-1]
                raise InvalidModel(f"model {name!r} version {newest.version}: {newest.reason}")
            number = selection.versions[-1].version
        if not self._shows(tenant, listing, number):
            raise UnknownModel(f"model {name!r} has no version {version or 'that serves'!r}")
        if number not in self._loaded(name):
            listing.version(number)
        entry = self._table.entry(name, number)
        if entry.quarantined:
            raise ModelQuarantined(f"model {name!r} version {number} is {entry.quarantined}")
        reason = self._on_disk(listing, number).reason or "it was loaded only just now; retry"
        is_drained = self._table.entry(name, number).is_drained
        kind = Draining if is_drained else ModelNotReady
        raise kind(f"model {name!r} version {number}: {reason}")

    async def view(self, tenant: Tenant, name: str, version: str) -> ModelView:
        """A loaded model. Raises UnknownModel or ModelNotReady."""
        number = version_number(version) if version else None
        replica = self._visible_replica(tenant, name, number)
        if replica is None:
            await self.raise_absence(tenant, name, version)
        ready = list(self._visible_serving(tenant, name))
        return ModelView(
            name=name,
            version=replica.version,
            versions=tuple(str(entry.version) for entry in reversed(ready)),
            platform=replica.artifact.platform,
            spec=replica.artifact.spec,
            group_count=replica.loaded.group_count,
            longest_group_ns=replica.loaded.longest_group_ns,
            run_ns=replica.loaded.run_ns,
            batch_rows_max=replica.loaded.batch_rows_max,
            batch_delay_ns_max=replica.manifest.batch_delay_ns_max,
            weights_bytes=replica.loaded.weights_bytes,
        )

    async def index(self, tenant: Tenant) -> list[IndexEntry]:
        """Every version that the tenant may see, on disk or loaded."""
        return [facts.entry for facts in await self._facts(tenant)]

    async def versions(self, tenant: Tenant, name: str, version: str) -> list[VersionFacts]:
        """All versions of a model, or that one, newest first. Raises UnknownModel."""
        check_model_name(name)
        number = version_number(version) if version else None
        named = [facts for facts in await self._facts(tenant) if facts.entry.name == name]
        if not named:
            raise no_model(name)
        named = [each for each in named if number in (None, each.number)]
        if not named:
            raise UnknownModel(f"model {name!r} has no version {version!r}")
        return named[::-1]

    async def names(self) -> tuple[str, ...]:
        """The name of every model in the repositories."""
        return tuple(sorted(filter(is_model_name, (await self.catalogue.scan()).models)))

    async def _facts(self, tenant: Tenant) -> list[VersionFacts]:
        """Everything that the tenant may see, by name and version."""
        scan = await self.catalogue.scan()
        known: dict[tuple[str, str], VersionFacts] = {}
        if tenant.is_admin:
            for entry in scan.shadowed:
                known[entry.name, ""] = _broken(entry, None)
        for listing in scan.models.values():
            if _is_visible(listing, tenant):
                for facts in self._listed(listing):
                    known[listing.name, facts.entry.version] = facts
        for loaded in self._table:  # what serves is shown, whatever became of its files
            replica = loaded.replica
            if replica is None:
                continue
            known.pop((loaded.name, str(loaded.version)), None)  # whatever model.toml says by now
            if may_see(replica.manifest, tenant):
                view = loaded.view(_note_on_files(scan, loaded))
                facts = VersionFacts(view, replica.manifest, replica, loaded.devices)
                known[loaded.name, view.version] = facts
        if tenant.is_admin:
            names = {name for name, _ in known}
            for name, reason in {**scan.unknown, **self.failures}.items():
                if name not in names:
                    known[name, ""] = _broken(BrokenEntry(name, "", reason), None)
        return [known[key] for key in sorted(known, key=lambda key: (key[0], key[1].zfill(9)))]

    def _listed(self, listing: ModelListing) -> Iterator[VersionFacts]:
        manifest = listing.manifest if listing.is_readable else None
        for entry in (*listing.broken, *listing.absent):
            yield _broken(entry, manifest)
        for version in listing.versions:
            yield VersionFacts(self._on_disk(listing, version.version), manifest, None)

    def _on_disk(self, listing: ModelListing, number: int) -> IndexEntry:
        """A version that is there, and not loaded unless the table says so."""
        view = self._table.entry(listing.name, number).view()
        selected = listing.selected
        if view.reason != NOT_LOADED or number in selected:
            return view
        why = "model.toml's versions do not select it"
        if listing.manifest.versions == DEFAULT_POLICY:  # also where there is no model.toml
            why = f"the default policy (latest) selects version {selected[-1]}"
        return replace(view, reason=f"{NOT_LOADED}: {why}")

    # Loading and unloading

    async def load(self, tenant: Tenant, name: str) -> None:
        """Load what the model's policy selects; return when all of it serves. Who may is said by
        model.toml as it is on the disk: that will be in force."""
        listing = await self.catalogue.find(name)
        if not (_is_visible(listing, tenant) or self._is_shown(tenant, listing)):
            raise no_model(name)
        listing.check_readable()
        if not may_manage(listing.manifest, tenant):
            raise PermissionDenied(f"tenant {tenant.name!r} may not load model {name!r}")
        if tenant.is_admin:
            self.quarantine.release(name)
        await self.loads.load(name, is_asked_for=True)
        self.failures.pop(name, None)

    async def unload(self, tenant: Tenant, name: str) -> Sequence[UnloadedReplica]:
        """Unload all versions and return when they are gone. No error when none is loaded."""
        entries = self._table.versions(name)
        manifests = [e.replica.manifest for e in entries if e.replica is not None]
        if not manifests:
            try:
                manifests = [(await self._find(tenant, name)).manifest]
            except (UnknownModel, InvalidModel, ModelNotReady):
                # One that the journal keeps can be forgotten, whatever became of its files.
                if not tenant.is_admin or name not in self._journal.models:
                    raise
        if manifests and not any(may_see(manifest, tenant) for manifest in manifests):
            await self.catalogue.find(name)  # may have to be said as of one that is not there
            raise no_model(name)
        if not all(may_manage(manifest, tenant) for manifest in manifests):
            raise PermissionDenied(f"tenant {tenant.name!r} may not unload model {name!r}")
        unloaded = await self.loads.unload(name)
        self.failures.pop(name, None)
        return unloaded

    async def close(self) -> None:
        """Give up loads that run and let go of all artifacts. The devices have ended."""
        await self.loads.close()
        await self.catalogue.close()
        await self._journal.close()

    # Finding

    def _visible_serving(self, tenant: Tenant, name: str) -> Iterator[VersionEntry]:
        """Versions that serve, newest first, whose manifest in force shows them to the tenant."""
        for entry in self._table.versions(name):
            if entry.is_ready and entry.replica and may_see(entry.replica.manifest, tenant):
                yield entry

    def _visible_entry(self, tenant: Tenant, name: str, number: int | None) -> VersionEntry | None:
        for entry in self._visible_serving(tenant, name):
            if number in (None, entry.version):
                return entry
        return None

    def _visible_replica(self, tenant: Tenant, name: str, number: int | None) -> Replica | None:
        entry = self._visible_entry(tenant, name, number)
        return None if entry is None else entry.replica

    def _loaded(self, name: str) -> dict[int, Replica]:
        """Newest first. Makes no entries for what is not there."""
        return {e.version: e.replica for e in self._table.versions(name) if e.replica is not None}

    def _shows(self, tenant: Tenant, listing: ModelListing, number: int) -> bool:
        """May a tenant know of this version? The manifest in force counts where it is loaded, the
        one on the disk where it is not."""
        replica = self._loaded(listing.name).get(number)
        if replica is not None:
            return may_see(replica.manifest, tenant)
        return _is_visible(listing, tenant)

    def _is_shown(self, tenant: Tenant, listing: ModelListing) -> bool:
        """May a tenant know of any version?"""
        loaded = self._loaded(listing.name)
        if any(may_see(replica.manifest, tenant) for replica in loaded.values()):
            return True
        is_all_loaded = bool(loaded) and {v.version for v in listing.versions} <= loaded.keys()
        return _is_visible(listing, tenant) and (bool(listing.broken) or not is_all_loaded)

    async def _find(self, tenant: Tenant, name: str) -> ModelListing:
        """In the repository, as far as this tenant may know."""
        listing = await self.catalogue.find(name)
        if not self._is_shown(tenant, listing):
            raise no_model(name)
        listing.check_readable()
        return listing


def _is_visible(listing: ModelListing, tenant: Tenant) -> bool:
    """As its manifest on the disk says. Where that can't be read, nobody knows whose it is."""
    return tenant.is_admin or (listing.is_readable and may_see(listing.manifest, tenant))


def _broken(entry: BrokenEntry, manifest: Manifest | None) -> VersionFacts:
    view = IndexEntry(entry.name, entry.version, ModelState.UNAVAILABLE, entry.reason)
    return VersionFacts(view, manifest, None)


def _note_on_files(scan: Scan, loaded: VersionEntry) -> str:
    """What became of the files of a version that is loaded; "" when they are there."""
    if loaded.name in scan.unknown:
        return f"it serves; {scan.unknown[loaded.name]}"
    listing = scan.models.get(loaded.name)
    if listing is not None and any(v.version == loaded.version for v in listing.versions):
        return ""
    broken = () if listing is None else listing.broken
    reasons = [e.reason for e in broken if e.version in ("", str(loaded.version))]
    why = reasons[0] if reasons else "its files are gone from the repository"
    return f"it serves until it is unloaded; {why}"
