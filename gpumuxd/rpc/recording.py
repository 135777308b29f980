"""`Control.Record`: the only method here whose answer is a stream.

Parts of the file are passed on as they come; who may ask, and for what, is the node's business. A
client that leaves ends its recording, since the stream that it read is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import grpc

from gpumuxd.clock import monotonic_ns
from gpumuxd.node.api import NodeApi, RecordingEnd
from gpumuxd.rpc.call import Arrival, CallsInProgress, Context, identify_by, parse
from gpumuxd.rpc.generated import control_pb2 as pb
from gpumuxd.rpc.identity import IdentifyPeer
from gpumuxd.rpc.status import failure_of


@dataclass(frozen=True, slots=True)
class Stream:
    """A method that answers one message with many. Raises GpumuxdError."""

    answers: Callable[[bytes, Arrival], AsyncGenerator[bytes, None]]
    needs_tenant: bool = True


class RecordingService:
    """The streaming method of `gpumuxd.v1.Control`."""

    def __init__(self, node: NodeApi) -> None:
        self._node = node

    def methods(self) -> dict[str, Stream]:
        """Each method by its name on the wire."""
        return {"Record": Stream(self._record)}

    async def _record(self, data: bytes, arrival: Arrival) -> AsyncGenerator[bytes, None]:
        tenant = arrival.identify(arrival.metadata)
        request = parse(pb.RecordRequest, data)
        parts = self._node.record(tenant, request.device, request.duration_ns, request.bytes_max)
        async with aclosing(parts):
            async for part in parts:
                yield _encode(part).SerializeToString()


def _encode(part: bytes | RecordingEnd) -> pb.RecordResponse:
    if isinstance(part, bytes):
        return pb.RecordResponse(data=part)
    end = pb.RecordingEnd(
        reason=part.reason, records=part.records, commands=part.commands, is_whole=part.is_whole
    )
    return pb.RecordResponse(end=end)


def bind_stream(
    path: str, method: Stream, identify: IdentifyPeer, calls: CallsInProgress
) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """A streaming method as gRPC wants it; `call.bind` is the same for those with one answer."""

    async def behaviour(data: bytes, context: Context) -> AsyncGenerator[bytes, None]:
        task = calls.begin()
        try:
            metadata = tuple(context.invocation_metadata() or ())
            arrival = Arrival(identify_by(identify, context), metadata, monotonic_ns(), None)
            async with aclosing(method.answers(data, arrival)) as answers:
                async for answer in answers:
                    yield answer
            return
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            failure = failure_of(error, path)
        except Exception as error:  # as in `bind`
            failure = failure_of(error, path)
        finally:
            calls.end(task)
        await context.abort(failure.code, failure.text, failure.trailing_metadata)

    return grpc.unary_stream_rpc_method_handler(behaviour)
