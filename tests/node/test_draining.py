"""Devices out of service: where their models go, who is refused, and what comes back."""

import asyncio
from pathlib import Path

import pytest

from gpumuxd.errors import Draining, InvalidRequest, PermissionDenied
from gpumuxd.node.api import DrainedModel, ModelState
from gpumuxd.node.node import Node
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeLife, call, load_never, load_well
from tests.node.test_replicas import (
    BOTH,
    OUTPUTS,
    answered,
    lives_of,
    loads_on,
    two_devices,
    wait_whole,
)
from tests.node.world import ADMIN, VOICE, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def device_states(world: World) -> list[str]:
    return [device.state for device in world.node.view().devices]


async def wait_device(world: World, state: str) -> None:
    """Until cpu:0 is in this state."""
    async with asyncio.timeout(WAIT_S):
        while device_states(world)[0] != state:
            await world.state()


def changing(node: Node, name: str) -> asyncio.Lock:
    """Held while this model is loaded or unloaded, which may take its time."""
    return node._registry.loads.locks[name]


def full(life: FakeLife, frame: frames.LoadModel) -> None:
    life.send(frames.ModelFailed(frame.model, "no room", is_out_of_memory=True))


async def test_a_model_moves_before_its_old_replica_goes(world: World) -> None:
    world.add()
    async with two_devices(world, startup_models=("m",)) as node:
        first, second = lives_of(world, "cpu:0")[0], lives_of(world, "cpu:1")[0]
        world.device.on_load = load_never
        drain = asyncio.create_task(node.drain_device(ADMIN, "cpu:0"))
        (load,) = await second.wait_for(frames.LoadModel)
        assert device_states(world) == ["draining", "ready"]
        await answered(node, first)  # nobody else serves it yet
        under_way = asyncio.create_task(node.infer(call()))
        (_, submit) = await first.wait_for(frames.Submit, 2)
        world.device.answers_unload = False
        load_well(second, load)
        (unload,) = await first.wait_for(frames.UnloadModel)
        await answered(node, second)
        assert device_states(world) == ["draining", "ready"]
        first.finish(submit.request_id, OUTPUTS)  # what was admitted finishes
        first.send(frames.ModelReleased(unload.model))
        assert await drain == (DrainedModel("m", "1", "moved", "cpu:1"),)
        assert (await under_way).model == "m"
        assert device_states(world) == ["drained", "ready"]
        assert node.is_ready()
        assert not first.how, "its child keeps running"
        world.device.answers_unload = True


async def test_asking_again_tells_the_same(world: World) -> None:
    world.add()
    async with two_devices(world, startup_models=("m",)) as node:
        fates = [DrainedModel("m", "1", "moved", "cpu:1")]
        both = await asyncio.gather(*(node.drain_device(ADMIN, "cpu:0") for _ in range(2)))
        assert [list(each) for each in both] == [fates, fates]
        assert list(await node.drain_device(ADMIN, "cpu:0")) == fates
        assert len(loads_on(world, "cpu:1")) == 1
        assert await node.undrain_device(ADMIN, "cpu:0") == ()  # it stays where it went
        assert await node.undrain_device(ADMIN, "cpu:0") == ()
        assert device_states(world) == ["ready", "ready"]


async def test_what_fits_nowhere_is_refused_and_comes_back(world: World) -> None:
    world.add()
    world.add("pinned", manifest="device = 'cpu:0'")
    async with two_devices(world, startup_models=("m",)) as node:
        await node.load(ADMIN, "pinned")  # after the other, which else might go to cpu:1
        world.device.on_load = full
        fates = {f.name: (f.fate, f.reason) for f in await node.drain_device(ADMIN, "cpu:0")}
        nowhere = "device cpu:0 is drained, and it can be nowhere else"
        assert fates == {
            "m": ("left", f"{nowhere}: no room"),
            "pinned": ("left", nowhere),
        }
        assert await world.state() == (ModelState.UNAVAILABLE, f"{nowhere}: no room")
        with pytest.raises(Draining, match="no room"):
            await node.infer(call())
        with pytest.raises(Draining, match="device cpu:0 is drained"):
            await node.load(ADMIN, "pinned")
        assert not node.is_model_ready(VOICE, "m", "")
        assert not node.is_ready()
        assert world.readiness == [True, False]
        world.device.on_load = load_well
        back = await node.undrain_device(ADMIN, "cpu:0")
        assert [(f.name, f.fate) for f in back] == [("m", "loaded"), ("pinned", "loaded")]
        assert node.is_ready()
        assert await world.state("pinned") == (ModelState.READY, "")


