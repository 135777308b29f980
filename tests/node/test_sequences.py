"""Sequences through the node with fake children: order, ends, limits and time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.errors import (
    DeadlineInfeasible,
    DeadlineMissed,
    Draining,
    GpumuxdError,
    InvalidRequest,
    ModelFaulted,
    ModelNotReady,
    OutOfDeviceMemory,
    QueueFull,
    QuotaExceeded,
    SequenceAborted,
    SequenceLost,
    SequenceUnknown,
    UnknownModel,
)
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.node import sequences
from gpumuxd.node.api import InferReply, SequenceStep
from gpumuxd.node.node import Node
from gpumuxd.node.settings import RestartSettings, TenantSettings
from gpumuxd.units import NS_PER_MS, NS_PER_S
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeLife, call, int32
from tests.node.world import ADMIN, CPU_0, CPU_1, INDEX, TENANTS, VOICE, World

Task = asyncio.Task[InferReply]

ROWS = ("batch",)
SPEC = ModelSpec(
    inputs=(TensorSpec("x", "INT32", (ROWS, 2)), TensorSpec("state", "FP32", (ROWS, 3))),
    outputs=(TensorSpec("next", "FP32", (ROWS, 3)), TensorSpec("y", "INT32", (ROWS, 2))),
    symbols=(Symbol("batch", 1, 8),),
    batch_symbol="batch",
)
MANIFEST = """
[sequence]
state = [{ input = "state", output = "next" }]
"""
SLOW = RestartSettings(delay_ns_first=60 * NS_PER_S, delay_ns_max=60 * NS_PER_S)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.loader.spec = SPEC
    world.add(manifest=MANIFEST)
    return world


@asynccontextmanager
async def serving(world: World, **changes: object) -> AsyncIterator[Node]:
    """Everything that was held is given back in the end."""
    async with asyncio.timeout(WAIT_S), world.started(startup_models=("m",), **changes) as node:
        yield node


def step(
    node: Node,
    sequence_id: int | str = 5,
    value: int = 1,
    *,
    start: bool = False,
    end: bool = False,
    rows: int = 1,
    **fields: object,
) -> Task:
    asked = call(*[value] * 2 * rows, **fields)  # type: ignore[arg-type]
    return asyncio.ensure_future(
        node.infer(replace(asked, sequence=SequenceStep(sequence_id, start, end)))
    )


async def submitted(life: FakeLife, count: int = 1) -> frames.Submit:
    """The last of so many that have come."""
    return (await life.wait_for(frames.Submit, count))[-1]


async def settled() -> None:
    """Everything that could go on by itself has."""
    for _ in range(10):
        await asyncio.sleep(0)


async def begun(node: Node, life: FakeLife, sequence_id: int | str = 5, **fields: object) -> int:
    """A sequence after its first step; returns its slot."""
    count = len(life.of(frames.Submit)) + 1
    task = step(node, sequence_id, start=True, **fields)  # type: ignore[arg-type]
    submit = await submitted(life, count)
    life.finish(submit.request_id)
    await task
    assert submit.sequence is not None
    return submit.sequence.slot


async def complete(life: FakeLife, task: Task, count: int) -> InferReply:
    life.finish((await submitted(life, count)).request_id)
    return await task


def dropped(life: FakeLife) -> list[int]:
    return [frame.slot for frame in life.of(frames.DropSequence)]


# Steps


async def test_a_sequence_from_its_first_step_to_its_last(world: World) -> None:
    async with serving(world) as node:
        first = step(node, value=7, start=True)
        one = await submitted(world.life)
        state = frames.StateTensor(1, 0, "FP32", (1, 3))
        assert one.sequence == frames.SequenceState(1, True, (state,))
        assert [block.datatype for block in (*one.inputs, *one.outputs)] == ["INT32", "INT32"]
        assert one.batch_key is None
        assert world.life.input(one) == int32(7, 7)
        world.life.finish(one.request_id, [int32(8, 8)])
        assert [(o.name, o.data) for o in (await first).outputs] == [("y", int32(8, 8))]

        second = step(node, wanted=("y", "next"))
        two = await submitted(world.life, 2)
        assert two.sequence == frames.SequenceState(1, False, (frames.StateTensor(*state_told()),))
        world.life.finish(two.request_id, [bytes(12), int32(9, 9)])
        assert [output.name for output in (await second).outputs] == ["y", "next"]
        assert dropped(world.life) == []

        await complete(world.life, step(node, end=True), 3)
        (drop,) = await world.life.wait_for(frames.DropSequence)
        assert drop == frames.DropSequence("m/1#1", 1)
        with pytest.raises(SequenceUnknown, match="there is no sequence 5 of model 'm'"):
            await step(node)
        assert node.requests_in_flight == 0


def state_told() -> tuple[int, int, str, tuple[int, int], bool]:
    return 1, 0, "FP32", (1, 3), True


async def test_steps_run_one_at_a_time_in_the_order_of_their_calls(world: World) -> None:
    async with serving(world) as node:
        tasks = [step(node, value=i, start=i == 0, end=i == 4) for i in range(5)]
        for i in range(5):
            submit = await submitted(world.life, i + 1)
            await settled()
            assert len(world.life.of(frames.Submit)) == i + 1
            assert world.life.input(submit) == int32(i, i)
            world.life.finish(submit.request_id)
        await asyncio.gather(*tasks)
        await world.life.wait_for(frames.DropSequence)


async def test_sequences_do_not_wait_for_one_another(world: World) -> None:
    async with serving(world, tenants=TENANTS) as node:
        ids: list[int | str] = [*range(1, 20), "1"]
        tasks = [step(node, name, start=True, tenant=VOICE) for name in ids]
        tasks += [step(node, name, start=True, tenant=INDEX) for name in ids]
        submits = await world.life.wait_for(frames.Submit, 40)
        slots = {submit.sequence.slot for submit in submits if submit.sequence}
        assert len(slots) == 40, "one id of two tenants, a number and a text: each is another"
        for submit in reversed(submits):
            world.life.finish(submit.request_id)
        await asyncio.gather(*tasks)


async def test_requests_of_no_sequence_send_the_state_and_get_it(world: World) -> None:
    async with serving(world) as node:
        with pytest.raises(InvalidRequest, match=r"missing input \['state'\]"):
            await node.infer(call())


async def test_a_new_first_step_begins_anew(world: World) -> None:
    async with serving(world) as node:
        old = await begun(node, world.life)
        waiting = step(node)
        new = step(node, start=True)
        _, _, second = await world.life.wait_for(frames.Submit, 3)
        assert second.sequence is not None
        assert (second.sequence.slot, second.sequence.is_start) == (old + 1, True)
        assert dropped(world.life) == [], "its step runs still"
        world.life.finish(world.life.of(frames.Submit)[1].request_id)
        await waiting
        (drop,) = await world.life.wait_for(frames.DropSequence)
        assert drop.slot == old
        world.life.finish(second.request_id)
        await new
        assert (await submitted(world.life, 3)).sequence is not None


async def test_a_step_behind_the_last_one_is_of_no_sequence(world: World) -> None:
    async with serving(world) as node:
        await begun(node, world.life)
        last = step(node, end=True)
        with pytest.raises(SequenceUnknown):
            await step(node)
        await complete(world.life, last, 2)


# What is refused


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"sequence_id": 6}, SequenceUnknown, "there is no sequence 6 of model 'm'"),
        ({"sequence_id": "5"}, SequenceUnknown, "there is no sequence '5'"),
        ({"sequence_id": "x" * 257}, InvalidRequest, "at most 256 characters"),
        ({"model": "other"}, UnknownModel, "no model 'other'"),
        (
            {"rows": 2},
            InvalidRequest,
            r"keeps tensors of shapes \[\[1, 3\]\], this step needs \[\[2",
        ),
        ({"rows": 9}, InvalidRequest, "batch of 1 to 8"),
        ({"version": "2"}, InvalidRequest, "is of version 1, this step asks for '2'"),
        ({"deadline_ns": 5}, DeadlineInfeasible, "before it was read"),
        ({"wanted": ("z",)}, InvalidRequest, "unknown output 'z'"),
        ({"start": True, "wanted": ("z",)}, InvalidRequest, "unknown output 'z'"),
    ],
)
async def test_a_bad_step_leaves_the_sequence_as_it_was(
    world: World, fields: dict[str, object], error: type[Exception], message: str
) -> None:
    async with serving(world) as node:
        slot = await begun(node, world.life)
        with pytest.raises(error, match=message):
            await step(node, **fields)  # type: ignore[arg-type]
        await complete(world.life, step(node), 2)
        assert world.life.of(frames.Submit)[1].sequence == frames.SequenceState(
            slot, False, (frames.StateTensor(1, 0, "FP32", (1, 3)),)
        )
        assert dropped(world.life) == []


async def test_a_model_without_state_has_no_sequences(world: World) -> None:
    world.add("plain", manifest=" ")
    async with serving(world) as node:
        await node.load(ADMIN, "plain")
        for start in (True, False):
            with pytest.raises(InvalidRequest, match=r"no \[sequence\]"):
                await step(node, model="plain", start=start)


@pytest.mark.parametrize(
    "kind",
    [OutcomeKind.QUEUE_FULL, OutcomeKind.DEADLINE_INFEASIBLE, OutcomeKind.OUT_OF_DEVICE_MEMORY],
)
async def test_a_step_that_never_ran_can_be_sent_again(world: World, kind: OutcomeKind) -> None:
    async with serving(world) as node:
        slot = await begun(node, world.life)
        refused = step(node, end=True)
        submit = await submitted(world.life, 2)
        world.life.finish(submit.request_id, outcome=Outcome(kind, "full"))
        with pytest.raises((QueueFull, DeadlineInfeasible, OutOfDeviceMemory)):
            await refused
        assert dropped(world.life) == []
        await complete(world.life, step(node, end=True), 3)
        await world.life.wait_for(frames.DropSequence)
        assert dropped(world.life) == [slot]


async def test_who_waits_behind_a_step_that_never_ran_does_not_run_without_it(world: World) -> None:
    async with serving(world) as node:
        await begun(node, world.life)
        tasks = [step(node) for _ in range(3)]
        submit = await submitted(world.life, 2)
        world.life.finish(submit.request_id, outcome=Outcome(OutcomeKind.QUEUE_FULL, "full"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [QueueFull, *[SequenceAborted] * 2]
        assert "refused while the next one waited: full" in str(results[1])
        assert len(world.life.of(frames.Submit)) == 2
        await world.life.wait_for(frames.DropSequence)


async def test_a_first_step_that_never_ran_begins_nothing(world: World) -> None:
    async with serving(world) as node:
        first = step(node, start=True)
        submit = await submitted(world.life)
        world.life.finish(submit.request_id, outcome=Outcome(OutcomeKind.QUEUE_FULL, "full"))
        with pytest.raises(QueueFull):
            await first
        await world.life.wait_for(frames.DropSequence)
        with pytest.raises(SequenceUnknown):
            await step(node)


# Ends


@pytest.mark.parametrize(
    ("kind", "error", "reason"),
    [
        (OutcomeKind.DEADLINE_MISSED, DeadlineMissed, "a step failed: too late"),
        (OutcomeKind.MODEL_FAULTED, ModelFaulted, "a step failed: model 'm' version 1: too late"),
    ],
)
async def test_a_step_that_does_not_end_well_ends_its_sequence(
    world: World, kind: OutcomeKind, error: type[Exception], reason: str
) -> None:
    async with serving(world) as node:
        slot = await begun(node, world.life)
        late, behind = step(node), step(node)
        submit = await submitted(world.life, 2)
        world.life.finish(submit.request_id, outcome=Outcome(kind, "too late"))
        with pytest.raises(error):
            await late
        for each in (behind, step(node), step(node, end=True)):
            with pytest.raises(SequenceAborted, match=reason) as told:
                await each
            assert told.value.facts == {"model": "m", "sequence_id": "5"}
        await world.life.wait_for(frames.DropSequence)
        assert dropped(world.life) == [slot]
        assert await begun(node, world.life) == slot + 1
        await complete(world.life, step(node), 4)


async def test_a_step_that_is_cancelled_while_it_runs_ends_its_sequence(world: World) -> None:
    async with serving(world) as node:
        await begun(node, world.life)
        running, behind = step(node), step(node)
        submit = await submitted(world.life, 2)
        running.cancel()
        with pytest.raises(SequenceAborted, match="a step was cancelled"):
            await behind
        with pytest.raises(SequenceAborted, match="a step was cancelled"):
            await step(node)
        await world.life.wait_for(frames.DropSequence)
        seen = [type(frame) for frame in world.life.seen]
        assert seen.index(frames.Cancel) < seen.index(frames.DropSequence)
        world.life.finish(submit.request_id, outcome=Outcome(OutcomeKind.CANCELLED))


async def test_a_step_that_is_cancelled_while_it_waits_ends_it_behind_the_one_that_runs(
    world: World,
) -> None:
    async with serving(world) as node:
        slot = await begun(node, world.life)
        running, waiting, behind = step(node), step(node), step(node)
        submit = await submitted(world.life, 2)
        waiting.cancel()
        with pytest.raises(SequenceAborted):
            await behind
        assert dropped(world.life) == []
        world.life.finish(submit.request_id)
        await running
        await world.life.wait_for(frames.DropSequence)
        assert dropped(world.life) == [slot]
        assert len(world.life.of(frames.Submit)) == 2


async def test_a_deadline_that_passes_while_a_step_waits_ends_the_sequence(world: World) -> None:
    async with serving(world) as node:
        await begun(node, world.life)
        running = step(node)
        await submitted(world.life, 2)
        late = step(node, deadline_ns=monotonic_ns() + 20 * NS_PER_MS)
        with pytest.raises(DeadlineMissed, match="while the step before this one"):
            await late
        await complete(world.life, running, 2)
        with pytest.raises(SequenceAborted, match="a step failed: the deadline passed"):
            await step(node)


async def test_a_device_that_is_lost_takes_its_sequences_with_it(world: World) -> None:
    async with serving(world) as node:
        await begun(node, world.life, 1)
        await begun(node, world.life, 2)
        running, behind = step(node, 1), step(node, 1)
        await submitted(world.life, 3)
        world.life.end("signal SIGKILL")
        for each in (running, behind, step(node, 1), step(node, 2)):
            with pytest.raises(SequenceLost, match="its state is gone"):
                await each
        life = await world.device.wait_lives(2)
        await world.wait_ready()
        with pytest.raises(SequenceLost):
            await step(node, 2)
        assert life.of(frames.Submit) == [], "no step is sent again"
        await begun(node, life, 2)
        assert life.of(frames.DropSequence) == []
        assert node.requests_in_flight == 0


async def test_what_is_lost_says_when_to_try_again(world: World) -> None:
    async with serving(world, restart=SLOW) as node:
        await begun(node, world.life)
        running = step(node)
        await submitted(world.life, 2)
        world.life.end("signal SIGKILL")
        with pytest.raises(SequenceLost) as told:
            await running
        assert told.value.retry_delay_ns is not None
        with pytest.raises(SequenceLost):
            await step(node)


async def test_the_culprit_is_told_what_it_did(world: World) -> None:
    async with serving(world) as node:
        await begun(node, world.life)
        bad = step(node)
        submit = await submitted(world.life, 2)
        world.life.launch(submit.request_id)
        world.life.end("signal SIGSEGV")
        with pytest.raises(ModelFaulted, match="it ended device cpu:0"):
            await bad
        with pytest.raises(SequenceLost):
            await step(node)
        await world.device.wait_lives(2)


async def test_a_model_that_is_unloaded_takes_its_sequences_with_it(world: World) -> None:
    async with serving(world) as node:
        await begun(node, world.life)
        await node.unload(ADMIN, "m")
        with pytest.raises(SequenceLost, match="its model was unloaded"):
            await step(node)
        with pytest.raises(ModelNotReady):
            await step(node, start=True)
        await node.load(ADMIN, "m")
        with pytest.raises(SequenceLost, match="its model was unloaded"):
            await step(node)
        await begun(node, world.life)


async def test_a_model_that_drains_lets_the_running_step_end(world: World) -> None:
    world.device.answers_unload = False
    async with serving(world) as node:
        await begun(node, world.life)
        running, waiting = step(node), step(node)
        first = await submitted(world.life, 2)
        unload = asyncio.ensure_future(node.unload(ADMIN, "m"))
        await world.life.wait_for(frames.UnloadModel)
        world.life.finish(first.request_id)
        await running
        second = await submitted(world.life, 3)
        world.life.finish(second.request_id, outcome=Outcome(OutcomeKind.DRAINING, "it drains"))
        with pytest.raises(SequenceLost, match="it drains"):
            await waiting
        world.life.send(frames.ModelReleased("m/1#1"))
        await unload


async def test_an_artifact_that_is_loaded_anew_ends_the_sequences_of_the_old_one(
    world: World,
) -> None:
    async with serving(world) as node:
        await begun(node, world.life)
        world.add(data=b"v2", manifest=MANIFEST)
        await node.load(ADMIN, "m")
        with pytest.raises(SequenceLost):
            await step(node)
        await begun(node, world.life)
        assert (await submitted(world.life, 2)).model == "m/1#2"


async def test_all_steps_go_to_the_device_of_the_first(world: World) -> None:
    world.add(manifest="replicas = 2\n" + MANIFEST)
    async with serving(world, devices=(CPU_0, CPU_1)) as node:
        first = step(node, start=True)
        await settled()
        (life,) = [each for each in world.device.lives if each.of(frames.Submit)]
        await complete(life, first, 1)
        for count in range(2, 6):
            await complete(life, step(node), count)
        device = next(
            d for d in ("cpu:0", "cpu:1") if life.of(frames.Start)[0].settings.device == d
        )
        await node.drain_device(ADMIN, device)
        with pytest.raises(SequenceLost):
            await step(node)


# Limits and time


def limited(count: int) -> dict[str, object]:
    tenants = tuple(TenantSettings(each, sequences_max=count) for each in (VOICE, INDEX, ADMIN))
    return {"tenants": tenants}


async def test_a_tenant_has_so_many_sequences_and_no_more(world: World) -> None:
    async with serving(world, **limited(2)) as node:
        for name in (1, 2):
            await begun(node, world.life, name, tenant=VOICE)
        with pytest.raises(QuotaExceeded, match="'voice' has 2 sequences; its sequences_max is 2"):
            await step(node, 3, start=True, tenant=VOICE)
        await begun(node, world.life, 1, tenant=INDEX)  # another's
        await begun(node, world.life, 2, tenant=VOICE)  # anew, in place of its own
        await complete(world.life, step(node, 1, end=True, tenant=VOICE), 5)
        await begun(node, world.life, 3, tenant=VOICE)


async def test_sequences_that_are_gone_leave_room(world: World) -> None:
    async with serving(world, **limited(1)) as node:
        await begun(node, world.life, 1, tenant=VOICE)
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        await world.wait_ready()
        await begun(node, life, 2, tenant=VOICE)


async def test_so_many_steps_of_a_sequence_wait_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "STEPS_MAX", 3)
    async with serving(world) as node:
        tasks = [step(node, start=True), step(node), step(node)]
        with pytest.raises(QueueFull, match="3 steps that have not ended"):
            await step(node)
        for count in (1, 2, 3):
            world.life.finish((await submitted(world.life, count)).request_id)
        await asyncio.gather(*tasks)
        await complete(world.life, step(node), 4)


async def test_a_sequence_that_nobody_goes_on_with_expires(world: World) -> None:
    world.add(manifest=MANIFEST + "idle_s_max = 0.001")
    async with serving(world) as node:
        slot = await begun(node, world.life)
        await world.life.wait_for(frames.DropSequence)
        assert dropped(world.life) == [slot]
        with pytest.raises(SequenceUnknown, match=r"it expired, 0.001 s after its last step"):
            await step(node)
        await begun(node, world.life)


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ns = monotonic_ns()

    def __call__(self) -> int:
        return self.now_ns


async def test_time_counts_from_the_end_of_the_last_step(world: World) -> None:
    async with serving(world) as node:
        table, clock = node._sequences, Hand()
        table._clock = clock
        await begun(node, world.life, 1)
        await begun(node, world.life, 2)
        running = step(node, 2)
        await submitted(world.life, 3)
        clock.now_ns += 60 * NS_PER_S - 1
        table.expire()
        assert dropped(world.life) == []
        clock.now_ns += 1
        table.expire()
        await world.life.wait_for(frames.DropSequence)
        assert dropped(world.life) == [1]
        await complete(world.life, running, 3)
        clock.now_ns += 60 * NS_PER_S - 1
        table.expire()
        await complete(world.life, step(node, 2), 4)
        with pytest.raises(SequenceUnknown, match="expired"):
            await step(node, 1)


async def test_why_a_sequence_ended_is_known_of_the_last_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "ENDED_KEPT_MAX", 2)
    async with serving(world) as node:
        for name in (1, 2, 3):
            await begun(node, world.life, name)
        await node.unload(ADMIN, "m")
        await node.load(ADMIN, "m")
        errors: list[type[GpumuxdError]] = []
        for name in (1, 2, 3):
            with pytest.raises(SequenceLost):
                await step(node, name)
        for name in (1, 2, 3):
            with pytest.raises(GpumuxdError) as told:
                await step(node, name)
            errors.append(type(told.value))
        assert errors == [SequenceUnknown, SequenceLost, SequenceLost]


async def test_a_daemon_that_stops_finishes_the_steps_that_wait(world: World) -> None:
    async with serving(world) as node:
        tasks = [step(node, start=True), step(node)]
        await submitted(world.life)
        drain = asyncio.ensure_future(node.drain())
        await settled()
        with pytest.raises(Draining):
            await step(node)
        for count in (1, 2):
            world.life.finish((await submitted(world.life, count)).request_id)
        await asyncio.gather(*tasks)
        await drain


async def test_a_daemon_that_is_cut_says_that_it_stops(world: World) -> None:
    async with serving(world) as node:
        running = step(node, start=True)
        await submitted(world.life)
        await node.cut()
        with pytest.raises(Draining, match="the daemon stops"):
            await running
