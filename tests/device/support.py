"""A device child as its parent sees it: a real process, with blocking calls and time limits."""

import itertools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec
import numpy as np
import torch

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.loader.main import read
from gpumuxd.models.batching_policy import BatchingPolicy
from gpumuxd.models.spec import ModelSpec, evaluate_shape, tensor_bytes
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import GIB, MIB
from gpumuxd.wire.arena import Arena
from gpumuxd.wire.channel import Channel
from gpumuxd.wire.frames import (
    Accepted,
    AnyFrame,
    Block,
    Finished,
    Frame,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelReleased,
    Start,
    Started,
    Stop,
    Submit,
    UnloadModel,
)
from gpumuxd.wire.in_flight_board import InFlightBoard

WAIT_S = 60.0

SETTINGS = DeviceSettings(arena_bytes=16 * MIB, profile_passes=1, profile_batch_max=2)

FrameT = TypeVar("FrameT", bound=Frame)

NUMPY_OF = {"FP32": np.float32, "INT64": np.int64}
DATATYPE_OF = {torch.float32: "FP32", torch.int64: "INT64"}


@dataclass(frozen=True)
class LoadedArtifact:
    """What a loader hands over: the signature, and the bytes of plan and weights to be sealed."""

    hash: str
    spec: ModelSpec
    plan_fd: int
    weights_fd: int


def read_artifact(path: Path) -> LoadedArtifact:
    """As a loader process would, in this one."""
    with path.open("rb") as file:
        done, (plan_fd, weights_fd) = read(file, GIB)
    spec = msgspec.msgpack.decode(done.spec, type=ModelSpec)
    return LoadedArtifact(done.artifact_hash, spec, plan_fd, weights_fd)


def released(frames: Iterable[AnyFrame | Frame]) -> list[str]:
    """The models that these frames, which must all be of that kind, say are gone. What the process
    held before and after is its own affair; that it is told is asked here."""
    models = []
    for frame in frames:
        assert isinstance(frame, ModelReleased), frame
        assert frame.resident_bytes_before > 0 < frame.resident_bytes_after, frame
        models.append(frame.model)
    return models


