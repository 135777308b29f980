"""The statistics of all models: for which version a request counts, and what a tenant may read.

Counters belong to a version, not to a replica: they go on when it is placed anew, because a device
was lost or a changed artifact took over, and begin at zero when it was unloaded. A request counts
for the version that ran it, one that was refused for the version that would have.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence

from gpumuxd.clock import Clock
from gpumuxd.errors import Cancelled, InvalidRequest, UnknownModel
from gpumuxd.models.names import version_number
from gpumuxd.node.api import InferCall, InferReply, ModelStatistics, Tenant
from gpumuxd.node.model_table import ModelTable, VersionEntry, may_see
from gpumuxd.node.version_counters import VersionCounters


class Statistics:
    """Of every version that is loaded."""

    def __init__(self, table: ModelTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    async def count(self, call: InferCall, reply: Awaitable[InferReply]) -> InferReply:
        """The reply to this call, which counts when it is there, or why there is none."""
        waiting = self._counters(call.tenant, call.model, call.version)
        if waiting is None:
            return await reply
        waiting.pending += 1
        try:
            replied = await reply
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError | Cancelled)
            waiting.failed(self._clock() - call.arrived_ns, is_cancelled=is_cancelled)
            raise
        finally:
            waiting.pending -= 1
        # A step of a sequence stays with the version that began it, and what is sent again may go
        # to another one: neither need be the version that serves most requests.
        ran = self._table.entry(call.model, int(replied.version)).counters
        ran.succeeded(replied, self._clock() - call.arrived_ns)
        return replied

    def count_refused(self, tenant: Tenant, name: str, version: str, arrived_ns: int) -> None:
        """One more that failed, before it was a call."""
        counters = self._counters(tenant, name, version)
        if counters is not None:
            counters.failed(self._clock() - arrived_ns)

    def read(self, tenant: Tenant, name: str, version: str) -> Sequence[ModelStatistics]:
        """By name and version. Raises UnknownModel where a name is given and nothing of it is
        loaded that this tenant may see."""
        number = version_number(version) if version else None
        names = (name,) if name else sorted({entry.name for entry in self._table})
        found = [
            entry for each in names for entry in reversed(list(self._loaded(tenant, each, number)))
        ]
        if name and not found:
            which = f" version {version}" if version else ""
            raise UnknownModel(f"model {name!r}{which} is not loaded, so it has no statistics")
        return [
            entry.counters.view(entry.name, str(entry.version), _weights(entry)) for entry in found
        ]

    def _counters(self, tenant: Tenant, name: str, version: str) -> VersionCounters | None:
        """Of the newest that serves, else of the newest that is loaded; None where this tenant may
        see nothing like that."""
        try:
            number = version_number(version) if version else None
        except InvalidRequest:
            return None
        newest = None
        for entry in self._loaded(tenant, name, number):
            if entry.is_ready:
                return entry.counters
            newest = newest or entry
        return None if newest is None else newest.counters

    def _loaded(self, tenant: Tenant, name: str, number: int | None) -> Iterator[VersionEntry]:
        """Versions that have replicas, newest first, as far as a tenant may know of them."""
        for entry in self._table.versions(name):
            replica = entry.replica
            if replica and number in (None, entry.version) and may_see(replica.manifest, tenant):
                yield entry


def _weights(entry: VersionEntry) -> tuple[tuple[int, int], ...]:
    """Bytes of each replica, by the number of its device."""
    return tuple(
        (int(device.rpartition(":")[2]), replica.loaded.weights_bytes)
        for device, replica in entry.replicas.items()
    )
