"""The repositories as the event loop may ask them: every look at a disk is made on a thread.

Many who ask the same cost what one costs: while a look goes on, all that ask share the next one,
so nobody is told what was before their question. A disk that hangs keeps a few threads and nobody
who asks: its repository is *silent*, and the others answer. It must not know states or tenants.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from gpumuxd.clock import Clock, monotonic_ns
from gpumuxd.errors import ModelNotReady
from gpumuxd.models.listing import ModelListing, Scan, Silence, merge, no_model
from gpumuxd.models.names import check_model_name
from gpumuxd.models.repository import Repository, RepositoryUnreadable
from gpumuxd.units import NS_PER_S

SCAN_REST_MAX = 4
"""After a scan that took t the next begins 4 t later at the earliest: a thread that scans a
thousand models keeps the GIL from the loop, so it may do that a fifth of the time."""

LOOK_NS_MAX = 5 * NS_PER_S
"""A repository that takes longer for one model is silent until it has answered."""

SCAN_NS_MAX = 30 * NS_PER_S
"""The same for a look at all of its models; a thousand of them took 0.1 s."""

_log = structlog.get_logger()
_T = TypeVar("_T")


class Catalogue:
    """All repositories, asked from one event loop. Earlier ones win where several have a name."""

    def __init__(
        self,
        repositories: Sequence[Repository],
        clock: Clock = monotonic_ns,
        look_ns_max: int = LOOK_NS_MAX,
        scan_ns_max: int = SCAN_NS_MAX,
    ) -> None:
        self._sides = [
            _Side(repository, clock, look_ns_max, scan_ns_max) for repository in repositories
        ]

    async def scan(self) -> Scan:
        """Everything that is there now."""
        return merge(await asyncio.gather(*(side.scan() for side in self._sides)))

    async def find(self, name: str) -> ModelListing:
        """What counts under this name. Raises UnknownModel, InvalidRequest, or ModelNotReady for
        one that is, or may be, in a repository that can't be looked at now."""
        check_model_name(name)  # what can't be a name costs no thread
        silent: Silence | None = None
        for side in self._sides:
            found = await side.find(name)
            if isinstance(found, Silence):
                silent = silent or found
                if name in found.names:
                    break
            elif found is not None:
                return found
        if silent is not None:
            raise ModelNotReady(f"model {name!r}: {silent.reason}; retry")
        raise no_model(name)

    @property
    def silent(self) -> list[str]:
        """What is the matter with repositories that gave no answer when last asked, for operators.
        Looks at no disk."""
        return [f"repository {side.path} {side.silence}" for side in self._sides if side.silence]

    async def close(self) -> None:
        """Stop waiting for looks that go on. A thread that hangs in one is left behind."""
        await asyncio.gather(*(side.close() for side in self._sides))


class _Side:
    """One repository. At most two threads look at it: one scans, one looks for a name."""

    def __init__(
        self, repository: Repository, clock: Clock, look_ns_max: int, scan_ns_max: int
    ) -> None:
        self._repository = repository
        self._clock = clock
        self._look_ns_max = look_ns_max
        self._scan_ns_max = scan_ns_max
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        self._until_ns: dict[Hashable, int] = {}  # when a look that goes on is overdue
        self._finding = asyncio.Lock()
        self._scan_from_ns = 0
        self._names: frozenset[str] = frozenset()  # as last seen
        self.silence = ""
        """Why it gave no answer when it was last asked."""

    @property
    def path(self) -> Path:
        return self._repository.path

    async def scan(self) -> Mapping[str, ModelListing] | Silence:
        found = await self._ask("scan", self._scan, self._scan_ns_max)
        if not isinstance(found, Silence):
            self._names = frozenset(found)
        return found

    async def find(self, name: str) -> ModelListing | Silence | None:
        found = await self._ask((name,), lambda: self._find(name), self._look_ns_max)
        if found is None:
            self._names -= {name}
        elif not isinstance(found, Silence):
            self._names |= {name}
        return found

    async def close(self) -> None:
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _scan(self) -> Mapping[str, ModelListing]:
        await asyncio.sleep(max(self._scan_from_ns - self._clock(), 0) / NS_PER_S)
        began_ns = self._clock()
        self._until_ns["scan"] = began_ns + self._scan_ns_max
        try:
            return await asyncio.to_thread(self._repository.scan)
        finally:
            del self._until_ns["scan"]
            ended_ns = self._clock()
            self._scan_from_ns = ended_ns + SCAN_REST_MAX * (ended_ns - began_ns)

    async def _find(self, name: str) -> ModelListing | None:
        async with self._finding:
            self._until_ns[name,] = self._clock() + self._look_ns_max
            try:
                return await asyncio.to_thread(self._repository.find, name)
            finally:
                del self._until_ns[name,]

    async def _ask(
        self, key: Hashable, look: Callable[[], Awaitable[_T]], limit_ns: int
    ) -> _T | Silence:
        """What a look that begins after this call sees; who stops waiting stops nobody else. Nobody
        waits for a repository that is known to be silent."""
        task: asyncio.Task[_T] | None = None
        while task is None or not task.done():
            patience_ns = limit_ns
            if self._until_ns:
                patience_ns = min(self._until_ns.values()) - self._clock()
            if patience_ns <= 0:
                return self._silent("does not answer")
            task = task or self._shared(key, look)
            await asyncio.wait([task], timeout=patience_ns / NS_PER_S)
        try:
            found = task.result()
        except RepositoryUnreadable as error:
            return self._silent(f"can't be read: {error}")
        if self.silence:
            self.silence = ""
            _log.info("repository_answers_again", repository=str(self.path))
        return found

    def _silent(self, what: str) -> Silence:
        reason = f"its repository {what}"
        if what != self.silence:
            self.silence = what
            _log.warning("repository_silent", repository=str(self.path), reason=reason)
        return Silence(reason, self._names)

    def _shared(self, key: Hashable, look: Callable[[], Awaitable[_T]]) -> "asyncio.Task[_T]":
        task: asyncio.Task[_T] | None = self._next.get(key)
        if task is None:
            work = self._after(self._running.get(key), key, look)
            task = self._next[key] = asyncio.get_running_loop().create_task(work, name="look")
            task.add_done_callback(_ask_error)
        return task

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
