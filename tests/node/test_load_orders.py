"""Loads and unloads from several clients at once: what was acknowledged last is what holds."""

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpumuxd.errors import GpumuxdError
from gpumuxd.node.journal import Journal
from gpumuxd.node.node import Node
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeLife, load_well
from tests.node.world import World

CLIENTS = 4


class SlowDevice:
    """A device that answers loads and unloads in an order that the test draws."""

    def __init__(self, world: World, seed: int) -> None:
        self._random = random.Random(seed)
        self._pending: list[tuple[FakeLife, frames.Frame]] = []
        self._came = asyncio.Event()
        world.device.on_load = self._hold
        world.device.answers_unload = False
        world.device.on_unload = self._hold

    async def run(self) -> None:
        """Answer one after the other, after some turns of the loop."""
        while True:
            while not self._pending:
                self._came.clear()
                await self._came.wait()
            for _ in range(self._random.randrange(4)):
                await asyncio.sleep(0)
            life, frame = self._pending.pop(self._random.randrange(len(self._pending)))
            if isinstance(frame, frames.LoadModel):
                load_well(life, frame)
            elif isinstance(frame, frames.UnloadModel):
                life.send(frames.ModelReleased(frame.model))

    def _hold(self, life: FakeLife, frame: frames.Frame) -> None:
        self._pending.append((life, frame))
        self._came.set()


async def run_client(node: Node, calls: Sequence[str], acknowledged: list[str]) -> None:
    for name in calls:
        call = node.load if name == "load" else node.unload
        await call(DEFAULT_TENANT, "m")
        acknowledged.append(name)


@pytest.mark.parametrize("seed", range(20))
async def test_what_was_acknowledged_last_holds(world: World, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    if chosen.random() < 0.5:
        world.add(manifest='versions = "all"')
        world.add(version=2)
    path = tmp_path / "loads.json"
    async with world.started(journal_path=path) as node:
        device = SlowDevice(world, seed)
        running = asyncio.ensure_future(device.run())
        acknowledged: list[str] = []
        calls = [chosen.choices(("load", "unload"), k=4) for _ in range(CLIENTS)]
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(run_client(node, each, acknowledged) for each in calls))
        assert len(acknowledged) == 4 * CLIENTS
        is_loaded = acknowledged[-1] == "load"
        assert node.is_model_ready(DEFAULT_TENANT, "m", "") is is_loaded, (seed, acknowledged)
        states = set((await world.states()).values())
        assert states <= ({"READY"} if is_loaded else {"unloaded", "not loaded"})
        journal = Journal(path)
        await journal.open()
        assert journal.models == (("m",) if is_loaded else ())
        # What the device holds is what the node says it does.
        released = {frame.model for frame in world.life.of(frames.UnloadModel)}
        held = [key for key in world.loaded if key not in released]
        assert len(held) == (len(states_ready(await world.states())) if is_loaded else 0)
        running.cancel()
        world.device.answers_unload = True


def states_ready(states: dict[str, str]) -> list[str]:
    return [version for version, state in states.items() if state == "READY"]


@pytest.mark.parametrize("calls", list(itertools.product(("load", "unload"), repeat=4)))
async def test_every_order_of_four_calls_at_once(world: World, calls: tuple[str, ...]) -> None:
    """Each from a client of its own, all in flight together: none is lost, and the last one to be
    acknowledged holds."""
    async with world.started() as node:
        acknowledged: list[str] = []
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(run_client(node, [name], acknowledged) for name in calls))
        assert sorted(acknowledged) == sorted(calls)
        is_loaded = node.is_model_ready(DEFAULT_TENANT, "m", "")
        assert is_loaded is (acknowledged[-1] == "load"), acknowledged


async def test_an_unload_that_finds_nothing_yet_still_comes_after_the_load_before_it(
    world: World,
) -> None:
    async with world.started() as node:
        device = SlowDevice(world, 1)
        load = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        await world.life.wait_for(frames.LoadModel)
        unload = asyncio.ensure_future(node.unload(DEFAULT_TENANT, "m"))
        running = asyncio.ensure_future(device.run())
        await asyncio.gather(load, unload)
        assert await world.states() == {"1": "unloaded"}
        running.cancel()
        world.device.answers_unload = True


async def test_a_load_that_is_asked_for_while_another_reads_sees_what_is_there_now(
    world: World,
) -> None:
    async with world.started() as node:
        device = SlowDevice(world, 1)
        first = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        await world.life.wait_for(frames.LoadModel)
        world.add(version=2)
        # Not by way of the node, which looks at the disk before it asks.
        loads = node._registry.loads
        second, third = (asyncio.ensure_future(loads.load("m")) for _ in range(2))
        await asyncio.sleep(0)
        running = asyncio.ensure_future(device.run())
        await asyncio.gather(first, second, third)
        assert world.loaded == ["m/1#1", "m/2#2"]
        assert (await world.states())["2"] == "READY"
        running.cancel()
        world.device.answers_unload = True


async def test_what_waits_is_carried_out_in_the_order_it_came(world: World) -> None:
    async with world.started() as node:
        device = SlowDevice(world, 1)
        loads = node._registry.loads
        first = asyncio.ensure_future(loads.load("m"))
        await world.life.wait_for(frames.LoadModel)
        rest = [asyncio.ensure_future(c) for c in (loads.load("m"), loads.unload("m"))]
        await asyncio.sleep(0)
        rest.append(asyncio.ensure_future(loads.load("m")))  # joins none before the unload
        await asyncio.sleep(0)
        running = asyncio.ensure_future(device.run())
        await asyncio.gather(first, *rest)
        assert await world.states() == {"1": "READY"}
        assert world.loaded == ["m/1#1", "m/1#2"]
        running.cancel()
        world.device.answers_unload = True


async def test_a_version_that_is_wanted_back_before_it_went_stays(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        world.add(version=2)
        device = SlowDevice(world, 1)
        first = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        await world.life.wait_for(frames.LoadModel, 2)
        (world.repository / "m" / "model.toml").write_text('versions = "all"')
        second = asyncio.ensure_future(node._registry.loads.load("m"))
        await asyncio.sleep(0)  # it waits for the first, and what retires version 1 waits for it
        running = asyncio.ensure_future(device.run())
        await asyncio.gather(first, second)
        await node._registry.loads.load("m")  # behind what retires
        assert await world.states() == {"1": "READY", "2": "READY"}
        assert world.loaded == ["m/1#1", "m/2#2", "m/1#3"]
        running.cancel()
        world.device.answers_unload = True


async def test_loads_of_many_models_at_once_and_a_stop_in_the_middle(world: World) -> None:
    for number in range(10):
        world.add(f"m{number}")
    async with world.started() as node:
        SlowDevice(world, 1)
        loads = [asyncio.ensure_future(node.load(DEFAULT_TENANT, f"m{i}")) for i in range(10)]
        await world.life.wait_for(frames.LoadModel, 5)
        await node.stop()
        results = await asyncio.gather(*loads, return_exceptions=True)
        assert all(isinstance(r, GpumuxdError | asyncio.CancelledError) for r in results)
