"""One read of one artifact, in a loader process that lives for it alone.

What tenants made is never parsed here: the file is opened, its descriptor handed over, and plan
and weights come back as sealed memory. A loader that crashes, hangs or lies costs this one load.
It must not know devices or the repository.
"""

import asyncio
import contextlib
import os
import socket
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gpumuxd.errors import GpumuxdError, InvalidModel, ModelNotReady
from gpumuxd.models.files import FileStamp
from gpumuxd.models.spec import ModelSpec
from gpumuxd.node.artifact_file import ArtifactFiles
from gpumuxd.node.child_process import Mortal, yield_to_others
from gpumuxd.node.loader_starter import STARTER_ENDED, SpawnLoader
from gpumuxd.node.settings import LoaderSettings
from gpumuxd.node.spec_check import check_spec
from gpumuxd.units import MIB, NS_PER_S
from gpumuxd.wire import frames
from gpumuxd.wire.channel import Channel, ChannelClosed, ChannelError
from gpumuxd.wire.starting import NO_PROCESS

EXIT_S_MAX = 10.0
"""A loader that closed its channel is gone in this time, though it and its starter yield to all."""

KILLED_FROM_OUTSIDE = {
    STARTER_ENDED,
    *(f"signal {name}" for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")),
}
"""Its own limits end it with other signals (`loader/main.py`)."""


NO_STAMP = FileStamp(0, 0, 0)

CLOSED_AT_ONCE_BYTES_MAX = 4 * MIB
"""Larger memory is closed on a thread: the kernel frees its pages then, which was measured to take
20 to 170 ms for 256 MiB, and every tenant's call would wait that long. The thread takes no core
from what serves either: it has nothing to do in Python, so nobody waits for it."""


@dataclass(slots=True)
class LoadedArtifact:
    """A validated artifact: its spec, and plan and weights as sealed memory that this owns.

    The descriptors are kept while the model is loaded: its pages are those that the device child
    maps, and a child that is started again gets the same bits without reading the disk.
    """

    artifact_hash: str
    spec: ModelSpec
    plan_fd: int
    weights_fd: int
    platform: str = "pytorch_pt2"
    parameter_count: int = 0
    stamp: FileStamp = NO_STAMP
    """Of the file that was read."""

    @property
    def fds(self) -> tuple[int, int]:
        return self.plan_fd, self.weights_fd

    @property
    def weights_bytes(self) -> int:
        return os.fstat(self.weights_fd).st_size

    def again(self) -> "LoadedArtifact":
        """The same memory for another owner, who closes it by itself."""
        plan_fd = os.dup(self.plan_fd)
        try:
            return replace(self, plan_fd=plan_fd, weights_fd=os.dup(self.weights_fd))
        except BaseException:
            os.close(plan_fd)
            raise

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        fds = [fd for fd in self.fds if fd >= 0]
        self.plan_fd = self.weights_fd = -1
        if sum(os.fstat(fd).st_size for fd in fds) <= CLOSED_AT_ONCE_BYTES_MAX:
            _close_all(fds)
        else:
            threading.Thread(target=_close_later, args=(fds,), name="closing", daemon=True).start()


class Loading:
    """Starts loaders, a few at a time."""

    def __init__(self, settings: LoaderSettings, spawn: SpawnLoader) -> None:
        self._settings = settings
        self._spawn = spawn
        self._slots = asyncio.Semaphore(settings.loaders_max)
        self._files = ArtifactFiles()

    def set_read_limit(self, read_ns_max: int) -> None:
        """For reads that begin from now on."""
        self._settings = replace(self._settings, read_ns_max=read_ns_max)

    async def read(
        self, path: Path, artifact_format: str = "pt2", repository: Path | None = None
    ) -> LoadedArtifact:
        """Read and check one artifact, in a repository that may hang. Raises InvalidModel for what
        can't be served, and ModelNotReady when its file is not there, changed meanwhile, or the
        loader gave no answer in time."""
        async with self._slots, self._files.open(path, repository or path.parent) as file:
            try:
                artifact = await self._read(file.fd, artifact_format)
            except InvalidModel:
                # What is wrong with a file that somebody wrote to is no fault of the model's.
                await file.check_untouched()
                raise
            try:
                await file.check_untouched()
            except BaseException:
                artifact.close()
                raise
            artifact.stamp = file.stamp
            return artifact

    async def _read(self, artifact_fd: int, artifact_format: str) -> LoadedArtifact:
        channel, peer = Channel.pair()
        try:
            with peer:
                child = self._start(peer)
            with contextlib.ExitStack() as undo:
                try:
                    artifact = await self._converse(channel, artifact_fd, artifact_format)
                    undo.callback(artifact.close)
                except ChannelClosed:
                    raise _why_ended(await _how_ended(child)) from None
                finally:
                    await _end(child)
                undo.pop_all()
            return artifact
        finally:
            channel.close()

    def _start(self, peer: socket.socket) -> Mortal:
        try:
            return self._spawn(peer)
        except OSError as error:
            raise ModelNotReady(f"no process to read it with: {error.strerror}") from error

    async def _converse(
        self, channel: Channel, artifact_fd: int, artifact_format: str
    ) -> LoadedArtifact:
        """Ask and hear the answer. Raises ChannelClosed when the loader ends without one."""
        limit_s = self._settings.read_ns_max / NS_PER_S
        try:
            channel.send(
                frames.Read(self._settings.model_bytes_max, artifact_format), [artifact_fd]
            )
            async with asyncio.timeout(limit_s):
                answer, fds = await _receive(channel)
        except TimeoutError:
            raise ModelNotReady(
                f"reading its artifact took over {limit_s:g} s ([node] read_timeout_s)"
            ) from None
        except ChannelClosed:
            raise
        except ChannelError as error:
            raise InvalidModel(f"its artifact made the loader talk nonsense: {error}") from error
        return _artifact_of(answer, fds)


def _artifact_of(answer: frames.AnyFrame, fds: list[int]) -> LoadedArtifact:
    match answer:
        case frames.ReadDone(artifact_hash=artifact_hash, spec=spec) if len(fds) == 2:
            plan_fd, weights_fd = fds
            artifact = LoadedArtifact(
                artifact_hash,
                _NO_SPEC,
                plan_fd,
                weights_fd,
                platform=answer.platform,
                parameter_count=answer.parameter_count,
            )
            try:
                artifact.spec = msgspec.msgpack.decode(spec, type=ModelSpec)
                check_spec(artifact.spec)
            except msgspec.DecodeError as error:
                artifact.close()
                raise InvalidModel(
                    f"its artifact made the loader talk nonsense: {error}"
                ) from error
            except InvalidModel:
                artifact.close()
                raise
            return artifact
        case frames.ReadFailed(reason=reason):
            _close_all(fds)
            raise InvalidModel(reason)
        case _:
            _close_all(fds)
            raise InvalidModel("its artifact made the loader talk nonsense")


_NO_SPEC = ModelSpec(inputs=(), outputs=())


async def _receive(channel: Channel) -> tuple[frames.AnyFrame, list[int]]:
    """The next frame of a channel that is not on the loop yet."""
    loop = asyncio.get_running_loop()
    while True:
        received = channel.receive()
        if received is not None:
            return received
        readable = loop.create_future()
        loop.add_reader(channel.fileno(), _set_done, readable)
        try:
            await readable
        finally:
            loop.remove_reader(channel.fileno())


async def _end(child: Mortal) -> None:
    """Kill and reap. What it had to say was said; also when our own task is being cancelled, which
    does not wait for its end. Nobody waits for ever: a starter that stands still tells no end."""
    try:
        child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S_MAX):
                await _wait_ended(child)
    finally:
        child.reap()
        child.close()


async def _wait_ended(child: Mortal) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(child.fileno(), _set_done, ended)
    try:
        await ended
    finally:
        loop.remove_reader(child.fileno())


async def _how_ended(child: Mortal) -> str:
    """How a loader ended that closed its channel. One that lives on has lost its mind."""
    try:
        async with asyncio.timeout(EXIT_S_MAX):
            await _wait_ended(child)
    except TimeoutError:
        return "no exit"
    return child.reap()


def _why_ended(how: str) -> GpumuxdError:
    """A loader that somebody killed (the kernel for want of memory, an operator) says nothing of
    its artifact. One that crashed or reached its own limits does."""
    if how.startswith(NO_PROCESS):
        return ModelNotReady(f"{how[: len(NO_PROCESS)]} to read it with{how[len(NO_PROCESS) :]}")
    if how in KILLED_FROM_OUTSIDE:
        return ModelNotReady(f"the process that read its artifact was killed ({how}); retry")
    return InvalidModel(f"its artifact made the loader crash ({how})")


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _close_later(fds: list[int]) -> None:
    yield_to_others(threading.get_native_id())
    _close_all(fds)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
