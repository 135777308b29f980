"""What a device does not see: loaders that die, a disk that is full, a repository that goes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from gpumuxd_client.errors import ModelNotReady
from gpumuxd_client.types import InferResult

from gpumuxd.node.journal import JOURNAL_NAME
from tests.faults.ask import STOP_LOADERS, Fault
from tests.faults.rig import Rig, is_right
from tests.faults.small_disk import full


@asynccontextmanager
async def stopped_loader(rig: Rig, model: str) -> AsyncIterator["tuple[int, asyncio.Task[None]]"]:
    """A loader that stands still before it reads, and the load that waits for it."""
    (rig.folder / STOP_LOADERS).touch()
    load = asyncio.ensure_future(rig.culprit.load(model))
    try:
        pid = await rig.wait_loader()
    finally:
        (rig.folder / STOP_LOADERS).unlink()
    yield pid, load


@pytest.mark.parametrize("victim", ["loader", "starter"])
async def test_a_loader_that_is_killed_costs_one_load(rig: Rig, victim: str) -> None:
    before = await rig.device()
    async with rig.faulty_model() as model:
        await rig.culprit.unload(model)
        async with stopped_loader(rig, model) as (loader_pid, load):
            served = rig.ask_bystanders(20)
            os.kill(loader_pid if victim == "loader" else rig.starter_pid(), signal.SIGKILL)
            with pytest.raises(ModelNotReady, match="was killed"):
                await load
        results = await asyncio.gather(*served)
        assert all(is_right(result, index) for index, result in enumerate(results))
        await rig.culprit.load(model)
        assert isinstance(await rig.ask(model, Fault.NOTHING), InferResult)
    await rig.is_whole()
    assert (await rig.device()).pid == before.pid


async def test_a_repository_that_goes_during_a_load_and_while_it_serves(rig: Rig) -> None:
    before = await rig.device()
    away = rig.folder / "away"
    async with rig.faulty_model() as model:
        await rig.culprit.unload(model)
        async with stopped_loader(rig, model) as (loader_pid, load):
            rig.repository.rename(away)
            os.kill(loader_pid, signal.SIGCONT)
            with pytest.raises(ModelNotReady, match="went away"):
                await load
            away.rename(rig.repository)
        await rig.culprit.load(model)
        rig.repository.rename(away)
        # What serves comes back after a loss of the device: the node has it still.
        os.kill(before.pid, signal.SIGKILL)
        await rig.wait_ready()
        assert is_right(await rig.ask_bystanders(1)[0], 0)
        assert isinstance(await rig.ask(model, Fault.NOTHING), InferResult)
        with pytest.raises(ModelNotReady, match="can't be read"):
            await rig.operator.load("another")
        away.rename(rig.repository)
    await rig.is_whole()


async def test_a_full_disk_is_told_and_keeps_nobody_from_being_served(rig: Rig) -> None:
    state = rig.folder / "state"
    if not state.is_mount():
        pytest.skip("only root may mount a small disk")
    with full(state):
        async with rig.faulty_model() as model:
            assert isinstance(await rig.ask(model, Fault.NOTHING), InferResult)
            (told,) = [line for line in rig.daemon.log.splitlines() if "journal_not_w" in line]
            assert "No space left on device" in told
    # And when there is room again, what is loaded next is kept.
    async with rig.faulty_model() as model:
        assert model in (state / JOURNAL_NAME).read_text()
    await rig.is_whole()
