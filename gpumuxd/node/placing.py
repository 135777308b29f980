"""From a version in the repository to a replica on a device.

Have a loader read it, choose a device, hand plan and weights over, wait until it was measured. It
must not know states: what becomes of a version whose placing fails is the registry's decision.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

from gpumuxd.errors import DeviceLost, InvalidManifest, ModelNotReady
from gpumuxd.models.checksum import check_hash
from gpumuxd.models.listing import ModelVersion
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.loading import LoadedArtifact, Loading
from gpumuxd.node.model_table import ModelTable, Replica, VersionEntry, key_of
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.node.validation import CallChecker
from gpumuxd.wire.frames import LoadModel


class Placing:
    """Makes replicas. `links` tells the link of each configured device, None where it is down."""

    def __init__(
        self,
        table: ModelTable,
        loading: Loading,
        tenants: TenantDirectory,
        links: Callable[[], Mapping[str, DeviceLink | None]],
    ) -> None:
        self._table = table
        self._loading = loading
        self._tenants = tenants
        self._links = links
        self._under_way: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    async def make(self, entry: VersionEntry, found: ModelVersion) -> Replica:
        """Read and place a version. Raises GpumuxdError, and then nothing of it is left."""
        artifact = await self._loading.read(found.artifact, found.artifact_format, found.repository)
        try:
            check_hash(found.sha256, artifact.artifact_hash, found.artifact_name)
            link = self._choose(found.manifest)
            self._under_way[link.settings.device] += 1
            try:
                return await self._place(entry, link, artifact, found.manifest)
            finally:
                self._under_way[link.settings.device] -= 1
        except BaseException:
            artifact.close()
            raise

    async def place_again(self, entry: VersionEntry, link: DeviceLink, lost: Replica) -> Replica:
        """The same bits on the next life of the same device. The artifact stays open on failure."""
        return await self._place(entry, link, lost.artifact, lost.manifest)

    def _choose(self, manifest: Manifest) -> DeviceLink:
        """The device the manifest asks for, else the one with the fewest models."""
        links = self._links()
        if manifest.device is not None:
            if manifest.device not in links:
                raise InvalidManifest(
                    f"device: {manifest.device!r} is not configured; expected one of {list(links)}"
                )
            link = links[manifest.device]
            if link is None:
                raise ModelNotReady(f"device {manifest.device} is not up; retry")
            return link
        up = [link for link in links.values() if link is not None]
        if not up:
            raise ModelNotReady("no device is up; retry")
        counts = self._under_way + Counter(e.replica.device for e in self._table if e.replica)
        return min(up, key=lambda link: counts[link.settings.device])

    async def _place(
        self,
        entry: VersionEntry,
        link: DeviceLink,
        artifact: LoadedArtifact,
        manifest: Manifest,
    ) -> Replica:
        key = key_of(entry, next(self._numbers))
        permitted = manifest.tenants
        class_max = self._tenants.class_max_of(manifest)
        frame = LoadModel(
            model=key,
            artifact_hash=artifact.artifact_hash,
            class_max=class_max,
            slo_ns=manifest.slo_ns,
            tenant=permitted[0] if permitted is not None and len(permitted) == 1 else "",
        )
        loaded = await link.load(frame, artifact.fds)
        if not link.is_alive:  # it said that it loaded, and then ended
            raise DeviceLost(f"device {link.settings.device} was lost; retry")
        return Replica(
            key=key,
            version=str(entry.version),
            link=link,
            artifact=artifact,
            manifest=manifest,
            class_max=class_max,
            loaded=loaded,
            checker=CallChecker(artifact.spec, manifest.batch_max),
        )
