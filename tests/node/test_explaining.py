"""Why a model is cut as it is: which size is asked about, what is told to whom, and refusals."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.errors import DeviceLost, GpumuxdError, InvalidRequest, ModelNotReady, UnknownModel
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.node.api import BoundOrigin, BoundView, ExplanationView, GroupView, SliceView
from gpumuxd.node.node import Node
from gpumuxd.node.settings import LinkSettings
from gpumuxd.settings import DeviceSettings, Order, SchedulerSettings, Slicing
from gpumuxd.units import MIB, NS_PER_MS
from gpumuxd.wire import frames
from tests.node.fakes import FakeLife
from tests.node.world import ADMIN, TENANTS, VOICE, World

SPEC = ModelSpec(
    inputs=(TensorSpec("x", "FP32", (("batch",), ("time",), 2)),),
    outputs=(TensorSpec("y", "FP32", (("batch",),)),),
    symbols=(Symbol("batch", 1, 8), Symbol("time", 16, 64, 16)),
    batch_symbol="batch",
)
RUNS: tuple[tuple[Bucket, int], ...] = (((1, 16), 100), ((4, 16), 900), ((1, 64), 300))
LONGEST = ((frames.LongGroup(1, 60, 8, 11),), (frames.LongGroup(1, 500, 8, 11),), ())

TOLD = frames.Explanation(
    bucket=(4, 16),
    mode="bounded",
    reason="at most 0.500 ms may be in flight: laxity of other/1#1, not of 'm/1#1'",
    priority_class=PriorityClass.REALTIME,
    group_count=3,
    group_ns=(100, 600, 200),
    run_ns=900,
    slice_count=2,
    slices=(frames.ExplainedSlice(0, 2, 700), frames.ExplainedSlice(2, 3, 200)),
    window=2,
    slice_ns=700,
    bound_ns=500,
    bound_origin="laxity",
    bound_model="other/1#1",
    floor_ns=600,
    floor_group=1,
    exec_ns=30,
    preempt_ns=700,
    preempt_expected_ns=350,
    is_guess=False,
)


def load(life: FakeLife, frame: frames.LoadModel) -> None:
    life.send(frames.ModelLoaded(frame.model, 3, 600, RUNS, 64, 128, False, LONGEST))


class Answering:
    """A device that explains everything alike, and what it was asked about."""

    def __init__(self, world: World, told: frames.Explanation | None = TOLD) -> None:
        world.loader.spec = SPEC
        world.device.on_load = load
        self.told = told
        self.asked: list[Bucket | None] = []
        respond = world.device.respond

        def answer(life: FakeLife, frame: frames.AnyFrame) -> None:
            if isinstance(frame, frames.AskExplanation):
                self.asked.append(frame.bucket)
                told = self.told
                if told is not None:
                    told = msgspec.structs.replace(told, bucket=frame.bucket or (1, 16))
                life.send(frames.Explained(frame.ask_id, told))
            respond(life, frame)

        world.device.respond = answer  # type: ignore[method-assign]  # one more answer


async def explained(node: Node, *, tenant: Any = ADMIN, **sizes: int) -> ExplanationView:
    return await node.explain(tenant, "m", "", sizes)


async def test_what_the_device_tells_is_told_with_names_and_nodes(world: World) -> None:
    Answering(world)
    async with world.started(startup_models=("m",)) as node:
        told = await explained(node, batch=3)
        assert (told.name, told.version, told.device) == ("m", "1", "cpu:0")
        assert told.sizes == (("batch", 4), ("time", 16))
        assert [(t.name, t.datatype, t.shape) for t in told.inputs] == [("x", "FP32", (4, 16, 2))]
        assert told.bound == BoundView(500, BoundOrigin.LAXITY, "other")
        assert told.floor == GroupView(1, 600, 8, 11)
        assert told.is_floor_over_bound
        assert told.slices == (SliceView(0, 2, 700), SliceView(2, 3, 200))
        assert told.reason == "at most 0.500 ms may be in flight: laxity of other, not of 'm'"


async def test_settings_are_called_as_the_configuration_calls_them(world: World) -> None:
    reason = "more than the 2.000 ms of the slice_ns_max; preemption_delay_ns_max is not stated"
    Answering(world, msgspec.structs.replace(TOLD, reason=reason))
    async with world.started(startup_models=("m",)) as node:
        told = await explained(node)
    assert told.reason == (
        "more than the 2.000 ms of the slice_ms_max; preemption_delay_ms_max is not stated"
    )


async def test_nobody_but_an_admin_hears_of_others_models(world: World) -> None:
    Answering(world)
    async with world.started(startup_models=("m",), tenants=TENANTS) as node:
        told = await explained(node, tenant=VOICE)
        assert told.bound == BoundView(500, BoundOrigin.LAXITY, "")
        assert told.reason.endswith("laxity of another model, not of 'm'")


@pytest.mark.parametrize(
    ("sizes", "bucket"),
    [
        # named                     asked about
        ({}, (4, 16)),  # the longest measured run
        ({"batch": 1}, (1, 64)),  # the longest of those
        ({"time": 64}, (1, 64)),
        ({"batch": 3}, (4, 16)),  # rounded up to a bucket
        ({"batch": 2}, (2, 16)),  # none was measured: the longest of all, but for this
        ({"time": 32}, (4, 32)),
        ({"batch": 8, "time": 48}, (8, 64)),
    ],
)
async def test_sizes_that_are_not_named_are_those_of_the_longest_run(
    world: World, sizes: dict[str, int], bucket: Bucket
) -> None:
    device = Answering(world)
    async with world.started(startup_models=("m",)) as node:
        await explained(node, **sizes)
    assert device.asked == [bucket]


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"depth": 4}, "no size 'depth' varies; expected one of batch, time"),
        ({"batch": 0}, "expected batch of 1 to 8, got 0"),
        ({"batch": 9}, "expected batch of 1 to 8, got 9"),
        ({"time": 20}, "expected time of 16 to 64 in steps of 16, got 20"),
        ({"time": 2**64 - 1}, "got 18446744073709551615"),
    ],
)
async def test_a_size_that_can_not_be_is_refused(
    world: World, sizes: dict[str, int], told: str
) -> None:
    device = Answering(world)
    async with world.started(startup_models=("m",)) as node:
        with pytest.raises(InvalidRequest, match=told):
            await explained(node, **sizes)
    assert device.asked == []


@pytest.mark.parametrize(
    ("name", "version", "error", "told"),
    [
        ("nobody", "", UnknownModel, "no model 'nobody'"),
        ("m", "7", UnknownModel, "no version '7'"),
        ("m", "", ModelNotReady, "model 'm': not loaded; only what is loaded can be explained"),
        ("m", "1", ModelNotReady, "model 'm' version 1: not loaded"),
    ],
)
async def test_what_does_not_serve_is_refused(
    world: World, name: str, version: str, error: type[GpumuxdError], told: str
) -> None:
    world.add("m", 2)
    Answering(world)
    async with world.started() as node:
        with pytest.raises(error, match=told):
            await node.explain(ADMIN, name, version, {})


async def test_the_newest_that_is_loaded_is_meant(world: World) -> None:
    Answering(world)
    async with world.started(startup_models=("m",)) as node:
        world.add("m", 2)
        assert (await explained(node)).version == "1"


async def test_a_size_that_never_ran_is_refused_with_what_to_do(world: World) -> None:
    Answering(world, told=None)
    async with world.started(startup_models=("m",)) as node:
        with pytest.raises(
            ModelNotReady, match="nothing is remembered at batch 8, time 16: explain s"
        ):
            await explained(node, batch=8)


@pytest.mark.parametrize(
    ("settings", "changes", "bound"),
    [
        # what the device does         what it tells                     the bound
        (SchedulerSettings(), {"bound_ns": None, "bound_origin": ""}, BoundOrigin.LEAST_DELAY),
        (
            SchedulerSettings(),
            {"bound_ns": None, "bound_origin": "slice_ns_max"},
            BoundOrigin.LEAST_DELAY,
        ),
        (SchedulerSettings(slicing=Slicing.NONE), {"bound_ns": None}, BoundOrigin.NO_SLICING),
        (SchedulerSettings(order=Order.FIFO), {"bound_ns": None}, BoundOrigin.NO_ORDER),
    ],
)
async def test_without_a_bound_it_says_why(
    world: World, settings: SchedulerSettings, changes: dict[str, Any], bound: BoundOrigin
) -> None:
    Answering(world, msgspec.structs.replace(TOLD, **changes))
    device = DeviceSettings("cpu:0", arena_bytes=MIB, scheduler=settings)
    async with world.started(startup_models=("m",), devices=(device,)) as node:
        told = await explained(node)
    assert told.bound == BoundView(None, bound)
    assert not told.is_floor_over_bound


async def test_what_was_never_measured_has_no_floor_and_its_groups_are_counted(
    world: World,
) -> None:
    unknown = msgspec.structs.replace(TOLD, group_count=0, group_ns=(), floor_ns=0, floor_group=0)
    Answering(world, unknown)
    async with world.started(startup_models=("m",)) as node:
        told = await explained(node)
    assert (told.floor, told.group_count) == (None, 3)


async def test_a_device_that_does_not_answer_or_dies_is_not_waited_for(world: World) -> None:
    world.loader.spec, world.device.on_load = SPEC, load
    link = LinkSettings(answer_ns_max=1)
    async with world.started(startup_models=("m",), link=link) as node:
        with pytest.raises(ModelNotReady, match="device cpu:0 did not answer in 1e-09 s; retry"):
            await explained(node)
    world.settings = replace(world.settings, link=LinkSettings())
    async with world.started(startup_models=("m",)) as node:
        task = asyncio.ensure_future(explained(node))
        (asked,) = await world.life.wait_for(frames.AskExplanation)
        world.life.end("signal SIGSEGV")
        with pytest.raises(DeviceLost, match="SIGSEGV"):
            await task
    assert asked.model == "m/1#1"


async def test_a_storm_of_questions_keeps_the_device_busy_for_a_moment_each(world: World) -> None:
    """Nobody is refused that can be answered in time, and no answer comes too soon."""
    asked_ns: list[int] = []
    device = Answering(world)
    link = LinkSettings(answer_ns_max=120 * NS_PER_MS, explain_interval_ns=50 * NS_PER_MS)
    async with world.started(startup_models=("m",), link=link) as node:
        clock = node._clock
        respond = world.device.respond

        def note(life: FakeLife, frame: frames.AnyFrame) -> None:
            if isinstance(frame, frames.AskExplanation):
                asked_ns.append(clock())
            respond(life, frame)

        world.device.respond = note  # type: ignore[method-assign]  # a look at the time
        answers = await asyncio.gather(
            *(explained(node) for _ in range(20)), return_exceptions=True
        )
    refused = [each for each in answers if isinstance(each, ModelNotReady)]
    assert len(answers) - len(refused) == len(device.asked) <= 3
    assert refused
    assert all(b - a >= 45 * NS_PER_MS for a, b in pairwise(asked_ns))
