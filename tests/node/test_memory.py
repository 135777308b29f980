"""Who holds the memory of a device, as the node tells it to its operator and to a tenant."""

import asyncio
from pathlib import Path

import msgspec

from gpumuxd.node.memory_view import DeviceMemory, ModelMemory, TenantMemory
from gpumuxd.units import GIB, MIB
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeDevice, FakeLife, call
from tests.node.world import ADMIN, INDEX, TENANTS, VOICE, World


class HoldingDevice(FakeDevice):
    """Every model that it loaded holds a MiB of weights and one run of a quarter of that."""

    def respond(self, life: FakeLife, frame: frames.AnyFrame) -> None:
        if not isinstance(frame, frames.AskStatistics):
            super().respond(life, frame)
            return
        quarter = MIB // 4
        keys = [load.model for load in life.of(frames.LoadModel)]
        held = len(keys) * (MIB + quarter)
        told = frames.Statistics(*[0] * 8, len(keys), held + 3000, *[0] * 3)
        models = tuple(frames.ModelFigures(key, 0, 0, 0, 0, MIB, quarter, MIB) for key in keys)
        life.send(
            msgspec.structs.replace(
                told,
                models=models,
                model_count=len(keys) + 2,
                tenants=(
                    frames.TenantFigures("voice", MIB, quarter, 2 * MIB),
                    frames.TenantFigures("index", 0, 0, None),
                ),
                frame_bytes_held=len(keys) * quarter,
                resident_bytes=held + 5000,
            )
        )


def world_of(path: Path) -> World:
    world = World(path)
    world.device = HoldingDevice()
    world.add("open")
    world.add("own", manifest="tenants = ['voice']")
    world.add("two", manifest="tenants = ['voice', 'index']")
    return world


async def test_an_admin_is_told_all_and_a_tenant_of_its_own(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    names = ("open", "own", "two")
    async with (
        asyncio.timeout(WAIT_S),
        world.started(tenants=TENANTS, startup_models=names) as node,
    ):
        quarter = MIB // 4
        models = {n: ModelMemory(n, "1", "", MIB, quarter, MIB) for n in names}
        models["own"] = ModelMemory("own", "1", "voice", MIB, quarter, MIB)
        voice, index = (
            TenantMemory("voice", MIB, quarter, 2 * MIB),
            TenantMemory("index", 0, 0, None),
        )
        (device,) = await node.memory(ADMIN)
        assert {model.name: model for model in device.models} == models
        assert list(device.tenants) == [voice, index]
        totals = device.totals
        assert totals is not None
        assert (totals.bytes_max, totals.arena_bytes, totals.frames_max) == (8 * GIB, MIB, 8)
        assert (totals.weights_bytes, totals.frame_bytes_held) == (3 * MIB + 3000, 3 * quarter)
        assert (totals.frames_held, totals.workspace_bytes) == (3, 2000)
        assert (totals.models_untold, totals.untold_bytes) == (2, 3000)
        (device,) = await node.memory(VOICE)
        assert {model.name for model in device.models} == set(names)
        assert (list(device.tenants), device.totals) == ([voice], None)
        (device,) = await node.memory(INDEX)
        assert {model.name for model in device.models} == {"open", "two"}
        assert (list(device.tenants), device.totals) == ([index], None)


async def test_of_a_model_that_comes_or_goes_only_an_admin_knows(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    async with (
        asyncio.timeout(WAIT_S),
        world.started(tenants=TENANTS, startup_models=("open",)) as node,
    ):
        await node.unload(ADMIN, "open")  # the fake holds it on
        (device,) = await node.memory(ADMIN)
        assert [model.name for model in device.models] == ["open"]
        (device,) = await node.memory(VOICE)
        assert device.models == []


async def test_tensors_of_requests_count_for_the_arena_and_a_lost_device_tells_nothing(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path)
    async with asyncio.timeout(WAIT_S), world.started(startup_models=("open",)) as node:
        task = asyncio.ensure_future(node.infer(call(model="open")))
        (submit,) = await world.life.wait_for(frames.Submit)
        (device,) = await node.memory(ADMIN)
        assert device.totals is not None
        assert device.totals.arena_bytes_used == 3 * 64
        world.life.finish(submit.request_id)
        await task
        world.device.answers_start = False
        world.life.end("signal SIGKILL")
        await world.device.wait_lives(2)
        assert list(await node.memory(ADMIN)) == list[DeviceMemory]()
