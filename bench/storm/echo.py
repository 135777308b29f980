"""`python -m bench.storm.echo ADDRESS`: the least that a grpc.aio server can be.

What the daemon's memory is compared with: the same library, loop and messages, and nothing behind
them. An answer takes a millisecond, so that there is something to cancel.
"""

import asyncio
import sys

import grpc
import uvloop

ANSWER_S = 0.001


async def _answer(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
    await asyncio.sleep(ANSWER_S)
    return request


class _Handler(grpc.GenericRpcHandler):
    """Any method."""

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.unary_unary_rpc_method_handler(_answer)


async def serve(address: str) -> None:
    """Until the process is ended."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(),))
    server.add_insecure_port(address)
    await server.start()
    print("serving", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
