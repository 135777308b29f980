"""Limits of connections, as a client that does not keep to them meets them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from gpumuxd.clock import monotonic_ns
from gpumuxd.rpc.connections import ConnectionLimits
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.listener import Listener
from gpumuxd.rpc.server import FrontDoor
from gpumuxd.units import NS_PER_MS, NS_PER_S
from tests.rpc import http2
from tests.rpc.fake_node import FakeTenants, fake_node
from tests.rpc.front import MESSAGE_BYTES_MAX, ask

LIVE = "/inference.GRPCInferenceService/ServerLive"


@asynccontextmanager
async def limited(limits: ConnectionLimits) -> AsyncIterator[int]:
    """The port of a front door with these limits."""
    door = FrontDoor(
        fake_node(), (Listener("127.0.0.1:0"),), FakeTenants(), MESSAGE_BYTES_MAX, limits=limits
    )
    await door.start()
    try:
        yield int(door.addresses[0].rpartition(":")[2])
    finally:
        await door.stop(0)


async def is_live(port: int) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return (await ask(channel, LIVE, b"", pb.ServerLiveResponse)).live


async def test_one_connection_too_many_is_closed_and_the_place_of_one_that_ends_is_free() -> None:
    async with limited(ConnectionLimits(connections_max=2)) as port:
        held = [http2.connect(port) for _ in range(2)]
        try:
            for each in held:  # a server that has taken a connection speaks first
                assert await asyncio.to_thread(each.recv, 1)
            with http2.connect(port) as refused:
                assert await asyncio.to_thread(refused.recv, 1) == b""
        finally:
            for each in held:
                each.close()
        assert await is_live(port), "gRPC connects again until there is a place"


async def test_a_silent_connection_is_asked_for_a_sign_of_life_and_closed_without() -> None:
    limits = ConnectionLimits(keepalive_ns=50 * NS_PER_MS, keepalive_timeout_ns=50 * NS_PER_MS)

    def heard(port: int) -> list[int]:
        with http2.connect(port) as dead:
            dead.sendall(http2.PREFACE + http2.frame(http2.SETTINGS))
            return [kind for kind, flags, _ in http2.frames(dead) if not flags & http2.ACK]

    async with limited(limits) as port:
        kinds = await asyncio.to_thread(heard, port)
        assert http2.PING in kinds


async def test_a_connection_without_calls_is_closed_when_it_was_idle_for_so_long() -> None:
    def heard(port: int) -> list[int]:
        with http2.connect(port) as idle:
            idle.sendall(http2.PREFACE + http2.frame(http2.SETTINGS))
            kinds = []
            for kind, flags, payload in http2.frames(idle):
                kinds.append(kind)
                if kind == http2.PING and not flags & http2.ACK:  # it asks before it closes
                    idle.sendall(http2.frame(http2.PING, payload, http2.ACK))
            return kinds

    async with limited(ConnectionLimits(connection_idle_ns_max=50 * NS_PER_MS)) as port:
        assert http2.GOAWAY in await asyncio.to_thread(heard, port)


async def test_a_client_that_asks_too_often_is_cut_off() -> None:
    def asked(port: int) -> list[bytes]:
        with http2.connect(port) as restless:
            restless.sendall(http2.PREFACE + http2.frame(http2.SETTINGS))
            restless.sendall(http2.frame(http2.PING, bytes(8)) * 20)
            return [payload for kind, _, payload in http2.frames(restless) if kind == http2.GOAWAY]

    async with limited(ConnectionLimits(client_ping_ns_min=10 * NS_PER_S)) as port:
        (told,) = await asyncio.to_thread(asked, port)
        assert told.endswith(b"too_many_pings")


async def test_a_client_without_calls_may_ask_as_often_as_it_is_told() -> None:
    count, interval_ns = 8, 3 * NS_PER_MS

    def asked(port: int) -> int:
        with http2.connect(port) as client:
            client.sendall(http2.PREFACE + http2.frame(http2.SETTINGS))
            heard = http2.frames(client)
            for _ in range(count):  # gRPC's own default takes two of them
                next_ns = monotonic_ns() + interval_ns
                client.sendall(http2.frame(http2.PING, bytes(8)))
                while (kind := next(heard)[0]) != http2.PING:
                    assert kind != http2.GOAWAY
                while monotonic_ns() < next_ns:
                    pass
            return count

    async with limited(ConnectionLimits(client_ping_ns_min=NS_PER_MS)) as port:
        assert await asyncio.to_thread(asked, port) == count
