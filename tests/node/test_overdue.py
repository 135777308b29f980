"""Deadlines that a device child does not keep: the parent does."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import Outcome, OutcomeKind, PriorityClass
from gpumuxd.errors import DeadlineMissed, QueueFull
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.overdue import GRACE_NS, Overdue
from gpumuxd.node.owed import RequestOverdue
from gpumuxd.node.settings import LinkSettings
from gpumuxd.units import NS_PER_MS, NS_PER_S
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeDevice, call
from tests.node.world import CPU_0, World

SOON_NS = 2 * NS_PER_MS
LATE_NS = 3600 * NS_PER_S


def submit(number: int, deadline_ns: int | None) -> frames.Submit:
    return frames.Submit(
        number, "t", "m/1#1", PriorityClass.STANDARD, (1,), 1, monotonic_ns(), deadline_ns, (), ()
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.add()
    return world


@pytest.mark.parametrize("end", ["told late", "lost"])
async def test_a_device_that_says_nothing_costs_a_client_no_more_than_its_deadline(
    world: World, end: str
) -> None:
    small = replace(CPU_0, arena_bytes=5 * 64)  # room for one request
    async with (
        asyncio.timeout(WAIT_S),
        world.started(devices=(small,), startup_models=("m",)) as node,
    ):
        life = world.life
        asked = call()
        deadline_ns = asked.arrived_ns + 40 * NS_PER_MS
        with pytest.raises(DeadlineMissed, match="cpu:0 gave no answer until the d") as missed:
            await node.infer(replace(asked, deadline_ns=deadline_ns))
        assert monotonic_ns() >= deadline_ns + GRACE_NS
        assert missed.value.facts == {"deadline_ms": "40.000", "model": "m", "version": "1"}
        (cancel,) = await life.wait_for(frames.Cancel)
        assert node.requests_in_flight == 1, "a kernel may still write to its memory"
        with pytest.raises(QueueFull, match="no memory for the tensors"):
            await node.infer(call())
        if end == "told late":
            life.finish(cancel.request_id, outcome=Outcome(OutcomeKind.CANCELLED))
        else:
            life.end("signal SIGKILL")
        await node.drain()
        assert len([s for each in world.device.lives for s in each.of(frames.Submit)]) == 1


async def test_a_finish_that_crosses_it_releases_once() -> None:
    device = FakeDevice()
    link = DeviceLink(CPU_0, LinkSettings(), (), monotonic_ns, device.spawn)
    async with asyncio.timeout(WAIT_S):
        await link.wait_started()
        future = link.submit(submit(1, monotonic_ns()))
        (frame,) = await device.life.wait_for(frames.Submit)
        with pytest.raises(RequestOverdue):
            await future
        again = link.submit(submit(2, monotonic_ns() + LATE_NS))
        device.life.finish(frame.request_id)
        device.life.finish((await device.life.wait_for(frames.Submit, 2))[1].request_id)
        assert (await again).request_id == 2
        assert link.is_alive, "nobody was killed for a finish nobody waits for"
        assert link.requests_in_flight == 0
        await link.stop()


async def test_each_is_told_once_and_what_ended_never() -> None:
    told: asyncio.Queue[int] = asyncio.Queue()
    overdue = Overdue(monotonic_ns, lambda request: told.put_nowait(request.request_id))
    now_ns = monotonic_ns()
    for number, deadline_ns in enumerate(
        [None, now_ns + LATE_NS, now_ns + SOON_NS, now_ns, now_ns - NS_PER_S, now_ns + LATE_NS]
    ):
        overdue.add(submit(number, deadline_ns))
    overdue.discard(3)
    async with asyncio.timeout(WAIT_S):
        assert {await told.get(), await told.get()} == {2, 4}
    overdue.add(submit(6, monotonic_ns() + SOON_NS))  # sooner than what is waited for
    async with asyncio.timeout(WAIT_S):
        assert await told.get() == 6
    overdue.close()
    assert told.empty()
