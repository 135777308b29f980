"""Protobuf to `InferCall`, `InferReply` to protobuf: tensors, parameters, deadlines.

Checks what a message must be on its own: names given once, shapes that can exist, bytes that fit
their shape, one form of contents, parameters of the right type. Whether a model takes it is
decided in `node/`, which this file must not know. All numbers on the wire are little-endian.

Invariant: every `InputTensor` holds exactly the bytes that its datatype and shape ask for, or names
a place in shared memory of that size.
"""

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpumuxd.errors import InvalidRequest, Unsupported, limit_facts
from gpumuxd.models.spec import ITEM_BYTES
from gpumuxd.node.api import InferCall, InferReply, InputTensor, RegionRef, SequenceStep, Tenant
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.parameters import (
    OFFSET,
    REGION,
    SHARED_MEMORY,
    SIZE,
    read_count,
    read_flag,
    read_region,
    read_sequence_id,
)
from gpumuxd.rpc.raw_request import TENSORS_MAX, InferRequest, encoded_size
from gpumuxd.units import NS_PER_S, NS_PER_US

assert sys.byteorder == "little", "tensors are passed on as they lie in memory"

RANK_MAX = 32
"""Most dimensions of a tensor. torch takes 64, no model uses more than 8; the limit keeps the
product of a hostile shape cheap."""

TENSOR_PARAMETERS_MAX = 64
"""Most parameters of one input or output; those that the protocol knows are three."""

TYPED_ELEMENTS_MAX = 4 * 1024 * 1024
"""Most elements of a request as typed contents. Every one becomes a Python object first, about
30 ns each, and nobody else's request moves meanwhile. Raw contents have no such limit."""

ELEMENTS_MAX = 2**63 - 1
"""More elements than this can't be counted by anything below."""

DEADLINE_NS_MAX = 365 * 24 * 3600 * NS_PER_S
"""A deadline further away than a year is none; it also keeps the sum within 64 bits."""

_CONTENTS_FIELD: dict[str, tuple[str, str]] = {
    # datatype: (field, array typecode)
    "BOOL": ("bool_contents", "B"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
}

_RAW_TAG = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])
_STREAMED_TAG = bytes([pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2])

FINAL = "triton_final_response"

_FINAL_PARAMETER = pb.ModelInferResponse(
    parameters={FINAL: pb.InferParameter(bool_param=True)}
).SerializeToString()
"""Messages that lie side by side are one."""


def decode_infer(
    asked: InferRequest,
    tenant: Tenant,
    arrived_ns: int,
    remaining_s: float | None,
    encode: Callable[[InferReply], bytes] | None = None,
) -> InferCall:
    """The call that a message asks for; its tensors stay where they lie. Raises InvalidRequest or
    Unsupported.

    `remaining_s` is what is left of the gRPC deadline, relative to `arrived_ns`. `encode` makes the
    answer, as the call says.
    """
    request = asked.message
    _check_counts(request)
    priority, timeout_ns, sequence = _decode_parameters(request.parameters)
    outputs = [_decode_requested(output) for output in request.outputs]
    outputs_wanted = tuple([name for name, _ in outputs])
    _check_unique("output", outputs_wanted)
    inputs = _decode_inputs(asked)
    _check_unique("input", (tensor.name for tensor in inputs))
    return InferCall(
        tenant=tenant,
        model=request.model_name,
        version=request.model_version,
        priority=priority,
        deadline_ns=_deadline_ns(arrived_ns, timeout_ns, remaining_s),
        arrived_ns=arrived_ns,
        inputs=inputs,
        outputs_wanted=outputs_wanted,
        output_regions={name: region for name, region in outputs if region is not None},
        sequence=sequence,
        encode=encode,
    )


def encode_infer(reply: InferReply, request_id: str) -> bytes:
    """The answer: always raw contents, one entry for each output."""
    return b"".join(_answer_pieces(reply, request_id))


def encode_stream_infer(reply: InferReply, request_id: str) -> bytes:
    """The same as an answer in a stream, where every answer is the last to its request."""
    pieces = [_FINAL_PARAMETER, *_answer_pieces(reply, request_id)]
    size = sum([len(piece) for piece in pieces])
    return b"".join([_STREAMED_TAG, encoded_size(size), *pieces])


