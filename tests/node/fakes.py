"""A device child and a loader that are coroutines here: they speak the real frames over a real
socket pair, and do only what the test asks."""

import asyncio
import errno
import hashlib
import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import COMPLETED, Outcome, RunReport
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.node.api import InferCall, InputTensor, Tenant
from gpumuxd.node.child_process import Child, Mortal
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire import frames
from gpumuxd.wire.arena import ArenaMap
from gpumuxd.wire.channel import Channel, ChannelClosed
from gpumuxd.wire.in_flight_board import InFlightNotes
from gpumuxd.wire.process import sealed_memfd

F = TypeVar("F", bound=frames.Frame)

WAIT_S = 10.0
"""Nothing here takes long; a test that waits for this has failed."""

SPEC = ModelSpec(
    inputs=(TensorSpec("x", "INT32", (("batch",), 2)),),
    outputs=(TensorSpec("y", "INT32", (("batch",), 2)), TensorSpec("n", "INT64", (("batch",),))),
    symbols=(Symbol("batch", 1, 8),),
    batch_symbol="batch",
)


class FakeChild:
    """A process that ends when it is told to; satisfies `child_process.Child`."""

    _pids = itertools.count(900_001)

    def __init__(self) -> None:
        self.pid = next(self._pids)
        self.how = ""
        self.is_reaped = False
        self._readable, self._held = os.pipe()

    def fileno(self) -> int:
        return self._readable

    def kill(self) -> None:
        self.end("signal SIGKILL")

    def reap(self) -> str:
        assert self.how, "reaped while it runs"
        self.is_reaped = True
        return self.how

    def close(self) -> None:
        os.close(self._readable)

    def end(self, how: str) -> None:
        if not self.how:
            self.how = how
            os.close(self._held)


class FakeLife(FakeChild):
    """One life of a fake device child. What it does by itself is in its attributes."""

    def __init__(
        self, peer: socket.socket, environment: Mapping[str, str], plan: "FakeDevice"
    ) -> None:
        super().__init__()
        self.environment = environment
        self.plan = plan
        self.seen: list[frames.AnyFrame] = []
        self.turns = 0
        self.arena: ArenaMap | None = None
        self.notes: InFlightNotes | None = None
        self._changed = asyncio.Event()
        self._channel = Channel(peer.dup())
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._read)

    def end(self, how: str) -> None:
        if not self.how:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
            if self.arena is not None:
                self.arena.close()
            if self.notes is not None:
                self.notes.close()
        super().end(how)

    def send(self, frame: frames.Frame) -> None:
        self._channel.send(frame)

    def send_bytes(self, data: bytes) -> None:
        self._channel._sock.send(data)

    def finish(
        self,
        request_id: int,
        outputs: Sequence[bytes] = (),
        outcome: Outcome = COMPLETED,
        report: RunReport = RunReport(),  # noqa: B008 - frozen
    ) -> None:
        """End a request, with these bytes as its outputs."""
        submit = next(s for s in self.of(frames.Submit) if s.request_id == request_id)
        assert self.arena is not None
        for block, data in zip(submit.outputs, outputs, strict=False):
            self.arena.buffer[block.offset : block.offset + len(data)] = data
        blocks = submit.outputs if outcome is COMPLETED else ()
        self.send(frames.Finished(request_id, outcome, report, blocks))

    def launch(self, *request_ids: int) -> None:
        """Note each of these as in flight, as a loop does that launches a slice of it."""
        assert self.notes is not None
        for number in request_ids:
            self.notes.launched(number, (number,))

    def work_on(self, load: frames.LoadModel) -> None:
        """Note that this load is at work."""
        assert self.notes is not None
        self.notes.load(load.model, True)

    def input(self, submit: frames.Submit, index: int = 0) -> bytes:
        assert self.arena is not None
        block = submit.inputs[index]
        return bytes(self.arena.buffer[block.offset : block.offset + block.size_bytes])

    def of(self, kind: type[F]) -> list[F]:
        return [frame for frame in self.seen if isinstance(frame, kind)]

    async def wait_for(self, kind: type[F], count: int = 1) -> list[F]:
        """The first `count` frames of a kind, when they have come."""
        async with asyncio.timeout(WAIT_S):
            while len(self.of(kind)) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.of(kind)[:count]

    def _read(self) -> None:
        try:
            while not self.how and (received := self._channel.receive()) is not None:
                self._handle(*received)
        except ChannelClosed:
            self.end("exit code 0")

    def _handle(self, frame: frames.AnyFrame, fds: list[int]) -> None:
        self.seen.append(frame)
        self._changed.set()
        if isinstance(frame, frames.Start):
            self.arena, self.notes = ArenaMap(fds.pop(0)), InFlightNotes(fds.pop(0))
        for fd in fds:
            os.close(fd)
        self.plan.respond(self, frame)


