"""ModelStreamInfer over real gRPC: order, errors, the ends of a stream, and how far it reads."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.node.api import InferCall
from gpumuxd.rpc import streams
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.generated import status_pb2
from gpumuxd.rpc.streams import REQUESTS_MAX
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import CAMERA_TOKEN, WAIT_S, Front, good_request, infer

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
BEARER = (("authorization", f"Bearer {CAMERA_TOKEN}"),)
STRICT = (("triton_grpc_error", "true"),)

Metadata = tuple[tuple[str, str], ...]


class Stream:
    """A stream of a client that says when it writes and reads."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        self.call = call

    async def ask(self, request_id: str, model: str = "identity_fp32", **fields: object) -> None:
        request = good_request(id=request_id, model_name=model, **fields)
        await self.call.write(request.SerializeToString())

    async def answer(self) -> pb.ModelStreamInferResponse:
        data = await self.call.read()
        assert isinstance(data, bytes), "the stream ended"
        return pb.ModelStreamInferResponse.FromString(data)

    async def ids(self, count: int) -> list[str]:
        return [(await self.answer()).infer_response.id for _ in range(count)]

    async def end(self) -> tuple[str, str]:
        """Status and text, when no more answers come."""
        try:
            while await self.call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as refused:
            return refused.code().name, refused.details() or ""
        raise AssertionError("the stream ended well")

    async def ends_well(self) -> bool:
        is_over = await self.call.read() is grpc.aio.EOF
        return is_over and await self.call.code() is grpc.StatusCode.OK


@asynccontextmanager
async def opened(
    channel: grpc.aio.Channel, metadata: Metadata = (), timeout_s: float = WAIT_S
) -> AsyncIterator[Stream]:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(PATH)
    call = method(timeout=timeout_s, metadata=metadata)
    try:
        yield Stream(call)
    finally:
        call.cancel()


class Gate:
    """Keeps the inferences of a fake node waiting, each until it is let go by its place in order
    of arrival; counts those that were cancelled."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.cancelled = 0
        self._events: list[asyncio.Event] = []
        self._changed = asyncio.Event()
        node.before_reply = self._wait

    async def _wait(self, call: InferCall) -> None:
        event = asyncio.Event()
        self._events.append(event)
        self._changed.set()
        try:
            await event.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self._changed.set()
            raise

    def let_go(self, *places: int) -> None:
        for place in places:
            self._events[place].set()

    @property
    def count(self) -> int:
        return len(self._events)

    async def wait_until(self, is_so: Callable[["Gate"], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_so(self):
                self._changed.clear()
                await self._changed.wait()


async def settled() -> None:
    """What the loop and gRPC's thread can do without news from outside is done."""
    for _ in range(50):
        await asyncio.to_thread(lambda: None)


# Answers


async def test_every_request_is_answered_in_order(channel: grpc.aio.Channel) -> None:
    async with opened(channel) as stream:
        await stream.ask("a")
        answer = await stream.answer()
        assert not answer.error_message
        response = answer.infer_response
        assert (response.id, response.model_name, response.model_version) == (
            "a",
            "identity_fp32",
            "1",
        )
        assert response.raw_output_contents == [bytes(range(16))]
        assert response.parameters["triton_final_response"].bool_param
        assert response.parameters["queue_ns"].int64_param == 11
        for name in "bcd":
            await stream.ask(name)
        assert await stream.ids(3) == ["b", "c", "d"]
        await stream.call.done_writing()
        assert await stream.ends_well()


async def test_answers_of_any_size_are_framed_rightly(channel: grpc.aio.Channel) -> None:
    async with opened(channel) as stream:
        for length in (0, 1, 90, 100, 110, 5_000, 100_000):
            await stream.ask("x" * length)
            response = (await stream.answer()).infer_response
            assert (response.id, list(response.raw_output_contents)) == (
                "x" * length,
                [bytes(range(16))],
            )
            assert response.parameters["triton_final_response"].bool_param


