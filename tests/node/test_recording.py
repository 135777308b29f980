"""A recording in the parent: who gets one, what ends it, and that nothing of it stays open."""

import asyncio
import os
from collections.abc import AsyncGenerator

import pytest

from gpumuxd.errors import DeviceLost, Draining, InvalidRequest, PermissionDenied, WrongMode
from gpumuxd.node.api import RecordingEnd
from gpumuxd.node.node import Node
from gpumuxd.node.recording import PART_BYTES, Recording
from gpumuxd.units import MIB, NS_PER_S
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S
from tests.node.world import ADMIN, CPU_0, CPU_1, VOICE, World

Parts = AsyncGenerator[bytes | RecordingEnd, None]
ENDED = frames.RecordingEnded("as it was told to", 7, 8)


def record(node: Node, device: str = "", duration_ns: int = 60 * NS_PER_S) -> Parts:
    return node.record(ADMIN, device, duration_ns, MIB)


async def begin(world: World, parts: Parts) -> "asyncio.Task[bytes | RecordingEnd]":
    """Wait until the child was told, and until then for the first part."""
    first = asyncio.ensure_future(anext(parts))
    await world.life.wait_for(frames.StartRecording)
    return first


async def test_its_time_ends_it(world: World) -> None:
    async with world.started() as node, asyncio.timeout(WAIT_S):
        first = await begin(world, record(node, duration_ns=NS_PER_S // 100))
        await world.life.wait_for(frames.StopRecording)
        world.life.send(ENDED)
        assert await first == RecordingEnd("as it was told to", 7, 8, is_whole=True)


async def test_a_drain_ends_it_and_there_is_no_other(world: World) -> None:
    async with world.started() as node, asyncio.timeout(WAIT_S):
        first = await begin(world, record(node))
        await node.drain()
        await world.life.wait_for(frames.StopRecording)
        world.life.send(ENDED)
        assert isinstance(await first, RecordingEnd)
        with pytest.raises(Draining):
            await anext(record(node))


async def test_one_at_a_time(world: World) -> None:
    async with world.started() as node, asyncio.timeout(WAIT_S):
        first = await begin(world, record(node))
        with pytest.raises(WrongMode, match="goes on already"):
            await anext(record(node))
        world.life.send(ENDED)
        await first
        second = await begin(world, record(node))
        await world.life.wait_for(frames.StartRecording, 2)
        world.life.send(ENDED)
        assert isinstance(await second, RecordingEnd)


async def test_whoever_leaves_ends_it(world: World) -> None:
    async with world.started() as node, asyncio.timeout(WAIT_S):
        first = await begin(world, record(node))
        first.cancel()
        await world.life.wait_for(frames.StopRecording)
        world.life.send(ENDED)


async def test_a_lost_device_ends_it_and_says_so(world: World) -> None:
    async with world.started() as node, asyncio.timeout(WAIT_S):
        first = await begin(world, record(node))
        world.life.end("signal SIGSEGV")
        end = await first
        assert isinstance(end, RecordingEnd)
        assert not end.is_whole
        assert "SIGSEGV" in end.reason


async def test_one_that_did_not_begin_is_refused_with_the_childs_reason(world: World) -> None:
    async with world.started() as node, asyncio.timeout(WAIT_S):
        first = await begin(world, record(node))
        world.life.send(frames.RecordingEnded("no room", 0, 0, has_begun=False))
        with pytest.raises(InvalidRequest, match="no room"):
            await first


async def test_who_may_and_where(world: World) -> None:
    async with world.started(devices=(CPU_0, CPU_1)) as node:
        with pytest.raises(PermissionDenied, match="'voice' is not an admin"):
            node.record(VOICE, "cpu:0", NS_PER_S, MIB)
        for name in ("", "cpu:2"):
            with pytest.raises(InvalidRequest, match="a device of cpu:0, cpu:1"):
                record(node, name)
        with pytest.raises(InvalidRequest, match="bytes"):
            node.record(ADMIN, "cpu:0", NS_PER_S, 1)
        with pytest.raises(InvalidRequest, match=r"0\.01 to 3600 s"):
            node.record(ADMIN, "cpu:0", 1, MIB)


async def test_a_device_that_is_not_up_has_none(world: World) -> None:
    async with world.started() as node, asyncio.timeout(WAIT_S):
        world.device.answers_start = False
        lost = world.life
        lost.end("signal SIGKILL")
        await world.device.wait_lives(2)
        with pytest.raises(DeviceLost, match="cpu:0 is not up"):
            record(node)


async def test_a_child_that_went_wrong_can_not_take_more_memory_than_was_asked_for() -> None:
    recording = Recording(2 * PART_BYTES, lambda: None)
    childs = os.dup(recording.fd)  # what a child gets: the same open file
    parts = recording.parts(60 * NS_PER_S)
    async with asyncio.timeout(WAIT_S):
        assert os.write(childs, b"begin") == 5
        assert await anext(parts) == b"begin"
        os.write(childs, bytes(2 * PART_BYTES - 5))
        with pytest.raises(PermissionError):
            os.write(childs, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(childs, 4 * PART_BYTES)
        os.lseek(childs, 1 << 40, os.SEEK_SET)
        recording.end(ENDED)
        rest = [part async for part in parts]
    assert [len(part) for part in rest[:-1] if isinstance(part, bytes)] == [
        PART_BYTES,
        PART_BYTES - 5,
    ]
    assert rest[-1] == RecordingEnd("as it was told to", 7, 8, is_whole=True)
    os.close(childs)
