"""Frames on the event loop: back-pressure, what is owed, and a peer that breaks."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gpumuxd.node.loop_channel import FRAMES_PER_TURN_MAX, LoopChannel
from gpumuxd.wire.channel import (
    Channel,
    ChannelClosed,
    ChannelError,
    ChannelFull,
    MalformedFrame,
)
from gpumuxd.wire.frames import AnyFrame, Cancel, Ping

WAIT_S = 10.0


class Ends:
    """Our end on the loop, the peer's end by hand."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.frames: list[AnyFrame] = []
        self.broken: asyncio.Future[ChannelError] = asyncio.get_running_loop().create_future()
        self.peer_socket = theirs
        self.peer = Channel(theirs)
        self.ours = LoopChannel(
            Channel(ours, outbox_frames_max=4),
            lambda frame, fds: self.frames.append(frame),
            self.broken.set_result,
        )

    def fill(self) -> int:
        """Send pings until no more is taken; how many were."""
        count = 0
        while True:
            try:
                self.ours.send(Ping(count))
            except ChannelFull:
                return count
            count += 1

    async def peer_reads(self, count: int) -> list[AnyFrame]:
        read: list[AnyFrame] = []
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WAIT_S):
            while len(read) < count:
                received = self.peer.receive()
                if received is not None:
                    read.append(received[0])
                    continue
                readable = loop.create_future()
                loop.add_reader(self.peer.fileno(), readable.set_result, None)
                await readable
                loop.remove_reader(self.peer.fileno())
        return read


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    yield ends
    ends.ours.close()
    ends.ours.close()
    ends.peer.close()


async def test_what_is_owed_to_a_full_channel_is_said_later_and_in_order(ends: Ends) -> None:
    sent = ends.fill()
    for request_id in (7, 8):
        ends.ours.owe(Cancel(request_id))
    read = await ends.peer_reads(sent + 2)
    assert read == [*(Ping(n) for n in range(sent)), Cancel(7), Cancel(8)]
    ends.ours.send(Ping(99))
    assert await ends.peer_reads(1) == [Ping(99)]


async def test_a_flood_is_read_in_parts_and_all_of_it_at_the_end(ends: Ends) -> None:
    count = 2 * FRAMES_PER_TURN_MAX + 1
    for number in range(count):
        ends.peer.send(Ping(number))
    ends.ours.read()
    assert len(ends.frames) == FRAMES_PER_TURN_MAX
    ends.ours.read_all()
    assert ends.frames == [Ping(number) for number in range(count)]


async def test_an_end_is_told_once_and_after_all_that_was_said(ends: Ends) -> None:
    ends.peer.send(Ping(1))
    ends.peer.close()
    async with asyncio.timeout(WAIT_S):
        assert isinstance(await ends.broken, ChannelClosed)
    assert ends.frames == [Ping(1)]
    ends.ours.read()
    ends.ours.read_all()
    with pytest.raises(ChannelClosed):
        ends.ours.send(Ping(2))
    ends.ours.owe(Ping(3))


async def test_what_is_no_frame_ends_the_reading(ends: Ends) -> None:
    ends.peer_socket.send(b"\xff")
    ends.peer.send(Ping(1))
    async with asyncio.timeout(WAIT_S):
        assert isinstance(await ends.broken, MalformedFrame)
    assert ends.frames == []
