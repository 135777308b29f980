"""The front door: one gRPC server per listener, all with the same services.

A server for each listener, because only the server that took a call knows by which address it
came, and with that whose it is. It must not know what the services do.

Order of stopping: health says NOT_SERVING, watchers are ended, calls get their grace time, then
the claims on the addresses are given back. Starting is all or nothing.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc
import structlog

from gpumuxd.errors import Unauthenticated
from gpumuxd.node.api import NodeApi, Tenant
from gpumuxd.rpc import control, inference, recording, reflection, stream_infer
from gpumuxd.rpc.call import CallsInProgress, Method, bind, reading, refusing
from gpumuxd.rpc.connections import ConnectionLimits
from gpumuxd.rpc.health import HealthService
from gpumuxd.rpc.identity import (
    IdentifyPeer,
    Metadata,
    Names,
    NamesUnknown,
    Tenants,
    by_certificate,
    by_token,
    names_unknown,
    nobody,
    of_listener,
)
from gpumuxd.rpc.listener import (
    SOCKET_MODE,
    AddressInUse,
    Listener,
    TcpAddress,
    UnixAddress,
    UnixClaim,
    check_tcp_free,
    parse_address,
    tcp_in_use,
)
from gpumuxd.rpc.receiving import Receiving
from gpumuxd.rpc.recording import Stream, bind_stream
from gpumuxd.rpc.server_settings import LogSwitches
from gpumuxd.rpc.streams import Duplex, OpenStreams, bind_duplex
from gpumuxd.rpc.tls import TlsFiles, TlsIdentity, TlsMaterial

ABORT_WAIT_S = 5.0
"""How long aborted calls may take to run their `finally` after the grace time."""

QUIET_S = 0.05
"""Whoever was told that nothing new is taken asks again much later than this."""

_logger = structlog.stdlib.get_logger(__name__)


class FrontDoor:
    """Everything that can be reached from outside, from `claim` or `start` to `stop`. Used once."""

    def __init__(
        self,
        node: NodeApi,
        listeners: Sequence[Listener],
        tenants: Tenants,
        message_bytes_max: int,
        tls: TlsFiles | None = None,
        limits: ConnectionLimits | None = None,
        switches: LogSwitches | None = None,
    ) -> None:
        """`tls` is what encrypted listeners need; `claim` reads it. Log settings are served where
        there are `switches` to set."""
        limits = limits or ConnectionLimits()
        self._listeners = tuple(listeners)
        self._tenants = tenants
        self._options = limits.options(message_bytes_max)
        inference_methods: dict[str, Method | Duplex] = {
            **inference.InferenceService(node, switches).methods(),
            **stream_infer.StreamInferService(node).methods(),
        }
        reflecting = reflection.ReflectionService(inference_methods)
        self._services: dict[str, Mapping[str, Method | Stream | Duplex]] = {
            inference.SERVICE: inference_methods,
            control.SERVICE: {
                **control.ControlService(node).methods(),
                **recording.RecordingService(node).methods(),
            },
            **{name: reflecting.methods() for name in reflection.SERVICES},
        }
        self._health = HealthService()
        self._streams = OpenStreams()
        self._receiving = Receiving(limits.receiving_bytes_max, message_bytes_max)
        self._calls = CallsInProgress(self._receiving.received)
        self._servers: list[grpc.aio.Server] = []
        self._claims: list[UnixClaim] = []
        self._is_claimed = False
        self._addresses: list[str] = []
        self._identities: dict[str, IdentifyPeer] = {}
        self._tls_files = tls
        self._tls: TlsIdentity | None = None
        self.set_listeners(listeners)

    @property
    def addresses(self) -> Sequence[str]:
        """Where it listens, in the order of the listeners, with the ports that the kernel gave."""
        return tuple(self._addresses)

    def set_serving(self, is_serving: bool) -> None:
        """What grpc.health.v1 says. False until this is called."""
        self._health.set_serving(is_serving)

    def set_listeners(self, listeners: Sequence[Listener]) -> None:
        """Whose the calls are from now on, by the address that they come by.

        Nothing is opened or closed: a new address has to wait for the next start, and one that is
        not named any more, which can't be closed without breaking off its calls, is nobody's.
        """
        named = {listener.address: listener.tenant for listener in listeners}
        for listener in self._listeners:
            identify: IdentifyPeer = nobody
            if listener.address in named:
                identify = self._identity(listener, named[listener.address])
            self._identities[listener.address] = identify

    def _identity(self, listener: Listener, tenant: Tenant | None) -> IdentifyPeer:
        if tenant is not None:
            return of_listener(tenant)
        files = self._tls_files
        has_certificates = listener.is_encrypted and files is not None and files.client_ca
        return by_certificate(self._tenants) if has_certificates else by_token(self._tenants)

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files whose contents encrypted listeners show, if there are such."""
        return None if self._tls is None else self._tls.files

    def renew_tls(self, material: TlsMaterial) -> None:
        """What those files hold now: it counts from the next connection on."""
        assert self._tls is not None, "there is no encrypted listener"
        self._tls.renew(material)

    def claim(self) -> None:
        """Make sure of every address, before anything expensive is started. `start` does it
        where it was not done. Raises AddressInUse or ConfigError, and then holds none."""
        assert not self._servers, "a front door is used once"
        try:
            if any(listener.is_encrypted for listener in self._listeners):
                assert self._tls_files is not None, "an encrypted listener needs a certificate"
                self._tls = TlsIdentity(self._tls_files)
            for listener in self._listeners:
                address = parse_address(listener.address)
                if isinstance(address, UnixAddress):
                    self._claims.append(UnixClaim.acquire(address))
                else:
                    check_tcp_free(address)
        except BaseException:
            self._release_claims()
            raise
        self._is_claimed = True

    async def start(self) -> None:
        """Listen everywhere. Raises AddressInUse or ConfigError, and then listens nowhere."""
        if not self._is_claimed:
            self.claim()
        try:
            for listener in self._listeners:
                await self._open(listener)
        except BaseException:
            await self.stop(0)
            raise
        _logger.info("listening", addresses=self._addresses)

    def drain(self) -> None:
        """Streams of inferences end when what they asked for is answered. All else goes on."""
        self._streams.drain()

    async def hear_out(self, limit_s: float) -> None:
        """Go on until nothing comes any more. Who has sent something before it heard of the end is
        refused with a reason, where gRPC would end the call with a bare CANCELLED."""
        self._health.set_serving(False)
        begun = -1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._calls.begun != begun:
                    begun = self._calls.begun
                    await asyncio.sleep(QUIET_S)

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, let calls finish for up to `grace_s`, then abort them. Idempotent."""
        self._health.set_serving(False)
        self._health.close()
        self._streams.drain()
        servers, self._servers = self._servers, []
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.stop(grace_s))
        if not await self._calls.wait_ended(ABORT_WAIT_S):
            _logger.error("calls did not end when aborted", calls=len(self._calls))
        self._release_claims()

    def _release_claims(self) -> None:
        while self._claims:
            self._claims.pop().release()

    async def _open(self, listener: Listener) -> None:
        address = parse_address(listener.address)

        def identify(metadata: Metadata, names: Names) -> Tenant:
            return self._identities[listener.address](metadata, names)

        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers(self._handlers(identify))
        self._servers.append(server)
        credentials = self._tls.credentials() if self._tls and listener.is_encrypted else None
        port = _bind(server, address, credentials)
        await server.start()
        if isinstance(address, TcpAddress):
            address = TcpAddress(address.host, port)
        self._addresses.append(str(address))

    def _handlers(self, identify: IdentifyPeer) -> list[grpc.GenericRpcHandler]:
        methods = {
            f"/{service}/{name}": method
            for service, served in self._services.items()
            for name, method in served.items()
        }
        others = self._health.handler()
        return [_Handlers(methods, others, identify, self._calls, self._receiving, self._streams)]


class _Handlers(grpc.GenericRpcHandler):
    """All methods behind one listener. Who calls is in the metadata, which comes before the
    message, so strangers are refused before one byte of theirs is kept. What anyone may ask is
    received in places of its own."""

    def __init__(
        self,
        methods: Mapping[str, Method | Stream | Duplex],
        others: grpc.GenericRpcHandler,
        identify: IdentifyPeer,
        calls: CallsInProgress,
        receiving: Receiving,
        streams: OpenStreams,
    ) -> None:
        """`others` are methods that anyone may call, too."""
        self._others = others
        self._identify = identify
        self._receiving = receiving
        self._handlers = {
            path: _bound(path, method, identify, calls, streams) for path, method in methods.items()
        }
        self._guarded = {path for path, method in methods.items() if method.needs_tenant}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        path = handler_call_details.method
        if path not in self._guarded:
            handler = self._handlers.get(path) or self._others.service(handler_call_details)
            if handler is None or handler.request_streaming:
                return handler
            return reading(path, handler, None, self._receiving)
        handler = self._handlers[path]
        try:
            metadata = tuple(handler_call_details.invocation_metadata or ())
            tenant = self._identify(metadata, names_unknown)
        except NamesUnknown:
            pass  # the call itself will say: its certificate is of an authority that we trust
        except Unauthenticated as error:
            return refusing(error, path)
        else:
            if not handler.request_streaming and self._receiving.take_nowait(tenant.name):
                return handler
        if handler.request_streaming:
            return handler  # streams are limited by their number: each reads one by one
        return reading(path, handler, self._identify, self._receiving)


def _bound(
    path: str,
    method: Method | Stream | Duplex,
    identify: IdentifyPeer,
    calls: CallsInProgress,
    streams: OpenStreams,
) -> "grpc.RpcMethodHandler[bytes, bytes]":
    match method:
        case Duplex():
            return bind_duplex(path, method, identify, calls, streams)
        case Stream():
            return bind_stream(path, method, identify, calls)
    return bind(path, method.answer, identify, calls)


def _bind(
    server: grpc.aio.Server,
    address: UnixAddress | TcpAddress,
    credentials: grpc.ServerCredentials | None,
) -> int:
    try:
        if credentials is not None:
            return server.add_secure_port(str(address), credentials)
        if isinstance(address, TcpAddress):
            return server.add_insecure_port(str(address))
        with _umask(0o777 & ~SOCKET_MODE):
            return server.add_insecure_port(str(address))
    except RuntimeError as error:
        if isinstance(address, TcpAddress):
            raise AddressInUse(tcp_in_use(address)) from error
        raise AddressInUse(f"{address}: {error}") from error


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    """Sets the socket's mode: a chmod after the bind would leave it open to all for a moment."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
