"""grpc.health.v1: is the daemon serving. Whoever asks needs no token.

Written here and not taken from grpc_health's servicer, because there one watcher that leaves
takes the notifications of the others along, and its watchers keep a stopping server waiting for
its whole grace time. Its messages are used.
"""

import asyncio

import grpc
from grpc_health.v1 import health_pb2 as pb

from gpumuxd.errors import InvalidRequest
from gpumuxd.rpc.call import Context, parse
from gpumuxd.rpc.control import SERVICE as CONTROL_SERVICE
from gpumuxd.rpc.inference import SERVICE as INFERENCE_SERVICE
from gpumuxd.rpc.status import failure_of

SERVICE = "grpc.health.v1.Health"
_KNOWN = frozenset({"", INFERENCE_SERVICE, CONTROL_SERVICE})


class HealthService:
    """Check and Watch. One state for all services: they serve together or not at all."""

    def __init__(self) -> None:
        self._is_serving = False
        self._is_closed = False
        self._changed = asyncio.Event()

    def set_serving(self, is_serving: bool) -> None:
        """Tell everyone who watches."""
        self._is_serving = is_serving
        self._notify()

    def close(self) -> None:
        """End every Watch, after its last news."""
        self._is_closed = True
        self._notify()

    def handler(self) -> grpc.GenericRpcHandler:
        """Both methods for a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def _notify(self) -> None:
        # Each change has its own event: a watcher waits for the one that was current when it
        # last looked, so none is missed and none has to be counted.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, data: bytes, context: Context) -> bytes:
        request = await _parsed(data, f"/{SERVICE}/Check", context)
        if request.service not in _KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._response(request.service).SerializeToString()

    async def _watch(self, data: bytes, context: Context) -> None:
        request = await _parsed(data, f"/{SERVICE}/Watch", context)
        told = None
        while True:
            changed = self._changed
            response = self._response(request.service)
            if response.status != told:
                told = response.status
                await context.write(response.SerializeToString())
            elif self._is_closed:
                return
            else:
                await changed.wait()

    def _response(self, service: str) -> pb.HealthCheckResponse:
        if service not in _KNOWN:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        if self._is_serving:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVING)
        return pb.HealthCheckResponse(status=pb.HealthCheckResponse.NOT_SERVING)


async def _parsed(data: bytes, path: str, context: Context) -> pb.HealthCheckRequest:
    """The message; a malformed one is the client's error, which gRPC would call ours."""
    try:
        return parse(pb.HealthCheckRequest, data)
    except InvalidRequest as error:
        failure = failure_of(error, path)
    await context.abort(failure.code, failure.text, failure.trailing_metadata)
    raise AssertionError("abort raises")