def _answer_pieces(reply: InferReply, request_id: str) -> list[bytes | memoryview]:
    """A ModelInferResponse, to be joined. No tensor is copied before that."""
    response = pb.ModelInferResponse(
        model_name=reply.model, model_version=reply.version, id=request_id
    )
    for output in reply.outputs:
        told = response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        if output.region is not None:
            told.parameters[REGION].string_param = output.region.region
            told.parameters[SIZE].int64_param = output.region.size_bytes
            told.parameters[OFFSET].int64_param = output.region.offset
    report = reply.report
    parameters = response.parameters
    parameters["queue_ns"].int64_param = report.queue_ns
    parameters["compute_ns"].int64_param = report.compute_ns
    parameters["preemptions"].int64_param = report.preemptions
    parameters["preemption_wait_ns"].int64_param = report.preemption_wait_ns
    parameters["predicted_ns"].int64_param = report.predicted_ns
    parameters["batch_rows"].int64_param = report.batch_rows
    parameters["replays"].int64_param = reply.replays
    pieces: list[bytes | memoryview] = [response.SerializeToString()]
    for output in reply.outputs:
        pieces += [_RAW_TAG, encoded_size(len(output.data)), output.data]
    return pieces


# Deadlines and parameters


def _deadline_ns(arrived_ns: int, timeout_ns: int, remaining_s: float | None) -> int | None:
    """The earliest of both, absolute. `timeout_ns` 0 is none, `remaining_s` 0 is now."""
    earliest = timeout_ns or DEADLINE_NS_MAX + 1
    if remaining_s is not None and remaining_s * NS_PER_S <= DEADLINE_NS_MAX:
        earliest = min(earliest, int(max(0.0, remaining_s) * NS_PER_S))
    return arrived_ns + earliest if earliest <= DEADLINE_NS_MAX else None


def _decode_parameters(
    parameters: Mapping[str, pb.InferParameter],
) -> tuple[int, int, SequenceStep | None]:
    """Wire priority and timeout in nanoseconds, both 0 when not given, and of which sequence it is
    a step. Custom keys are ignored."""
    priority = timeout_us = 0
    sequence_id: int | str = 0
    flags = {"sequence_start": False, "sequence_end": False}
    for key in parameters:
        value = parameters[key]
        if key == "priority":
            priority = read_count("priority", value, "1 is the most urgent, 0 the tenant's default")
        elif key == "timeout":
            timeout_us = read_count("timeout", value, "microseconds, 0 for none")
        elif key == "sequence_id":
            sequence_id = read_sequence_id(value)
        elif key in flags:
            flags[key] = read_flag(key, value)
        elif key.startswith(SHARED_MEMORY):
            raise InvalidRequest(f"parameter {key!r}: expected at a tensor, not at the request")
        elif key == "triton_enable_empty_final_response":
            pass  # the C++ client adds it to every request; it only concerns streams
        elif key.startswith("triton_"):
            raise InvalidRequest(f"parameter {key!r}: names beginning with 'triton_' are reserved")
    is_start, is_end = flags.values()
    sequence = SequenceStep(sequence_id, is_start, is_end) if sequence_id else None
    if sequence is None and (is_start or is_end):
        raise InvalidRequest("sequence_start or sequence_end: expected a sequence_id beside it")
    return priority, timeout_us * NS_PER_US, sequence


def _decode_requested(
    output: pb.ModelInferRequest.InferRequestedOutputTensor,
) -> tuple[str, RegionRef | None]:
    """Its name, and where it is to be written."""
    name, parameters = output.name, _parameters_of(output)
    if not parameters:
        return name, None
    if "classification" in parameters:
        raise Unsupported(f"output {name!r}: parameter 'classification' is not supported")
    return name, read_region(f"output {name!r}", parameters)


def _parameters_of(
    tensor: pb.ModelInferRequest.InferInputTensor | pb.ModelInferRequest.InferRequestedOutputTensor,
) -> Mapping[str, pb.InferParameter]:
    parameters: Mapping[str, pb.InferParameter] = tensor.parameters
    if len(parameters) > TENSOR_PARAMETERS_MAX:
        raise InvalidRequest(
            f"{tensor.name!r}: expected at most {TENSOR_PARAMETERS_MAX} parameters of a tensor, "
            f"got {len(parameters)}"
        )
    return parameters


def _check_unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(f"{what} {name!r} is given more than once")
        seen.add(name)


def _check_counts(request: pb.ModelInferRequest) -> None:
    for field in ("parameters", "inputs", "outputs"):
        count = len(getattr(request, field))
        if count > TENSORS_MAX:
            raise InvalidRequest(
                f"{field}: expected at most {TENSORS_MAX}, got {count}",
                limit_facts("tensors_max", TENSORS_MAX, "tensors", asked=count),
            )


# Tensors


class _Declared(NamedTuple):
    """What a tensor says of itself; `region` is where it lies in shared memory. Each field of a
    message is read once: that takes 0.3 to 2 us, and is most of what decoding costs."""

    tensor: pb.ModelInferRequest.InferInputTensor
    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    region: RegionRef | None

    @property
    def has_contents(self) -> bool:
        return self.tensor.HasField("contents") and self.tensor.contents.ByteSize() > 0


