"""System shared memory: regions that tenants registered, and the tensors that requests keep there.

A region is a part of a shared memory object, known by its tenant and its name: no tenant sees or
reaches another's. What is in it is copied into the arena before a request is submitted, and outputs
are copied from there when it has completed, so a device never touches memory that a client can
change. It must not know protobuf, nor what a request is but for its tensors.

Invariants. A request has the regions that it named open from its call to its end, whatever is
registered or unregistered meanwhile; a file is closed when nobody has it any more. Nothing outside
a region is read or written. The event loop never touches a client's file: threads of its tenant do,
whose end is always waited for, also by who is cancelled, since they work in memory that is given
back then. So nothing is written for a request after it has ended, and what one client's file does
to a thread is no one else's delay.
"""

import asyncio
import concurrent.futures
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpumuxd.errors import (
    InvalidRequest,
    QuotaExceeded,
    RegionExists,
    UnknownRegion,
    Unsupported,
    limit_facts,
)
from gpumuxd.node.api import InferCall, RegionRef, RegionView, Tenant
from gpumuxd.node.region_file import RegionFile, open_object, read_into, write_from
from gpumuxd.node.settings import SharedMemorySettings
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.node.validation import check_bools, elide

T = TypeVar("T")

THREADS_MAX = 2
"""Threads of one tenant that copy. One is enough for memory; the other is for when it stands."""

NAME_CHARS_MAX = 256
END_MAX = 2**63 - 1
"""No file has a byte behind this."""


class _Region:
    """A region of a tenant; open while it has holders, the first of whom is the table."""

    def __init__(self, space: "_Space", view: RegionView) -> None:
        self.view = view
        self.space = space
        self.file: RegionFile | None = None
        self._holders = 1
        space.regions_open += 1
        space.bytes_open += view.size_bytes

    def hold(self) -> None:
        assert self._holders
        self._holders += 1

    def let_go(self) -> None:
        assert self._holders, "let go of more often than held"
        self._holders -= 1
        if not self._holders:
            self.space.regions_open -= 1
            self.space.bytes_open -= self.view.size_bytes
            if self.file is not None:
                # The last file of an object frees its memory, which takes a second for 16 GiB.
                self.space.workers.submit(os.close, self.file.fd)


@dataclass(slots=True)
class _Space:
    """The regions of one tenant. Those that are open are more while some that were unregistered
    are in use."""

    regions: dict[str, _Region] = field(default_factory=dict)
    regions_open: int = 0
    bytes_open: int = 0
    workers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS_MAX, "shared memory")
    )

    def clear(self) -> None:
        for region in self.regions.values():
            region.let_go()
        self.regions.clear()


@dataclass(frozen=True, slots=True)
class Place(RegionRef):
    """A place in a region that is held open."""

    held: _Region

    @property
    def file(self) -> RegionFile:
        assert self.held.file is not None, "only open regions are in the table"
        return self.held.file

    @property
    def position(self) -> int:
        """Where it begins in the file."""
        return self.held.view.offset + self.offset


