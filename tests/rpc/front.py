"""Opens front doors, and calls them with messages as they lie on the wire."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.listener import Listener
from gpumuxd.rpc.server import FrontDoor
from gpumuxd.settings import LogLevels
from tests.rpc.fake_node import ADMIN, CAMERA, FakeNode, FakeTenants

MESSAGE_BYTES_MAX = 1024 * 1024
CAMERA_TOKEN = "camera-token"
WAIT_S = 10.0

INFER = "/inference.GRPCInferenceService/ModelInfer"
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass
class Front:
    """An open front door: `target` is the admin's own socket, `shared` asks for a token."""

    door: FrontDoor
    node: FakeNode
    target: str
    shared: str
    switches: "FakeSwitches"
    tenants: FakeTenants


@dataclass
class FakeSwitches:
    """Switches of logs that nobody writes."""

    levels: LogLevels = field(default_factory=LogLevels)
    levels_at_start: LogLevels = field(default_factory=LogLevels)

    def set(self, levels: LogLevels) -> None:
        self.levels = levels


@asynccontextmanager
async def open_front(node: FakeNode, directory: Path) -> AsyncIterator[Front]:
    listeners = (Listener(f"unix:{directory}/own.sock", ADMIN), Listener("127.0.0.1:0"))
    tenants = FakeTenants({CAMERA_TOKEN: CAMERA})
    switches = FakeSwitches()
    door = FrontDoor(node, listeners, tenants, MESSAGE_BYTES_MAX, switches=switches)
    await door.start()
    door.set_serving(True)
    own, shared = door.addresses
    try:
        yield Front(door, node, own, shared, switches, tenants)
    finally:
        await door.stop(0)


async def ask(
    channel: grpc.aio.Channel,
    path: str,
    request: Message | bytes,
    response_type: type[ResponseT],
    *,
    timeout_s: float = WAIT_S,
    metadata: Sequence[tuple[str, str]] = (),
) -> ResponseT:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return response_type.FromString(await call(data, timeout=timeout_s, metadata=metadata))


async def infer(
    channel: grpc.aio.Channel, request: Message | bytes, *, timeout_s: float = WAIT_S
) -> pb.ModelInferResponse:
    return await ask(channel, INFER, request, pb.ModelInferResponse, timeout_s=timeout_s)


async def refusal(
    channel: grpc.aio.Channel,
    path: str,
    request: Message | bytes,
    *,
    timeout_s: float = WAIT_S,
    metadata: Sequence[tuple[str, str]] = (),
) -> tuple[str, str, str | None]:
    """Status, details and reason of a call that must fail."""
    try:
        response = await ask(
            channel, path, request, pb.ModelInferResponse, timeout_s=timeout_s, metadata=metadata
        )
    except grpc.aio.AioRpcError as error:
        trailing = dict(error.trailing_metadata() or ())
        return error.code().name, error.details() or "", trailing.get("gpumuxd-reason")
    raise AssertionError(f"expected a refusal, got {response}")


def good_request(**changes: object) -> pb.ModelInferRequest:
    """A raw FP32 request of one row that the fake node takes."""
    request = pb.ModelInferRequest(
        model_name="identity_fp32",
        id="42",
        inputs=[pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])],
        raw_input_contents=[bytes(range(16))],
    )
    for name, value in changes.items():
        request.ClearField(name)
        request.MergeFrom(pb.ModelInferRequest(**{name: value}))  # type: ignore[arg-type]  # same
    return request


def declared(
    datatype: str = "FP32", shape: Sequence[int] = (1, 4), name: str = "x", **contents: Any
) -> pb.ModelInferRequest.InferInputTensor:
    """An input without raw bytes, with typed contents if any are given."""
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents:
        tensor.contents.MergeFrom(pb.InferTensorContents(**contents))
    return tensor
