"""Loads and unloads of models: from what serves to what the repository says should serve.

A load brings up every version that the manifest's policy selects, beside what serves already, and
lets the others go when all of them serve. One lock per name orders loads, unloads and reloads, so
that each of them sees a settled state. It must not know requests or who may ask.

Invariants: a version that serves goes on serving until one that replaces it serves, or until it is
unloaded; what the journal says of a model is settled before the next load or unload of it begins.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gpumuxd.errors import Draining, GpumuxdError, InvalidModel, ModelNotReady, ModelQuarantined
from gpumuxd.models.listing import BrokenEntry, ModelListing, ModelVersion
from gpumuxd.node.api import ModelState, UnloadedReplica
from gpumuxd.node.catalogue import Catalogue
from gpumuxd.node.journal import Journal
from gpumuxd.node.model_table import NOT_LOADED, ModelTable, Replica, VersionEntry
from gpumuxd.node.placing import Made, Placing

_T = TypeVar("_T")

_log = structlog.get_logger()


@dataclass(slots=True)
class _Load:
    """A load that has not begun, and which others may join."""

    task: "asyncio.Task[None] | None" = None
    is_asked_for: bool = False


class Loads:
    """All loads and unloads of one node."""

    def __init__(
        self, catalogue: Catalogue, table: ModelTable, placing: Placing, journal: Journal
    ) -> None:
        self._catalogue = catalogue
        self._table = table
        self._placing = placing
        self._journal = journal
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: dict[str, _Load] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_change: Callable[[], None] = lambda: None  # something may serve, or serve no more
        self.is_ending = False  # the node stops: loads that fail now say nothing about a model

    async def load(self, name: str, is_asked_for: bool = False, retries: bool = True) -> None:
        """Load what the policy selects; return when all of it serves. Loads of one name that wait
        become one.

        is_asked_for  by a client: the journal keeps it
        retries       also what failed before and did not change since
        """
        load = self._waiting.get(name)
        if load is None:
            load = self._waiting[name] = _Load()
            load.task = self.in_background(self._load(name, load, retries), f"load {name}")
        load.is_asked_for |= is_asked_for
        assert load.task is not None
        await asyncio.shield(load.task)  # a caller that goes away takes nobody's load with it

    async def unload(self, name: str, reason: str = "unloaded") -> Sequence[UnloadedReplica]:
        """Unload all versions and return when they are gone, with what came back."""
        # A load that is asked for from now on comes after this and joins none before it.
        self._waiting.pop(name, None)
        work = self._unload(name, reason)
        return await asyncio.shield(self.in_background(work, f"unload {name}"))

    def has_untried(self, listing: ModelListing) -> bool:
        """Is there a version that should serve, does not, and may if it is tried again as it is?"""
        try:
            wanted = listing.select().versions
        except GpumuxdError:
            return False
        return not all(
            self._has_failed(found) or self._is_quarantined(found) or self._is_current(found)
            for found in wanted
        )

    async def close(self) -> None:
        """Give up loads that run and let go of all artifacts. The devices have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self._table:
            for replica in entry.replicas.values():
                replica.artifact.close()
            entry.replicas = {}

    # One load

    async def _load(self, name: str, load: _Load, retries: bool) -> None:
        async with self.locks[name]:
            # From here on the disk is looked at: who asks now wants what is there now.
            if self._waiting.get(name) is load:
                del self._waiting[name]
            try:
                await self._bring_up(name, retries)
            finally:
                if load.is_asked_for and self._table.serving(name, None) is not None:
                    await self._journal.add(name)

    async def _bring_up(self, name: str, retries: bool) -> None:
        listing = await self._catalogue.find(name)
        selection = listing.select()
        for broken in selection.broken:
            self._table.entry(name, int(broken.version)).fail(None, broken.reason)
        wanted = [v for v in selection.versions if retries or not self._has_failed(v)]
        results = await asyncio.gather(
            *(self._bring_up_version(version) for version in wanted), return_exceptions=True
        )
        failed: list[tuple[int, GpumuxdError]] = []
        for version, result in zip(wanted, results, strict=True):
            if isinstance(result, GpumuxdError):
                failed.append((version.version, result))
            elif result is not None:
                raise result
        if failed or selection.broken or len(wanted) < len(selection.versions):
            error = self._failure(name, failed, selection.broken)
            if error is not None:
                raise error
        else:
            self._retire_others(name, [version.version for version in selection.versions])

    def _has_failed(self, found: ModelVersion) -> bool:
        return self._table.entry(found.name, found.version).failed == found

    def _is_quarantined(self, found: ModelVersion) -> bool:
        return bool(self._table.entry(found.name, found.version).quarantined)

    def _is_current(self, found: ModelVersion) -> bool:
        entry = self._table.entry(found.name, found.version)
        return entry.is_ready and bool(entry.alive) and entry.alive[0].is_of(found)

    def _failure(
        self,
        name: str,
        failed: Sequence[tuple[int, GpumuxdError]],
        broken: Iterable[BrokenEntry],
    ) -> GpumuxdError | None:
        """One error for all versions that failed; None if none did that was tried."""
        reasons = {int(entry.version): entry.reason for entry in broken}
        reasons.update((version, error.message) for version, error in failed)
        if not reasons:
            return None
        # What may go better next time is told only when nothing else is wrong.
        kinds: list[type[GpumuxdError]] = [InvalidModel for _ in broken]
        kinds += [type(error) for _, error in failed]
        kind = min(kinds, key=lambda kind: kind.retryable)
        each = "; ".join(f"version {number}: {reasons[number]}" for number in sorted(reasons))
        serving = [str(entry.version) for entry in self._table.versions(name) if entry.is_ready]
        still = f" (version {', '.join(reversed(serving))} serves)" if serving else ""
        return kind(f"model {name!r} {each}{still}")

    async def _bring_up_version(self, found: ModelVersion) -> None:
        entry = self._table.entry(found.name, found.version)
        if entry.quarantined:
            raise ModelQuarantined(entry.quarantined)
        if self._is_current(found):
            entry.note, entry.failed = "", None
            await self._fill(entry)
            return
        if entry.state is ModelState.UNLOADING:  # replaced a moment ago, and wanted back
            await self._take_down(entry, NOT_LOADED)
        if entry.state is ModelState.UNAVAILABLE:
            entry.move(ModelState.LOADING)
        elif entry.is_ready:
            entry.note = "it serves; a newer copy is being loaded"
        try:
            made = await self._placing.make(entry, found)
        except BaseException as error:
            # Next time may be better for what is not ready; a model that ends its device, or finds
            # no room there, is tried again when it is asked for or when it changes.
            failed = None if isinstance(error, ModelNotReady | Draining) else found
            entry.fail(failed, error.message if isinstance(error, GpumuxdError) else "load stopped")
            if self.is_ending:
                _log.info("model_not_loaded", model=entry.label, reason="the daemon is stopping")
            else:
                reason = str(error) or type(error).__name__
                _log.error("model_not_loaded", model=entry.label, reason=reason)
            raise
        self._replace(entry, made)

    def _replace(self, entry: VersionEntry, made: Made) -> None:
        """From now on these serve; what they replace finishes what it has."""
        old, entry.replicas, entry.missing = entry.replicas, {}, made.missing
        entry.note, entry.failed = "", None
        for replica in made.replicas:
            entry.add(replica)
            _log_loaded(entry, replica)
        assert entry.is_ready, entry
        for replaced in old.values():
            self.in_background(_release(replaced), "release a replica")

    async def fill(self, name: str) -> None:
        """Bring versions that serve to as many replicas as were asked for, as far as can be."""
        async with self.locks[name]:
            for entry in self._table.versions(name):
                if entry.is_ready:
                    await self._fill(entry)

    def fill_all(self) -> None:
        """The same for all models, most urgent first; a device that was away is back."""
        names = dict.fromkeys(entry.name for entry in sorted(self._table, key=lambda e: e.rank))
        self.in_background(self._fill_in_turn(list(names)), "place missing replicas")

    async def _fill_in_turn(self, names: Sequence[str]) -> None:
        for name in names:
            await self.fill(name)

    async def _fill(self, entry: VersionEntry) -> None:
        """Replicas that can't be placed now are no failure: what serves goes on."""
        try:
            await self.fill_entry(entry)
        except GpumuxdError as error:  # all it has is on devices that are about to be emptied
            entry.missing = error.message

    async def fill_entry(self, entry: VersionEntry) -> bool:
        """Place what is missing, replicas on drained devices not counted; true if anything was.
        Raises GpumuxdError when it would be nowhere else. The lock of its name is held."""
        made = await self._placing.fill(entry)
        entry.missing = made.missing
        for replica in made.replicas:
            if (lost := entry.replicas.get(replica.device)) is not None:
                lost.artifact.close()  # its device was lost; this serves in its place
            entry.add(replica)
            _log_loaded(entry, replica)
        return bool(made.replicas)

    def leave(self, entry: VersionEntry, reason: str) -> Coroutine[Any, Any, None]:
        """Refuse a version because its device is drained. Returns what lets it finish and go."""
        entry.is_drained = True
        if entry.is_ready:
            entry.move(ModelState.UNLOADING, reason)
        return self._retire(entry.name, [(entry, entry.replicas)], reason)

    async def release(self, replica: Replica) -> None:
        """Let a replica that serves no more finish what it has and go."""
        await _release(replica)

    def _retire_others(self, name: str, wanted: Sequence[int]) -> None:
        """Versions that are not selected take nothing new, and drain without anybody waiting."""
        others = [
            (entry, entry.replicas)
            for entry in self._table.versions(name)
            if entry.replicas and entry.version not in wanted
        ]
        reason = f"replaced by version {', '.join(map(str, wanted))}"
        for other, _ in others:
            if other.is_ready:
                other.move(ModelState.UNLOADING, f"being {reason}")
        if others:
            self.in_background(self._retire(name, others, reason), f"retire {name}")

    async def _retire(
        self, name: str, others: Sequence[tuple[VersionEntry, dict[str, Replica]]], reason: str
    ) -> None:
        async with self.locks[name]:
            for entry, replicas in others:
                if entry.replicas is replicas:  # else it was wanted back meanwhile
                    await self._take_down(entry, reason)

    async def _unload(self, name: str, reason: str) -> Sequence[UnloadedReplica]:
        async with self.locks[name]:
            unloaded = await asyncio.gather(
                *(self._take_down(e, reason) for e in self._table.versions(name) if e.replicas)
            )
            for entry in self._table.versions(name):
                if entry.is_drained:  # it went before, and nobody wants it back
                    entry.is_drained, entry.reason = False, reason
            await self._journal.remove(name)
        return [replica for replicas in unloaded for replica in replicas]

    async def _take_down(self, entry: VersionEntry, reason: str) -> Sequence[UnloadedReplica]:
        """Refuse new requests of a version at once, and let go of it when its last one ended.

        Only in tasks of our own: one that a caller could cancel would leave it half down.
        """
        replicas = list(entry.replicas.values())
        assert replicas
        if entry.is_ready:
            entry.move(ModelState.UNLOADING)
        try:
            unloaded = await asyncio.gather(*(_release(replica) for replica in replicas))
        finally:
            for replica in replicas:
                replica.artifact.close()
            entry.replicas, entry.missing = {}, ""
            entry.move(ModelState.UNAVAILABLE, reason)
        _log.info("model_unloaded", model=entry.label, reason=reason)
        return [replica for replica in unloaded if replica is not None]

    def take_down(self, entry: VersionEntry) -> None:
        """Let a version go that is in quarantine; nobody waits."""
        self.in_background(self._quarantine(entry), f"quarantine {entry.label}")

    async def _quarantine(self, entry: VersionEntry) -> None:
        async with self.locks[entry.name]:
            if not entry.quarantined:
                return  # it was released meanwhile
            if entry.replicas:
                await self._take_down(entry, entry.quarantined)
            elif entry.state is ModelState.UNAVAILABLE:
                entry.fail(entry.failed, entry.quarantined)

    def in_background(self, work: Coroutine[Any, Any, _T], name: str) -> "asyncio.Task[_T]":
        """A task of our own, which nothing but `close` cancels."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # asked for here, so that one that nobody awaits is not reported
        self.on_change()  # whoever asked for it may be gone


def _log_loaded(entry: VersionEntry, replica: Replica) -> None:
    _log.info(
        "model_loaded",
        model=entry.label,
        device=replica.device,
        groups=replica.loaded.group_count,
        longest_group_us=replica.loaded.longest_group_ns // 1000,
        profile_was_cached=replica.loaded.profile_was_cached,
    )


async def _release(replica: Replica) -> UnloadedReplica | None:
    """What went, None with a device that ended."""
    try:
        released = await replica.link.unload(replica.key)
    finally:
        replica.artifact.close()
    if released is None:
        return None
    return UnloadedReplica(
        replica.version,
        replica.device,
        replica.loaded.weights_bytes,
        released.resident_bytes_before,
        released.resident_bytes_after,
    )
