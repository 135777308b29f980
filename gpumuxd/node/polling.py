"""`[repository] mode = "poll"`: what serves is kept as the repository is.

Every model that is there is loaded, what changes is loaded anew, what is gone is unloaded. A change
counts when two polls in a row saw the same, so that files are not read while they are copied; the
first poll after the start takes everything as it is, since nobody should wait for a model that
has been there for weeks. What failed is tried again when it changes, what was only not ready at
the next poll. It must not know how a model is loaded.
"""

import asyncio
from collections.abc import Iterable

import structlog

from gpumuxd.errors import GpumuxdError
from gpumuxd.models.listing import ModelListing, Scan
from gpumuxd.models.names import is_model_name
from gpumuxd.node.catalogue import Catalogue
from gpumuxd.node.loads import Loads
from gpumuxd.units import NS_PER_S

GONE = "its files are gone from the repository"

_log = structlog.get_logger()


class Polling:
    """Looks at the repositories again and again. `None` is what is seen of a name that is gone."""

    def __init__(self, catalogue: Catalogue, loads: Loads, interval_ns: int) -> None:
        self._catalogue = catalogue
        self._loads = loads
        self.interval_ns = interval_ns
        self._seen: dict[str, ModelListing | None] = {}
        self._done: dict[str, ModelListing | None] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._is_first = True

    async def run(self) -> None:
        """Poll at each interval, until cancelled."""
        while True:
            await asyncio.sleep(self.interval_ns / NS_PER_S)
            await self.poll()

    async def poll(self) -> None:
        """Look once, and begin what there is to do."""
        scan = await self._catalogue.scan()
        for name in self._names(scan):
            now = scan.models.get(name)
            is_quiet = self._is_first or (name in self._seen and self._seen[name] == now)
            self._seen[name] = now
            if is_quiet and name not in self._busy and self._is_news(name, now):
                self._done[name] = now
                self._busy[name] = asyncio.get_running_loop().create_task(
                    self._follow(name, now), name=f"follow {name}"
                )
            elif now is None and self._done.get(name) is None and name not in self._busy:
                del self._seen[name]  # it came and went between two polls
                self._done.pop(name, None)
        self._is_first = False

    async def wait_settled(self) -> None:
        """Returns when everything that was begun has ended."""
        while self._busy:
            await asyncio.wait(list(self._busy.values()))

    async def close(self) -> None:
        """Wait for nothing any more. The loads themselves go on."""
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _names(self, scan: Scan) -> Iterable[str]:
        """What to look at: all that is there or was, but what can't be told."""
        names = {**self._seen, **scan.models}
        return [name for name in names if name not in scan.unknown and is_model_name(name)]

    def _is_news(self, name: str, now: ModelListing | None) -> bool:
        return self._done.get(name) != now

    async def _follow(self, name: str, now: ModelListing | None) -> None:
        try:
            if now is None:
                await self._loads.unload(name, GONE)
                self._done.pop(name, None)
                self._seen.pop(name, None)
            else:
                await self._loads.load(name, retries=False)
        except GpumuxdError as error:
            is_final = now is not None and not self._loads.has_untried(now)
            if not is_final:
                self._done.pop(name, None)  # the next poll tries again
            _log.error("model_not_followed", model=name, reason=error.message, is_final=is_final)
        finally:
            del self._busy[name]
