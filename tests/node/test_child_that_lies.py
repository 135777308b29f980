"""A child that was turned says what can't be: its life ends, nobody above stumbles over it, and its
successor serves."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from gpumuxd.domain import COMPLETED, RunReport
from gpumuxd.errors import DeviceLost, ModelFaulted
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire import frames
from tests.node.fakes import SPEC, FakeLife, call, load_well
from tests.node.test_explaining import TOLD
from tests.node.world import ADMIN, World

GOOD = frames.ModelLoaded("", 3, 40_000, (((1,), 100_000),), 64, 128, False)
GROUPS = (frames.LongGroup(0, 40_000, 0, 3),)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_ns": ()},
        {"run_ns": (((1, 2), 100_000),)},
        {"run_ns": (((), 100_000),)},
        {"run_ns": (((1,), 100_000), ((1,), 100_000))},
        {"left_out": ((1, 2),)},
        {"left_out": ((1,),)},
        {"longest_groups": (GROUPS, GROUPS)},
        {"longest_group_ns": -1},
    ],
    ids=str,
)
async def test_of_a_model_it_loaded(world: World, changes: dict[str, object]) -> None:
    def lie(life: FakeLife, frame: frames.LoadModel) -> None:
        life.send(msgspec.structs.replace(GOOD, model=frame.model, **changes))

    async with world.started() as node:
        world.add("m")
        first = world.life
        world.device.on_load = lie
        with pytest.raises((DeviceLost, ModelFaulted)):  # no frame at all, or a wrong one
            await node.load(DEFAULT_TENANT, "m")
        await world.device.wait_lives(2)
        assert first.how == "signal SIGKILL"
        world.device.on_load = load_well
        await world.wait_ready()
        await node.load(DEFAULT_TENANT, "m")
        assert (await node.model_detail(ADMIN, "m", "")).versions[0].loaded is not None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame["report"].update(queue_ns=2**64 - 1),
        lambda frame: frame["report"].update(preemptions=-1),
        lambda frame: frame["outcome"].update(predicted_finish_ns=2**63),
        lambda frame: frame["outcome"].update(kind="best_effort"),
        lambda frame: frame.update(outputs=[[0, -64, "INT32", [1, 2]]]),
    ],
    ids=range(5),
)
async def test_of_a_request(
    world: World, spoil: Callable[[dict[str, dict[str, object]]], None]
) -> None:
    async with world.started(startup_models=("m",)) as node:
        first = world.life
        asked = asyncio.ensure_future(node.infer(call(1, 2)))
        (submit,) = await first.wait_for(frames.Submit)
        outputs = tuple(submit.outputs)
        told = frames.encode(frames.Finished(submit.request_id, COMPLETED, RunReport(), outputs))
        tree = msgspec.msgpack.decode(told)
        spoil(tree)
        first.send_bytes(msgspec.msgpack.encode(tree))
        await world.device.wait_lives(2)
        assert first.how == "signal SIGKILL"
        asked.cancel()
        await asyncio.wait([asked])


async def test_of_sizes_that_nobody_asked_about(world: World) -> None:
    respond = world.device.respond

    def lie(life: FakeLife, frame: frames.AnyFrame) -> None:
        if isinstance(frame, frames.AskExplanation):
            told = msgspec.structs.replace(TOLD, bucket=(1,) * (1 + len(SPEC.symbols)))
            life.send(frames.Explained(frame.ask_id, told))
        respond(life, frame)

    world.device.respond = lie  # type: ignore[method-assign]  # one more answer
    async with world.started(startup_models=("m",)) as node:
        first = world.life
        with pytest.raises(DeviceLost):
            await node.explain(ADMIN, "m", "", {})
        await world.device.wait_lives(2)
        assert first.how == "signal SIGKILL"