class SharedMemory:
    """The regions of all tenants of a node. Implements `api.SharedMemoryApi`."""

    def __init__(self, settings: SharedMemorySettings, tenants: TenantDirectory) -> None:
        self._settings = settings
        self._tenants = tenants
        self._spaces: defaultdict[str, _Space] = defaultdict(_Space)

    @property
    def is_allowed(self) -> bool:
        return self._settings.is_allowed

    def keep(self, tenants: Collection[str]) -> None:
        """Unregister what belongs to others."""
        for name, space in self._spaces.items():
            if name not in tenants:
                space.clear()

    async def register(
        self, tenant: Tenant, name: str, key: str, offset: int, size_bytes: int
    ) -> None:
        self._check_allowed()
        if not 0 < len(name) <= NAME_CHARS_MAX:
            raise InvalidRequest(
                f"expected a region's name of 1 to {NAME_CHARS_MAX} characters, got {elide(name)}"
            )
        if size_bytes < 1 or offset < 0 or offset + size_bytes > END_MAX:
            raise InvalidRequest(
                f"region {elide(name)}: expected at least 1 byte and an end of at most {END_MAX}, "
                f"got {size_bytes} bytes at {offset}"
            )
        space = self._spaces[tenant.name]
        self._check_new(tenant, space, name)
        self._check_room(tenant, space, size_bytes)
        region = _Region(space, RegionView(name, key, offset, size_bytes))
        uids = self._uids(tenant)

        def open_file() -> None:
            region.file = open_object(key, uids, offset + size_bytes)

        try:
            await finished(space.workers.submit(open_file))
            self._check_new(tenant, space, name)  # another call may have been faster
        except BaseException:
            region.let_go()
            raise
        space.regions[name] = region

    def unregister(self, tenant: Tenant, name: str) -> None:
        self._check_allowed()
        space = self._spaces.get(tenant.name)
        if space is None:
            return
        if not name:
            space.clear()
        elif name in space.regions:
            space.regions.pop(name).let_go()

    def regions(self, tenant: Tenant, name: str) -> Sequence[RegionView]:
        self._check_allowed()
        if name:
            return (self._region(tenant, name).view,)
        space = self._spaces.get(tenant.name)
        return tuple(region.view for region in space.regions.values()) if space is not None else ()

    @contextlib.contextmanager
    def holding(self, call: InferCall) -> Iterator[InferCall]:
        """The same call with each RegionRef a Place, which stays open until this ends. Raises
        Unsupported, UnknownRegion or InvalidRequest."""
        if not call.output_regions and all(tensor.region is None for tensor in call.inputs):
            yield call
            return
        self._check_allowed()
        held: list[_Region] = []
        try:
            inputs = [
                tensor
                if tensor.region is None
                else replace(tensor, region=self._place(call, tensor.region, held))
                for tensor in call.inputs
            ]
            outputs = {
                name: self._place(call, ref, held) for name, ref in call.output_regions.items()
            }
            for name, place in outputs.items():
                if not place.file.is_writable:
                    raise InvalidRequest(
                        f"output {elide(name)}: the daemon may read region {place.region!r}, "
                        "and not write there"
                    )
            yield replace(call, inputs=inputs, output_regions=outputs)
        finally:
            for region in held:
                region.let_go()

    # What may be asked

    def _check_allowed(self) -> None:
        if not self._settings.is_allowed:
            raise Unsupported(
                "system shared memory is off on this node: its configuration would have to say "
                "allow = true in [shared_memory]"
            )

    def _uids(self, tenant: Tenant) -> Sequence[int]:
        """Users whose objects a tenant may name."""
        own = self._tenants.settings_of(tenant).shared_memory_uids
        uids = own if own is not None else self._settings.uids
        return uids if uids is not None else (os.geteuid(),)

    def _check_new(self, tenant: Tenant, space: _Space, name: str) -> None:
        if name in space.regions:
            raise RegionExists(
                f"tenant {tenant.name!r} has a region {elide(name)} already; unregister it first"
            )

    def _check_room(self, tenant: Tenant, space: _Space, size_bytes: int) -> None:
        settings = self._settings
        for limit, limit_max, unit, current, asked in (
            ("regions_max", settings.regions_max, "regions", space.regions_open, 1),
            ("regions_mib_max", settings.region_bytes_max, "bytes", space.bytes_open, size_bytes),
        ):
            if current + asked > limit_max:
                raise QuotaExceeded(
                    f"tenant {tenant.name!r} has {current} {unit} of shared memory registered or "
                    f"in use and asks for {asked} more; {limit} allows {limit_max}",
                    limit_facts(
                        limit, limit_max, unit, current=current, asked=asked, tenant=tenant.name
                    ),
                )

    def _region(self, tenant: Tenant, name: str) -> _Region:
        space = self._spaces.get(tenant.name)
        region = space.regions.get(name) if space is not None else None
        if region is None:
            raise UnknownRegion(f"tenant {tenant.name!r} has no region {elide(name)} registered")
        return region

    def _place(self, call: InferCall, ref: RegionRef, held: list[_Region]) -> Place:
        region = self._region(call.tenant, ref.region)
        if ref.offset < 0 or ref.size_bytes < 0:
            raise InvalidRequest(
                f"region {ref.region!r}: expected an offset and a size of 0 or more, "
                f"got {ref.size_bytes} bytes at {ref.offset}"
            )
        if ref.offset + ref.size_bytes > region.view.size_bytes:
            raise InvalidRequest(
                f"region {ref.region!r} has {region.view.size_bytes} bytes, the request names "
                f"{ref.size_bytes} bytes at {ref.offset}"
            )
        region.hold()
        held.append(region)
        return Place(ref.region, ref.offset, ref.size_bytes, region)


# Copies


@dataclass(frozen=True, slots=True)
class Copy:
    """One tensor between its place and the arena. `label` is how messages name it."""

    label: str
    datatype: str
    place: Place
    view: memoryview


async def copy_in(copies: Sequence[Copy]) -> None:
    """Read inputs. Raises InvalidRequest for one that is not there any more, or can't be."""
    await _copy(copies, _read)


async def copy_out(copies: Sequence[Copy]) -> None:
    """Write outputs. Raises InvalidRequest where there is no room any more."""
    await _copy(copies, _write)


async def _copy(copies: Sequence[Copy], copy: Callable[[Copy], None]) -> None:
    def all_of_them() -> None:
        for each in copies:
            copy(each)

    if copies:
        workers = copies[0].place.held.space.workers
        await finished(workers.submit(all_of_them))


def _read(copy: Copy) -> None:
    read_into(copy.place.file, copy.place.position, copy.view, copy.label)
    if copy.datatype == "BOOL":
        check_bools(copy.label, copy.view)


def _write(copy: Copy) -> None:
    write_from(copy.place.file, copy.place.position, copy.view, copy.label)


def place_of(ref: RegionRef) -> Place:
    """What `holding` has made of it."""
    assert isinstance(ref, Place), "a call goes through `holding` first"
    return ref


async def finished(work: "concurrent.futures.Future[T]") -> T:
    """What a thread returns. Who is cancelled meanwhile is so when that has ended; what has not
    begun never does."""
    future = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        work.cancel()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise
