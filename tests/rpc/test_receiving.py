"""Places for messages that are being received: who waits, who is refused, what is given back."""

import asyncio
from pathlib import Path

import grpc
import pytest

from gpumuxd.errors import QuotaExceeded
from gpumuxd.rpc import receiving
from gpumuxd.rpc.connections import WINDOW_BYTES, ConnectionLimits
from gpumuxd.rpc.listener import Listener
from gpumuxd.rpc.receiving import Receiving
from gpumuxd.rpc.server import FrontDoor
from tests.rpc import http2
from tests.rpc.fake_node import ADMIN, CAMERA, FakeTenants, fake_node
from tests.rpc.front import INFER, good_request, infer

MESSAGE_BYTES_MAX = 4 * WINDOW_BYTES


class Call:
    """A call that takes a place, and keeps it until its message is here."""

    def __init__(self, places: Receiving, tenant: str = "a") -> None:
        self._places = places
        self._tenant = tenant
        self.has_place = asyncio.Event()
        self.is_here = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self._places.wait(self._tenant)
        self.has_place.set()
        await self.is_here.wait()
        task = asyncio.current_task()
        assert task is not None
        self._places.received(task)


async def settle() -> None:
    """Everything that can go on without news does."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_go_round_in_the_order_of_those_who_wait() -> None:
    places = Receiving(bytes_max=2, message_bytes_max=1)
    calls = [Call(places) for _ in range(4)]
    await settle()
    assert [call.has_place.is_set() for call in calls] == [True, True, False, False]
    calls[1].is_here.set()
    await settle()
    assert [call.has_place.is_set() for call in calls] == [True, True, True, False]
    for call in calls:
        call.is_here.set()
    await asyncio.gather(*(call.task for call in calls))


async def test_the_places_of_one_tenant_are_no_others() -> None:
    places = Receiving(bytes_max=1, message_bytes_max=1)
    first, other = Call(places, "a"), Call(places, "b")
    await settle()
    assert first.has_place.is_set()
    assert other.has_place.is_set()
    for call in (first, other):
        call.is_here.set()
        await call.task


async def test_there_is_one_place_at_least() -> None:
    places = Receiving(bytes_max=1, message_bytes_max=1000)
    call = Call(places)
    await call.has_place.wait()
    call.is_here.set()
    await call.task


@pytest.mark.parametrize("is_its_turn", [False, True])
async def test_who_goes_while_it_waits_leaves_its_place_to_the_next(is_its_turn: bool) -> None:
    places = Receiving(bytes_max=1, message_bytes_max=1)
    first, gone, last = (Call(places) for _ in range(3))
    await settle()
    if is_its_turn:  # told so, and gone before it could run
        first.is_here.set()
        await first.task
    gone.task.cancel()
    await settle()
    assert gone.task.cancelled()
    assert last.has_place.is_set() == is_its_turn
    for call in (first, last):
        call.is_here.set()
        await call.task


async def test_a_call_that_ends_without_a_message_gives_its_place_back() -> None:
    places = Receiving(bytes_max=1, message_bytes_max=1)
    first, second = Call(places), Call(places)
    await settle()
    first.task.cancel()
    await second.has_place.wait()
    second.is_here.set()
    await second.task


async def test_who_waits_for_too_long_is_refused_with_the_numbers() -> None:
    places = Receiving(bytes_max=1, message_bytes_max=1, wait_s=0.01)
    first, second = Call(places), Call(places)
    with pytest.raises(QuotaExceeded, match=r"none of them came in 0\.01 s") as refused:
        await second.task
    assert refused.value.facts["limit"] == "receiving_mib_max"
    assert refused.value.retry_delay_ns
    first.is_here.set()
    await first.task
    again = Call(places)
    await again.has_place.wait()
    again.is_here.set()
    await again.task


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "WAITING_MAX", 1)
    places = Receiving(bytes_max=1, message_bytes_max=1)
    calls = [Call(places) for _ in range(2)]
    await settle()
    with pytest.raises(QuotaExceeded, match="1 more calls wait"):
        await places.wait("a")
    for call in calls:
        call.is_here.set()
        await call.task


async def test_what_is_not_received_stays_with_its_sender_and_harms_no_other_tenant(
    tmp_path: Path,
) -> None:
    """One place a tenant: of two large messages the second is sent when the first is here."""
    listeners = (Listener("127.0.0.1:0", CAMERA), Listener(f"unix:{tmp_path}/admin.sock", ADMIN))
    limits = ConnectionLimits(receiving_bytes_max=MESSAGE_BYTES_MAX)
    door = FrontDoor(fake_node(), listeners, FakeTenants(), MESSAGE_BYTES_MAX, limits=limits)
    await door.start()
    message = bytes(MESSAGE_BYTES_MAX)  # of no meaning: it is refused once it is here

    def stall(port: int) -> http2.Sender:
        sender = http2.Sender(http2.connect(port), INFER)
        sender.begin(1, message)
        sender.send_until_left(1, MESSAGE_BYTES_MAX - 1)  # its call has the place
        sender.begin(3, message)
        sender.send_until_left(1, 1)
        return sender

    try:
        port = int(door.addresses[0].rpartition(":")[2])
        sender = await asyncio.to_thread(stall, port)
        try:
            assert sender.sent[1] == MESSAGE_BYTES_MAX + 5 - 1
            assert sender.sent[3] <= WINDOW_BYTES
            async with grpc.aio.insecure_channel(door.addresses[1]) as channel:
                assert (await infer(channel, good_request())).id == "42"
            await asyncio.to_thread(sender.wait_answer, 1)
            await asyncio.to_thread(sender.wait_answer, 3)
            assert sender.sent[3] == MESSAGE_BYTES_MAX + 5
        finally:
            sender.close()
    finally:
        await door.stop(0)


async def test_a_call_that_ends_before_its_message_is_told_so() -> None:
    door = FrontDoor(fake_node(), (Listener("127.0.0.1:0"),), FakeTenants(), MESSAGE_BYTES_MAX)
    await door.start()
    try:
        async with grpc.aio.insecure_channel(door.addresses[0]) as channel:
            live: grpc.aio.StreamUnaryMultiCallable[bytes, bytes]
            live = channel.stream_unary("/inference.GRPCInferenceService/ServerLive")
            call = live(timeout=10)
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError, match="ended without a message"):
                await call
    finally:
        await door.stop(0)
