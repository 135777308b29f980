"""Large inputs are copied a piece at a time, and whatever happens meanwhile is noticed."""

import asyncio

import pytest

from gpumuxd.errors import Draining, ModelNotReady
from gpumuxd.node import request_memory
from gpumuxd.node.node import Node
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire import frames
from tests.node.fakes import call, int32
from tests.node.world import World

VALUES = tuple(range(16))


@pytest.fixture(autouse=True)
def pieces_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "COPY_BYTES_MAX", 1)


async def begun(node: Node) -> "asyncio.Task[object]":
    """A request whose inputs are half copied."""
    task: asyncio.Task[object] = asyncio.ensure_future(node.infer(call(*VALUES)))
    for _ in range(20):
        await asyncio.sleep(0)
    return task


async def test_others_have_their_turn_and_nothing_is_left_out(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = await begun(node)
        assert not world.life.of(frames.Submit), "all was copied at once"
        small = asyncio.ensure_future(node.infer(call(1, 2)))
        one, other = await world.life.wait_for(frames.Submit, 2)
        assert world.life.input(one) == int32(1, 2), "a small request waited for a large one"
        assert world.life.input(other) == int32(*VALUES)
        world.life.finish(one.request_id)
        world.life.finish(other.request_id)
        await asyncio.gather(task, small)


async def test_a_model_that_is_unloaded_meanwhile(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = await begun(node)
        await node.unload(DEFAULT_TENANT, "m")
        with pytest.raises((Draining, ModelNotReady)):
            await task
        assert not world.life.of(frames.Submit)
        assert node.requests_in_flight == 0


async def test_who_gives_up_meanwhile_leaves_nothing(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = await begun(node)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not world.life.of(frames.Submit)
        assert node.requests_in_flight == 0


async def test_a_device_that_is_lost_meanwhile(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = await begun(node)
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        (again,) = await life.wait_for(frames.Submit)
        assert life.input(again) == int32(*VALUES)
        life.finish(again.request_id)
        await task
