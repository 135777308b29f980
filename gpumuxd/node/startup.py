"""What a node loads by itself: its startup models, and then what its mode asks for.

    explicit   what clients had loaded before the last stop, as the journal says
    poll       everything in the repositories, from then on kept as it is there

The node serves meanwhile. It counts as not ready until each of these was tried once, and until the
startup models serve. In explicit mode, what was only not ready (its repository was missing, its
device down) is tried again every `retry_ns`, as poll mode does by itself. It must not know devices
or requests.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from gpumuxd.errors import GpumuxdError, ModelNotReady
from gpumuxd.node.journal import Journal
from gpumuxd.node.polling import Polling
from gpumuxd.node.registry import Registry
from gpumuxd.node.settings import ALL_MODELS
from gpumuxd.units import NS_PER_S

_log = structlog.get_logger()


class Startup:
    """One start of one node."""

    def __init__(
        self,
        startup_models: Sequence[str],
        registry: Registry,
        journal: Journal,
        polling: Polling | None,
        on_change: Callable[[], None],
        retry_ns: int,
    ) -> None:
        self.models = tuple(startup_models)
        """Those that have to serve, by name when all are meant and it is known which there are."""
        self.is_trying = True
        self._registry = registry
        self._journal = journal
        self._polling = polling
        self._on_change = on_change
        self._rest: asyncio.Task[None] | None = None
        self.retry_ns = retry_ns
        self._not_ready: set[str] = set()  # to be tried again

    async def load_models(self) -> Mapping[str, str]:
        """Load the startup models; return those that failed, with the reason. What else there is
        to load goes on when this returns."""
        if self.models == (ALL_MODELS,):
            self.models = await self._registry.names()
        failures = await self._try(self.models)
        kept = [name for name in self._journal.models if name not in self.models]
        self.is_trying = bool(kept) or self._polling is not None
        self._on_change()
        rest = self._load_rest(kept)
        self._rest = asyncio.get_running_loop().create_task(rest, name="load models")
        return failures

    def wait_failed(self) -> "asyncio.Future[None]":
        """Never done, but with the bug that ended the care for the repositories."""
        assert self._rest is not None
        return asyncio.shield(self._rest)

    def stop(self) -> None:
        """Begin no more loads."""
        if self._rest is not None:
            self._rest.cancel()

    async def close(self) -> None:
        """Wait until nothing is begun any more."""
        self.stop()
        if self._rest is not None:
            await asyncio.wait([self._rest])
        if self._polling is not None:
            await self._polling.close()

    async def _load_rest(self, kept: Sequence[str]) -> None:
        if kept:
            failures = await self._try(kept)
            for name, reason in failures.items():
                _log.error("journalled_model_failed", model=name, reason=reason)
            _log.info("journal_restored", models=len(kept) - len(failures), failed=len(failures))
        if self._polling is not None:
            await self._polling.poll()
            await self._polling.wait_settled()
        self.is_trying = False
        self._on_change()
        if self._polling is not None:
            await self._polling.run()
        await self._registry.catalogue.scan()  # a repository that is missing is logged now
        while True:
            await asyncio.sleep(self.retry_ns / NS_PER_S)
            await self.retry()

    async def retry(self) -> None:
        """Try again what was only not ready, unless a client has loaded or unloaded it since."""
        if self._registry.catalogue.silent:
            await self._registry.catalogue.scan()
        self._not_ready &= self._registry.failures.keys()
        if self._not_ready:
            await self._try(sorted(self._not_ready))
            self._on_change()

    async def _try(self, names: Sequence[str]) -> dict[str, str]:
        """Load them all at once; the reasons of those that can't be loaded."""
        results = await asyncio.gather(
            *(self._registry.loads.load(name) for name in names), return_exceptions=True
        )
        failures = {}
        for name, result in zip(names, results, strict=True):
            self._not_ready.discard(name)
            if isinstance(result, ModelNotReady):
                self._not_ready.add(name)
            if isinstance(result, GpumuxdError):
                failures[name] = self._registry.failures[name] = result.message
            elif isinstance(result, BaseException):
                raise result
            else:
                self._registry.failures.pop(name, None)
        return failures
