"""A version on several devices: who serves, what is lost with a device, and who is back first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from gpumuxd.errors import InvalidModel, ModelNotReady
from gpumuxd.node.api import ModelState
from gpumuxd.node.model_table import TRANSITIONS, VersionEntry
from gpumuxd.node.node import Node
from gpumuxd.node.settings import RestartSettings
from gpumuxd.wire import frames
from tests.node.fakes import (
    WAIT_S,
    FakeLife,
    call,
    int32,
    load_badly,
    load_deadly,
    load_never,
    load_well,
)
from tests.node.world import ADMIN, CPU_0, CPU_1, VOICE, World

OUTPUTS = (int32(3, 5), bytes(8))
BOTH = "replicas = 'all'\n"
NEVER = RestartSettings(delay_ns_first=10**15, delay_ns_max=10**15)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@asynccontextmanager
async def two_devices(world: World, **changes: object) -> AsyncIterator[Node]:
    async with world.started(devices=(CPU_0, CPU_1), **changes) as node:
        yield node


def lives_of(world: World, device: str) -> list[FakeLife]:
    """All lives of a device, in order."""
    lives = [life for life in world.device.lives if life.of(frames.Start)]
    return [life for life in lives if life.of(frames.Start)[0].settings.device == device]


def loads_on(world: World, device: str) -> list[str]:
    return [load.model for life in lives_of(world, device) for load in life.of(frames.LoadModel)]


async def answered(node: Node, life: FakeLife) -> None:
    """One request goes to this device and is answered there."""
    before = len(life.of(frames.Submit))
    reply = asyncio.create_task(node.infer(call()))
    submits = await life.wait_for(frames.Submit, before + 1)
    life.finish(submits[-1].request_id, OUTPUTS)
    assert (await reply).model == "m"


async def wait_state(world: World, state: ModelState, name: str = "m") -> None:
    async with asyncio.timeout(WAIT_S):
        while (await world.state(name))[0] is not state:
            pass


async def wait_whole(world: World) -> None:
    """Until a version has all its replicas."""
    async with asyncio.timeout(WAIT_S):
        while await world.state() != (ModelState.READY, ""):
            pass


@pytest.mark.parametrize(("first", "then"), [*product(ModelState, ModelState)])
def test_a_transition_is_in_the_table_or_a_bug(first: ModelState, then: ModelState) -> None:
    legal = {
        ("UNAVAILABLE", "LOADING"),
        ("LOADING", "READY"),
        ("LOADING", "UNAVAILABLE"),
        ("READY", "UNLOADING"),
        ("READY", "LOADING"),
        ("UNLOADING", "UNAVAILABLE"),
    }
    assert (then in TRANSITIONS[first]) == ((first.value, then.value) in legal)
    if (first.value, then.value) not in legal:
        with pytest.raises(AssertionError, match="m: "):
            VersionEntry("m", 1, first).move(then)


def test_what_nothing_serves_is_not_ready() -> None:
    with pytest.raises(AssertionError, match="nothing serves"):
        VersionEntry("m", 1, ModelState.LOADING).move(ModelState.READY)


@pytest.mark.parametrize(
    ("manifest", "devices"),
    [
        ("", 1),
        ("replicas = 2", 2),
        (BOTH, 2),
        ("device = 'cpu:1'\nreplicas = 'all'", 1),
        ("device = ['cpu:0', 'cpu:1']", 1),
    ],
)
async def test_a_model_is_on_as_many_devices_as_it_asks_for(
    world: World, manifest: str, devices: int
) -> None:
    world.add(manifest=manifest)
    async with two_devices(world, startup_models=("m",)):
        assert await world.state() == (ModelState.READY, "")
        assert len(loads_on(world, "cpu:0") + loads_on(world, "cpu:1")) == devices
        assert len(loads_on(world, "cpu:1")) == devices - 1 or "cpu:1" in manifest


async def test_more_replicas_than_devices_serve_with_a_note(world: World) -> None:
    world.add(manifest="replicas = 3")
    async with two_devices(world, startup_models=("m",)) as node:
        note = "2 of 3 replicas: it may be on 2 devices only"
        assert await world.state() == (ModelState.READY, note)
        assert node.is_model_ready(VOICE, "m", "")


async def test_a_device_without_room_is_passed_over(world: World) -> None:
    def full_on_the_first(life: FakeLife, frame: frames.LoadModel) -> None:
        if life.of(frames.Start)[0].settings.device == "cpu:0":
            life.send(frames.ModelFailed(frame.model, "no room", is_out_of_memory=True))
        else:
            load_well(life, frame)

    world.add()
    world.add("n", manifest=BOTH)
    world.device.on_load = full_on_the_first
    async with two_devices(world, startup_models=("m", "n")) as node:
        assert await world.state() == (ModelState.READY, "")
        assert await world.state("n") == (ModelState.READY, "1 of 2 replicas: no room")
        await answered(node, lives_of(world, "cpu:1")[0])


async def test_what_ends_one_device_is_not_sent_to_the_next(world: World) -> None:
    world.add(manifest=BOTH)
    world.device.on_load = load_deadly
    async with two_devices(world, startup_models=("m",), restart=NEVER):
        state, reason = await world.state()
        assert state is ModelState.UNAVAILABLE
        assert "it ended device cpu:0" in reason
        assert len(loads_on(world, "cpu:0") + loads_on(world, "cpu:1")) == 1


async def test_requests_go_on_when_one_of_two_devices_dies(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",), restart=NEVER) as node:
        first, second = lives_of(world, "cpu:0")[0], lives_of(world, "cpu:1")[0]
        first.end("signal SIGKILL")
        await world.wait_ready(False)
        for _ in range(3):
            await answered(node, second)
        assert node.is_model_ready(VOICE, "m", "")
        state, reason = await world.state()
        assert state is ModelState.READY
        assert reason == "it serves; to be loaded again on cpu:0, which was lost"
        second.end("signal SIGKILL")
        await wait_state(world, ModelState.LOADING)
        assert not node.is_model_ready(VOICE, "m", "")


async def test_a_lost_replica_comes_back_beside_the_one_that_serves(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",)) as node:
        lives_of(world, "cpu:0")[0].end("signal SIGKILL")
        await world.wait_ready(False)
        await world.wait_ready()
        assert await world.state() == (ModelState.READY, "")
        assert len(loads_on(world, "cpu:0")) == 2
        assert len(loads_on(world, "cpu:1")) == 1
        lives_of(world, "cpu:1")[0].end("signal SIGKILL")
        await answered(node, lives_of(world, "cpu:0")[1])


async def test_a_replica_that_is_left_out_leaves_the_other(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",)) as node:
        world.device.on_load = load_badly
        lives_of(world, "cpu:0")[0].end("signal SIGKILL")
        await world.wait_ready(False)
        await world.wait_ready()
        state, reason = await world.state()
        assert state is ModelState.READY
        assert "it does not compile" in reason
        await answered(node, lives_of(world, "cpu:1")[0])


async def test_models_come_back_in_the_order_of_their_urgency(world: World) -> None:
    world.add("a", manifest="priority_max = 'STANDARD'")
    world.add("loose", manifest="slo_ms = 50")
    world.add("tight", manifest="slo_ms = 5")
    world.add("z", manifest="priority_max = 'BEST_EFFORT'")
    world.add("none")
    names = ("a", "loose", "none", "tight", "z")
    async with world.started(startup_models=names) as node:
        before = loads_on(world, "cpu:0")
        ready: list[tuple[bool, ...]] = []

        def look(life: FakeLife, frame: frames.LoadModel) -> None:
            ready.append(tuple(node.is_model_ready(ADMIN, name, "") for name in names))
            load_well(life, frame)

        world.device.on_load = look
        world.life.end("signal SIGKILL")
        await world.wait_ready(False)
        await world.wait_ready()
        again = [key.partition("/")[0] for key in loads_on(world, "cpu:0")[len(before) :]]
        assert again == ["tight", "loose", "none", "a", "z"]
        assert [sum(each) for each in ready] == [0, 1, 2, 3, 4]  # each as soon as it is back


async def test_a_load_that_takes_its_time_keeps_no_other_model_from_coming_back(
    world: World,
) -> None:
    for name in ("a", "m"):
        world.add(name)
    async with world.started(startup_models=("a", "m")) as node:
        async with node._registry.loads.locks["a"]:
            world.life.end("signal SIGKILL")
            await world.wait_ready(False)
            async with asyncio.timeout(WAIT_S):
                while not node.is_model_ready(ADMIN, "m", ""):
                    await world.state()
            assert not node.is_model_ready(ADMIN, "a", "")
        await world.wait_ready()


async def test_readiness_is_told_also_when_who_asked_for_the_load_is_gone(world: World) -> None:
    world.add()
    async with world.started(startup_models=("m",)) as node:
        await node.unload(ADMIN, "m")
        assert world.readiness == [True, False]
        world.device.on_load = load_never
        load = asyncio.create_task(node.load(ADMIN, "m"))
        frame = (await world.life.wait_for(frames.LoadModel, 2))[-1]
        load.cancel()
        await asyncio.wait([load])
        load_well(world.life, frame)
        await world.wait_ready()
        assert world.readiness == [True, False, True]


async def test_a_device_that_is_back_gets_the_replicas_it_missed(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world) as node:
        lives_of(world, "cpu:1")[0].end("signal SIGKILL")
        await world.wait_ready(False)
        await node.load(ADMIN, "m")
        await world.wait_ready()
        await wait_whole(world)
        assert len(loads_on(world, "cpu:1")) == 1


async def test_a_load_of_what_serves_already_loads_nothing(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",)) as node:
        await node.load(ADMIN, "m")
        assert len(loads_on(world, "cpu:0") + loads_on(world, "cpu:1")) == 2


async def test_a_new_copy_replaces_all_replicas_and_an_unload_ends_all(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",)) as node:
        world.add(data=b"another")
        await node.load(ADMIN, "m")
        lives = [lives_of(world, device)[0] for device in ("cpu:0", "cpu:1")]
        for life in lives:
            (released,) = await life.wait_for(frames.UnloadModel)
            assert released.model == life.of(frames.LoadModel)[0].model
        await node.unload(ADMIN, "m")
        for life in lives:
            await life.wait_for(frames.UnloadModel, 2)
        assert await world.state() == (ModelState.UNAVAILABLE, "unloaded")


async def test_a_replica_whose_device_was_not_up_is_placed_when_it_is(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world) as node:
        world.device.answers_start = False
        lives_of(world, "cpu:1")[0].end("signal SIGKILL")
        life = await world.device.wait_lives(3)
        (start,) = await life.wait_for(frames.Start)
        await node.load(ADMIN, "m")
        note = "1 of 2 replicas: device cpu:1 is not up"
        assert await world.state() == (ModelState.READY, note)
        world.device.answers_start = True
        world.device.respond(life, start)
        await wait_whole(world)
        assert len(loads_on(world, "cpu:1")) == 1


async def test_a_load_that_failed_for_a_lost_device_is_no_news_when_it_is_back(
    world: World,
) -> None:
    world.add()
    async with world.started(startup_models=("m",)) as node:
        world.device.answers_start = False
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        (start,) = await life.wait_for(frames.Start)
        world.add(data=b"v2")
        with pytest.raises(ModelNotReady, match="cpu:0 is not up"):
            await node.load(ADMIN, "m")
        world.device.answers_start = True
        world.device.respond(life, start)
        await wait_whole(world)


async def test_what_can_not_be_loaded_is_told_also_after_a_loss(world: World) -> None:
    world.add()
    async with world.started(startup_models=("m",)) as node:
        world.loader.answer = world.loader.refuse
        world.add(data=b"v2")
        with pytest.raises(InvalidModel, match=r"aten\.evil"):
            await node.load(ADMIN, "m")
        before = await world.state()
        assert before[1].startswith("it serves as it was loaded before: ")
        world.life.end("signal SIGKILL")
        await world.device.wait_lives(2)
        await wait_state(world, ModelState.READY)
        assert await world.state() == before


async def test_the_page_of_a_model_names_every_device_that_has_it(world: World) -> None:
    world.add(manifest=BOTH)
    async with two_devices(world, startup_models=("m",), restart=NEVER) as node:
        (version,) = (await node.model_detail(ADMIN, "m", "")).versions
        assert version.policy is not None
        assert version.loaded is not None
        assert (version.policy.replicas, version.loaded.replicas) == ("all", ["cpu:0", "cpu:1"])
        lives_of(world, "cpu:0")[0].end("signal SIGKILL")
        await world.wait_ready(False)
        (version,) = (await node.model_detail(ADMIN, "m", "")).versions
        assert version.loaded is not None
        assert version.loaded.device == "cpu:1"
        assert version.loaded.replicas == ["cpu:0 (lost)", "cpu:1"]