def _decode_inputs(asked: InferRequest) -> list[InputTensor]:
    declared = [_check_declared(tensor) for tensor in asked.message.inputs]
    in_message = [each for each in declared if each.region is None]
    if len(in_message) == len(declared):
        return _inputs_in_message(declared, asked.raw)
    read = iter(_inputs_in_message(in_message, asked.raw))
    return [next(read) if each.region is None else _input_in_region(each) for each in declared]


def _inputs_in_message(
    declared: Sequence[_Declared], raw: Sequence[memoryview]
) -> list[InputTensor]:
    if not raw:
        return _typed_inputs(declared)
    for each in declared:
        if each.has_contents:
            raise InvalidRequest(
                f"input {each.name!r}: contents must not be given together with raw_input_contents"
            )
    if len(raw) != len(declared):
        raise InvalidRequest(
            f"raw_input_contents: expected {len(declared)} entries, one for each input that is not "
            f"in shared memory, got {len(raw)}"
        )
    return [_raw_input(each, data) for each, data in zip(declared, raw, strict=True)]


def _input_in_region(declared: _Declared) -> InputTensor:
    region = declared.region
    assert region is not None
    if declared.has_contents:
        raise InvalidRequest(
            f"input {declared.name!r}: contents must not be given for a tensor in shared memory"
        )
    _check_size(declared, region.size_bytes)
    return InputTensor(declared.name, declared.datatype, declared.shape, b"", region)


def _check_declared(tensor: pb.ModelInferRequest.InferInputTensor) -> _Declared:
    """A tensor whose datatype, shape and parameters can be served."""
    name, datatype, sizes = tensor.name, tensor.datatype, tensor.shape
    parameters = _parameters_of(tensor)
    region = read_region(f"input {name!r}", parameters) if parameters else None
    if datatype not in ITEM_BYTES:
        raise InvalidRequest(
            f"input {name!r}: expected a datatype of {', '.join(ITEM_BYTES)}, got {datatype!r}"
        )
    if len(sizes) > RANK_MAX:
        raise InvalidRequest(
            f"input {name!r}: expected at most {RANK_MAX} dimensions, got {len(sizes)}"
        )
    shape = tuple(sizes[:])  # half the time of a tuple of the field itself
    if min(shape, default=0) < 0:
        raise InvalidRequest(f"input {name!r}: negative size in shape {list(shape)}")
    elements = math.prod(shape)
    if elements > ELEMENTS_MAX:
        raise InvalidRequest(f"input {name!r}: shape {list(shape)} has too many elements")
    return _Declared(tensor, name, datatype, shape, elements, region)


def _raw_input(declared: _Declared, data: memoryview) -> InputTensor:
    _check_size(declared, len(data))
    return InputTensor(declared.name, declared.datatype, declared.shape, data)


def _check_size(declared: _Declared, size_bytes: int) -> None:
    _, name, datatype, shape, elements, _ = declared
    expected = elements * ITEM_BYTES[datatype]
    if size_bytes != expected:
        raise InvalidRequest(
            f"input {name!r}: expected {expected} bytes for {datatype} {list(shape)}, "
            f"got {size_bytes}"
        )


def _typed_inputs(declared: Sequence[_Declared]) -> list[InputTensor]:
    elements = sum(each.elements for each in declared)
    if elements > TYPED_ELEMENTS_MAX:
        raise InvalidRequest(
            f"expected at most {TYPED_ELEMENTS_MAX} elements as typed contents, got "
            f"{elements}: send them in raw_input_contents"
        )
    return [
        InputTensor(each.name, each.datatype, each.shape, _typed_bytes(each.tensor, each.elements))
        for each in declared
    ]


def _typed_bytes(tensor: pb.ModelInferRequest.InferInputTensor, elements: int) -> memoryview:
    """Typed contents as dense bytes."""
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if tensor.datatype not in _CONTENTS_FIELD:
        raise InvalidRequest(
            f"input {tensor.name!r}: {tensor.datatype} can only be sent in raw_input_contents"
        )
    field, typecode = _CONTENTS_FIELD[tensor.datatype]
    if any(name != field for name in filled):
        raise InvalidRequest(
            f"input {tensor.name!r}: expected {tensor.datatype} in {field}, got {', '.join(filled)}"
        )
    values = getattr(tensor.contents, field)
    if len(values) != elements:
        raise InvalidRequest(
            f"input {tensor.name!r}: expected {elements} elements in {field} for shape "
            f"{list(tensor.shape)}, got {len(values)}"
        )
    try:
        dense = array(typecode, values)
    except OverflowError:
        raise InvalidRequest(
            f"input {tensor.name!r}: {field} holds a value out of the range of {tensor.datatype}"
        ) from None
    assert dense.itemsize == ITEM_BYTES[tensor.datatype], f"array {typecode!r} on this platform"
    return memoryview(dense).cast("B")
