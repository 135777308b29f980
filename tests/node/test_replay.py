"""Requests over several lives of their devices, their culprits, and models that are not served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.errors import (
    DeadlineMissed,
    DeviceLost,
    GpumuxdError,
    ModelFaulted,
    ModelQuarantined,
)
from gpumuxd.node.api import InferReply, ModelState
from gpumuxd.node.node import Node
from gpumuxd.node.settings import RecoverySettings, RestartSettings
from gpumuxd.units import NS_PER_MS, NS_PER_S
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeLife, add_model, call, int32, load_never, load_well
from tests.node.world import ADMIN, CPU_0, CPU_1, INDEX, TENANTS, VOICE, World

Task = asyncio.Task[InferReply]

SLOW = RestartSettings(delay_ns_first=60 * NS_PER_S, delay_ns_max=60 * NS_PER_S)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.add()
    return world


@asynccontextmanager
async def serving(world: World, **changes: object) -> AsyncIterator[Node]:
    async with asyncio.timeout(WAIT_S), world.started(startup_models=("m",), **changes) as node:
        yield node


def start(node: Node, *values: int, **fields: object) -> Task:
    return asyncio.ensure_future(node.infer(call(*values, **fields)))  # type: ignore[arg-type]


async def submitted(life: FakeLife, count: int = 1) -> list[frames.Submit]:
    return await life.wait_for(frames.Submit, count)


async def test_who_did_no_wrong_runs_again_with_the_same_inputs(world: World) -> None:
    async with serving(world) as node:
        tasks = [start(node, value, value) for value in (5, 6, 7)]
        first = await submitted(world.life, 3)
        world.life.launch(first[0].request_id)
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        again = await submitted(life, 3)
        assert {s.request_id for s in again} == {s.request_id for s in first}
        assert all(submit.model == "m/1#2" for submit in again)
        assert sorted(life.input(submit) for submit in again) == [int32(v, v) for v in (5, 6, 7)]
        assert node.requests_in_flight == 3
        for submit in again:
            life.finish(submit.request_id, [life.input(submit)])
        replies = await asyncio.gather(*tasks)
        assert [reply.outputs[0].data for reply in replies] == [int32(v, v) for v in (5, 6, 7)]
        assert [reply.replays for reply in replies] == [1, 1, 1]
        assert node.requests_in_flight == 0


async def test_a_request_that_was_never_lost_says_so(world: World) -> None:
    async with serving(world) as node:
        task = start(node)
        (submit,) = await submitted(world.life)
        world.life.finish(submit.request_id)
        assert (await task).replays == 0


async def test_a_lone_culprit_is_told_with_its_model_and_what_happened(world: World) -> None:
    async with serving(world) as node:
        bad, good = start(node), start(node)
        one, _ = await submitted(world.life, 2)
        world.life.launch(one.request_id)
        world.life.end("signal SIGSEGV")
        with pytest.raises(
            ModelFaulted, match=r"model 'm' version 1: it ended device cpu:0"
        ) as told:
            await bad
        assert "(signal SIGSEGV): nothing else was in flight" in told.value.message
        life = await world.device.wait_lives(2)
        (again,) = await submitted(life)
        life.finish(again.request_id)
        assert (await good).replays == 1


async def test_suspects_run_one_at_a_time_until_the_culprit_shows(world: World) -> None:
    async with serving(world) as node:
        tasks = [start(node) for _ in range(3)]
        ids = [submit.request_id for submit in await submitted(world.life, 3)]
        world.life.launch(*ids)
        world.life.end("signal SIGABRT")
        life = await world.device.wait_lives(2)
        (first,) = await submitted(life)
        fresh = start(node)
        _, other = await submitted(life, 2)
        assert other.request_id not in ids, "the other suspects wait for their turn"
        life.finish(first.request_id)
        _, _, second = await submitted(life, 3)
        life.launch(second.request_id, other.request_id)
        life.end("signal SIGABRT")
        life = await world.device.wait_lives(3)
        for submit in await submitted(life, 2):
            life.finish(submit.request_id)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        by_id = dict(zip(ids, results, strict=True))
        assert isinstance(by_id.pop(second.request_id), ModelFaulted)
        assert all(isinstance(reply, InferReply) for reply in by_id.values())
        assert (await fresh).replays == 1


async def test_suspects_share_no_run(world: World) -> None:
    world.add(manifest="batching = { rows_max = 4 }")
    async with serving(world) as node:
        tasks = [start(node) for _ in range(3)]
        submits = await submitted(world.life, 3)
        assert [submit.batch_key for submit in submits] == [()] * 3
        ids = [submit.request_id for submit in submits]
        world.life.launch(*ids[:2])
        world.life.end("signal SIGABRT")
        life = await world.device.wait_lives(2)
        for submit in await submitted(life, 2):  # one of them, and who did no wrong
            life.finish(submit.request_id)
        again = await submitted(life, 3)
        life.finish(again[-1].request_id)
        keys = {submit.request_id: submit.batch_key for submit in again}
        assert keys == {ids[0]: None, ids[1]: None, ids[2]: ()}
        await asyncio.gather(*tasks)


async def test_another_device_takes_over_at_once(world: World) -> None:
    world.add(manifest="replicas = 2")
    async with serving(world, devices=(CPU_0, CPU_1), restart=SLOW) as node:
        task = start(node)
        lives = {life.of(frames.Start)[0].settings.device: life for life in world.device.lives}
        sent = [life for life in lives.values() if life.of(frames.Submit)]
        while not sent:
            await asyncio.sleep(0)
            sent = [life for life in lives.values() if life.of(frames.Submit)]
        (other,) = [life for life in lives.values() if life is not sent[0]]
        sent[0].end("signal SIGKILL")
        (submit,) = await submitted(other)
        other.finish(submit.request_id)
        assert (await task).replays == 1


async def test_at_most_so_often(world: World) -> None:
    async with serving(world, recovery=RecoverySettings(replays_max=1)) as node:
        task = start(node)
        for count in (1, 2):
            life = await world.device.wait_lives(count)
            await submitted(life)
            life.end("signal SIGKILL")
        with pytest.raises(DeviceLost, match="cpu:0 was lost: signal SIGKILL; retry") as lost:
            await task
        assert lost.value.retry_delay_ns
        assert node.requests_in_flight == 0


async def test_what_must_not_run_twice_is_refused(world: World) -> None:
    world.add(manifest="idempotent = false")
    async with serving(world) as node:
        task = start(node)
        await submitted(world.life)
        world.life.end("signal SIGKILL")
        with pytest.raises(DeviceLost, match="idempotent = false") as lost:
            await task
        assert lost.value.retry_delay_ns


async def test_a_device_that_stops_by_itself_has_run_nothing(world: World) -> None:
    world.add(manifest="idempotent = false")
    async with serving(world) as node:
        task = start(node)
        (submit,) = await submitted(world.life)
        stopping = Outcome(OutcomeKind.DRAINING, "the device is stopping")
        world.life.finish(submit.request_id, outcome=stopping)
        world.life.end("exit code 0")
        life = await world.device.wait_lives(2)
        (again,) = await submitted(life)
        life.finish(again.request_id)
        assert (await task).replays == 1


async def test_a_deadline_that_passes_while_it_waits(world: World) -> None:
    async with serving(world, restart=SLOW) as node:
        task = start(node, deadline_ns=monotonic_ns() + 100 * NS_PER_MS)
        await submitted(world.life)
        world.life.end("signal SIGKILL")
        with pytest.raises(DeadlineMissed, match="waited to be sent again"):
            await task
        assert node.requests_in_flight == 0


async def test_a_wait_without_a_deadline_has_a_limit_too(world: World) -> None:
    limit = RecoverySettings(replay_wait_ns_max=NS_PER_MS)
    async with serving(world, restart=SLOW, recovery=limit) as node:
        task = start(node)
        await submitted(world.life)
        world.life.end("signal SIGKILL")
        with pytest.raises(DeviceLost, match=r"did not come back in 0\.001 s") as lost:
            await task
        assert lost.value.retry_delay_ns


async def test_who_goes_away_while_it_waits_frees_everything(world: World) -> None:
    async with serving(world, restart=SLOW) as node:
        task = start(node)
        await submitted(world.life)
        world.life.end("signal SIGKILL")
        await world.wait_ready(False)
        assert node.requests_in_flight == 1
        task.cancel()
        await asyncio.wait([task])
        assert node.requests_in_flight == 0


async def test_a_suspect_that_goes_away_gives_its_turn_on(world: World) -> None:
    async with serving(world) as node:
        tasks = [start(node) for _ in range(2)]
        ids = [submit.request_id for submit in await submitted(world.life, 2)]
        world.life.launch(*ids)
        world.life.end("signal SIGSEGV")
        life = await world.device.wait_lives(2)
        (first,) = await submitted(life)
        tasks[ids.index(first.request_id)].cancel()
        _, second = await submitted(life, 2)
        life.finish(second.request_id)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, InferReply) for result in results) == 1
        life.finish(first.request_id, outcome=Outcome(OutcomeKind.CANCELLED))
        await node.drain()
        assert node.requests_in_flight == 0


async def test_a_drain_waits_for_who_is_sent_again(world: World) -> None:
    async with serving(world) as node:
        task = start(node)
        await submitted(world.life)
        drain = asyncio.ensure_future(node.drain())
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        (submit,) = await submitted(life)
        assert not drain.done()
        life.finish(submit.request_id)
        assert (await task).replays == 1
        await drain


async def test_an_end_of_the_daemon_refuses_who_waits(world: World) -> None:
    async with serving(world, restart=SLOW) as node:
        task = start(node)
        await submitted(world.life)
        world.life.end("signal SIGKILL")
        await world.wait_ready(False)
    with pytest.raises(DeviceLost):
        await task


async def test_a_model_that_is_unloaded_meanwhile(world: World) -> None:
    async with serving(world, restart=SLOW) as node:
        task = start(node)
        await submitted(world.life)
        world.life.end("signal SIGKILL")
        await world.wait_ready(False)
        await node.unload(ADMIN, "m")
        with pytest.raises(GpumuxdError, match="model 'm' version 1: unloaded"):
            await task


# Loads and quarantine


async def test_a_load_that_ends_its_device_is_the_culprit(world: World) -> None:
    def load(life: FakeLife, frame: frames.LoadModel) -> None:
        life.work_on(frame)
        life.end("signal SIGSEGV")

    add_model(world.repository, "deadly")
    async with serving(world) as node:
        world.device.on_load = load
        with pytest.raises(ModelFaulted, match=r"it ended device cpu:0 \(signal SIGSEGV\)"):
            await node.load(ADMIN, "deadly")
        world.device.on_load = load_well
        assert (await world.state("deadly"))[0] is ModelState.UNAVAILABLE


async def test_what_a_child_can_not_have_loaded_is_left_out_and_ends_it_once(world: World) -> None:
    def load(life: FakeLife, frame: frames.LoadModel) -> None:
        twice = (((1,), 100_000),) * 2
        life.send(frames.ModelLoaded(frame.model, 3, 40_000, twice, 64, 128, False))

    async with serving(world):
        world.device.on_load = load
        world.life.end("signal SIGKILL")
        await world.device.wait_lives(3)
        state, reason = await world.state("m")
        assert state is ModelState.UNAVAILABLE
        assert "device cpu:0 loaded it with no sizes that were measured, or some of them" in reason


async def fault(world: World, node: Node, lives: int) -> None:
    """Ends the device by a request for `m`."""
    life = await world.device.wait_lives(lives)
    await world.wait_ready()
    task = start(node, tenant=VOICE)
    (submit,) = await submitted(life)
    life.launch(submit.request_id)
    life.end("signal SIGSEGV")
    with pytest.raises(ModelFaulted):
        await task


async def test_a_model_that_ends_devices_is_served_again_only_if_an_admin_says_so(
    world: World,
) -> None:
    limits = RecoverySettings(faults_max=2)
    world.add(manifest='tenants = ["voice", "index"]')
    async with serving(world, recovery=limits, tenants=TENANTS) as node:
        await fault(world, node, 1)
        await fault(world, node, 2)
        with pytest.raises(ModelQuarantined, match=r"ended devices 2 times within 600 s"):
            await node.infer(call(tenant=INDEX))
        life = await world.device.wait_lives(3)
        await life.wait_for(frames.SetTenant, len(TENANTS))
        with pytest.raises(ModelQuarantined):
            await node.load(VOICE, "m")
        state, reason = await world.state()
        assert state is ModelState.UNAVAILABLE
        assert reason.startswith("in quarantine: it ended devices 2 times")
        assert "an admin who loads it releases it" in reason
        assert life.of(frames.LoadModel) == []
        await node.load(ADMIN, "m")
        task = start(node, tenant=VOICE)
        (submit,) = await submitted(life)
        life.finish(submit.request_id)
        await task


async def test_faults_long_ago_are_forgotten(world: World) -> None:
    limits = RecoverySettings(faults_max=2, faults_window_ns=1)
    async with serving(world, recovery=limits, tenants=TENANTS) as node:
        await fault(world, node, 1)
        await fault(world, node, 2)
        await world.device.wait_lives(3)
        await world.wait_ready()
        assert node.is_model_ready(VOICE, "m", "1")


async def test_a_request_that_fails_alone_does_not_count(world: World) -> None:
    async with serving(world, recovery=RecoverySettings(faults_max=1)) as node:
        for count in (1, 2):
            task = start(node)
            submit = (await submitted(world.life, count))[-1]
            outcome = Outcome(OutcomeKind.MODEL_FAULTED, "IndexError")
            world.life.finish(submit.request_id, outcome=outcome)
            with pytest.raises(ModelFaulted):
                await task
        assert node.is_ready()


async def test_a_model_that_waits_for_its_turn_to_load_again_is_no_suspect(world: World) -> None:
    """The requests wait; what they wait for is not there yet."""
    async with serving(world) as node:
        task = start(node)
        await submitted(world.life)
        world.device.on_load = load_never
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        (load,) = await life.wait_for(frames.LoadModel)
        assert not task.done()
        load_well(life, load)
        (submit,) = await submitted(life)
        life.finish(submit.request_id)
        assert (await task).replays == 1
