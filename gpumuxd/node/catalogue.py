"""The repository as the event loop may ask it: every look at the disk is made on a thread.

Many who ask the same cost what one costs: while a look goes on, all that ask share the next one,
so nobody is told what was before their question. It must not know states or tenants.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from gpumuxd.clock import Clock, monotonic_ns
from gpumuxd.models.names import check_model_name, version_number
from gpumuxd.models.repository import ModelVersion, Repository, Scan
from gpumuxd.units import NS_PER_S

SCAN_REST_MAX = 4
"""After a scan that took t the next begins 4 t later at the earliest: a thread that scans a
thousand models keeps the GIL from the loop, so it may do that a fifth of the time."""

_T = TypeVar("_T")


class Catalogue:
    """A repository, asked from one event loop."""

    def __init__(self, repository: Repository, clock: Clock = monotonic_ns) -> None:
        self._repository = repository
        self._clock = clock
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        self._scan_from_ns = 0

    async def scan(self) -> Scan:
        """Everything that is there now."""
        return await self._shared("scan", self._scan)

    async def find(self, name: str, version: str = "") -> ModelVersion:
        """As `Repository.find`."""
        check_model_name(name)  # what can't be a name costs no thread
        if version:
            version_number(version)
        return await self._shared((name, version), lambda: self._find(name, version))

    async def close(self) -> None:
        """Stop waiting for looks that go on. A thread that hangs in one is left behind."""
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _scan(self) -> Scan:
        await asyncio.sleep(max(self._scan_from_ns - self._clock(), 0) / NS_PER_S)
        began_ns = self._clock()
        scan = await asyncio.to_thread(self._repository.scan)
        ended_ns = self._clock()
        self._scan_from_ns = ended_ns + SCAN_REST_MAX * (ended_ns - began_ns)
        return scan

    async def _find(self, name: str, version: str) -> ModelVersion:
        return await asyncio.to_thread(self._repository.find, name, version)

    async def _shared(self, key: Hashable, look: Callable[[], Awaitable[_T]]) -> _T:
        """What a look that begins after this call sees. Who stops waiting stops nobody else."""
        task: asyncio.Task[_T] | None = self._next.get(key)
        if task is None:
            work = self._after(self._running.get(key), key, look)
            task = self._next[key] = asyncio.get_running_loop().create_task(work, name="look")
            task.add_done_callback(_ask_error)
        return await asyncio.shield(task)

    async def _after(
        self,
        before: "asyncio.Task[Any] | None",
        key: Hashable,
        look: Callable[[], Awaitable[_T]],
    ) -> _T:
        if before is not None:
            await asyncio.wait([before])
        self._running[key] = self._next.pop(key)
        try:
            return await look()
        finally:
            del self._running[key]


def _ask_error(task: "asyncio.Task[Any]") -> None:
    """So that the error of a look that nobody waits for any more is not reported."""
    if not task.cancelled():
        task.exception()
