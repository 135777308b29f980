"""grpc.health.v1: is the daemon serving. Whoever asks needs no token.

Written here and not taken from grpc_health's servicer, because there one watcher that leaves
takes the notifications of the others along, and its watchers keep a stopping server waiting for
its whole grace time. Its messages are used.
"""

import asyncio

import grpc
from grpc_health.v1 import health_pb2 as pb

from gpumuxd.rpc.control import SERVICE as CONTROL_SERVICE
from gpumuxd.rpc.inference import SERVICE as INFERENCE_SERVICE

SERVICE = "grpc.health.v1.Health"
_KNOWN = frozenset({"", INFERENCE_SERVICE, CONTROL_SERVICE})

Context = grpc.aio.ServicerContext[pb.HealthCheckRequest, pb.HealthCheckResponse]


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
        serialize = pb.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(
                    self._check, pb.HealthCheckRequest.FromString, serialize
                ),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch, pb.HealthCheckRequest.FromString, serialize
                ),
            },
        )

    def _notify(self) -> None:
        # Each change has its own event: a watcher waits for the one that was current when it
        # last looked, so none is missed and none has to be counted.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        if request.service not in _KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._response(request.service)

    async def _watch(self, request: pb.HealthCheckRequest, context: Context) -> None:
        told = None
        while True:
            changed = self._changed
            response = self._response(request.service)
            if response.status != told:
                told = response.status
                await context.write(response)
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
