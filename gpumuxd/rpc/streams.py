"""Methods whose requests and answers are both streams: answered in order, at their own pace.

Requests of a stream are independent: each is begun when it is read, and they run at the same time.
Their answers leave in the order of the requests, so one that is done before its predecessors waits.
At most `REQUESTS_MAX` are between being read and being answered, which bounds that memory: beyond
it nothing is read, and HTTP/2 holds the client back.

A half-closed stream ends well after its last answer. Whoever cancels it, or lets its deadline pass,
cancels all that is in flight. A daemon that drains reads no more, answers what it has read, and
then ends the stream with a reason. It must not know what is asked and answered.

Invariant: a stream that ends leaves no task behind.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import Draining, QuotaExceeded, limit_facts
from gpumuxd.rpc.call import Arrival, CallsInProgress, Context, identify_by, remaining_s
from gpumuxd.rpc.identity import IdentifyPeer
from gpumuxd.rpc.status import Failure, failure_of

REQUESTS_MAX = 64
"""Requests of one stream that were read and are not answered. A device works on fewer at a time,
and a queue is better kept by the client, who can still decide not to send."""

STREAMS_MAX = 256
"""Streams of one tenant. Each may have a message on its way in that nobody can look at yet, and a
client needs one for each of its threads at most."""

STREAMS_OF_STRANGERS_MAX = 16
"""The same of all together who say not who they are."""

Answer = Coroutine[Any, Any, bytes | Failure]
"""Gives the answer to one request, or the failure that ends its stream. Raises nothing."""

Accept = Callable[[bytes], Answer]
"""Takes a request, in the order in which they were read. Raises what ends the stream."""


@dataclass(frozen=True, slots=True)
class Duplex:
    """A method that answers many messages with many. `begin` is called once for each stream."""

    begin: Callable[[Arrival], Accept]
    needs_tenant: bool = True


class OpenStreams:
    """All streams of a front door, so that they end when it drains."""

    def __init__(self) -> None:
        self._open: set[_Conversation] = set()
        self._counts: Counter[str] = Counter()
        self._is_draining = False

    def drain(self) -> None:
        """Read nothing more of any stream, and end each when what was read is answered."""
        self._is_draining = True
        for conversation in self._open:
            conversation.drain()

    @contextmanager
    def counting(self, whose: str) -> Iterator[None]:
        """One more of this tenant, or of nobody known, is open inside. Raises QuotaExceeded."""
        limit = STREAMS_MAX if whose else STREAMS_OF_STRANGERS_MAX
        if self._counts[whose] >= limit:
            who = f"tenant {whose!r} has" if whose else "callers without a name have"
            raise QuotaExceeded(
                f"{who} {limit} streams open, which is the limit",
                limit_facts("streams_max", limit, "streams", current=limit, asked=1),
            )
        self._counts[whose] += 1
        try:
            yield
        finally:
            self._counts[whose] -= 1

    @contextmanager
    def holding(self, conversation: "_Conversation") -> Iterator[None]:
        """It can be told to drain inside."""
        self._open.add(conversation)
        if self._is_draining:
            conversation.drain()
        try:
            yield
        finally:
            self._open.remove(conversation)


class _Conversation:
    """One stream, from its first message to its end."""

    def __init__(self, path: str, accept: Accept, context: Context) -> None:
        self._path = path
        self._accept = accept
        self._context = context
        self._places = asyncio.Semaphore(REQUESTS_MAX)
        # In the order of the requests; last of all why there are no more, None if all is well.
        self._answers: asyncio.Queue[asyncio.Task[bytes | Failure] | Failure | None]
        self._answers = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    async def hold(self, streams: OpenStreams) -> Failure | None:
        """Read and answer to the end; returns what the stream ends with, None if all is well."""
        async with asyncio.TaskGroup() as group:
            self._reader = group.create_task(self._read(group))
            with streams.holding(self):
                end = await self._write()
            self._reader.cancel()
            while not self._answers.empty():
                left = self._answers.get_nowait()
                if isinstance(left, asyncio.Task):
                    left.cancel()
        return end

    def drain(self) -> None:
        """Read nothing more. Idempotent."""
        assert self._reader is not None, "it is held"
        self._reader.cancel()
        error = Draining("the daemon is stopping: this stream takes nothing new")
        self._answers.put_nowait(failure_of(error, self._path))

    async def _read(self, group: asyncio.TaskGroup) -> None:
        end: Failure | None = None
        try:
            while True:
                await self._places.acquire()
                data: object = await self._context.read()
                if data is grpc.aio.EOF:
                    break
                assert isinstance(data, bytes)
                self._answers.put_nowait(group.create_task(self._accept(data)))
        except Exception as error:
            end = failure_of(error, self._path)
        self._answers.put_nowait(end)

    async def _write(self) -> Failure | None:
        while True:
            next_answer = await self._answers.get()
            if not isinstance(next_answer, asyncio.Task):
                return next_answer
            answer = await next_answer
            if isinstance(answer, Failure):
                return answer
            try:
                await self._context.write(answer)
            except grpc.aio.InternalError:
                return None  # nobody is there to read it
            self._places.release()


def bind_duplex(
    path: str,
    method: Duplex,
    identify: IdentifyPeer,
    calls: CallsInProgress,
    streams: OpenStreams,
) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """Such a method as gRPC wants it; `call.bind` is the same for those with one answer."""

    async def behaviour(requests: object, context: Context) -> None:
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
            whose = arrival.identify(metadata).name if method.needs_tenant else ""
            with streams.counting(whose):
                failure = await _Conversation(path, method.begin(arrival), context).hold(streams)
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            failure = failure_of(error, path)
        except Exception as error:  # as in `bind`
            failure = failure_of(error, path)
        finally:
            calls.end(task)
        if failure is not None:
            # Outside the `try`: abort raises, and gRPC has to see that.
            await context.abort(failure.code, failure.text, failure.trailing_metadata)

    return grpc.stream_stream_rpc_method_handler(behaviour)