class FakeDevice:
    """Spawns fake lives. The flags say what each life answers by itself."""

    def __init__(self) -> None:
        self.lives: list[FakeLife] = []
        self.answers_start = True
        self.answers_ping = True
        self.answers_unload = True
        self.answers_stop = True
        self.ends_at_start = False
        self.refusals = 0
        self.on_load: Callable[[FakeLife, frames.LoadModel], None] = load_well
        self.on_unload: Callable[[FakeLife, frames.UnloadModel], None] = lambda life, frame: None
        self._spawned = asyncio.Event()

    @property
    def life(self) -> FakeLife:
        return self.lives[-1]

    def spawn(self, peer: socket.socket, environment: Mapping[str, str]) -> Child:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError(errno.EAGAIN, "too many")
        life = FakeLife(peer, environment, self)
        self.lives.append(life)
        self._spawned.set()
        if self.ends_at_start:
            life.end("exit code 1")
        return life

    async def wait_lives(self, count: int) -> FakeLife:
        async with asyncio.timeout(WAIT_S):
            while len(self.lives) < count:
                self._spawned.clear()
                await self._spawned.wait()
        return self.lives[count - 1]

    def respond(self, life: FakeLife, frame: frames.AnyFrame) -> None:
        match frame:
            case frames.Start() if self.answers_start:
                life.send(frames.Started(frame.settings.device, "a fake", "2.13", 1 << 30))
            case frames.Ping(count=count) if self.answers_ping:
                life.turns += 1
                life.send(frames.Pong(count, life.turns))
            case frames.LoadModel():
                self.on_load(life, frame)
            case frames.UnloadModel(model=model) if self.answers_unload:
                life.send(frames.ModelReleased(model))
            case frames.UnloadModel():
                self.on_unload(life, frame)
            case frames.AskStatistics():
                figures = (3, 2, 1, 9, 9, 4, 0, 0, 2, 1000, 77, 2, 5000)
                told = frames.Statistics(*figures, bound_origin="slice_ns_max")
                life.send(
                    msgspec.structs.replace(told, best_effort_grants=6, best_effort_granted_ns=600)
                )
            case frames.Stop() if self.answers_stop:
                life.end("exit code 0")
            case _:
                pass


def load_well(life: FakeLife, frame: frames.LoadModel) -> None:
    life.send(frames.ModelLoaded(frame.model, 3, 40_000, (((1,), 100_000),), 64, 128, False))


def load_badly(life: FakeLife, frame: frames.LoadModel) -> None:
    life.send(frames.ModelFailed(frame.model, "it does not compile"))


def load_deadly(life: FakeLife, frame: frames.LoadModel) -> None:
    life.end("signal SIGSEGV")


def load_never(life: FakeLife, frame: frames.LoadModel) -> None:
    """Says nothing."""


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FakeLoader:
    """Spawns fake loaders that answer every Read alike."""

    def __init__(self, spec: ModelSpec = SPEC) -> None:
        self.spec = spec
        self.children: list[FakeChild] = []
        self.refusals = 0
        self.formats: list[str] = []
        self.held: list[Channel] = []
        self.answer: Callable[[Channel, bytes], None] = self.read_well
        self.on_read: Callable[[], None] = lambda: None

    def spawn(self, peer: socket.socket) -> Mortal:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError(errno.EAGAIN, "too many")
        child = FakeChild()
        self.children.append(child)
        loop = asyncio.get_running_loop()
        channel = Channel(peer.dup())

        def read() -> None:
            try:
                received = channel.receive()
            except ChannelClosed:
                received = None
            loop.remove_reader(channel.fileno())
            if received is not None:
                frame, (artifact_fd,) = received
                assert isinstance(frame, frames.Read)
                self.formats.append(frame.artifact_format)
                data = os.read(artifact_fd, 100)
                os.close(artifact_fd)
                self.on_read()
                self.answer(channel, data)
            if channel not in self.held:
                channel.close()

        loop.add_reader(channel.fileno(), read)
        return child

    def read_well(self, channel: Channel, data: bytes) -> None:
        fds = [sealed_memfd("fake", lambda file: file.write(data)) for _ in range(2)]
        spec = msgspec.msgpack.encode(self.spec)
        channel.send(frames.ReadDone(hash_of(data), spec, 1, 1, 1), fds)
        for fd in fds:
            os.close(fd)

    def refuse(self, channel: Channel, data: bytes) -> None:
        channel.send(frames.ReadFailed("aten.evil is not allowed"))

    def crash(self, channel: Channel, data: bytes) -> None:
        """Answers nothing; its channel closes."""
        self.children[-1].end("signal SIGSEGV")

    def be_killed(self, channel: Channel, data: bytes) -> None:
        self.children[-1].end("signal SIGKILL")

    def run_out_of_time(self, channel: Channel, data: bytes) -> None:
        self.children[-1].end("signal SIGXCPU")

    def hang(self, channel: Channel, data: bytes) -> None:
        self.held.append(channel)

    def lie(self, channel: Channel, data: bytes) -> None:
        self.spec = msgspec.structs.replace(SPEC, batch_symbol="no such")
        self.read_well(channel, data)

    def forget_the_weights(self, channel: Channel, data: bytes) -> None:
        with open("/dev/null") as file:
            spec = msgspec.msgpack.encode(self.spec)
            channel.send(frames.ReadDone("hash", spec, 1, 1, 1), [file.fileno()])

    def talk_nonsense(self, channel: Channel, data: bytes) -> None:
        channel.send(frames.Ping(1))


def add_model(
    repository: Path, name: str, version: int = 1, data: bytes = b"v1", manifest: str = ""
) -> Path:
    """A model in a repository; its artifact is whatever the fake loader takes it for."""
    directory = repository / name / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    if manifest:
        (repository / name / "model.toml").write_text(manifest)
    artifact = directory / "model.pt2"
    artifact.write_bytes(data)
    return artifact


def int32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


def call(
    *values: int,
    model: str = "m",
    tenant: Tenant = DEFAULT_TENANT,
    priority: int = 0,
    deadline_ns: int | None = None,
    version: str = "",
    wanted: Sequence[str] = (),
) -> InferCall:
    """A good call of SPEC with one row for each two values."""
    values = values or (1, 2)
    tensor = InputTensor("x", "INT32", (len(values) // 2, 2), int32(*values))
    return InferCall(
        tenant, model, version, priority, deadline_ns, monotonic_ns(), [tensor], wanted
    )
