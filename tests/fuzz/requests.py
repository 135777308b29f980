"""Requests to the front door, drawn and mutated: as messages, and as the bytes of messages.

Each begins as a good one, so that most of it is looked at closely. Seeded; knows no node.
"""

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message

from gpumuxd.rpc import control, inference
from gpumuxd.rpc.generated import control_pb2
from gpumuxd.rpc.generated import inference_pb2 as pb
from tests.fuzz.mutate import INTEGERS, mutate_bytes

INFER = f"/{inference.SERVICE}/ModelInfer"

NAMES = ("tiny", "mixed", "x", "y", "ids", "mask", "scale", "", "../x", "é", "\0", "n" * 5000)
VERSIONS = ("", "1", "2", "0", "-1", "x", "01", "\uff11", "9" * 5000)
DATATYPES = (
    "FP32",
    "FP64",
    "FP16",
    "INT64",
    "INT32",
    "UINT8",
    "BOOL",
    "BYTES",
    "",
    "fp32",
    "é" * 99,
)
SIZES = (*INTEGERS[:20], 1 << 40, (1 << 63) - 1, -(1 << 63))
PARAMETERS = (
    *("priority", "timeout", "sequence_id", "sequence_end", "triton_x", "custom", ""),
    *("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"),
    *("triton_enable_empty_final_response", "classification"),
)
REMAINING_S = (None, None, None, 0.0, -1.0, 1e-9, 0.001, 30.0, 1e18, math.nan, math.inf, -math.inf)
FLOATS = (0.0, -1.0, math.nan, math.inf, 1e300)