async def test_what_was_unloaded_meanwhile_does_not_come_back(world: World) -> None:
    world.add(manifest="device = 'cpu:0'")
    async with two_devices(world) as node:
        await node.load(ADMIN, "m")
        await node.drain_device(ADMIN, "cpu:0")
        await node.unload(ADMIN, "m")
        assert await node.undrain_device(ADMIN, "cpu:0") == ()
        assert len(loads_on(world, "cpu:0")) == 1


async def test_a_model_on_both_is_served_by_the_other(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",)) as node:
        fates = await node.drain_device(ADMIN, "cpu:0")
        assert fates == (DrainedModel("m", "1", "served elsewhere", "cpu:1"),)
        note = "1 of 2 replicas: device cpu:0 is drained"
        assert await world.state() == (ModelState.READY, note)
        for _ in range(3):
            await answered(node, lives_of(world, "cpu:1")[0])
        await node.undrain_device(ADMIN, "cpu:0")
        await wait_whole(world)
        assert len(loads_on(world, "cpu:0")) == 2


@pytest.mark.parametrize("back", ["the other device", "undrain"])
async def test_a_model_whose_other_device_is_down_leaves_and_comes_back(
    world: World, back: str
) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",)) as node:
        world.device.answers_start = False
        lives_of(world, "cpu:1")[0].end("signal SIGKILL")
        life = await world.device.wait_lives(3)
        (start,) = await life.wait_for(frames.Start)
        (fate,) = await node.drain_device(ADMIN, "cpu:0")
        reason = (
            "device cpu:0 is drained, and it can be nowhere else: device cpu:0 is drained; "
            "device cpu:1 is not up; retry"
        )
        assert (fate.fate, fate.reason) == ("left", reason)
        assert await world.state() == (ModelState.UNAVAILABLE, reason)
        assert not node.is_model_ready(VOICE, "m", "")
        with pytest.raises(Draining, match="device cpu:1 is not up"):
            await node.infer(call())
        if back == "undrain":
            await node.undrain_device(ADMIN, "cpu:0")
            assert await world.state() == (
                ModelState.READY,
                "1 of 2 replicas: device cpu:1 is not up",
            )
            await answered(node, lives_of(world, "cpu:0")[0])
        world.device.answers_start = True
        world.device.respond(life, start)
        if back == "undrain":
            await wait_whole(world)
        else:
            note = "1 of 2 replicas: device cpu:0 is drained"
            async with asyncio.timeout(WAIT_S):
                while await world.state() != (ModelState.READY, note):
                    pass
            await answered(node, life)


async def test_the_reason_of_a_drain_is_gone_when_the_model_is_unloaded(world: World) -> None:
    world.add(manifest="device = 'cpu:0'")
    async with two_devices(world, startup_models=("m",)) as node:
        await node.drain_device(ADMIN, "cpu:0")
        await node.unload(ADMIN, "m")
        assert await world.state() == (ModelState.UNAVAILABLE, "unloaded")


async def test_a_drained_device_takes_no_models(world: World) -> None:
    world.add("pinned", manifest="device = 'cpu:1'")
    world.add()
    async with two_devices(world) as node:
        assert await node.drain_device(ADMIN, "cpu:1") == ()
        await node.load(ADMIN, "m")
        assert loads_on(world, "cpu:0")
        with pytest.raises(Draining, match="device cpu:1 is drained"):
            await node.load(ADMIN, "pinned")


async def test_a_drained_device_that_dies_comes_back_empty_and_drained(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",)) as node:
        await node.drain_device(ADMIN, "cpu:0")
        lives_of(world, "cpu:0")[0].end("signal SIGKILL")
        await world.wait_ready(False)
        await world.wait_ready()
        assert device_states(world) == ["drained", "ready"]
        assert len(loads_on(world, "cpu:0")) == 1
        await answered(node, lives_of(world, "cpu:1")[0])


async def test_a_drain_that_is_taken_back_leaves_what_it_did_not_reach(world: World) -> None:
    world.add()
    async with two_devices(world, startup_models=("m",)) as node:
        async with changing(node, "m"):
            drain = asyncio.create_task(node.drain_device(ADMIN, "cpu:0"))
            await wait_device(world, "draining")
            undrain = asyncio.create_task(node.undrain_device(ADMIN, "cpu:0"))
            await wait_device(world, "ready")
        assert (await drain, await undrain) == ((), ())
        assert await world.state() == (ModelState.READY, "")
        await answered(node, lives_of(world, "cpu:0")[0])


async def test_what_was_lost_during_a_drain_that_is_taken_back_is_loaded_again(
    world: World,
) -> None:
    world.add(manifest="device = 'cpu:0'")
    async with two_devices(world, startup_models=("m",)) as node:
        async with changing(node, "m"):
            drain = asyncio.create_task(node.drain_device(ADMIN, "cpu:0"))
            await wait_device(world, "draining")
            lives_of(world, "cpu:0")[0].end("signal SIGKILL")
            await world.device.wait_lives(3)
            await wait_device(world, "draining")  # it is up again
            undrain = asyncio.create_task(node.undrain_device(ADMIN, "cpu:0"))
            await wait_device(world, "ready")
        await asyncio.gather(drain, undrain)
        assert await world.state() == (ModelState.READY, "")
        assert len(loads_on(world, "cpu:0")) == 2


async def test_who_asked_to_undrain_may_go_away(world: World) -> None:
    world.add(manifest="device = 'cpu:0'")
    async with two_devices(world, startup_models=("m",)) as node:
        await node.drain_device(ADMIN, "cpu:0")
        async with changing(node, "m"):
            undrain = asyncio.create_task(node.undrain_device(ADMIN, "cpu:0"))
            await wait_device(world, "ready")
            undrain.cancel()
            await asyncio.wait([undrain])
            drain = asyncio.create_task(node.drain_device(ADMIN, "cpu:0"))
        (fate,) = await drain
        assert (fate.fate, device_states(world)) == ("left", ["drained", "ready"])
        assert len(loads_on(world, "cpu:0")) == 2, "it was back in between"


async def test_what_could_not_come_back_does_when_its_device_does(world: World) -> None:
    world.add(manifest="device = 'cpu:0'")
    async with two_devices(world, startup_models=("m",)) as node:
        await node.drain_device(ADMIN, "cpu:0")
        world.device.answers_start = False
        lives_of(world, "cpu:0")[0].end("signal SIGKILL")
        life = await world.device.wait_lives(3)
        (fate,) = await node.undrain_device(ADMIN, "cpu:0")
        assert (fate.fate, "is not up" in fate.reason) == ("left", True)
        (start,) = await life.wait_for(frames.Start)
        world.device.answers_start = True
        world.device.respond(life, start)
        await world.wait_ready()
        assert await world.state() == (ModelState.READY, "")


async def test_the_whole_node_admits_nothing_until_it_may(world: World) -> None:
    world.add()
    async with world.started(startup_models=("m",)) as node:
        under_way = asyncio.create_task(node.infer(call()))
        (submit,) = await world.life.wait_for(frames.Submit)
        for _ in range(2):
            assert await node.drain_device(ADMIN, "") == ()
        assert world.readiness == [True, False]
        assert node.view().reason == "drained"
        assert not node.is_model_ready(VOICE, "m", "")
        with pytest.raises(Draining, match="drained by its operator"):
            await node.infer(call())
        world.life.finish(submit.request_id, OUTPUTS)
        assert (await under_way).model == "m"
        await node.undrain_device(ADMIN, "")
        assert world.readiness == [True, False, True]
        await answered(node, world.life)


async def test_only_admins_drain_and_only_what_is_there(world: World) -> None:
    async with world.started() as node:
        for ask in (node.drain_device, node.undrain_device):
            with pytest.raises(PermissionDenied, match="'voice' is not an admin"):
                await ask(VOICE, "cpu:0")
            with pytest.raises(InvalidRequest, match="expected a device of cpu:0, got 'cpu:9'"):
                await ask(ADMIN, "cpu:9")
