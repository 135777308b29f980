"""The asyncio client. Its twin is `client.py`; what calls mean is in `calls.py`."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from numpy.typing import NDArray

from gpumuxd_client import calls, statistics, streams, types
from gpumuxd_client.codec import check_seconds
from gpumuxd_client.errors import Cancelled, error_of
from gpumuxd_client.memory import DeviceMemory
from gpumuxd_client.tls import Tls, credentials_of, options_of

ResultT = TypeVar("ResultT")
Send = Callable[..., Awaitable[bytes]]


class AsyncClient:
    """A connection to one daemon, of one event loop: make it inside. Close it, or use it in an
    `async with`. Cancelling a task that waits for a call cancels the request on the node.

    target   `host:port`, the daemon's default is `127.0.0.1:8001`; or `unix:/path` of a socket
    token    the tenant's token, where the listener asks for one
    tls      for an encrypted address: whom to trust, and a certificate where it takes one
    retries  how often an idempotent call is sent again when the daemon can't be reached, drains
             or lost its device; always within the call's deadline

    Every method takes `deadline` in seconds, above 0: the call ends by then, here and on the node.
    Errors are the classes of `gpumuxd_client.errors`; wrong arguments are ValueErrors and
    TypeErrors, before anything is sent.
    """

    def __init__(
        self, target: str, *, token: str | None = None, tls: Tls | None = None, retries: int = 3
    ) -> None:
        self.target = calls.check_target(target)
        self._metadata = calls.metadata_of(token)
        self._retries = retries
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, calls.CHANNEL_OPTIONS)
        else:
            options = (*calls.CHANNEL_OPTIONS, *options_of(tls))
            self._channel = grpc.aio.secure_channel(target, credentials_of(tls), options)
        self._methods: dict[str, Send] = {}
        self._is_closed = False

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        *,
        version: str | int = "",
        priority: int = 0,
        deadline: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the node keeps it, not this coroutine
        outputs: Sequence[str] | None = None,
        request_id: str = "",
        sequence: types.SequenceStep | None = None,
    ) -> types.InferResult:
        """Run one inference.

        `priority` 1 is the most urgent, 0 the tenant's default. `timeout` in seconds is a
        deadline that only the node keeps: its answer then says why it came too late. `outputs`
        names the wanted ones, None all. A step of a `sequence` is never sent twice.
        """
        call = calls.infer(
            model,
            inputs,
            version=version,
            priority=priority,
            deadline=deadline,
            timeout=timeout,
            outputs=outputs,
            request_id=request_id,
            sequence=sequence,
        )
        return await self._run(call, deadline)

    async def infer_stream(
        self,
        model: str,
        requests: AsyncIterable[Mapping[str, NDArray[Any]]],
        *,
        version: str | int = "",
        priority: int = 0,
        deadline: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - of each request, and kept by the node
        outputs: Sequence[str] | None = None,
    ) -> AsyncGenerator[streams.StreamAnswer, None]:
        """Run an inference for each of these inputs, over one stream. Yields the answers in the
        order of the requests: the result, or the error of that request, which ends nothing. The
        node works on several at a time, and reads no further while 64 wait for their answer.

        `timeout` is of each request, `deadline` of the whole stream. Leaving it cancels all that
        is under way. Nothing is sent again. Raises what ends the stream.
        """
        if self._is_closed:
            raise ValueError("the client is closed")
        check_seconds("deadline", deadline)

        async def encoded() -> AsyncGenerator[bytes, None]:
            async for inputs in requests:
                yield calls.infer(
                    model,
                    inputs,
                    version=version,
                    priority=priority,
                    deadline=None,
                    timeout=timeout,
                    outputs=outputs,
                    request_id="",
                ).request

        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = self._channel.stream_stream(streams.PATH)
        stream = method(encoded(), timeout=deadline, metadata=self._metadata)
        try:
            async for data in stream:
                yield streams.decode_answer(data)
        except grpc.aio.AioRpcError as cause:
            metadata = cause.trailing_metadata() or ()
            raise error_of(cause.code().name, cause.details(), metadata) from cause
        finally:
            stream.cancel()

    async def server_live(self, *, deadline: float | None = None) -> bool:
        """The daemon answers."""
        return await self._run(calls.server_live(), deadline)

    async def server_ready(self, *, deadline: float | None = None) -> bool:
        """Every device is up and every startup model serves."""
        return await self._run(calls.server_ready(), deadline)

    async def model_ready(
        self, model: str, *, version: str | int = "", deadline: float | None = None
    ) -> bool:
        """The model serves; False also for one that does not exist."""
        return await self._run(calls.model_ready(model, version), deadline)

    async def server_metadata(self, *, deadline: float | None = None) -> types.ServerMetadata:
        """Name, version and protocol extensions of the server."""
        return await self._run(calls.server_metadata(), deadline)

    async def model_metadata(
        self, model: str, *, version: str | int = "", deadline: float | None = None
    ) -> types.ModelMetadata:
        """Inputs and outputs of a loaded model."""
        return await self._run(calls.model_metadata(model, version), deadline)

    async def model_config(
        self, model: str, *, version: str | int = "", deadline: float | None = None
    ) -> types.ModelConfig:
        """How a loaded model is served."""
        return await self._run(calls.model_config(model, version), deadline)

    async def model_statistics(
        self, model: str = "", *, version: str | int = "", deadline: float | None = None
    ) -> tuple[statistics.ModelStatistics, ...]:
        """What became of the requests of each version that is loaded: of all models, or of one."""
        return await self._run(calls.model_statistics(model, version), deadline)

    async def index(
        self, *, only_ready: bool = False, deadline: float | None = None
    ) -> tuple[types.IndexEntry, ...]:
        """Every version in the repository, with its state."""
        return await self._run(calls.index(only_ready=only_ready), deadline)

    async def load(self, model: str, *, deadline: float | None = None) -> None:
        """Load what a model's `model.toml` selects, the newest version if it says nothing; returns
        when all of it serves."""
        await self._run(calls.load(model), deadline)

    async def unload(
        self, model: str, *, deadline: float | None = None
    ) -> tuple[types.UnloadedReplica, ...]:
        """Unload a model; what runs finishes first. Returns what went, empty if nothing was loaded,
        with the memory of each device's process before and after."""
        return await self._run(calls.unload(model), deadline)

    async def drain(
        self, device: str = "", *, deadline: float | None = None
    ) -> tuple[types.DrainedModel, ...]:
        """Take a device out of service: its models move to others where they fit, and what was
        admitted finishes before this returns. No device: the whole node admits nothing new. For
        admins."""
        return await self._run(calls.drain(device), deadline)

    async def undrain(
        self, device: str = "", *, deadline: float | None = None
    ) -> tuple[types.DrainedModel, ...]:
        """Put a device, or the node, back; returns the models that are loaded again. For
        admins."""
        return await self._run(calls.undrain(device), deadline)

    async def node_status(self, *, deadline: float | None = None) -> types.NodeStatus:
        """The node and its devices. For admins."""
        return await self._run(calls.node_status(), deadline)

    async def memory(self, *, deadline: float | None = None) -> tuple[DeviceMemory, ...]:
        """Who holds the memory of each device that is up, as far as this tenant may know."""
        return await self._run(calls.memory(), deadline)

    async def model_detail(
        self, model: str, *, version: str | int = "", deadline: float | None = None
    ) -> types.ModelDetail:
        """All that is known of a model, of every version or of one, loaded or not."""
        return await self._run(calls.model_detail(model, version), deadline)

    async def explain(
        self,
        model: str,
        *,
        version: str | int = "",
        sizes: Mapping[str, int] | None = None,
        deadline: float | None = None,
    ) -> types.Explanation:
        """Why the work of a loaded model is cut as it is, at these sizes of its dimensions; those
        that are not named are of the longest run that was measured."""
        return await self._run(calls.explain(model, version, sizes), deadline)

    async def record(
        self, seconds: float, *, device: str = "", bytes_max: int = 64 * 1024 * 1024
    ) -> AsyncGenerator[calls.RecordPart, None]:
        """Record what the scheduler of a device does for so many seconds; `device` may be left
        empty where there is only one. Yields the bytes of the file, in order, and how the
        recording ended. Leaving it ends the recording. For admins.
        """
        call = calls.record(device, seconds, bytes_max)
        if self._is_closed:
            raise ValueError("the client is closed")
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        method = self._channel.unary_stream(call.path)
        stream = method(call.request, metadata=self._metadata)
        try:
            async for data in stream:
                yield call.decode(data)
        except grpc.aio.AioRpcError as cause:
            metadata = cause.trailing_metadata() or ()
            raise error_of(cause.code().name, cause.details(), metadata) from cause
        finally:
            stream.cancel()

    async def close(self) -> None:
        """End the connection and every call on it. Idempotent."""
        self._is_closed = True
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, call: calls.Call[ResultT], deadline: float | None) -> ResultT:
        attempts = calls.Attempts(self._retries, deadline, time.monotonic())
        while True:
            if self._is_closed:
                raise ValueError("the client is closed")
            try:
                data = await self._method(call.path)(
                    call.request,
                    timeout=attempts.remaining_s(time.monotonic()),
                    metadata=self._metadata,
                )
            except grpc.aio.AioRpcError as refusal:
                cause = refusal
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Not the waiting task was cancelled but the call: its channel was closed.
                raise Cancelled("the client was closed during the call", "CANCELLED") from None
            else:
                return call.decode(data)
            error = error_of(cause.code().name, cause.details(), cause.trailing_metadata() or ())
            delay_s = attempts.delay_s(call, error, time.monotonic())
            if delay_s is None:
                raise error from cause
            await asyncio.sleep(delay_s)

    def _method(self, path: str) -> Send:
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = self._channel.unary_unary(path)
        return method
