"""The node with fake children: each path of a request, a model and a device, without torch."""

import asyncio
import os
import re
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import COMPLETED, Outcome, OutcomeKind, PriorityClass, RunReport
from gpumuxd.errors import (
    DeadlineInfeasible,
    DeadlineMissed,
    DeviceLost,
    Draining,
    GpumuxdError,
    InvalidModel,
    InvalidRequest,
    ModelFaulted,
    ModelNotReady,
    OutOfDeviceMemory,
    PermissionDenied,
    QueueFull,
    QuotaExceeded,
    UnknownModel,
)
from gpumuxd.models.repository import Repository
from gpumuxd.node.api import InferReply, ModelState, Tenant
from gpumuxd.node.node import DRAINING_RETRY_DELAY_NS, Node
from gpumuxd.node.settings import (
    LinkSettings,
    LoaderSettings,
    RecoverySettings,
    RestartSettings,
    TenantSettings,
)
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.units import NS_PER_MS, NS_PER_S
from gpumuxd.wire import frames
from tests.node.fakes import (
    SPEC,
    WAIT_S,
    FakeLife,
    add_model,
    call,
    hash_of,
    int32,
    load_badly,
    load_deadly,
    load_never,
    load_well,
)
from tests.node.world import ADMIN, CPU_0, CPU_1, IMPATIENT, INDEX, TENANTS, VOICE, World


def start(node: Node, *values: int, **fields: object) -> "asyncio.Task[InferReply]":
    return asyncio.ensure_future(node.infer(call(*values, **fields)))


# One request


async def test_a_request_from_call_to_reply(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node, 1, 2, 3, 4)
        (submit,) = await world.life.wait_for(frames.Submit)
        assert submit.model == "m/1#1"
        assert submit.rows == 2
        assert submit.bucket == (2,)
        assert submit.priority_class is PriorityClass.STANDARD
        assert world.life.input(submit) == int32(1, 2, 3, 4)
        report = RunReport(queue_ns=1, compute_ns=2)
        world.life.finish(submit.request_id, [int32(5, 6, 7, 8), bytes(16)], report=report)
        reply = await task
        assert (reply.model, reply.version, reply.report) == ("m", "1", report)
        assert [(o.name, o.datatype, o.shape, o.data) for o in reply.outputs] == [
            ("y", "INT32", (2, 2), int32(5, 6, 7, 8)),
            ("n", "INT64", (2,), bytes(16)),
        ]
        assert node.requests_in_flight == 0


async def test_only_the_outputs_that_were_asked_for_come_back(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node, wanted=["n"])
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id, [int32(0, 0), b"8bytes.."])
        assert [(o.name, o.data) for o in (await task).outputs] == [("n", b"8bytes..")]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model": "other"}, UnknownModel, "no model 'other'"),
        ({"model": "../m"}, InvalidRequest, "model name"),
        ({"model": "m\0"}, InvalidRequest, "model name"),
        ({"model": "m" * 10_000}, InvalidRequest, "10000 characters"),
        ({"version": "2"}, UnknownModel, "no version '2'"),
        ({"version": "one"}, InvalidRequest, "'one': expected a positive integer"),
        ({"wanted": ["z"]}, InvalidRequest, "unknown output 'z'"),
        ({"priority": -1}, InvalidRequest, "got -1"),
        ({"deadline_ns": 5}, DeadlineInfeasible, "ms before it was read"),
    ],
)
async def test_a_bad_request_and_then_a_good_one(
    world: World, fields: dict[str, object], error: type[Exception], message: str
) -> None:
    async with world.started(startup_models=("m",)) as node:
        with pytest.raises(error, match=message):
            await node.infer(call(**fields))
        assert node.requests_in_flight == 0
        task = start(node, deadline_ns=monotonic_ns() + 10**12)
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id)
        await task


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (OutcomeKind.DEADLINE_MISSED, DeadlineMissed),
        (OutcomeKind.MODEL_FAULTED, ModelFaulted),
        (OutcomeKind.QUEUE_FULL, QueueFull),
    ],
)
async def test_another_outcome_is_an_error_with_its_reason(
    world: World, kind: OutcomeKind, error: type[Exception]
) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id, outcome=Outcome(kind, "because of 7"))
        with pytest.raises(error, match="because of 7"):
            await task
        assert node.requests_in_flight == 0


@pytest.mark.parametrize(
    ("kind", "reason", "told"),
    [
        (OutcomeKind.MODEL_FAULTED, "IndexError: 7", "^model 'm' version 1: IndexError: 7$"),
        (
            OutcomeKind.DRAINING,
            "model 'm/1#1' is being unloaded",
            "^model 'm' version 1 is being unloaded$",
        ),
        (
            OutcomeKind.OUT_OF_DEVICE_MEMORY,
            "a frame of model 'm/1#1' needs 9 MiB",
            r"^a frame of model 'm' version 1 needs 9 MiB; weights on cpu:0: m/1 \d+\.\d MiB$",
        ),
        (OutcomeKind.DEADLINE_MISSED, "the deadline passed", "^the deadline passed$"),
    ],
)
async def test_an_error_names_the_model_as_its_client_knows_it(
    world: World, kind: OutcomeKind, reason: str, told: str
) -> None:
    # What a device refuses that drains would be sent again.
    once = RecoverySettings(replays_max=0)
    async with world.started(startup_models=("m",), recovery=once) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id, outcome=Outcome(kind, reason))
        with pytest.raises(GpumuxdError, match=told):
            await task


