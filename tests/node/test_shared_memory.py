"""Tensors in shared memory, with a node and fake children: whose region, which bytes, how long."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gpumuxd.errors import (
    GpumuxdError,
    InvalidRequest,
    ModelNotReady,
    QuotaExceeded,
    RegionExists,
    UnknownRegion,
    Unsupported,
)
from gpumuxd.models.spec import Symbol, TensorSpec
from gpumuxd.node.api import InferCall, InferReply, InputTensor, RegionRef, Tenant
from gpumuxd.node.node import Node
from gpumuxd.node.settings import SharedMemorySettings, TenantSettings
from gpumuxd.node.shared_memory import finished
from gpumuxd.wire import frames
from tests.node.fakes import SPEC, WAIT_S, call, int32
from tests.node.shm import Objects, objects, open_objects
from tests.node.world import ADMIN, INDEX, TENANTS, VOICE, World

ON = SharedMemorySettings(is_allowed=True)
FAR = 2**63 - 1


@pytest.fixture
def shm() -> Iterator[Objects]:
    with objects() as made:
        yield made


@asynccontextmanager
async def serving(world: World, **changes: object) -> AsyncIterator[Node]:
    settings: dict[str, object] = {"shared_memory": ON, "tenants": TENANTS, **changes}
    async with (
        asyncio.timeout(WAIT_S),
        world.started(startup_models=("m",), **settings) as node,
    ):
        yield node
        node.shared_memory.keep(())
        await closed()


async def closed() -> None:
    """Returns when nothing of shared memory is open: threads close, so it may take a turn."""
    while open_objects():
        await asyncio.to_thread(os.sched_yield)


async def register(
    node: Node, name: str, path: Path, offset: int = 0, tenant: Tenant = ADMIN
) -> None:
    size_bytes = os.stat(path).st_size - offset
    await node.shared_memory.register(tenant, name, path.name, offset, size_bytes)


def from_region(
    name: str, offset: int = 0, size_bytes: int = 8, tenant: Tenant = ADMIN, **outputs: RegionRef
) -> InferCall:
    """One row whose input lies there."""
    given = InputTensor("x", "INT32", (1, 2), b"", RegionRef(name, offset, size_bytes))
    return replace(call(tenant=tenant), inputs=[given], output_regions=outputs)


def start(node: Node, asked: InferCall) -> "asyncio.Task[InferReply]":
    return asyncio.ensure_future(node.infer(asked))


async def submitted(world: World, count: int = 1) -> frames.Submit:
    return (await world.life.wait_for(frames.Submit, count))[-1]


class Busy:
    """Keeps the threads of a tenant, so that what they are to do waits."""

    def __init__(self, node: Node, tenant: Tenant = ADMIN) -> None:
        self._free = threading.Event()
        workers = node.shared_memory._spaces[tenant.name].workers
        begun = threading.Barrier(workers._max_workers + 1)

        def wait() -> None:
            begun.wait()
            self._free.wait()

        for _ in range(workers._max_workers):
            workers.submit(wait)
        begun.wait()

    def end(self) -> None:
        self._free.set()


# What is copied


async def test_tensors_are_read_from_and_written_to_their_places(
    world: World, shm: Objects
) -> None:
    async with serving(world) as node:
        given, taken = shm.make(b"...." + int32(3, 4)), shm.make(b"." * 12)
        await register(node, "in", given)
        await register(node, "out", taken, offset=1)
        asked = from_region("in", 4, y=RegionRef("out", 2, 9))
        task = start(node, asked)
        submit = await submitted(world)
        assert world.life.input(submit) == int32(3, 4)
        world.life.finish(submit.request_id, [int32(5, 6), bytes(8)])
        y, n = (await task).outputs
        assert (y.data, y.region) == (b"", RegionRef("out", 2, 8))
        assert (n.data, n.region) == (bytes(8), None)
        assert taken.read_bytes() == b"..." + int32(5, 6) + b"."
        assert given.read_bytes() == b"...." + int32(3, 4)


async def test_an_input_and_an_output_may_overlap(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        path = shm.make(int32(1, 2, 3))
        await register(node, "r", path)
        await register(node, "same", path, offset=4)
        task = start(node, from_region("r", y=RegionRef("same", 0, 8)))
        submit = await submitted(world)
        assert world.life.input(submit) == int32(1, 2)
        world.life.finish(submit.request_id, [int32(7, 8), bytes(8)])
        await task
        assert path.read_bytes() == int32(1, 7, 8)


async def test_an_empty_tensor_lies_anywhere_in_a_region(world: World, shm: Objects) -> None:
    world.loader.spec = msgspec.structs.replace(SPEC, symbols=(Symbol("batch", 0, 8),))
    async with serving(world) as node:
        path = shm.make(bytes(4))
        await register(node, "r", path)
        given = InputTensor("x", "INT32", (0, 2), b"", RegionRef("r", 4, 0))
        outputs = {"y": RegionRef("r", 4, 0), "n": RegionRef("r", 0, 0)}
        task = start(node, replace(call(tenant=ADMIN), inputs=[given], output_regions=outputs))
        world.life.finish((await submitted(world)).request_id, [b"", b""])
        assert [output.shape for output in (await task).outputs] == [(0, 2), (0,)]
        assert path.read_bytes() == bytes(4)


async def test_bools_are_looked_at_when_they_have_been_read(world: World, shm: Objects) -> None:
    flags = TensorSpec("x", "BOOL", (("batch",), 2))
    world.loader.spec = msgspec.structs.replace(SPEC, inputs=(flags,))
    async with serving(world) as node:
        await register(node, "r", shm.make(b"\1\0\2"))
        for offset, is_good in ((0, True), (1, False)):
            given = InputTensor("x", "BOOL", (1, 2), b"", RegionRef("r", offset, 2))
            task = start(node, replace(call(tenant=ADMIN), inputs=[given]))
            if is_good:
                world.life.finish((await submitted(world)).request_id)
                await task
            else:
                with pytest.raises(InvalidRequest, match="'x': expected BOOL bytes of 0 or 1"):
                    await task
        assert len(world.life.of(frames.Submit)) == 1


# What is refused


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        (from_region("nobody"), UnknownRegion, "no region 'nobody'"),
        (from_region("r", tenant=VOICE), UnknownRegion, "tenant 'voice' has no region 'r'"),
        (from_region("r", 0, 4), InvalidRequest, "expected 8 bytes .* got 4"),
        (from_region("r", 0, 12), InvalidRequest, "expected 8 bytes .* got 12"),
        (from_region("r", 9), InvalidRequest, "has 16 bytes, the request names 8 bytes at 9"),
        (from_region("r", FAR), InvalidRequest, f"names 8 bytes at {FAR}"),
        (from_region("r", 2**64 - 1, 2**64 - 1), InvalidRequest, "has 16 bytes"),
        (from_region("r", -1), InvalidRequest, "of 0 or more, got 8 bytes at -1"),
        (from_region("r", 0, -8), InvalidRequest, "of 0 or more, got -8 bytes"),
        (from_region("r", y=RegionRef("r", 0, 7)), InvalidRequest, "takes 8 bytes.*room for 7"),
        (from_region("r", y=RegionRef("r", 9, 8)), InvalidRequest, "names 8 bytes at 9"),
        (from_region("r", y=RegionRef("s", 0, 8)), UnknownRegion, "no region 's'"),
        (from_region("r", z=RegionRef("r", 0, 8)), InvalidRequest, "'z' .* not asked for"),
    ],
)
async def test_a_place_that_is_not_there_or_does_not_fit(
    world: World, shm: Objects, asked: InferCall, error: type[GpumuxdError], told: str
) -> None:
    async with serving(world) as node:
        path = shm.make(bytes(16))
        await register(node, "r", path)
        with pytest.raises(error, match=told):
            await node.infer(asked)
        assert not world.life.of(frames.Submit)
        assert node.requests_in_flight == 0
        task = start(node, from_region("r", 8, y=RegionRef("r", 8, 8)))  # the next one is served
        world.life.finish((await submitted(world)).request_id)
        await task


async def test_nothing_is_taken_where_it_is_off(world: World, shm: Objects) -> None:
    async with serving(world, shared_memory=SharedMemorySettings()) as node:
        memory, path = node.shared_memory, shm.make(bytes(8))
        assert not memory.is_allowed
        with pytest.raises(Unsupported, match=r"allow = true in \[shared_memory\]"):
            await register(node, "r", path)
        for refused in (memory.regions, memory.unregister):
            with pytest.raises(Unsupported):
                refused(ADMIN, "")
        with pytest.raises(Unsupported):
            await node.infer(from_region("r"))


async def test_bytes_in_regions_count_as_bytes_of_the_tenant(world: World, shm: Objects) -> None:
    few = replace(TENANTS[0], bytes_in_flight_max=7)
    async with serving(world, tenants=(few,)) as node:
        await register(node, "r", shm.make(bytes(8)))
        with pytest.raises(QuotaExceeded, match="asks for 8 more; its bytes_in_flight_max is 7"):
            await node.infer(from_region("r"))


# Whose


async def test_each_tenant_has_its_own_names_and_its_own_users(world: World, shm: Objects) -> None:
    nobodys = TenantSettings(INDEX, shared_memory_uids=())
    async with serving(world, tenants=(*TENANTS[:2], nobodys)) as node:
        path = shm.make(bytes(8))
        await register(node, "r", path)
        await register(node, "r", path, offset=4, tenant=VOICE)
        with pytest.raises(UnknownRegion, match="no shared memory object"):
            await register(node, "r", path, tenant=INDEX)
        node.shared_memory.unregister(VOICE, "")
        assert [region.offset for region in node.shared_memory.regions(ADMIN, "")] == [0]
        assert node.shared_memory.regions(VOICE, "") == ()


async def test_regions_of_a_tenant_that_is_gone_go_with_it(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        await register(node, "r", shm.make(bytes(8)), tenant=VOICE)
        node.apply(replace(world.settings, tenants=TENANTS[:1]))
        await closed()


# Limits


async def test_regions_are_counted_and_files_come_back(world: World, shm: Objects) -> None:
    few = SharedMemorySettings(is_allowed=True, regions_max=3, region_bytes_max=100)
    async with serving(world, shared_memory=few) as node:
        path = shm.make(bytes(60))
        await register(node, "a", path)
        with pytest.raises(QuotaExceeded, match="regions_mib_max allows 100") as caught:
            await register(node, "b", path)
        assert caught.value.facts["limit"] == "regions_mib_max"
        await register(node, "b", path, offset=52)
        await register(node, "c", path, offset=52)
        assert len(open_objects()) == 3
        with pytest.raises(QuotaExceeded, match="regions_max allows 3"):
            await register(node, "d", path, offset=59)
        # One that is unregistered counts while it is in use.
        task = start(node, from_region("b"))
        submit = await submitted(world)
        node.shared_memory.unregister(ADMIN, "b")
        with pytest.raises(QuotaExceeded, match="regions_max allows 3"):
            await register(node, "d", path, offset=52)
        world.life.finish(submit.request_id)
        await task
        await register(node, "d", path, offset=52)
        node.shared_memory.unregister(ADMIN, "")
        await closed()
        for _ in range(3):  # refusals took nothing
            with pytest.raises(InvalidRequest):
                await node.shared_memory.register(ADMIN, "a", path.name, 50, 50)
        await register(node, "a", path)


async def test_of_two_that_register_one_name_at_once_one_has_it(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        path = shm.make(bytes(8))
        calls = [register(node, "r", path) for _ in range(5)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(end is None for end in ends) == 1
        assert sum(isinstance(end, RegionExists) for end in ends) == 4
        while len(open_objects()) > 1:
            await asyncio.to_thread(os.sched_yield)


async def test_who_leaves_while_a_file_is_opened_leaves_nothing(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        path = shm.make(bytes(8))
        await register(node, "first", path)
        busy = Busy(node)
        task = asyncio.ensure_future(register(node, "r", path))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # also who is impatient
        busy.end()
        with pytest.raises(asyncio.CancelledError):
            await task
        while len(open_objects()) > 1:
            await asyncio.to_thread(os.sched_yield)
        assert [region.name for region in node.shared_memory.regions(ADMIN, "")] == ["first"]


# In flight


async def test_a_request_keeps_the_region_that_it_named(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        old, new = shm.make(int32(1, 2)), shm.make(int32(3, 4))
        before = old.open("rb")
        await register(node, "r", old)
        old.unlink()
        busy = Busy(node)
        asked = from_region("r", y=RegionRef("r", 0, 8))
        task = start(node, asked)
        await asyncio.sleep(0)
        node.shared_memory.unregister(ADMIN, "r")
        registering = asyncio.ensure_future(register(node, "r", new))
        busy.end()
        await registering
        submit = await submitted(world)
        assert world.life.input(submit) == int32(1, 2)
        world.life.finish(submit.request_id, [int32(5, 6), bytes(8)])
        await task
        with before:
            assert before.read() == int32(5, 6)
        assert new.read_bytes() == int32(3, 4)
        task = start(node, asked)
        submit = await submitted(world, 2)
        assert world.life.input(submit) == int32(3, 4)
        world.life.finish(submit.request_id, [int32(7, 8), bytes(8)])
        await task
        assert new.read_bytes() == int32(7, 8)


async def test_an_object_that_shrinks_under_a_request(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        path = shm.make(bytes(16))
        await register(node, "r", path)
        asked = from_region("r", 8, y=RegionRef("r", 8, 8))
        task = start(node, asked)
        submit = await submitted(world)
        os.truncate(path, 12)
        world.life.finish(submit.request_id, [int32(1, 2), bytes(8)])
        with pytest.raises(InvalidRequest, match="'y': expected room for 8 bytes at 8"):
            await task
        assert path.read_bytes() == bytes(12)
        with pytest.raises(InvalidRequest, match="'x': expected 8 bytes, the object ends after 4"):
            await node.infer(asked)
        assert len(world.life.of(frames.Submit)) == 1
        assert node.requests_in_flight == 0


async def test_who_is_cancelled_waits_for_a_thread_that_has_begun() -> None:
    has_begun, may_end, ends = threading.Event(), threading.Event(), []

    def work() -> None:
        has_begun.set()
        may_end.wait()
        ends.append("work")

    with ThreadPoolExecutor(1) as workers:
        running = asyncio.ensure_future(finished(workers.submit(work)))
        queued = asyncio.ensure_future(finished(workers.submit(ends.append, "never")))
        await asyncio.to_thread(has_begun.wait)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        for _ in range(3):
            running.cancel()  # once is enough, and more are no worse
            await asyncio.sleep(0)
        assert not running.done(), "it may be writing to memory that is released then"
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert ends == ["work"]


async def test_who_is_cancelled_before_inputs_are_read_is_never_sent(
    world: World, shm: Objects
) -> None:
    async with serving(world) as node:
        await register(node, "r", shm.make(int32(1, 2)))
        busy = Busy(node)
        task = start(node, from_region("r"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy.end()
        assert node.requests_in_flight == 0
        assert not world.life.of(frames.Submit)


async def test_who_is_cancelled_before_outputs_are_written_has_nothing_written(
    world: World, shm: Objects
) -> None:
    async with serving(world) as node:
        path = shm.make(int32(1, 2))
        await register(node, "r", path)
        task = start(node, from_region("r", y=RegionRef("r", 0, 8)))
        submit = await submitted(world)
        busy = Busy(node)
        world.life.finish(submit.request_id, [int32(9, 9), bytes(8)])
        workers = node.shared_memory._spaces[ADMIN.name].workers
        while not workers._work_queue.qsize():
            await asyncio.to_thread(os.sched_yield)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy.end()
        node.shared_memory.unregister(ADMIN, "r")
        await closed()
        assert path.read_bytes() == int32(1, 2)
        assert node.requests_in_flight == 0


async def test_who_is_cancelled_before_the_end_has_nothing_written(
    world: World, shm: Objects
) -> None:
    async with serving(world) as node:
        path = shm.make(int32(1, 2))
        await register(node, "r", path)
        task = start(node, from_region("r", y=RegionRef("r", 0, 8)))
        submit = await submitted(world)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        world.life.finish(submit.request_id, [int32(9, 9), bytes(8)])
        node.shared_memory.unregister(ADMIN, "r")
        await closed()
        assert path.read_bytes() == int32(1, 2)


async def test_a_model_that_goes_while_inputs_are_read_is_looked_for_again(
    world: World, shm: Objects
) -> None:
    async with serving(world) as node:
        await register(node, "r", shm.make(int32(1, 2)))
        busy = Busy(node)
        task = start(node, from_region("r"))
        await asyncio.sleep(0)
        await node.unload(ADMIN, "m")
        busy.end()
        with pytest.raises(ModelNotReady):
            await task
        assert not world.life.of(frames.Submit)


async def test_who_is_sent_again_reads_again(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        path = shm.make(int32(1, 2))
        await register(node, "r", path)
        task = start(node, from_region("r"))
        await submitted(world)
        path.write_bytes(int32(3, 4))
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        (submit,) = await life.wait_for(frames.Submit)
        assert life.input(submit) == int32(3, 4)
        life.finish(submit.request_id)
        assert (await task).replays == 1


async def test_a_device_that_ends_while_inputs_are_read(world: World, shm: Objects) -> None:
    async with serving(world) as node:
        await register(node, "r", shm.make(int32(1, 2)))
        busy = Busy(node)
        task = start(node, from_region("r"))
        await asyncio.sleep(0)
        world.life.end("signal SIGKILL")
        life = await world.device.wait_lives(2)
        busy.end()
        (submit,) = await life.wait_for(frames.Submit)
        assert life.input(submit) == int32(1, 2)
        life.finish(submit.request_id)
        await task
