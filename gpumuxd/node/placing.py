"""From a version in the repository to its replicas on devices.

Have a loader read it, choose devices, hand plan and weights over, wait until it was measured. A
model's manifest says on which devices it may be and on how many of them. It goes to one after the
other: should it end the device that loads it, it has ended one and not all of them; and the profile
that the first one measured serves the next. A device without room is passed over.

It must not know states: what becomes of a version whose placing fails is the registry's decision.
Invariant: a replica owns its copy of the artifact; what is read here is closed here.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from gpumuxd.core.placement import Placement, Room
from gpumuxd.errors import (
    DeviceLost,
    Draining,
    GpumuxdError,
    InvalidManifest,
    ModelFaulted,
    ModelNotReady,
    OutOfDeviceMemory,
)
from gpumuxd.models.checksum import check_hash
from gpumuxd.models.listing import ModelVersion
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.blame import Blame
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.holders import with_holders
from gpumuxd.node.loading import LoadedArtifact, Loading
from gpumuxd.node.model_table import ModelTable, Replica, VersionEntry, key_of
from gpumuxd.node.spec_check import why_wrong_loaded
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.node.validation import CallChecker
from gpumuxd.wire.frames import LoadModel


class Made(NamedTuple):
    """New replicas, and why they are fewer than was asked for."""

    replicas: Sequence[Replica]
    missing: str


class Placing:
    """Makes replicas. `links` tells the link of each configured device, None where it is down."""

    def __init__(
        self,
        table: ModelTable,
        loading: Loading,
        tenants: TenantDirectory,
        links: Callable[[], Mapping[str, DeviceLink | None]],
        placement: Placement,
        blame: Blame,
    ) -> None:
        self._placement = placement
        self._blame = blame
        self._table = table
        self._loading = loading
        self._tenants = tenants
        self._links = links
        self.drained: set[str] = set()
        """Devices that take no models."""
        self._under_way: defaultdict[str, list[int]] = defaultdict(list)  # bytes of weights
        self._numbers = itertools.count(1)

    async def make(self, entry: VersionEntry, found: ModelVersion) -> Made:
        """Read and place a version. Raises GpumuxdError, and then nothing of it is left."""
        self._check_open(self._allowed(found.manifest))  # before anything is read
        artifact = await self._loading.read(found.artifact, found.artifact_format, found.repository)
        try:
            check_hash(found.sha256, artifact.artifact_hash, found.artifact_name)
            if found.manifest.sequence is not None:
                found.manifest.sequence.check(artifact.spec)
            if found.manifest.batching is not None:
                found.manifest.batching.check(artifact.spec, found.manifest.batch_max)
            return await self._spread(entry, artifact, found.manifest, ())
        finally:
            artifact.close()

    async def fill(self, entry: VersionEntry) -> Made:
        """The same bits on more devices, until there are as many replicas as was asked for."""
        like = entry.replica
        assert like is not None
        held = [device for device in entry.replicas if device not in self.drained]
        if not any(entry.replicas[device].is_alive for device in held):
            held = []  # what waits for its device to come back serves nobody
        return await self._spread(entry, like.artifact, like.manifest, held)

    async def place_again(self, entry: VersionEntry, link: DeviceLink, lost: Replica) -> Replica:
        """The same bits on the next life of the same device."""
        return await self._place(entry, link, lost.artifact, lost.manifest)

    async def _spread(
        self,
        entry: VersionEntry,
        artifact: LoadedArtifact,
        manifest: Manifest,
        held: Collection[str],
    ) -> Made:
        """Place a model on as many devices as it wants beside those that hold it already. Raises
        the first error when none holds it in the end."""
        allowed = self._allowed(manifest)
        wanted = len(allowed) if manifest.replicas is None else manifest.replicas
        made: dict[str, Replica] = {}
        errors: dict[str, GpumuxdError] = {}
        try:
            while len(held) + len(made) < wanted:
                left = [d for d in allowed if d not in held and d not in made and d not in errors]
                link = self._choose(left, artifact.weights_bytes)
                if link is None:
                    break
                try:
                    made[link.settings.device] = await self._place(entry, link, artifact, manifest)
                except OutOfDeviceMemory as error:  # another may have room
                    errors[link.settings.device] = error
                except GpumuxdError as error:
                    errors[link.settings.device] = error
                    break
        except BaseException:
            for replica in made.values():
                replica.artifact.close()
            raise
        for device in [device for device, replica in made.items() if not replica.is_alive]:
            made.pop(device).artifact.close()  # lost while the next one was placed
            errors[device] = DeviceLost(f"device {device} was lost; retry")
        if not held and not made:
            raise next(iter(errors.values()), None) or self._closed(allowed)
        missing = ""
        if len(held) + len(made) < wanted:
            others = [device for device in allowed if device not in held and device not in made]
            whys = [errors[d].message if d in errors else self._why_closed(d) for d in others]
            whys += [f"it may be on {len(allowed)} devices only"] * (wanted > len(allowed))
            missing = (
                f"{len(held) + len(made)} of {wanted} replicas: {'; '.join(filter(None, whys))}"
            )
        return Made(tuple(made.values()), missing)

    # Devices

    def _allowed(self, manifest: Manifest) -> Sequence[str]:
        """The devices that a model may be on. Raises InvalidManifest."""
        configured = list(self._links())
        if manifest.device is None:
            return configured
        for name in manifest.device:
            if name not in configured:
                raise InvalidManifest(
                    f"device: {name!r} is not configured; expected one of {configured}"
                )
        return manifest.device

    def _choose(self, devices: Sequence[str], weights_bytes: int) -> DeviceLink | None:
        """One of these by the placement policy; None where none takes models."""
        links = self._links()
        up = [link for name in devices if (link := links[name]) and name not in self.drained]
        if not up:
            return None
        return up[self._placement.device([self._room(link) for link in up], weights_bytes)]

    def _room(self, link: DeviceLink) -> Room:
        """What a device has left, and what it carries or is about to carry."""
        device = link.settings.device
        here = [r for entry in self._table if (r := entry.replicas.get(device)) is not None]
        under_way = self._under_way[device]
        used = 0 if link.statistics is None else link.statistics.memory_bytes
        limit = link.settings.scheduler.memory_bytes_max - link.settings.arena_bytes
        return Room(
            free_bytes=limit - used - sum(under_way),
            busy_ppm=link.backlog.busy_ppm,
            weights_bytes=sum(r.loaded.weights_bytes for r in here) + sum(under_way),
            models=len(here) + len(under_way),
        )

    def _why_closed(self, device: str) -> str:
        """Why it takes no models; "" if it does."""
        if device in self.drained:
            return f"device {device} is drained"
        return "" if self._links()[device] is not None else f"device {device} is not up"

    def _check_open(self, devices: Sequence[str]) -> None:
        if all(map(self._why_closed, devices)):
            raise self._closed(devices)

    def _closed(self, devices: Sequence[str]) -> GpumuxdError:
        """None of these takes models."""
        if self.drained.issuperset(devices):
            return Draining(f"device {', '.join(devices)} is drained")
        if len(devices) == 1:
            return ModelNotReady(f"device {devices[0]} is not up; retry")
        if not self.drained.isdisjoint(devices):
            return ModelNotReady(f"{'; '.join(map(self._why_closed, devices))}; retry")
        return ModelNotReady("no device is up; retry")

    async def _place(
        self,
        entry: VersionEntry,
        link: DeviceLink,
        artifact: LoadedArtifact,
        manifest: Manifest,
    ) -> Replica:
        """One replica, with a copy of its own of the artifact."""
        device = link.settings.device
        permitted = manifest.tenants
        class_max = self._tenants.class_max_of(manifest)
        policy, spec = manifest.batching, artifact.spec
        frame = LoadModel(
            model=key_of(entry, next(self._numbers)),
            artifact_hash=artifact.artifact_hash,
            class_max=class_max,
            slo_ns=manifest.slo_ns,
            tenant=permitted[0] if permitted is not None and len(permitted) == 1 else "",
            batching=None if policy is None else policy.batching(spec, manifest.batch_max),
            padded=() if policy is None else policy.padded,
            fills=() if policy is None else policy.fills(spec),
        )
        weights_bytes = artifact.weights_bytes
        self._under_way[device].append(weights_bytes)
        try:
            loaded = await link.load(frame, artifact.fds)
        except OutOfDeviceMemory as error:
            raise with_holders(
                error, device, self._table, lambda other: _is_known(other, manifest)
            ) from None
        finally:
            self._under_way[device].remove(weights_bytes)
        if why := why_wrong_loaded(spec, loaded):
            link.kill(f"it loaded {frame.model!r} with {why}")
            raise ModelFaulted(f"device {device} loaded it with {why}, and was ended")
        if not link.is_alive:  # it said that it loaded, and then ended
            raise DeviceLost(f"device {device} was lost; retry")
        self._blame.forget(entry.label)
        return Replica(
            key=frame.model,
            version=str(entry.version),
            link=link,
            artifact=artifact.again(),
            manifest=manifest,
            class_max=class_max,
            loaded=loaded,
            checker=CallChecker(spec, manifest.batch_max, manifest.sequence, policy),
        )


def _is_known(other: Manifest, manifest: Manifest) -> bool:
    """May everybody who may know of a model also know of this other one?"""
    if other.tenants is None:
        return True
    return manifest.tenants is not None and set(manifest.tenants) <= set(other.tenants)