async def test_what_is_refused_as_draining_again_and_again_is_sent_so_often_and_no_more(
    world: World,
) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node)
        count = 1 + RecoverySettings().replays_max
        for number in range(1, count + 1):
            submits = await world.life.wait_for(frames.Submit, number)
            draining = Outcome(OutcomeKind.DRAINING, "it drains")
            world.life.finish(submits[-1].request_id, outcome=draining)
        with pytest.raises(Draining, match="it drains"):
            await task
        assert len(world.life.of(frames.Submit)) == count


async def test_a_missed_deadline_comes_with_its_times_from_the_arrival(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        asked = call(deadline_ns=monotonic_ns() + 10**12)
        arrived_ns = asked.arrived_ns
        task = asyncio.ensure_future(node.infer(replace(asked, deadline_ns=arrived_ns + 10**12)))
        (submit,) = await world.life.wait_for(frames.Submit)
        late = Outcome(
            OutcomeKind.DEADLINE_MISSED,
            "it would be late",
            predicted_finish_ns=arrived_ns + 10**12 + 2_500_000,
            deadline_ns=submit.deadline_ns or 0,
        )
        world.life.finish(submit.request_id, outcome=late)
        with pytest.raises(DeadlineMissed) as missed:
            await task
        assert missed.value.facts == {
            "deadline_ms": "1000000.000",
            "predicted_finish_ms": "1000002.500",
            "late_by_ms": "2.500",
            "model": "m",
            "version": "1",
        }


async def test_a_deadline_that_passed_on_the_way_is_told(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        asked = call()
        with pytest.raises(DeadlineInfeasible) as refused:
            await node.infer(replace(asked, deadline_ns=asked.arrived_ns))
        assert refused.value.facts == {"deadline_ms": "0.000"}
        assert world.life.of(frames.Submit) == []


async def test_what_never_fits_the_arena_is_no_matter_of_time(world: World) -> None:
    small = replace(CPU_0, arena_bytes=4 * 64)
    async with world.started(devices=(small,), startup_models=("m",)) as node:
        task = start(node, *range(16))  # 64 bytes for each of x, y and n
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id)
        await task
    smaller = replace(CPU_0, arena_bytes=2 * 64)
    async with world.started(devices=(smaller,), startup_models=("m",)) as node:
        with pytest.raises(InvalidRequest, match=r"take 192 bytes; its device has 128 for all"):
            await node.infer(call(*range(16)))
        assert node.requests_in_flight == 0


async def test_limits_come_before_the_model_is_looked_up(world: World) -> None:
    tenants = (TenantSettings(DEFAULT_TENANT, bytes_in_flight_max=7),)
    async with world.started(tenants=tenants) as node:
        with pytest.raises(QuotaExceeded, match="bytes_in_flight_max is 7"):
            await node.infer(call(model="no such"))


async def test_outputs_count_as_bytes_in_flight(world: World) -> None:
    # one row: 8 bytes in, 8 + 8 bytes out
    tenants = (TenantSettings(DEFAULT_TENANT, bytes_in_flight_max=23),)
    async with world.started(tenants=tenants, startup_models=("m",)) as node:
        with pytest.raises(QuotaExceeded, match="8 tensor bytes in flight and asks for 16 more"):
            await node.infer(call())
        assert node.requests_in_flight == 0


async def test_a_full_arena_is_queue_full_until_memory_comes_back(world: World) -> None:
    small = replace(CPU_0, arena_bytes=5 * 64)  # three blocks a request
    async with world.started(devices=(small,), startup_models=("m",)) as node:
        first = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        with pytest.raises(QueueFull, match="no memory for the tensors"):
            await node.infer(call())
        world.life.finish(submit.request_id)
        await first
        again = start(node)
        (_, submit) = await world.life.wait_for(frames.Submit, 2)
        world.life.finish(submit.request_id)
        await again


async def test_memory_of_a_cancelled_request_is_kept_until_the_child_confirms(
    world: World,
) -> None:
    small = replace(CPU_0, arena_bytes=5 * 64)
    async with world.started(devices=(small,), startup_models=("m",)) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (cancel,) = await world.life.wait_for(frames.Cancel)
        assert cancel.request_id == submit.request_id
        assert node.requests_in_flight == 1
        with pytest.raises(QueueFull):
            await node.infer(call())
        drained = asyncio.ensure_future(node.drain())
        world.life.finish(submit.request_id, outcome=Outcome(OutcomeKind.CANCELLED))
        async with asyncio.timeout(WAIT_S):
            await drained
        assert node.view().devices[0].requests_in_flight == 0


async def test_a_cancel_that_crosses_the_finish_releases_once(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(WAIT_S):
            await node.drain()
        assert world.device.life.how == ""  # nobody was killed for a finish nobody waits for


async def test_a_child_that_answers_with_other_shapes_is_not_believed(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        y, n = submit.outputs
        world.life.send(
            frames.Finished(
                submit.request_id,
                Outcome(OutcomeKind.COMPLETED),
                RunReport(),
                (replace_block(y, shape=(10**9,)), n),
            )
        )
        with pytest.raises(ModelFaulted, match=r"'y': expected INT32 \[1, 2\] from the device"):
            await task


def replace_block(block: frames.Block, shape: tuple[int, ...]) -> frames.Block:
    return frames.Block(block.offset, block.size_bytes, block.datatype, shape)


async def test_priority_is_bounded_by_tenant_and_by_model(world: World) -> None:
    add_model(world.repository, "m", manifest='priority_max = "STANDARD"')
    async with world.started(tenants=TENANTS, startup_models=("m",)) as node:
        (load,) = world.life.of(frames.LoadModel)
        assert load.class_max is PriorityClass.STANDARD
        with pytest.raises(PermissionDenied, match=r"'voice' .* STANDARD"):
            await node.infer(call(tenant=VOICE, priority=1))
        with pytest.raises(PermissionDenied, match=r"'index' .* BEST_EFFORT"):
            await node.infer(call(tenant=INDEX, priority=2))
        task = start(node, tenant=INDEX)
        (submit,) = await world.life.wait_for(frames.Submit)
        assert submit.priority_class is PriorityClass.BEST_EFFORT
        world.life.finish(submit.request_id)
        await task


# Devices


async def test_a_child_is_told_settings_tenants_and_threads(world: World) -> None:
    async with world.started(tenants=TENANTS) as node:
        (begin,) = world.life.of(frames.Start)
        assert begin.settings == CPU_0
        told = await world.life.wait_for(frames.SetTenant, 3)
        assert [t.tenant for t in told] == ["admin", "voice", "index"]
        assert world.life.environment["OMP_NUM_THREADS"] == "1"
        assert world.readiness == [True]
        heavier = replace(VOICE, weight=7)
        tenants = (TenantSettings(heavier), TenantSettings(INDEX), TenantSettings(Tenant("new")))
        node.apply(replace(world.settings, tenants=tenants))
        told = (await world.life.wait_for(frames.SetTenant, 5))[3:]
        assert [(t.tenant, t.weight) for t in told] == [
            ("voice", 7),
            ("new", 1),
        ]  # no news of index


async def test_a_dead_child_fails_what_is_in_flight_and_comes_back_with_its_models(
    world: World,
) -> None:
    once = RecoverySettings(replays_max=0)
    async with world.started(startup_models=("m",), recovery=once) as node:
        waiting = [start(node) for _ in range(3)]
        cancelled = start(node)
        await world.life.wait_for(frames.Submit, 4)
        cancelled.cancel()
        await world.life.wait_for(frames.Cancel)
        world.device.on_load = load_never
        world.life.end("signal SIGSEGV")
        for task in waiting:
            with pytest.raises(DeviceLost, match="cpu:0 was lost: signal SIGSEGV; retry") as lost:
                await task
            # The delay of 1 ns, and what the first start took.
            assert 1 < (lost.value.retry_delay_ns or 0) < WAIT_S * 10**9
        assert node.requests_in_flight == 0
        life = await world.device.wait_lives(2)
        (load,) = await life.wait_for(frames.LoadModel)
        assert not node.is_ready()
        with pytest.raises(ModelNotReady, match="device cpu:0 was lost: signal SIGSEGV"):
            await node.infer(call())
        load_well(life, load)
        await world.wait_ready()
        assert len(world.loader.children) == 1  # the same bits, not read again
        assert node.view().devices[0].restarts == 1
        task = start(node)
        (submit,) = await life.wait_for(frames.Submit)
        assert submit.model == "m/1#2"
        life.finish(submit.request_id)
        await task
        assert world.readiness == [True, False, True]


async def test_what_a_child_said_before_it_died_still_counts(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id, [int32(7, 7), bytes(8)])
        world.life.end("signal SIGKILL")
        assert (await task).outputs[0].data == int32(7, 7)


async def test_a_model_whose_load_ends_its_device_again_is_left_out(world: World) -> None:
    add_model(world.repository, "good")
    async with world.started(startup_models=("m", "good")) as node:

        def load(life: FakeLife, frame: frames.LoadModel) -> None:
            life.work_on(frame)
            (load_deadly if frame.model.startswith("m/") else load_well)(life, frame)

        world.device.on_load = load
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(3)
        loads = await life.wait_for(frames.LoadModel)
        assert loads[0].model.startswith("good/")
        state, reason = await world.state("m")
        assert state is ModelState.UNAVAILABLE
        assert "it ended device cpu:0 (signal SIGSEGV)" in reason
        await node.load(DEFAULT_TENANT, "good")
        assert node.is_model_ready(DEFAULT_TENANT, "good", "1")


async def test_a_model_that_ends_its_device_before_its_load_is_noted_is_left_out(
    world: World,
) -> None:
    add_model(world.repository, "good")
    async with world.started(startup_models=("m", "good")) as node:

        def load(life: FakeLife, frame: frames.LoadModel) -> None:
            (load_deadly if frame.model.startswith("m/") else load_well)(life, frame)

        world.device.on_load = load
        world.life.end("signal SIGKILL")
        await world.device.wait_lives(3)
        await node.load(DEFAULT_TENANT, "good")
        assert node.is_model_ready(DEFAULT_TENANT, "good", "1")
        state, reason = await world.state("m")
        assert state is ModelState.UNAVAILABLE
        assert "it ended device cpu:0 (signal SIGSEGV)" in reason
        assert len(world.device.lives) == 3


async def test_kills_from_outside_during_its_loads_leave_no_model_out(world: World) -> None:
    """Two in a row each time: a load that ended well was none of the reasons of what was before."""

    def load(life: FakeLife, frame: frames.LoadModel) -> None:
        life.work_on(frame)
        if len(world.device.lives) % 3 == 1:
            load_well(life, frame)
        else:
            life.end("signal SIGKILL")

    async with world.started(startup_models=("m",)) as node:
        world.device.on_load = load
        for lives in (4, 7, 10):
            world.life.end("signal SIGKILL")
            await world.device.wait_lives(lives)
            await world.wait_ready()
            assert await world.state("m") == (ModelState.READY, "")
        await node.load(DEFAULT_TENANT, "m")


async def test_a_load_that_was_idle_is_no_suspect_however_often_its_device_dies(
    world: World,
) -> None:
    async with world.started(startup_models=("m",)):
        world.device.on_load = lambda life, frame: life.end("signal SIGKILL")
        world.life.end("signal SIGKILL")
        await world.device.wait_lives(8)
        world.device.on_load = load_well
        await world.wait_ready()
        assert await world.state("m") == (ModelState.READY, "")


@pytest.mark.parametrize("how", ["silent", "nonsense", "unknown request", "parent's frame"])
async def test_a_child_that_misbehaves_is_killed_and_replaced(world: World, how: str) -> None:
    async with world.started(link=IMPATIENT):
        life = world.life
        await life.wait_for(frames.Ping)
        if how == "silent":
            world.device.answers_ping = False
        elif how == "nonsense":
            life.send_bytes(b"\xff\xff")
        elif how == "unknown request":
            life.send(frames.Finished(99, Outcome(OutcomeKind.COMPLETED), RunReport(), ()))
        else:
            life.send(frames.Stop())
        await world.device.wait_lives(2)
        world.device.answers_ping = True
        assert life.how == "signal SIGKILL"
        assert life.is_reaped


async def test_a_child_that_falls_silent_while_it_loads_is_killed_in_its_own_time(
    world: World,
) -> None:
    link = replace(IMPATIENT, load_silence_ns_max=60 * NS_PER_MS)
    async with world.started(link=link) as node:

        def fall_silent(life: FakeLife, frame: frames.LoadModel) -> None:
            world.device.answers_ping = False

        world.device.on_load = fall_silent
        began_ns = monotonic_ns()
        with pytest.raises(ModelFaulted, match=r"stood still for 0.06 s \(signal SIGKILL\)"):
            await node.load(DEFAULT_TENANT, "m")
        assert monotonic_ns() - began_ns >= 60 * NS_PER_MS
        assert (await world.state())[0] is ModelState.UNAVAILABLE
        world.device.answers_ping = True


async def test_a_device_without_room_for_a_model_is_no_fault_of_the_model(world: World) -> None:
    async with world.started() as node:

        def load_nowhere(life: FakeLife, frame: frames.LoadModel) -> None:
            life.send(frames.ModelFailed(frame.model, "9 bytes, 7 are free", is_out_of_memory=True))

        world.device.on_load = load_nowhere
        with pytest.raises(OutOfDeviceMemory, match="9 bytes, 7 are free"):
            await node.load(DEFAULT_TENANT, "m")
        assert await world.state() == (ModelState.UNAVAILABLE, "9 bytes, 7 are free")


async def test_a_load_that_takes_too_long_is_given_up_and_costs_nobody_the_device(
    world: World,
) -> None:
    add_model(world.repository, "good")
    link = LinkSettings(load_ns_max=50 * NS_PER_MS)
    async with world.started(link=link, startup_models=("good",)) as node:
        world.device.on_load = load_never
        with pytest.raises(ModelNotReady, match=r"loading took over 0.05 s"):
            await node.load(DEFAULT_TENANT, "m")
        (unload,) = await world.life.wait_for(frames.UnloadModel)
        assert unload.model == "m/1#2"
        state, reason = await world.state()
        assert state is ModelState.UNAVAILABLE
        assert "took over" in reason
        assert node.is_model_ready(DEFAULT_TENANT, "good", "")
        assert len(world.device.lives) == 1
        world.device.on_load = load_well
        await node.load(DEFAULT_TENANT, "m")


async def test_a_device_that_can_not_start_at_all_fails_the_start(world: World) -> None:
    world.device.ends_at_start = True
    with pytest.raises(DeviceLost, match="exit code 1"):
        async with world.started():
            pytest.fail("it started")


async def test_no_process_to_be_had_at_first_fails_the_start(world: World) -> None:
    world.device.refusals = 1
    with pytest.raises(DeviceLost, match="no process for it: too many"):
        async with world.started():
            pytest.fail("it started")


async def test_no_process_to_be_had_later_is_tried_again(world: World) -> None:
    async with world.started(startup_models=("m",)):
        world.device.refusals = 2
        world.life.end("signal SIGSEGV")
        await world.device.wait_lives(2)
        await world.wait_ready()


async def test_no_process_for_a_loader_costs_this_load(world: World) -> None:
    async with world.started() as node:
        world.loader.refusals = 1
        with pytest.raises(ModelNotReady, match="no process to read it with: too many"):
            await node.load(DEFAULT_TENANT, "m")
        await node.load(DEFAULT_TENANT, "m")


async def test_a_child_that_never_turns_is_killed_when_its_time_to_start_is_over(
    world: World,
) -> None:
    world.device.answers_start = False
    link = LinkSettings(ping_interval_ns=NS_PER_MS, start_ns_max=10 * NS_PER_MS)
    with pytest.raises(DeviceLost, match=r"it was not up after 0.01 s, .* \(signal SIGKILL\)"):
        async with world.started(link=link):
            pytest.fail("it started")


async def test_statistics_reach_the_view(world: World) -> None:
    link = LinkSettings(ping_interval_ns=NS_PER_MS, statistics_interval_ns=NS_PER_MS)
    async with world.started(link=link) as node:
        await world.life.wait_for(frames.AskStatistics, 2)
        (device,) = node.view().devices
        assert (device.name, device.state, device.pid) == ("cpu:0", "ready", world.life.pid)
        assert (device.queued, device.bound_ns, device.device_busy_ns) == (3, 77, 5000)
        assert (device.best_effort_grants, device.best_effort_granted_ns) == (6, 600)


async def test_a_child_that_does_not_stop_is_killed(world: World) -> None:
    world.device.answers_stop = False
    async with world.started(link=LinkSettings(stop_ns_max=NS_PER_MS)):
        pass
    assert world.life.how == "signal SIGKILL"


# Models


async def test_load_serve_unload(world: World) -> None:
    async with world.started() as node:
        assert node.is_ready()
        assert await world.state() == (ModelState.UNAVAILABLE, "not loaded")
        with pytest.raises(ModelNotReady, match="'m' version 1: not loaded"):
            await node.infer(call())
        with pytest.raises(ModelNotReady, match="not loaded"):
            await node.model_view(DEFAULT_TENANT, "m", "")
        await node.load(DEFAULT_TENANT, "m")
        assert await world.state() == (ModelState.READY, "")
        view = await node.model_view(DEFAULT_TENANT, "m", "1")
        assert (view.version, view.versions, view.group_count) == ("1", ("1",), 3)
        assert view.spec == world.loader.spec
        assert node.is_model_ready(DEFAULT_TENANT, "m", "")
        assert not node.is_model_ready(DEFAULT_TENANT, "m", "2")
        assert not node.is_model_ready(DEFAULT_TENANT, "m", "x")
        await node.unload(DEFAULT_TENANT, "m")
        assert await world.state() == (ModelState.UNAVAILABLE, "unloaded")
        await node.unload(DEFAULT_TENANT, "m")
        with pytest.raises(UnknownModel):
            await node.unload(DEFAULT_TENANT, "other")


async def test_loads_of_one_model_become_one_and_one_caller_may_leave(world: World) -> None:
    async with world.started() as node:
        world.device.on_load = load_never
        loads = [asyncio.ensure_future(node.load(DEFAULT_TENANT, "m")) for _ in range(3)]
        (load,) = await world.life.wait_for(frames.LoadModel)
        assert (await world.state())[0] is ModelState.LOADING
        loads[0].cancel()
        load_well(world.life, load)
        await asyncio.gather(*loads[1:])
        await node.load(DEFAULT_TENANT, "m")  # nothing changed
        assert len(world.life.of(frames.LoadModel)) == 1


async def test_unloading_waits_for_what_runs_and_refuses_what_comes(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        world.device.answers_unload = False
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        unload = asyncio.ensure_future(node.unload(DEFAULT_TENANT, "m"))
        (frame,) = await world.life.wait_for(frames.UnloadModel)
        assert (await world.state())[0] is ModelState.UNLOADING
        with pytest.raises(ModelNotReady):
            await node.infer(call())
        world.life.finish(submit.request_id)
        await task
        assert not unload.done()
        world.life.send(frames.ModelReleased(frame.model))
        await unload
        assert await world.state() == (ModelState.UNAVAILABLE, "unloaded")


async def test_an_unload_goes_on_without_its_client_and_a_load_waits_for_its_end(
    world: World,
) -> None:
    async with world.started(startup_models=("m",)) as node:
        world.device.answers_unload = False
        unload = asyncio.ensure_future(node.unload(DEFAULT_TENANT, "m"))
        (frame,) = await world.life.wait_for(frames.UnloadModel)
        unload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unload
        assert await world.state() == (ModelState.UNLOADING, "being unloaded")
        with pytest.raises(ModelNotReady, match="'m' version 1: being unloaded"):
            await node.infer(call())
        load = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        await node.index(ADMIN)
        assert len(world.life.of(frames.LoadModel)) == 1
        world.life.send(frames.ModelReleased(frame.model))
        await load
        assert await world.state() == (ModelState.READY, "")
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        assert submit.model == "m/1#2"
        world.life.finish(submit.request_id)
        await task


async def test_a_load_after_an_unload_joins_no_load_before_it(world: World) -> None:
    async with world.started() as node:
        world.device.on_load = load_never
        first = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        (frame,) = await world.life.wait_for(frames.LoadModel)
        assert await world.state() == (ModelState.LOADING, "being loaded")
        unload = asyncio.ensure_future(node.unload(DEFAULT_TENANT, "m"))
        await node.index(ADMIN)  # it has found its model, and waits for the load
        second = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        await node.index(ADMIN)
        world.device.on_load = load_well
        load_well(world.life, frame)
        await asyncio.gather(first, unload, second)
        assert await world.state() == (ModelState.READY, "")
        assert [f.model for f in world.life.of(frames.LoadModel)] == ["m/1#1", "m/1#2"]


async def test_the_version_that_was_loaded_last_serves_whatever_its_number(world: World) -> None:
    add_model(world.repository, "m", version=2)
    async with world.started(startup_models=("m",)) as node:
        world.device.answers_unload = False
        (world.repository / "m" / "2" / "model.pt2").unlink()
        await node.load(DEFAULT_TENANT, "m")
        task = start(node)  # at once, while version 2 drains
        (submit,) = await world.life.wait_for(frames.Submit)
        assert submit.model == "m/1#2"
        world.life.finish(submit.request_id)
        assert (await task).version == "1"
        (frame,) = await world.life.wait_for(frames.UnloadModel)
        assert frame.model == "m/2#1"
        assert await world.state("m", "2") == (ModelState.UNLOADING, "being replaced by version 1")
        world.life.send(frames.ModelReleased(frame.model))
        add_model(world.repository, "m", version=2)
        await node.load(DEFAULT_TENANT, "m")  # and forth
        assert await world.state("m", "2") == (ModelState.READY, "")
        (_, frame) = await world.life.wait_for(frames.UnloadModel, 2)
        assert frame.model == "m/1#2"
        world.life.send(frames.ModelReleased(frame.model))


async def test_a_load_whose_device_ends_at_once_is_no_success(world: World) -> None:
    async with world.started() as node:

        def load_and_end(life: FakeLife, frame: frames.LoadModel) -> None:
            load_well(life, frame)
            life.end("signal SIGSEGV")

        world.device.on_load = load_and_end
        with pytest.raises(DeviceLost, match="cpu:0 was lost"):
            await node.load(DEFAULT_TENANT, "m")
        assert (await world.state())[0] is ModelState.UNAVAILABLE
        world.device.on_load = load_well
        await world.device.wait_lives(2)
        await world.wait_ready()
        await node.load(DEFAULT_TENANT, "m")


async def test_an_unload_ends_when_its_device_dies(world: World) -> None:
    async with world.started() as node:
        await node.load(DEFAULT_TENANT, "m")
        world.device.answers_unload = False
        unload = asyncio.ensure_future(node.unload(DEFAULT_TENANT, "m"))
        await world.life.wait_for(frames.UnloadModel)
        world.life.end("signal SIGSEGV")
        await unload
        assert await world.state() == (ModelState.UNAVAILABLE, "unloaded")
        life = await world.device.wait_lives(2)
        await world.wait_ready()
        await node.load(DEFAULT_TENANT, "m")
        assert len(life.of(frames.LoadModel)) == 1


async def test_a_newer_version_replaces_the_older_which_drains(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        world.device.answers_unload = False
        task = start(node)
        (old,) = await world.life.wait_for(frames.Submit)
        add_model(world.repository, "m", version=2, data=b"v2")
        await node.load(DEFAULT_TENANT, "m")
        new = start(node)
        (_, submit) = await world.life.wait_for(frames.Submit, 2)
        assert (old.model, submit.model) == ("m/1#1", "m/2#2")
        (unload,) = await world.life.wait_for(frames.UnloadModel)
        assert unload.model == "m/1#1"
        assert (await world.state("m", "1"))[0] is ModelState.UNLOADING
        world.life.finish(old.request_id)
        world.life.finish(submit.request_id)
        assert [(await t).version for t in (task, new)] == ["1", "2"]
        world.life.send(frames.ModelReleased(unload.model))
        await node.load(DEFAULT_TENANT, "m")  # waits its turn behind the one that drains
        assert await world.state("m", "1") == (ModelState.UNAVAILABLE, "replaced by version 2")


async def test_a_changed_artifact_is_loaded_anew_and_a_bad_one_leaves_the_old(
    world: World,
) -> None:
    async with world.started(startup_models=("m",)) as node:
        add_model(world.repository, "m", data=b"broken")
        world.device.on_load = load_badly
        with pytest.raises(InvalidModel, match="does not compile"):
            await node.load(DEFAULT_TENANT, "m")
        note = "it serves as it was loaded before: it does not compile"
        assert await world.state() == (ModelState.READY, note)
        assert node.is_ready()
        world.device.on_load = load_well
        add_model(world.repository, "m", data=b"better")
        await node.load(DEFAULT_TENANT, "m")
        assert await world.state() == (ModelState.READY, "")
        (unload,) = await world.life.wait_for(frames.UnloadModel)
        assert unload.model == "m/1#1"
        loads = world.life.of(frames.LoadModel)
        assert [x.artifact_hash for x in loads] == [
            hash_of(data) for data in (b"v1", b"broken", b"better")
        ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("refuse", "aten.evil is not allowed"),
        ("crash", "made the loader crash (signal SIGSEGV)"),
        ("run_out_of_time", "made the loader crash (signal SIGXCPU)"),
        ("talk_nonsense", "talk nonsense"),
        ("forget_the_weights", "talk nonsense"),
        ("lie", "'no such' is not among"),
    ],
)
async def test_a_loader_that_fails_costs_this_one_load(
    world: World, answer: str, message: str
) -> None:
    async with world.started() as node:
        good: Callable[..., None] = world.loader.answer
        world.loader.answer = getattr(world.loader, answer)
        with pytest.raises(InvalidModel, match=re.escape(message)):
            await node.load(DEFAULT_TENANT, "m")
        state, reason = await world.state()
        assert state is ModelState.UNAVAILABLE
        assert message in reason
        world.loader.answer = good
        world.loader.spec = SPEC
        await node.load(DEFAULT_TENANT, "m")
        assert await world.state() == (ModelState.READY, "")


async def test_a_loader_that_somebody_killed_says_nothing_of_its_artifact(world: World) -> None:
    async with world.started() as node:
        good, world.loader.answer = world.loader.answer, world.loader.be_killed
        with pytest.raises(ModelNotReady, match=r"was killed \(signal SIGKILL\); retry"):
            await node.load(DEFAULT_TENANT, "m")
        world.loader.answer = good
        await node.load(DEFAULT_TENANT, "m")


async def test_a_loader_that_hangs_is_killed_in_time(world: World) -> None:
    world.loader.answer = world.loader.hang
    async with world.started(loader=LoaderSettings(read_ns_max=NS_PER_MS)) as node:
        with pytest.raises(ModelNotReady, match=r"took over 0.001 s .\[node\] read_timeout_s"):
            await node.load(DEFAULT_TENANT, "m")
        assert [child.how for child in world.loader.children] == ["signal SIGKILL"]
        world.loader.held.pop().close()


async def test_a_startup_model_that_fails_leaves_the_others_serving(world: World) -> None:
    add_model(world.repository, "good")
    async with world.started(startup_models=("absent", "good")) as node:
        assert node.is_model_ready(DEFAULT_TENANT, "good", "")
        assert not node.is_ready()
        add_model(world.repository, "absent")
        await node.load(DEFAULT_TENANT, "absent")
        assert world.readiness == [True]


async def test_the_device_with_the_fewest_models_is_chosen_unless_the_manifest_names_one(
    world: World,
) -> None:
    add_model(world.repository, "b")
    add_model(world.repository, "c", manifest='device = "cpu:0"')
    add_model(world.repository, "d", manifest='device = "cpu:7"')
    async with world.started(devices=(CPU_0, CPU_1)) as node:
        await asyncio.gather(*(node.load(DEFAULT_TENANT, name) for name in ("m", "b")))
        await node.load(DEFAULT_TENANT, "c")
        loaded = [sorted(f.model[0] for f in x.of(frames.LoadModel)) for x in world.device.lives]
        assert sorted(map(len, loaded)) == [1, 2]
        assert "c" in loaded[0]
        with pytest.raises(InvalidModel, match="'cpu:7' is not configured"):
            await node.load(DEFAULT_TENANT, "d")


async def test_no_look_at_the_disk_is_made_on_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def watched(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def look(*arguments: object) -> object:
            assert threading.current_thread() is not threading.main_thread(), name
            looks.append(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, look)

    watched(Repository, "scan")
    watched(Repository, "find")
    async with world.started() as node:
        await node.index(ADMIN)
        for fails in (node.infer(call()), node.model_view(DEFAULT_TENANT, "m", "")):
            with pytest.raises(ModelNotReady, match="not loaded"):
                await fails
        await node.load(DEFAULT_TENANT, "m")
        await node.unload(DEFAULT_TENANT, "m")
    assert looks == ["scan", "find", "find", "find", "find"]


# What the log and the status say


async def test_a_fault_is_one_warning_that_names_the_culprit(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        with capture_logs() as lines:
            fault = Outcome(OutcomeKind.MODEL_FAULTED, "IndexError: out of range")
            world.life.finish(submit.request_id, outcome=fault)
            with pytest.raises(ModelFaulted):
                await task
        assert lines == [
            {
                "event": "model_faulted",
                "log_level": "warning",
                "model": "m/1",
                "tenant": "default",
                "request": submit.request_id,
                "device": "cpu:0",
                "reason": "IndexError: out of range",
            }
        ]


async def test_a_request_that_ends_otherwise_is_no_line(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        late = Outcome(OutcomeKind.DEADLINE_MISSED, "late")
        with capture_logs() as lines:
            for count, outcome in enumerate((COMPLETED, late), start=1):
                task = start(node)
                submit = (await world.life.wait_for(frames.Submit, count))[-1]
                world.life.finish(submit.request_id, outcome=outcome)
                await asyncio.wait([task])
        assert lines == []


async def test_requests_lost_with_their_device_are_one_line_together(world: World) -> None:
    once = RecoverySettings(replays_max=0)
    async with world.started(startup_models=("m",), recovery=once) as node:
        tasks = [start(node) for _ in range(3)]
        await world.life.wait_for(frames.Submit, 3)
        with capture_logs() as lines:
            world.life.end("signal SIGSEGV")
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await world.device.wait_lives(2)
            await world.wait_ready()
        assert all(isinstance(result, DeviceLost) for result in results)
        (line,) = [x for x in lines if x["log_level"] == "warning"]
        assert (line["event"], line["requests_lost"]) == ("device_lost", 3)


async def test_a_load_that_the_end_of_the_daemon_stops_is_no_error_of_the_model(
    world: World,
) -> None:
    world.device.on_load = lambda life, frame: None
    with capture_logs() as lines:
        async with world.started() as node:
            task = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
            await world.life.wait_for(frames.LoadModel)
        await asyncio.wait([task])
        assert isinstance(task.exception(), DeviceLost)
    (line,) = [line for line in lines if line["event"] == "model_not_loaded"]
    assert (line["log_level"], line["reason"]) == ("info", "the daemon is stopping")


async def test_the_memory_of_a_device_counts_its_arena(world: World) -> None:
    link = replace(IMPATIENT, silence_ns_max=10**10, statistics_interval_ns=1)
    async with world.started(link=link) as node, asyncio.timeout(WAIT_S):
        while not (memory_bytes := node.view().devices[0].memory_bytes):
            await asyncio.to_thread(os.sched_yield)
    assert memory_bytes == CPU_0.arena_bytes + 1000  # weights and frames: what the fake says


async def test_a_status_says_why_the_node_is_not_ready(world: World) -> None:
    async with world.started(startup_models=("absent", "m")) as node:
        assert node.view().reason == "model 'absent': no model 'absent' in the repository"
        add_model(world.repository, "absent")
        await node.load(DEFAULT_TENANT, "absent")
        assert (node.view().reason, node.is_ready()) == ("", True)
        await node.unload(DEFAULT_TENANT, "m")
        assert node.view().reason == "model 'm': unloaded"
        world.life.end("signal SIGSEGV")
        await world.device.wait_lives(2)
        await node.drain()
        assert node.view().reason.startswith("stopping")


async def test_a_status_names_a_device_that_is_not_ready(world: World) -> None:
    slow = RestartSettings(delay_ns_first=60 * NS_PER_S, delay_ns_max=60 * NS_PER_S)
    once = RecoverySettings(replays_max=0)
    async with world.started(restart=slow, startup_models=("m",), recovery=once) as node:
        task = start(node)
        await world.life.wait_for(frames.Submit)
        world.life.end("signal SIGSEGV")
        with pytest.raises(DeviceLost):
            await task
        await world.wait_ready(False)
        assert "device cpu:0 is lost: signal SIGSEGV" in node.view().reason
        assert "model 'm': device cpu:0 was lost" in node.view().reason


# Who may


async def test_tenants_see_and_use_only_what_is_permitted_to_them(world: World) -> None:
    add_model(world.repository, "own", manifest='tenants = ["index"]')
    async with world.started(tenants=TENANTS, startup_models=("m", "own")) as node:
        assert [e.name for e in await node.index(VOICE)] == ["m"]
        assert [e.name for e in await node.index(INDEX)] == ["m", "own"]
        assert [e.name for e in await node.index(ADMIN)] == ["m", "own"]
        assert node.is_model_ready(INDEX, "own", "")
        assert not node.is_model_ready(VOICE, "own", "")
        for attempt in (node.infer(call(model="own", tenant=VOICE)), node.load(VOICE, "own")):
            with pytest.raises(UnknownModel, match="no model 'own'"):
                await attempt
        with pytest.raises(UnknownModel):
            await node.unload(VOICE, "own")
        with pytest.raises(PermissionDenied, match="not for tenant 'admin' to run"):
            await node.infer(call(model="own", tenant=ADMIN))
        loads = {f.model[0]: f.class_max for f in world.life.of(frames.LoadModel)}
        assert loads == {"m": PriorityClass.REALTIME, "o": PriorityClass.BEST_EFFORT}


async def test_loading_takes_an_admin_or_a_tenant_that_the_manifest_names(world: World) -> None:
    add_model(world.repository, "own", manifest='tenants = ["index"]')
    async with world.started(tenants=TENANTS) as node:
        with pytest.raises(PermissionDenied, match="'voice' may not load model 'm'"):
            await node.load(VOICE, "m")
        await node.load(ADMIN, "m")
        with pytest.raises(PermissionDenied, match="'voice' may not unload model 'm'"):
            await node.unload(VOICE, "m")
        await node.load(INDEX, "own")
        await node.unload(INDEX, "own")
        await node.unload(ADMIN, "m")


async def test_a_broken_entry_is_shown_to_admins_alone(world: World) -> None:
    add_model(world.repository, "bad", manifest="slo = 1")
    async with world.started(tenants=TENANTS) as node:
        (entry,) = [e for e in await node.index(ADMIN) if e.name == "bad"]
        assert entry.state is ModelState.UNAVAILABLE
        assert "unknown key 'slo'" in entry.reason
        assert [e.name for e in await node.index(VOICE)] == ["m"]
        with pytest.raises(InvalidModel, match="unknown key 'slo'"):
            await node.load(ADMIN, "bad")
        with pytest.raises(UnknownModel):
            await node.load(VOICE, "bad")


# The end


async def test_a_drain_admits_nothing_and_loses_nothing(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        task = start(node)
        (submit,) = await world.life.wait_for(frames.Submit)
        drain = asyncio.ensure_future(node.drain())
        await asyncio.sleep(0)
        assert not node.is_ready()
        with pytest.raises(Draining):
            await node.infer(call())
        with pytest.raises(Draining):
            await node.load(DEFAULT_TENANT, "m")
        assert not drain.done()
        world.life.finish(submit.request_id)
        await task
        async with asyncio.timeout(WAIT_S):
            await drain


async def test_a_drain_that_is_cut_tells_and_counts_whoever_still_waits(world: World) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(world.started(startup_models=("m",)))
        tasks = [start(node) for _ in range(2)]
        await world.life.wait_for(frames.Submit, 2)
        gone = start(node)
        await world.life.wait_for(frames.Submit, 3)
        gone.cancel()
        await asyncio.wait([gone])
        await node.cut()
        for task in tasks:
            with pytest.raises(Draining, match="was not done in time") as cut:
                await task
            assert cut.value.retry_delay_ns == DRAINING_RETRY_DELAY_NS
        assert node.requests_cut == {(DEFAULT_TENANT.name, "m"): 2}  # not the one that was gone
        assert len(world.device.lives) == 1  # nothing is started again


async def test_a_load_that_a_drain_overtakes_is_refused_and_leaves_nothing(world: World) -> None:
    async with world.started() as node:
        world.device.on_load = load_never
        load = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        await world.life.wait_for(frames.LoadModel)
        await node.drain()
        with pytest.raises(asyncio.CancelledError):  # the front door makes Draining of it
            await load


async def test_so_many_calls_may_wait_for_loads_and_unloads_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumuxd.node.node.CALLS_CHANGING_MODELS_MAX", 2)
    async with world.started() as node:
        world.device.on_load = load_never
        waiting = [asyncio.ensure_future(node.load(DEFAULT_TENANT, "m")) for _ in range(2)]
        await world.life.wait_for(frames.LoadModel)
        for change in (node.load, node.unload):
            with pytest.raises(QueueFull, match="2 loads and unloads are waited for") as full:
                await change(DEFAULT_TENANT, "m")
            assert full.value.retry_delay_ns
        for call_ in waiting:
            call_.cancel()
        await asyncio.wait(waiting)
        waiting = [asyncio.ensure_future(node.unload(DEFAULT_TENANT, "m"))]
        world.life.end("signal SIGKILL")
        await asyncio.wait(waiting)
