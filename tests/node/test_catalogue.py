"""Looks at the repository: off the loop, shared, and never older than the question."""

import asyncio
import threading

import pytest

from gpumuxd.errors import InvalidRequest, UnknownModel
from gpumuxd.models.repository import ModelVersion, Repository, Scan
from gpumuxd.node.catalogue import SCAN_REST_MAX, Catalogue
from tests.node.fakes import WAIT_S


class SlowRepository(Repository):
    """A disk that hangs until it is let go. Each scan finds something else."""

    def __init__(self) -> None:
        super().__init__(())
        self.goes_on = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Queue[str] = asyncio.Queue()
        self.looks: list[str] = []

    def scan(self) -> Scan:
        self._look("scan")
        return Scan(broken=tuple(self.looks))  # type: ignore[arg-type]  # only told apart

    def find(self, name: str, version: str = "") -> ModelVersion:
        self._look(name)
        raise UnknownModel(f"look {len(self.looks)}")

    def _look(self, what: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.looks.append(what)
        self._loop.call_soon_threadsafe(self._begun.put_nowait, what)
        assert self.goes_on.wait(WAIT_S)

    async def wait_begun(self, count: int) -> None:
        """The loop turns meanwhile, which is what a look on it would prevent."""
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                await self._begun.get()


async def test_who_asks_while_a_scan_goes_on_shares_the_next_one() -> None:
    repository = SlowRepository()
    catalogue = Catalogue(repository)
    first = asyncio.ensure_future(catalogue.scan())
    await repository.wait_begun(1)
    others = [asyncio.ensure_future(catalogue.scan()) for _ in range(50)]
    others[0].cancel()  # who leaves takes nobody along
    repository.goes_on.set()
    assert len((await first).broken) == 1
    scans = await asyncio.gather(*others[1:])
    assert {len(scan.broken) for scan in scans} == {2}  # none is told what was before it asked
    assert repository.looks == ["scan", "scan"]
    assert len((await catalogue.scan()).broken) == 3  # nothing is kept


async def test_looks_for_two_models_do_not_wait_for_each_other_and_errors_are_shared() -> None:
    repository = SlowRepository()
    catalogue = Catalogue(repository)
    tasks = [asyncio.ensure_future(catalogue.find(name)) for name in ("a", "b", "a")]
    await repository.wait_begun(2)
    repository.goes_on.set()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, UnknownModel)
    assert sorted(repository.looks) == ["a", "b"]


@pytest.mark.parametrize(("name", "version"), [("../a", ""), ("a\0", ""), ("a", "one")])
async def test_what_can_be_no_name_costs_no_look(name: str, version: str) -> None:
    repository = SlowRepository()
    with pytest.raises(InvalidRequest):
        await Catalogue(repository).find(name, version)
    assert repository.looks == []


async def test_scans_rest_between_each_other() -> None:
    repository = SlowRepository()
    repository.goes_on.set()
    times_ns = iter([0, 0, 1000, 1000 + SCAN_REST_MAX * 1000, 6000, 7000])
    catalogue = Catalogue(repository, clock=lambda: next(times_ns))
    await catalogue.scan()
    assert catalogue._scan_from_ns == 1000 + SCAN_REST_MAX * 1000
    await catalogue.scan()
    assert len(repository.looks) == 2


async def test_closing_does_not_wait_for_a_disk_that_hangs() -> None:
    repository = SlowRepository()
    catalogue = Catalogue(repository)
    tasks = [asyncio.ensure_future(catalogue.scan()) for _ in range(2)]
    await repository.wait_begun(1)
    tasks.append(asyncio.ensure_future(catalogue.scan()))
    async with asyncio.timeout(WAIT_S):
        await asyncio.sleep(0)
        await catalogue.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError)
    repository.goes_on.set()
