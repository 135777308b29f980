"""Looks at the repositories: off the loop, shared, never older than the question, and a disk that
hangs is nobody else's."""

import asyncio
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpumuxd.errors import InvalidRequest, ModelNotReady, UnknownModel
from gpumuxd.models.listing import BrokenEntry, ModelListing
from gpumuxd.models.repository import Repository, RepositoryUnreadable
from gpumuxd.node.catalogue import SCAN_REST_MAX, Catalogue
from gpumuxd.units import NS_PER_MS
from tests.node.fakes import WAIT_S


class SlowRepository(Repository):
    """A disk that hangs until it is let go. Each scan finds one more broken version of `m`."""

    def __init__(self) -> None:
        super().__init__(Path("/slow"))
        self.goes_on = threading.Event()
        self.names = ["m"]
        self.error: Exception | None = None
        self.looks: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Queue[str] = asyncio.Queue()

    def scan(self) -> dict[str, ModelListing]:
        self._look("scan")
        broken = tuple(BrokenEntry("m", str(i), "") for i, _ in enumerate(self.looks, start=1))
        return {name: ModelListing(name, broken=broken) for name in self.names}

    def find(self, name: str) -> ModelListing | None:
        self._look(name)
        return ModelListing(name) if name in self.names else None

    def _look(self, what: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.looks.append(what)
        self._loop.call_soon_threadsafe(self._begun.put_nowait, what)
        assert self.goes_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error

    async def wait_begun(self, count: int = 1) -> None:
        """The loop turns meanwhile, which is what a look on it would prevent."""
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                await self._begun.get()


def quick() -> SlowRepository:
    repository = SlowRepository()
    repository.goes_on.set()
    return repository


class StoppedClock:
    """Time passes when the test says so: no look is late because the machine is busy."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_over(self) -> None:
        """What goes on now has taken too long."""
        self.now_ns += LIMIT_NS


LIMIT_NS = 5 * NS_PER_MS


def impatient(clock: StoppedClock, *repositories: Repository) -> Catalogue:
    return Catalogue(repositories, clock, look_ns_max=LIMIT_NS, scan_ns_max=LIMIT_NS)


async def test_who_asks_while_a_scan_goes_on_shares_the_next_one() -> None:
    repository = SlowRepository()
    catalogue = Catalogue([repository])
    first = asyncio.ensure_future(catalogue.scan())
    await repository.wait_begun()
    others = [asyncio.ensure_future(catalogue.scan()) for _ in range(50)]
    others[0].cancel()  # who leaves takes nobody along
    repository.goes_on.set()
    assert len((await first).broken) == 1
    scans = await asyncio.gather(*others[1:])
    assert {len(scan.broken) for scan in scans} == {2}  # none is told what was before it asked
    assert repository.looks == ["scan", "scan"]
    assert len((await catalogue.scan()).broken) == 3  # nothing is kept


async def test_looks_for_names_wait_for_no_scan_and_one_at_a_time_is_shared() -> None:
    repository = SlowRepository()
    catalogue = Catalogue([repository])
    scan = asyncio.ensure_future(catalogue.scan())
    finds = [asyncio.ensure_future(catalogue.find(name)) for name in ("a", "b", "a")]
    await repository.wait_begun(2)
    assert sorted(repository.looks) == ["a", "scan"]
    repository.goes_on.set()
    for result in await asyncio.gather(*finds, return_exceptions=True):
        assert isinstance(result, UnknownModel)
    assert sorted(repository.looks) == ["a", "b", "scan"]
    await scan


@pytest.mark.parametrize("name", ["../a", "a\0", "", "a" * 10_000])
async def test_what_can_be_no_name_costs_no_look(name: str) -> None:
    repository = quick()
    with pytest.raises(InvalidRequest):
        await Catalogue([repository]).find(name)
    assert repository.looks == []


async def test_scans_rest_between_each_other() -> None:
    repository = quick()
    # A scan takes 1000 ns here, and no other time passes.
    catalogue = Catalogue([repository], clock=lambda: 1000 * len(repository.looks))
    await catalogue.scan()
    (side,) = catalogue._sides
    assert side._scan_from_ns == 1000 + SCAN_REST_MAX * 1000
    await catalogue.scan()
    assert side._scan_from_ns == 2000 + SCAN_REST_MAX * 1000


async def test_closing_does_not_wait_for_a_disk_that_hangs() -> None:
    repository = SlowRepository()
    catalogue = Catalogue([repository])
    tasks = [asyncio.ensure_future(catalogue.scan()) for _ in range(2)]
    await repository.wait_begun()
    tasks.append(asyncio.ensure_future(catalogue.scan()))
    async with asyncio.timeout(WAIT_S):
        await asyncio.sleep(0)
        await catalogue.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError)
    repository.goes_on.set()


async def test_a_repository_that_hangs_hides_no_other_and_keeps_its_own_names() -> None:
    hanging, other = quick(), quick()
    hanging.names, other.names = ["m"], ["m", "n"]
    clock = StoppedClock()
    catalogue = impatient(clock, hanging, other)
    await catalogue.scan()
    await hanging.wait_begun()
    hanging.goes_on.clear()
    with capture_logs() as lines:
        task = asyncio.ensure_future(catalogue.scan())
        await hanging.wait_begun()
        clock.pass_over()
        scan = await task
        assert sorted(scan.models) == ["n"]
        assert scan.unknown == {"m": "its repository does not answer"}
        assert (await catalogue.find("n")).name == "n"
        with pytest.raises(ModelNotReady, match="'m': its repository does not answer; retry"):
            await catalogue.find("m")  # not the one of the other repository
        assert catalogue.silent == ["repository /slow does not answer"]
        with pytest.raises(ModelNotReady, match="'unknown': its repository does not answer"):
            await catalogue.find("unknown")  # it may have been published there meanwhile
        # All of these came after it was known to hang: none cost it a thread.
        assert hanging.looks == ["scan", "scan"]
        hanging.goes_on.set()
        async with asyncio.timeout(WAIT_S):
            while (await catalogue.scan()).unknown:
                pass  # each takes some turns of the loop
    assert (await catalogue.find("m")).name == "m"
    assert catalogue.silent == []
    with pytest.raises(UnknownModel):
        await catalogue.find("unknown")
    assert [line["event"] for line in lines] == ["repository_silent", "repository_answers_again"]


async def test_names_that_are_asked_for_while_a_disk_hangs_cost_one_thread() -> None:
    hanging, other = SlowRepository(), quick()
    clock = StoppedClock()
    catalogue = impatient(clock, hanging, other)
    names = [f"m{i}" for i in range(40)]
    other.names = names
    tasks = [asyncio.ensure_future(catalogue.find(name)) for name in names]
    await hanging.wait_begun()
    clock.pass_over()
    found = await asyncio.gather(*tasks)
    assert [listing.name for listing in found] == names
    assert len(hanging.looks) == 1
    hanging.goes_on.set()
    await catalogue.close()


async def test_a_repository_that_can_not_be_read_any_more_keeps_its_names() -> None:
    first, second = quick(), quick()
    first.names, second.names = ["m"], ["m", "n"]
    catalogue = impatient(StoppedClock(), first, second)
    first.error = RepositoryUnreadable("No such file or directory")
    with pytest.raises(ModelNotReady, match="'x': its repository can't be read: No such file"):
        await catalogue.find("x")  # it was never seen: it may have any name but those of others
    assert sorted((await catalogue.scan()).models) == ["m", "n"]  # it never had a name
    first.error = None
    await catalogue.find("m")
    first.error = RepositoryUnreadable("Input/output error")
    assert (await catalogue.scan()).unknown == {
        "m": "its repository can't be read: Input/output error"
    }
    with pytest.raises(ModelNotReady, match="Input/output error"):
        await catalogue.find("m")
    first.error = None
    first.names = []
    assert (await catalogue.find("m")).name == "m"
    first.error = RepositoryUnreadable("Input/output error")
    assert (await catalogue.scan()).unknown == {}
