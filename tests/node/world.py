"""A node, its repository and its fake children, for tests of the node."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from gpumuxd.domain import PriorityClass
from gpumuxd.node.api import ModelState, Tenant
from gpumuxd.node.node import Node
from gpumuxd.node.settings import LinkSettings, NodeSettings, RestartSettings, TenantSettings
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB, NS_PER_MS
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeDevice, FakeLife, FakeLoader, add_model

ADMIN = Tenant("admin", is_admin=True)
VOICE = Tenant("voice", priority_max=PriorityClass.REALTIME)
INDEX = Tenant("index", priority_max=PriorityClass.BEST_EFFORT, priority_default=3)
TENANTS = tuple(TenantSettings(tenant) for tenant in (ADMIN, VOICE, INDEX))

CPU_0 = DeviceSettings("cpu:0", arena_bytes=MIB)
CPU_1 = DeviceSettings("cpu:1", arena_bytes=MIB)
FAST = RestartSettings(delay_ns_first=1, delay_ns_max=1)

# The fake child lives on the parent's own loop: what makes the one late makes the other late.
IMPATIENT = LinkSettings(
    ping_interval_ns=NS_PER_MS, silence_ns_max=20 * NS_PER_MS, parent_lag_ns_max=5 * NS_PER_MS
)


def open_files(repository: Path) -> set[str]:
    """Arenas, artifacts and (fake) processes that are open. Other files are not the node's: gRPC
    may be alive in this process from another test, and opens and closes what it likes."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith(("/memfd:", "pipe:", f"{repository}/")):
                found.add(f"{fd} {target}")
    return found


class World:
    """A node, its repository and its fake children."""

    def __init__(self, path: Path) -> None:
        self.repository = path
        self.device = FakeDevice()
        self.loader = FakeLoader()
        self.readiness: list[bool] = []
        self._ready_changed = asyncio.Event()
        self.settings = NodeSettings(
            repository_paths=(path,), devices=(CPU_0,), restart=FAST, startup_models=()
        )

    @asynccontextmanager
    async def started(self, **changes: object) -> AsyncIterator[Node]:
        """A node that is up and has loaded its startup models."""
        self.settings = replace(self.settings, **changes)
        open_before = open_files(self.repository)
        self.node = Node(
            self.settings,
            spawn_device=self.device.spawn,
            spawn_loader=self.loader.spawn,
            on_readiness=self._hear,
        )
        try:
            await self.node.start()
            await self.node.load_startup_models()
            yield self.node
        finally:
            await self.node.stop()
            assert self.node.requests_in_flight == 0
            await self._check_closed(open_before)
            for life in self.device.lives:
                assert life.is_reaped
            for loader in self.loader.children:
                assert loader.is_reaped

    async def _check_closed(self, open_before: set[str]) -> None:
        """Nothing stays open. A thread that was opening a file when nobody waited for it any more
        closes it when it is done."""
        left: set[str] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                # Looked at once each time: such a thread may open the next file in between.
                while left := open_files(self.repository) - open_before:
                    await asyncio.to_thread(os.sched_yield)
        assert not left, left

    async def wait_ready(self, is_ready: bool = True) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.node.is_ready() != is_ready:
                self._ready_changed.clear()
                await self._ready_changed.wait()

    def _hear(self, is_ready: bool) -> None:
        self.readiness.append(is_ready)
        self._ready_changed.set()

    @property
    def life(self) -> FakeLife:
        return self.device.life

    def add(
        self, name: str = "m", version: int = 1, data: bytes = b"v1", manifest: str = ""
    ) -> Path:
        """A model in the repository."""
        return add_model(self.repository, name, version, data, manifest)

    @property
    def loaded(self) -> list[str]:
        """The keys that the device was told to load, in order."""
        return [frame.model for frame in self.life.of(frames.LoadModel)]

    async def states(self, name: str = "m") -> dict[str, str]:
        """What the index says of each version: its state, or why it is not READY."""
        entries = await self.node.index(ADMIN)
        return {e.version: e.reason or str(e.state) for e in entries if e.name == name}

    async def state(self, name: str = "m", version: str = "1") -> tuple[ModelState, str]:
        entries = await self.node.index(ADMIN)
        (entry,) = [e for e in entries if (e.name, e.version) == (name, version)]
        return entry.state, entry.reason
