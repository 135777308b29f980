"""What the node knows of each version of each model: its state, why, and what serves it.

The lifecycle is a table and a state changes in `VersionEntry.move` alone. A *replica* is one load
of one version on one device, and a version has at most one on each. It is READY while one of them
serves, and LOADING again only when the last one was lost. While a changed artifact is loaded anew,
the entry stays READY with the replicas that serve, and swaps them when the new ones are ready.

Invariant: all replicas of an entry are of the same bits and the same manifest.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.models.listing import ModelVersion
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.api import IndexEntry, ModelState, Tenant
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.loading import LoadedArtifact
from gpumuxd.node.signal import Signal
from gpumuxd.node.validation import CallChecker
from gpumuxd.node.version_counters import VersionCounters
from gpumuxd.wire.frames import ModelLoaded

TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    ModelState.UNAVAILABLE: frozenset({ModelState.LOADING}),
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
    # To LOADING: the last device that served it was lost and is started again.
    ModelState.READY: frozenset({ModelState.UNLOADING, ModelState.LOADING}),
    # To READY never: what drains has refused requests already.
    ModelState.UNLOADING: frozenset({ModelState.UNAVAILABLE}),
}

NOT_LOADED = "not loaded"

NO_SLO_NS = 1 << 63
"""As an SLO: looser than any that can be declared."""

_REASONS = {
    ModelState.READY: "",
    ModelState.LOADING: "being loaded",
    ModelState.UNLOADING: "being unloaded",
    ModelState.UNAVAILABLE: NOT_LOADED,
}
"""Where nothing else is known: only what is READY needs no reason."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One load of one version on one device. `key` names it to the child."""

    key: str
    version: str
    link: DeviceLink
    artifact: LoadedArtifact
    manifest: Manifest
    class_max: PriorityClass
    loaded: ModelLoaded
    checker: CallChecker

    @property
    def device(self) -> str:
        return self.link.settings.device

    @property
    def is_alive(self) -> bool:
        return self.link.is_alive

    def run_ns(self, bucket: Bucket | None = None) -> int:
        """As measured when it was loaded: of this bucket or else the next larger one that was
        measured, without one the longest. 0: nothing was measured."""
        runs = self.loaded.run_ns
        if bucket is not None:
            larger = [ns for sizes, ns in runs if all(map(operator.le, bucket, sizes))]
            if larger:
                return min(larger)
        return max((ns for _, ns in runs), default=0)

    def expect(self, bucket: Bucket, priority_class: PriorityClass, now_ns: int) -> None:
        """A request is about to be sent to its device."""
        number = self.link.submits + 1
        self.link.backlog.sent(number, priority_class, self.run_ns(bucket), now_ns)

    def is_of(self, found: ModelVersion) -> bool:
        """Is this what loading that version would give?"""
        return (
            self.artifact.stamp == found.stamp
            and self.manifest.serves_as(found.manifest)
            and found.sha256 in (None, self.artifact.artifact_hash)
        )


@dataclass(slots=True)
class VersionEntry:
    """One version of one model. It has replicas exactly in READY, LOADING again and UNLOADING; one
    whose device was lost is kept for its artifact, to be placed again.

    replicas       by device
    missing        why there are fewer replicas than its manifest asks for
    is_drained     it had to go because its device was drained, and is not back
    note           while it is READY: why what is on the disk now does not serve in its place (yet)
    failed         what could not be loaded, and would not be if it were tried again
    quarantined    why it is not served, nor loaded again until an admin asks for it; "": it may
    counters       of its requests, until it is unloaded
    """

    name: str
    version: int
    state: ModelState = ModelState.UNAVAILABLE
    reason: str = NOT_LOADED
    replicas: dict[str, Replica] = field(default_factory=dict)
    missing: str = ""
    is_drained: bool = False
    note: str = ""
    failed: ModelVersion | None = None
    quarantined: str = ""
    counters: VersionCounters = field(default_factory=VersionCounters)
    on_change: Callable[[], None] = lambda: None

    def move(self, state: ModelState, reason: str = "") -> None:
        """The only place where a state changes. An illegal transition is a bug."""
        assert state in TRANSITIONS[self.state], f"{self.name}: {self.state} to {state}"
        assert (state is ModelState.READY) <= bool(self.replicas), f"{self.name}: nothing serves"
        self.state = state
        if state is ModelState.UNAVAILABLE:
            self.counters = VersionCounters()
        self.is_drained = self.is_drained and state is not ModelState.READY
        self.reason = reason or _REASONS[state]
        self.on_change()

    def fail(self, found: ModelVersion | None, reason: str) -> None:
        """It could not be loaded: what served before goes on, and the reason is there to see."""
        self.failed = found
        if self.state is ModelState.LOADING and not self.replicas:
            self.move(ModelState.UNAVAILABLE, reason)
        elif self.state is ModelState.UNAVAILABLE:
            self.reason = reason
        else:
            self.note = f"it serves as it was loaded before: {reason}"

    def view(self, note: str = "") -> IndexEntry:
        """As an index shows it, with what else there is to say of it while it serves."""
        reason = self.reason or self.note or self._lost() or self.missing or note
        return IndexEntry(self.name, str(self.version), self.state, reason)

    def add(self, replica: Replica) -> None:
        """One more serves, in place of one that was there before."""
        self.replicas[replica.device] = replica
        if self.state is ModelState.LOADING:
            if self.failed is None:
                self.note = ""  # what failed meanwhile was not the fault of what is on the disk
            self.move(ModelState.READY)
        self.on_change()

    def _lost(self) -> str:
        """Which of its devices are away while the others serve."""
        lost = [device for device, each in self.replicas.items() if not each.is_alive]
        return f"it serves; to be loaded again on {', '.join(lost)}, which was lost" if lost else ""

    @property
    def rank(self) -> tuple[int, int, str]:
        """Who is loaded again first: the highest class, then the tightest SLO, then by name."""
        if (replica := self.replica) is None:
            return 0, 0, self.label
        slo_ns = replica.manifest.slo_ns
        return -replica.class_max, NO_SLO_NS if slo_ns is None else slo_ns, self.label

    @property
    def alive(self) -> Sequence[Replica]:
        """The replicas whose device is up, in the order in which they came."""
        return [replica for replica in self.replicas.values() if replica.is_alive]

    @property
    def replica(self) -> Replica | None:
        """Any of them, to ask what is the same for all; an alive one if there is one."""
        return next(iter((*self.alive, *self.replicas.values())), None)

    @property
    def devices(self) -> Sequence[str]:
        """Those that have it, in the order of their names."""
        each = sorted(self.replicas.items())
        return [name if replica.is_alive else f"{name} (lost)" for name, replica in each]

    @property
    def is_ready(self) -> bool:
        return self.state is ModelState.READY

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"


class VersionFacts(NamedTuple):
    """A version as the index shows it, its manifest where that can be read, what serves it best,
    and the devices that have it."""

    entry: IndexEntry
    manifest: Manifest | None
    replica: Replica | None
    devices: Sequence[str] = ()

    @property
    def number(self) -> int | None:
        """Of a version that is named by one."""
        return int(self.entry.version) if self.entry.version.isdecimal() else None


def key_of(entry: VersionEntry, number: int) -> str:
    """What the device calls a replica of this version; never the same twice."""
    return f"{entry.label}#{number}"


def name_of_key(key: str) -> str:
    """The model that a key was made for, also when its replica is gone."""
    return key.rpartition("/")[0]


@dataclass(slots=True)
class ModelTable:
    """All versions that were ever loaded, by name and number."""

    _models: dict[str, dict[int, VersionEntry]] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)
    """Given when a version changes its state or gets a replica."""

    def entry(self, name: str, version: int) -> VersionEntry:
        """The entry of a version, made when it is the first time it is named."""
        versions = self._models.setdefault(name, {})
        if version not in versions:
            versions[version] = VersionEntry(name, version, on_change=self.changed.notify)
        return versions[version]

    def versions(self, name: str) -> list[VersionEntry]:
        """Newest first."""
        versions = self._models.get(name, {})
        return [versions[number] for number in sorted(versions, reverse=True)]

    def serving(self, name: str, version: int | None) -> VersionEntry | None:
        """The newest READY version, or that one if it is READY."""
        for entry in self.versions(name):
            if entry.state is ModelState.READY and version in (None, entry.version):
                return entry
        return None

    def __iter__(self) -> Iterator[VersionEntry]:
        for versions in self._models.values():
            yield from versions.values()


def may_see(manifest: Manifest, tenant: Tenant) -> bool:
    """A manifest that names no tenants is for everyone; admins see all."""
    return tenant.is_admin or manifest.tenants is None or tenant.name in manifest.tenants


def may_manage(manifest: Manifest, tenant: Tenant) -> bool:
    """Loading and unloading takes an admin, or a tenant that the manifest names."""
    return tenant.is_admin or (manifest.tenants is not None and tenant.name in manifest.tenants)
