"""One call from bytes to bytes: who asks, what it says, the answer or the status.

Every method of every service goes through `bind`, so that no exception text, no forgotten
cancellation and no unauthenticated call gets past it. It must not know what any method does.

Messages are parsed here and not by gRPC: the moment of arrival then comes before the parsing, and
a malformed message is the client's error and not ours.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import GpumuxdError, InvalidRequest
from gpumuxd.node.api import Tenant
from gpumuxd.rpc.identity import Identify, IdentifyPeer, Metadata
from gpumuxd.rpc.receiving import Receiving
from gpumuxd.rpc.status import failure_of

RequestT = TypeVar("RequestT", bound=Message)
Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a call before its message is read."""

    identify: Identify
    metadata: Metadata
    arrived_ns: int
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, when, and for how long: `remaining_s` is relative to `arrived_ns`."""

    tenant: Tenant
    arrived_ns: int
    remaining_s: float | None


Answer = Callable[[bytes, Arrival], Awaitable[bytes]]
"""A method as the wire sees it. Raises GpumuxdError."""


@dataclass(frozen=True, slots=True)
class Method:
    """An answer, and whether only tenants get it."""

    answer: Answer
    needs_tenant: bool


def for_anyone(
    request_type: type[RequestT], handle: Callable[[RequestT], Awaitable[Message]]
) -> Method:
    """A method that needs no identity."""

    async def answer(data: bytes, arrival: Arrival) -> bytes:
        return (await handle(parse(request_type, data))).SerializeToString()

    return Method(answer, needs_tenant=False)


def for_tenants(
    request_type: type[RequestT], handle: Callable[[RequestT, Caller], Awaitable[Message]]
) -> Method:
    """A method of a tenant. Who it is comes first: strangers learn nothing about messages."""

    async def answer(data: bytes, arrival: Arrival) -> bytes:
        tenant = arrival.identify(arrival.metadata)
        caller = Caller(tenant, arrival.arrived_ns, arrival.remaining_s)
        return (await handle(parse(request_type, data), caller)).SerializeToString()

    return Method(answer, needs_tenant=True)


def raw_for_tenants(handle: Callable[[bytes, Caller], Awaitable[bytes]]) -> Method:
    """A method of a tenant that reads and writes its messages itself."""

    async def answer(data: bytes, arrival: Arrival) -> bytes:
        tenant = arrival.identify(arrival.metadata)
        return await handle(data, Caller(tenant, arrival.arrived_ns, arrival.remaining_s))

    return Method(answer, needs_tenant=True)


def parse(request_type: type[RequestT], data: bytes) -> RequestT:
    """The message. Raises InvalidRequest."""
    try:
        return request_type.FromString(data)
    except DecodeError:
        raise InvalidRequest(
            f"the message is not a well-formed {request_type.DESCRIPTOR.name}"
        ) from None


class CallsInProgress:
    """The tasks of calls that are not answered yet, so that stopping can wait for them."""

    def __init__(self, on_begin: Callable[[asyncio.Task[object]], None]) -> None:
        """`on_begin` hears of each task whose message is here."""
        self._on_begin = on_begin
        self._tasks: set[asyncio.Task[object]] = set()
        self.begun = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self) -> asyncio.Task[object]:
        """Note the current task and return it."""
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        self._on_begin(task)
        self._tasks.add(task)
        self.begun += 1
        return task

    def end(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)

    async def wait_ended(self, limit_s: float) -> bool:
        """True when all have ended within the limit. Aborted calls still run their `finally`."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit_s)
        return not self._tasks


def remaining_s(time_remaining: Callable[[], float | None]) -> float | None:
    """What is left of a call's deadline, None without one.

    gRPC keeps deadlines on the monotonic clock, but says what is left by way of the wall clock,
    which it reads twice. Set in between, by hand or by NTP, it gives anything: a deadline hours
    away, or passed. Of three readings that spoils one at most.
    """
    readings = [time_remaining() for _ in range(3)]
    known = [reading for reading in readings if reading is not None]
    return sorted(known)[1] if len(known) == 3 else None


def identify_by(identify: IdentifyPeer, context: Context) -> Identify:
    """Who it is, of this call alone."""
    return lambda metadata: identify(metadata, lambda: peer_names(context))


def peer_names(context: Context) -> tuple[str, ...]:
    """Common name and alternative names of the certificate at the other end, which was verified;
    none without one. What is not UTF-8 can be no tenant's."""
    told = context.auth_context()
    found = (*told.get("x509_common_name", ()), *told.get("x509_subject_alternative_name", ()))
    return tuple(dict.fromkeys(name.decode("utf-8", "replace") for name in found))


def bind(
    path: str, answer: Answer, identify: IdentifyPeer, calls: CallsInProgress
) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """A method as gRPC wants it."""

    async def behaviour(data: bytes, context: Context) -> bytes:
        arrived_ns = monotonic_ns()
        task = calls.begin()
        try:
            metadata = tuple(context.invocation_metadata() or ())
            arrival = Arrival(
                identify_by(identify, context),
                metadata,
                arrived_ns,
                remaining_s(context.time_remaining),
            )
            return await answer(data, arrival)
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise  # gRPC cancels the task when the client went or its deadline passed
            failure = failure_of(error, path)
        except Exception as error:  # the one place where everything ends
            failure = failure_of(error, path)
        finally:
            calls.end(task)
        # Outside the `try`: abort raises, and gRPC has to see that.
        await context.abort(failure.code, failure.text, failure.trailing_metadata)

    return grpc.unary_unary_rpc_method_handler(behaviour)


def reading(
    path: str,
    handler: "grpc.RpcMethodHandler[bytes, bytes]",
    identify: IdentifyPeer | None,
    receiving: Receiving,
) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """The handler of a call that may have to wait before its message is received: for a place, or
    until its certificate has been looked at. Then it goes the way of all others. Nobody needs to be
    identified where `identify` is None."""

    async def receive(messages: AsyncIterator[bytes], context: Context) -> bytes:
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        try:
            whose = ""
            if identify is not None:
                metadata = tuple(context.invocation_metadata() or ())
                whose = identify_by(identify, context)(metadata).name
            await receiving.wait(whose)
            data = await anext(messages, None)
            receiving.received(task)
            if data is not None:
                return data
            failure = failure_of(InvalidRequest("the call ended without a message"), path)
        except GpumuxdError as error:
            failure = failure_of(error, path)
        await context.abort(failure.code, failure.text, failure.trailing_metadata)
        raise AssertionError("abort raises")

    # gRPC's types know no behaviour that is a coroutine.
    respond: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

    async def unary(messages: AsyncIterator[bytes], context: Context) -> bytes:
        answer: bytes = await respond(await receive(messages, context), context)
        return answer

    async def streaming(messages: AsyncIterator[bytes], context: Context) -> None:
        answers = respond(await receive(messages, context), context)
        if inspect.iscoroutine(answers):
            await answers  # it writes them itself
            return
        async with aclosing(answers):
            async for answer in answers:
                await context.write(answer)

    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(streaming)
    return grpc.stream_unary_rpc_method_handler(unary)


def refusing(error: GpumuxdError, path: str) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """The handler of a call that is refused by its metadata. Its message is never read: what a
    stranger sends must cost no memory."""
    failure = failure_of(error, path)

    async def behaviour(messages: object, context: Context) -> None:
        await context.abort(failure.code, failure.text, failure.trailing_metadata)

    return grpc.stream_unary_rpc_method_handler(behaviour)
