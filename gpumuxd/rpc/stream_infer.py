"""`ModelStreamInfer`: inferences over one stream, each as `ModelInfer` would have it.

Priority and `timeout` of a request count from its own arrival; the deadline of the stream bounds
all of them. What goes wrong with one request is told in its own answer, with its id, and the stream
goes on; clients that ask for it by the metadata `triton_grpc_error: true` get the status instead,
which ends the stream.

Every request has one answer, so each is marked as the final one, and
`triton_enable_empty_final_response` changes nothing.
"""

import asyncio
import base64

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import GpumuxdError
from gpumuxd.node.api import NodeApi
from gpumuxd.rpc.call import Arrival, Caller
from gpumuxd.rpc.codec import FINAL, encode_stream_infer
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.inferring import infer
from gpumuxd.rpc.raw_request import InferRequest, read_request
from gpumuxd.rpc.status import Failure, failure_of
from gpumuxd.rpc.streams import Accept, Answer, Duplex
from gpumuxd.units import NS_PER_S

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"

STATUS_WANTED = ("triton_grpc_error", "true")
"""The metadata of a client that wants the status of the first error, and the end of the stream."""

STATUS, REASON, DETAILS = "error_status", "error_reason", "error_details"
"""Parameters of an answer with an error: the name of its gRPC status, its class, and what would be
in `grpc-status-details-bin`, in base64."""


class StreamInferService:
    """The method of `inference.GRPCInferenceService` that is a stream."""

    def __init__(self, node: NodeApi) -> None:
        self._node = node

    def methods(self) -> dict[str, Duplex]:
        """By its name on the wire."""
        return {"ModelStreamInfer": Duplex(self._begin)}

    def _begin(self, arrival: Arrival) -> Accept:
        return _Stream(self._node, arrival).accept


class _Stream:
    """What all requests of one stream have in common."""

    def __init__(self, node: NodeApi, arrival: Arrival) -> None:
        self._node = node
        self._arrival = arrival
        self._wants_status = STATUS_WANTED in arrival.metadata

    def accept(self, data: bytes) -> Answer:
        """Raises Unauthenticated: a tenant that is not known any more gets no further."""
        arrived_ns = monotonic_ns()
        tenant = self._arrival.identify(self._arrival.metadata)
        try:
            request = read_request(data)
        except GpumuxdError as error:
            return self._refuse(error, "")
        caller = Caller(tenant, arrived_ns, self._remaining_s(arrived_ns))
        return self._infer(request, caller)

    def _remaining_s(self, now_ns: int) -> float | None:
        """What is left of the stream's deadline."""
        left_s = self._arrival.remaining_s
        if left_s is None:
            return None
        return left_s - (now_ns - self._arrival.arrived_ns) / NS_PER_S

    async def _infer(self, request: InferRequest, caller: Caller) -> bytes | Failure:
        task = asyncio.current_task()
        assert task is not None, "answers run in tasks"
        try:
            return await infer(self._node, request, caller, encode_stream_infer)
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            return await self._refuse(error, request.message.id)
        except Exception as error:
            return await self._refuse(error, request.message.id)

    async def _refuse(self, error: BaseException, request_id: str) -> bytes | Failure:
        failure = failure_of(error, PATH)
        return failure if self._wants_status else _encode_failure(failure, request_id)


def _encode_failure(failure: Failure, request_id: str) -> bytes:
    response = pb.ModelStreamInferResponse(error_message=failure.text)
    response.infer_response.id = request_id
    parameters = response.infer_response.parameters
    parameters[FINAL].bool_param = True
    parameters[STATUS].string_param = failure.code.name
    parameters[REASON].string_param = failure.reason
    parameters[DETAILS].string_param = base64.b64encode(failure.details).decode()
    return response.SerializeToString()