async def test_requests_run_at_the_same_time_and_answers_keep_their_order(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    gate = Gate(node)
    async with opened(channel) as stream:
        for name in "abc":
            await stream.ask(name)
        await gate.wait_until(lambda gate: gate.count == 3)
        gate.let_go(2, 1)
        await settled()
        gate.let_go(0)
        assert await stream.ids(3) == ["a", "b", "c"]


async def test_the_final_response_may_be_asked_to_be_empty(channel: grpc.aio.Channel) -> None:
    request = good_request()
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    async with opened(channel) as stream:
        await stream.call.write(request.SerializeToString())
        await stream.call.done_writing()
        assert (await stream.answer()).infer_response.raw_output_contents
        assert await stream.ends_well()  # no other answer comes


# Errors


async def test_an_error_is_told_in_its_place_and_the_stream_goes_on(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    async with opened(channel) as stream:
        await stream.ask("a")
        await stream.ask("b", "nobody")
        await stream.ask("c", raw_input_contents=[b"short"])
        await stream.call.write(b"\x0a\xff")
        await stream.ask("e")
        answers = [await stream.answer() for _ in range(5)]
        assert [answer.infer_response.id for answer in answers] == ["a", "b", "c", "", "e"]
        told = [answer.error_message for answer in answers]
        assert told[0] == told[4] == ""
        assert "'nobody'" in told[1]
        assert "expected 16 bytes" in told[2]
        assert "not a well-formed" in told[3]
        parameters = answers[1].infer_response.parameters
        assert parameters["triton_final_response"].bool_param
        assert parameters["error_status"].string_param == "NOT_FOUND"
        assert parameters["error_reason"].string_param == "UnknownModel"
        details = base64.b64decode(parameters["error_details"].string_param)
        assert status_pb2.Status.FromString(details).message == told[1]
        await stream.call.done_writing()
        assert await stream.ends_well()
    assert len(node.calls) == 3


async def test_a_bug_is_told_without_its_text(channel: grpc.aio.Channel, node: FakeNode) -> None:
    def fail(call: InferCall) -> None:
        raise ValueError("a path of ours")

    node.before_reply = fail
    async with opened(channel) as stream:
        await stream.ask("a")
        answer = await stream.answer()
        assert (answer.error_message, answer.infer_response.id) == ("internal error", "a")


async def test_a_node_that_cancels_by_itself_leaves_nobody_waiting(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    def cancel(call: InferCall) -> None:
        raise asyncio.CancelledError

    node.before_reply = cancel
    async with opened(channel) as stream:
        await stream.ask("a")
        assert (await stream.answer()).error_message == "cancelled by the daemon"


async def test_a_client_that_wants_the_status_gets_it_and_the_stream_ends(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    gate = Gate(node)
    async with opened(channel, STRICT) as stream:
        await stream.ask("a")
        await stream.ask("b", "nobody")
        await stream.ask("c")
        await gate.wait_until(lambda gate: gate.count == 2)
        gate.let_go(0)
        assert await stream.ids(1) == ["a"]  # what came before is answered
        assert await stream.end() == ("NOT_FOUND", "model 'nobody' version any is not found")
        trailing = dict(await stream.call.trailing_metadata())
        assert trailing["gpumuxd-reason"] == "UnknownModel"
        await gate.wait_until(lambda gate: gate.cancelled == 1)


# Who may


async def test_a_stream_needs_a_tenant(shared: grpc.aio.Channel, node: FakeNode) -> None:
    async with opened(shared) as stream:
        assert (await stream.end())[0] == "UNAUTHENTICATED"
    async with opened(shared, BEARER) as stream:
        await stream.ask("a")
        assert await stream.ids(1) == ["a"]
    assert [call.tenant.name for call in node.calls] == ["camera"]


async def test_a_tenant_that_is_not_known_any_more_gets_no_further(
    front: Front, shared: grpc.aio.Channel
) -> None:
    async with opened(shared, BEARER) as stream:
        await stream.ask("a")
        assert await stream.ids(1) == ["a"]
        front.tenants.tokens.clear()
        await stream.ask("b")
        assert await stream.end() == ("UNAUTHENTICATED", "the token is not known")


# Deadlines


async def test_a_timeout_counts_from_the_arrival_of_its_request(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    async with opened(channel, timeout_s=60) as stream:
        end_ns = monotonic_ns() + 60 * 10**9
        for name, timeout_us in [("a", 0), ("b", 5_000_000), ("c", 10**9)]:
            request = good_request(id=name)
            request.parameters["timeout"].int64_param = timeout_us
            await stream.call.write(request.SerializeToString())
        await stream.ids(3)
    first, second, third = node.calls
    assert first.arrived_ns < second.arrived_ns < third.arrived_ns
    assert second.deadline_ns == second.arrived_ns + 5 * 10**9
    for call in (first, third):  # the stream's own
        assert call.deadline_ns is not None
        assert abs(call.deadline_ns - end_ns) < 10 * 10**9


async def test_the_deadline_of_a_stream_ends_it_and_what_runs(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    gate = Gate(node)
    async with opened(channel, timeout_s=0.3) as stream:
        await stream.ask("a")
        assert (await stream.end())[0] == "DEADLINE_EXCEEDED"
        await gate.wait_until(lambda gate: gate.cancelled == gate.count)


# Ends


async def test_a_half_closed_stream_answers_what_it_was_asked(
    front: Front, channel: grpc.aio.Channel, node: FakeNode
) -> None:
    gate = Gate(node)
    async with opened(channel) as stream:
        await stream.ask("a")
        await stream.ask("b")
        await stream.call.done_writing()
        await gate.wait_until(lambda gate: gate.count == 2)
        gate.let_go(1, 0)
        assert await stream.ids(2) == ["a", "b"]
        assert await stream.ends_well()
    assert len(front.door._calls) == 0


async def test_a_stream_without_a_request_ends_well(channel: grpc.aio.Channel) -> None:
    async with opened(channel) as stream:
        await stream.call.done_writing()
        assert await stream.ends_well()


async def test_whoever_cancels_a_stream_cancels_all_of_it(
    front: Front, channel: grpc.aio.Channel, node: FakeNode
) -> None:
    gate = Gate(node)
    async with opened(channel) as stream:
        for name in "abc":
            await stream.ask(name)
        await gate.wait_until(lambda gate: gate.count == 3)
        stream.call.cancel()
        await gate.wait_until(lambda gate: gate.cancelled == 3)
    async with asyncio.timeout(WAIT_S):
        await front.door._calls.wait_ended(WAIT_S)
    node.before_reply = None
    assert (await infer(channel, good_request())).id == "42"


# How far it reads


async def test_no_more_is_read_than_may_wait_for_an_answer(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    gate = Gate(node)
    async with opened(channel) as stream:
        for number in range(REQUESTS_MAX + 3):
            await stream.ask(str(number))
        await gate.wait_until(lambda gate: gate.count == REQUESTS_MAX)
        await settled()
        assert gate.count == REQUESTS_MAX
        gate.let_go(1)  # done, and still not answered
        await settled()
        assert gate.count == REQUESTS_MAX
        gate.let_go(0)
        assert await stream.ids(2) == ["0", "1"]
        await gate.wait_until(lambda gate: gate.count == REQUESTS_MAX + 2)
        node.before_reply = None
        gate.let_go(*range(REQUESTS_MAX + 2))
        rest = [str(number) for number in range(2, REQUESTS_MAX + 3)]
        assert await stream.ids(len(rest)) == rest


async def test_a_tenant_has_so_many_streams_and_no_more(
    channel: grpc.aio.Channel, shared: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 2)
    async with opened(channel) as first:
        async with opened(channel) as second:
            for stream in (first, second):
                await stream.ask("a")
                await stream.ids(1)
            async with opened(channel) as third:
                status, text = await third.end()
                assert (status, text) == (
                    "RESOURCE_EXHAUSTED",
                    "tenant 'default' has 2 streams open, which is the limit",
                )
            async with opened(shared, BEARER) as other:  # of another tenant
                await other.ask("a")
                assert await other.ids(1) == ["a"]
            await second.call.done_writing()
            assert await second.ends_well()
        async with opened(channel) as fourth:
            await fourth.ask("a")
            assert await fourth.ids(1) == ["a"]


# Draining


async def test_a_daemon_that_drains_answers_what_was_asked_and_ends_its_streams(
    front: Front, channel: grpc.aio.Channel, node: FakeNode
) -> None:
    gate = Gate(node)
    async with opened(channel) as stream, opened(channel) as idle, opened(channel) as closed:
        await stream.ask("a")
        await stream.ask("b")
        await closed.ask("c")
        await closed.call.done_writing()
        await gate.wait_until(lambda gate: gate.count == 3)
        await idle.call.wait_for_connection()
        await settled()
        front.door.drain()
        status, text = await idle.end()
        assert (status, "takes nothing new" in text) == ("UNAVAILABLE", True)
        assert dict(await idle.call.trailing_metadata())["gpumuxd-reason"] == "Draining"
        gate.let_go(2, 1, 0)
        assert await stream.ids(2) == ["a", "b"]
        assert (await stream.end())[0] == "UNAVAILABLE"
        assert await closed.ids(1) == ["c"]
        assert await closed.ends_well()
        async with opened(channel) as late:
            assert (await late.end())[0] == "UNAVAILABLE"
        # Nothing holds the stop up, whatever grace it gives.
        await asyncio.wait_for(front.door.stop(grace_s=60), WAIT_S)
