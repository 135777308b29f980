"""What blows: calls that hardly anybody waits for, against any server that takes the bytes.

Every call is the same request, ready as bytes, so that the machine's time is the server's and not
ours. Deadlines are drawn from 0 to DEADLINE_S_MAX, and of those that are cancelled the moment too.
"""

import asyncio
import contextlib
import multiprocessing
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import grpc

INFER = "/inference.GRPCInferenceService/ModelInfer"

DEADLINE_S_MAX = 0.005
CANCELLED = 0.3
"""The share of calls that their client gives up before the deadline."""

OUTSTANDING = 64
CALLS_PER_CHANNEL = 3
CALLS_PER_PROCESS = 20

_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
"""Else channels of one process to one address share a connection, and none can be dropped."""

Call = Callable[[float], Awaitable[bytes]]


async def storm(address: str, request: bytes, calls: int, rng: random.Random) -> Counter[str]:
    """So many calls, OUTSTANDING at a time; how they ended."""
    ends: Counter[str] = Counter()
    left = calls

    async def keep_calling(method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            ends[await _call(method, request, rng)] += 1

    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
        async with asyncio.TaskGroup() as group:
            for _ in range(OUTSTANDING):
                group.create_task(keep_calling(method))
    return ends


async def _call(
    method: "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", request: bytes, rng: random.Random
) -> str:
    deadline_s = rng.uniform(0, DEADLINE_S_MAX)
    call = method(request, timeout=deadline_s)
    if rng.random() < CANCELLED:
        asyncio.get_running_loop().call_later(rng.uniform(0, deadline_s), call.cancel)
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except asyncio.CancelledError:
        return "CANCELLED"
    return "OK"


async def drop_channels(address: str, request: bytes, count: int, rng: random.Random) -> None:
    """One channel after the other, closed in the middle of its calls."""
    for _ in range(count):
        channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        await channel.channel_ready()
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
        calls = [method(request) for _ in range(CALLS_PER_CHANNEL)]
        waiting = [asyncio.ensure_future(_ended(call)) for call in calls]
        await asyncio.sleep(rng.uniform(0, DEADLINE_S_MAX))
        await channel.close(grace=None)
        await asyncio.gather(*waiting)


async def _ended(call: Awaitable[bytes]) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        await call


def kill_clients(address: str, request: bytes, count: int) -> None:
    """One process after the other, killed while its calls are under way. Forked by a server that
    has gRPC imported, which would else be most of what a client costs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=_call_for_ever, args=(address, request, theirs))
        process.start()
        theirs.close()  # so that one that ended is the end of the file
        ours.recv()
        process.kill()
        process.join()
        process.close()
        ours.close()


def _call_for_ever(address: str, request: bytes, told: "Connection[str, str]") -> None:
    channel = grpc.insecure_channel(address)
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
    while True:
        # A server that has more to take than it can may cancel what it has not begun.
        with contextlib.suppress(grpc.RpcError):
            method(request)
            break
    while True:
        calls = [method.future(request) for _ in range(CALLS_PER_PROCESS)]
        told.send("under way")
        for call in calls:
            call.exception()