_OTHERS: tuple[tuple[str, Message], ...] = (
    (f"/{inference.SERVICE}/ServerLive", pb.ServerLiveRequest()),
    (f"/{inference.SERVICE}/ServerReady", pb.ServerReadyRequest()),
    (f"/{inference.SERVICE}/ServerMetadata", pb.ServerMetadataRequest()),
    (f"/{inference.SERVICE}/ModelReady", pb.ModelReadyRequest(name="tiny", version="1")),
    (f"/{inference.SERVICE}/ModelMetadata", pb.ModelMetadataRequest(name="mixed", version="1")),
    (f"/{inference.SERVICE}/ModelConfig", pb.ModelConfigRequest(name="tiny")),
    (f"/{inference.SERVICE}/RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
    (f"/{inference.SERVICE}/RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="tiny")),
    (
        f"/{inference.SERVICE}/RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name="tiny"),
    ),
    (f"/{control.SERVICE}/NodeStatus", control_pb2.NodeStatusRequest()),
    (f"/{control.SERVICE}/ModelDetail", control_pb2.ModelDetailRequest(name="tiny", version="1")),
    (
        f"/{control.SERVICE}/ExplainModel",
        control_pb2.ExplainModelRequest(name="tiny", sizes={"batch": 2}),
    ),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it comes from outside."""

    path: str
    data: bytes
    remaining_s: float | None


def draw_call(draw: random.Random) -> Asked:
    """Nine of ten are inferences."""
    if draw.randrange(10):
        return Asked(INFER, mutated_infer(draw), draw.choice(REMAINING_S))
    path, message = draw.choice(_OTHERS)
    data = message.SerializeToString()
    return Asked(path, mutate_bytes(data, draw) if draw.randrange(4) else data, None)


# Good ones


def tiny(draw: random.Random) -> tuple[pb.ModelInferRequest, bytes]:
    """For y = 2 x + 1, and the bytes of y."""
    rows = draw.randint(1, 4)
    values = [float(draw.randint(-1000, 1000)) for _ in range(4 * rows)]
    request = pb.ModelInferRequest(model_name="tiny", id=str(draw.randrange(1000)))
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    request.raw_input_contents.append(struct.pack(f"<{4 * rows}f", *values))
    request.outputs.add(name="y")
    return request, struct.pack(f"<{4 * rows}f", *(2 * value + 1 for value in values))


def mixed(draw: random.Random) -> tuple[pb.ModelInferRequest, bytes]:
    """For the sum of the ids that are not masked, in each row; and its bytes."""
    rows = draw.randint(1, 4)
    ids = [draw.randint(-1000, 1000) for _ in range(3 * rows)]
    mask = [draw.random() < 0.5 for _ in range(3 * rows)]
    request = pb.ModelInferRequest(model_name="mixed", model_version="1")
    request.inputs.add(name="ids", datatype="INT64", shape=[rows, 3])
    request.inputs.add(name="mask", datatype="BOOL", shape=[rows, 3])
    request.inputs.add(name="scale", datatype="FP32", shape=[rows])
    request.raw_input_contents.append(struct.pack(f"<{3 * rows}q", *ids))
    request.raw_input_contents.append(bytes(mask))
    request.raw_input_contents.append(bytes(4 * rows))
    kept = [value if is_kept else 0 for value, is_kept in zip(ids, mask, strict=True)]
    sums = [sum(kept[3 * row : 3 * row + 3]) for row in range(rows)]
    request.outputs.add(name="total")
    return request, struct.pack(f"<{rows}q", *sums)


GOOD = (tiny, mixed)


# Mutations


def mutated_infer(draw: random.Random) -> bytes:
    """Mostly one change of the message, and in one of three some of its bytes."""
    request, _ = draw.choice(GOOD)(draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choice(_CHANGES)(request, draw)
    data = request.SerializeToString()
    match draw.randrange(18):
        case 0 | 1 | 2 | 3:
            return mutate_bytes(data, draw)
        case 4:
            return data + draw.choice(GOOD)(draw)[0].SerializeToString()  # merged by the reader
        case 5:
            return draw.randbytes(draw.randint(0, 200))
    return data


def _names(request: pb.ModelInferRequest, draw: random.Random) -> None:
    match draw.randrange(3):
        case 0:
            request.model_name = draw.choice(NAMES)
        case 1:
            request.model_version = draw.choice(VERSIONS)
        case _:
            request.id = draw.choice(NAMES)


def _parameter(request: pb.ModelInferRequest, draw: random.Random) -> None:
    holder: pb.ModelInferRequest | pb.ModelInferRequest.InferInputTensor = request
    if request.inputs and draw.randrange(4) == 0:
        holder = draw.choice(request.inputs)
    if draw.randrange(200) == 0:
        for number in range(1025):
            holder.parameters[f"p{number}"].int64_param = number
        return
    value = holder.parameters[draw.choice(PARAMETERS)]
    match draw.randrange(6):
        case 0:
            value.int64_param = draw.choice((0, 1, 2, 3, 1000, -1, (1 << 63) - 1, -(1 << 63)))
        case 1:
            value.uint64_param = draw.choice((0, 1, 2, 1 << 63, (1 << 64) - 1))
        case 2:
            value.double_param = draw.choice(FLOATS)
        case 3:
            value.string_param = draw.choice(NAMES)
        case 4:
            value.bool_param = draw.random() < 0.5
        case _:
            value.Clear()


def _input(request: pb.ModelInferRequest, draw: random.Random) -> None:
    if not request.inputs:
        return
    tensor = draw.choice(request.inputs)
    match draw.randrange(7):
        case 0:
            tensor.name = draw.choice(NAMES)
        case 1:
            tensor.datatype = draw.choice(DATATYPES)
        case 2:
            request.inputs.append(tensor)  # twice, mostly without bytes for it
        case 3:
            request.inputs.remove(tensor)
        case 4 if draw.randrange(50) == 0 and tensor.ByteSize() < 200:
            request.inputs.extend([tensor] * 1025)
        case _:
            request.inputs.sort(key=lambda each: each.name, reverse=True)


def _shape(request: pb.ModelInferRequest, draw: random.Random) -> None:
    if not request.inputs:
        return
    shape = draw.choice(request.inputs).shape
    match draw.randrange(4):
        case 0 if shape:
            shape[draw.randrange(len(shape))] = draw.choice(SIZES)
        case 1:
            shape.append(draw.choice(SIZES))
        case 2 if shape:
            shape.pop()
        case _:
            shape.extend([draw.choice((0, 1, 2))] * draw.choice((1, 4, 40)))


def _contents(request: pb.ModelInferRequest, draw: random.Random) -> None:
    """Typed: those that fit, those of another type, beside raw ones or in their place."""
    if not request.inputs:
        return
    tensor = draw.choice(request.inputs)
    count = min(math.prod(tensor.shape), 64) if draw.randrange(3) else draw.randint(0, 8)
    numbers = [draw.randint(0, 3) for _ in range(max(count, 0))]
    contents = tensor.contents
    match draw.randrange(7):
        case 0 | 1:
            contents.fp32_contents.extend(draw.choice((math.nan, 0.5)) for _ in numbers)
        case 2:
            contents.int64_contents.extend(numbers)
        case 3:
            contents.bool_contents.extend(bool(number) for number in numbers)
        case 4:
            contents.int_contents.extend(numbers)
        case 5:
            contents.uint64_contents.extend((1 << 64) - 1 for _ in numbers)
        case _:
            contents.bytes_contents.extend(b"\xff\xfe" for _ in numbers)
    if draw.randrange(3):
        request.ClearField("raw_input_contents")


def _raw(request: pb.ModelInferRequest, draw: random.Random) -> None:
    raw = request.raw_input_contents
    place = draw.randrange(len(raw) + 1)
    match draw.randrange(5):
        case 0:
            raw.insert(place, draw.randbytes(draw.choice((0, 1, 16, 64))))
        case 1 if raw:
            raw.pop()
        case 2 if place < len(raw):
            raw[place] = raw[place][: draw.randrange(len(raw[place]) + 1)]
        case 3 if place < len(raw):
            raw[place] = draw.randbytes(len(raw[place]))  # a mask of bytes that are no BOOL
        case _ if place < len(raw):
            raw[place] += draw.randbytes(draw.choice((1, 4, 4096)))


def _outputs(request: pb.ModelInferRequest, draw: random.Random) -> None:
    output = request.outputs.add(name=draw.choice(("y", "n", "total", *NAMES)))
    if draw.randrange(3) == 0:
        output.parameters[draw.choice(PARAMETERS)].int64_param = 1
    if draw.randrange(4) == 0:
        request.ClearField("outputs")


_CHANGES: tuple[Callable[[pb.ModelInferRequest, random.Random], None], ...] = (
    *(_names, _parameter, _parameter, _input, _input, _shape, _shape, _contents, _raw, _outputs),
)