class DeviceChild:
    """`python -m gpumuxd.device`, its channel and its arena. Leaves nothing behind."""

    def __init__(self, settings: DeviceSettings = SETTINGS, parent_pid: int | None = None) -> None:
        self.arena = Arena(settings.arena_bytes)
        self.board = InFlightBoard()
        self.channel, peer = Channel.pair()
        with peer:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpumuxd.device", str(peer.fileno())],
                pass_fds=[peer.fileno()],
                stderr=subprocess.PIPE,
                text=True,
            )
        self._request_ids = itertools.count(1)
        self._specs: dict[str, ModelSpec] = {}
        self.frames: list[AnyFrame] = []
        fds = [self.arena.fd, self.board.fd]
        self.channel.send(Start(settings, parent_pid or os.getpid()), fds)

    def __enter__(self) -> "DeviceChild":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.channel.close()
        self.arena.close()
        self.board.close()
        if self.process.poll() is None:
            self.process.kill()
        _, errors = self.process.communicate(timeout=WAIT_S)
        if error is not None:
            print(errors)

    def send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        self.channel.send(frame, fds)

    def receive(self) -> AnyFrame:
        """The next frame. Raises ChannelClosed at the end."""
        while (received := self.channel.receive()) is None:
            ready, _, _ = select.select([self.channel], [], [], WAIT_S)
            assert ready, f"nothing came for {WAIT_S} s"
        frame, fds = received
        assert fds == []
        return frame

    def expect(self, kind: type[FrameT]) -> FrameT:
        """The next frame of this kind; others are kept in `frames`, in their order."""
        while not isinstance(frame := self.receive(), kind):
            self.frames.append(frame)
        return frame

    def expect_either(self, *kinds: type[AnyFrame]) -> AnyFrame:
        """The next frame of one of these kinds; others are kept in `frames`."""
        while not isinstance(frame := self.receive(), kinds):
            self.frames.append(frame)
        return frame

    def wait_started(self) -> Started:
        return self.expect(Started)

    def send_load(
        self,
        artifact: LoadedArtifact,
        model: str,
        class_max: PriorityClass = PriorityClass.REALTIME,
        slo_ns: int | None = None,
        policy: BatchingPolicy | None = None,
    ) -> None:
        self._specs[model] = artifact.spec
        frame = LoadModel(model, artifact.hash, class_max, slo_ns, "tenant")
        if policy is not None:
            frame = msgspec.structs.replace(
                frame,
                batching=policy.batching(artifact.spec, None),
                padded=policy.padded,
                fills=policy.fills(artifact.spec),
            )
        self.send(frame, [artifact.plan_fd, artifact.weights_fd])

    def load(
        self,
        artifact: LoadedArtifact,
        model: str,
        class_max: PriorityClass = PriorityClass.REALTIME,
        policy: BatchingPolicy | None = None,
    ) -> ModelLoaded:
        self.send_load(artifact, model, class_max, policy=policy)
        frame = self.expect_either(ModelLoaded, ModelFailed)
        assert isinstance(frame, ModelLoaded), frame
        return frame

    def submit(
        self,
        model: str,
        inputs: Mapping[str, torch.Tensor],
        priority_class: PriorityClass = PriorityClass.STANDARD,
        deadline_ns: int | None = None,
        batch_key: tuple[int, ...] | None = None,
    ) -> Submit:
        """Copy the inputs in, reserve the outputs, send. Returns the frame that was sent."""
        spec = self._specs[model]
        bindings = spec.bind({name: tuple(tensor.shape) for name, tensor in inputs.items()})
        frame = Submit(
            request_id=next(self._request_ids),
            tenant="tenant",
            model=model,
            priority_class=priority_class,
            bucket=spec.bucket(bindings),
            rows=spec.rows(bindings),
            arrived_ns=monotonic_ns(),
            deadline_ns=deadline_ns,
            inputs=tuple(self._copy_in(inputs[tensor.name]) for tensor in spec.inputs),
            outputs=tuple(
                self._reserve(tensor.datatype, evaluate_shape(tensor.shape, bindings))
                for tensor in spec.outputs
            ),
            batch_key=batch_key,
        )
        self.send(frame)
        return frame

    def finish(self, submit: Submit) -> Finished:
        """The Finished of this request; blocks of its inputs are given back."""
        finished = next(
            (
                frame
                for frame in self.frames
                if isinstance(frame, Finished) and frame.request_id == submit.request_id
            ),
            None,
        )
        if finished is not None:
            self.frames.remove(finished)
        while finished is None:
            frame = self.expect(Finished)
            if frame.request_id == submit.request_id:
                finished = frame
            else:
                self.frames.append(frame)
        return finished

    def infer(self, model: str, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Submit, wait, copy the outputs out, free all blocks."""
        submit = self.submit(model, inputs)
        finished = self.finish(submit)
        assert finished.outcome.kind is OutcomeKind.COMPLETED, finished
        results = [self.tensor(block) for block in finished.outputs]
        self.free(submit)
        return results

    def free(self, submit: Submit) -> None:
        for block in (*submit.inputs, *submit.outputs):
            self.arena.free(block.offset)

    def tensor(self, block: Block) -> torch.Tensor:
        data = bytes(self.arena.view(block.offset, block.size_bytes))
        array = np.frombuffer(bytearray(data), NUMPY_OF[block.datatype]).reshape(block.shape)
        return torch.from_numpy(array)

    def unload(self, model: str) -> None:
        self.send(UnloadModel(model))

    def stop(self) -> tuple[int, str]:
        """Stop in order; the exit status and what was written to standard error."""
        self.send(Stop())
        return self.wait_exit()

    def wait_exit(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def maps(self) -> str:
        """What the child has mapped, by the names of its memfds and files."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def accepted_ids(self) -> list[int]:
        return [frame.request_id for frame in self.frames if isinstance(frame, Accepted)]

    def _copy_in(self, tensor: torch.Tensor) -> Block:
        data = tensor.contiguous().numpy().tobytes()
        block = self._reserve(DATATYPE_OF[tensor.dtype], tuple(tensor.shape))
        self.arena.view(block.offset, len(data))[:] = data
        return block

    def _reserve(self, datatype: str, shape: tuple[int, ...]) -> Block:
        size_bytes = tensor_bytes(datatype, shape)
        return Block(self.arena.allocate(size_bytes), size_bytes, datatype, shape)
