"""What a message must be on its own, before any model is asked."""

import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumuxd.domain import RunReport
from gpumuxd.errors import GpumuxdError, InvalidRequest, Unsupported
from gpumuxd.models.spec import ITEM_BYTES
from gpumuxd.node.api import InferCall, InferReply, OutputTensor, RegionRef, SequenceStep
from gpumuxd.rpc import codec
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.raw_request import InferRequest, read_request
from tests.rpc.fake_node import ADMIN
from tests.rpc.front import declared, good_request

ARRIVED_NS = 1_000_000_000_000
YEAR_NS = 365 * 24 * 3600 * 10**9


def decode(request: pb.ModelInferRequest, remaining_s: float | None = None) -> InferCall:
    asked = read_request(request.SerializeToString())
    return codec.decode_infer(asked, ADMIN, ARRIVED_NS, remaining_s)


def parameter(**choice: object) -> pb.InferParameter:
    return pb.InferParameter(**choice)  # type: ignore[arg-type]  # field names as data


def with_parameters(**parameters: pb.InferParameter) -> pb.ModelInferRequest:
    return good_request(parameters=parameters)


@pytest.mark.parametrize(
    ("datatype", "field", "values", "layout"),
    [
        ("BOOL", "bool_contents", [True, False], "<2?"),
        ("UINT8", "uint_contents", [0, 255], "<2B"),
        ("UINT16", "uint_contents", [0, 65535], "<2H"),
        ("UINT32", "uint_contents", [0, 2**32 - 1], "<2I"),
        ("UINT64", "uint64_contents", [0, 2**64 - 1], "<2Q"),
        ("INT8", "int_contents", [-128, 127], "<2b"),
        ("INT16", "int_contents", [-32768, 32767], "<2h"),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1], "<2i"),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1], "<2q"),
        ("FP32", "fp32_contents", [0.5, -math.inf], "<2f"),
        ("FP64", "fp64_contents", [0.1, math.inf], "<2d"),
    ],
)
def test_typed_contents_become_dense_bytes(
    datatype: str, field: str, values: list[Any], layout: str
) -> None:
    contents: dict[str, Any] = {field: values}
    request = pb.ModelInferRequest(
        model_name="m", inputs=[declared(datatype, (2,), "x", **contents)]
    )
    (tensor,) = decode(request).inputs
    assert bytes(tensor.data) == struct.pack(layout, *values)
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, (2,))


@pytest.mark.parametrize("datatype", ITEM_BYTES)
def test_raw_contents_of_every_datatype_are_taken_as_they_are(datatype: str) -> None:
    data = bytes(range(6 * ITEM_BYTES[datatype]))
    request = pb.ModelInferRequest(inputs=[declared(datatype, (2, 3))], raw_input_contents=[data])
    (tensor,) = decode(request).inputs
    assert tensor.data == data


def test_raw_entries_belong_to_the_inputs_in_their_order() -> None:
    request = pb.ModelInferRequest(
        inputs=[declared("UINT8", (2,), "a"), declared("UINT8", (), "b")],
        raw_input_contents=[b"\1\2", b"\3"],
    )
    assert [(t.name, t.shape, t.data) for t in decode(request).inputs] == [
        ("a", (2,), b"\1\2"),
        ("b", (), b"\3"),
    ]


@pytest.mark.parametrize(
    ("shape", "raw"), [((0,), True), ((3, 0, 2), True), ((0,), False), ((2**40, 0), False)]
)
def test_tensors_without_elements_are_left_to_the_model(shape: tuple[int, ...], raw: bool) -> None:
    request = pb.ModelInferRequest(
        inputs=[declared("FP32", shape)], raw_input_contents=[b""] if raw else []
    )
    (tensor,) = decode(request).inputs
    assert (tensor.shape, bytes(tensor.data)) == (shape, b"")


def test_a_request_carries_model_version_tenant_and_wanted_outputs() -> None:
    request = good_request(
        model_version="3", outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="y")]
    )
    call = decode(request)
    assert (call.model, call.version, call.tenant) == ("identity_fp32", "3", ADMIN)
    assert (call.outputs_wanted, call.arrived_ns, call.priority) == (("y",), ARRIVED_NS, 0)


@pytest.mark.parametrize(
    ("inputs", "raw", "told"),
    [
        # what was wrong                                      raw        what the message names
        ([declared()], [b"\0" * 15], "expected 16 bytes for FP32 [1, 4], got 15"),
        ([declared()], [b"\0" * 17], "expected 16 bytes for FP32 [1, 4], got 17"),
        (
            [declared()],
            [b"\0" * 16, b""],
            "expected 1 entries, one for each input that is not in shared memory, got 2",
        ),
        ([declared(name="a"), declared(name="b")], [b"\0" * 16], "expected 2 entries"),
        ([declared(name="x"), declared(name="x")], [b"\0" * 16] * 2, "'x' is given more than"),
        ([declared(fp32_contents=[1, 2, 3, 4])], [b"\0" * 16], "together with raw_input_contents"),
        ([declared(fp32_contents=[1, 2, 3])], [], "expected 4 elements in fp32_contents"),
        ([declared(fp32_contents=[1] * 5)], [], "for shape [1, 4], got 5"),
        ([declared(int_contents=[1] * 4)], [], "expected FP32 in fp32_contents, got int_contents"),
        (
            [declared(fp32_contents=[1] * 4, int_contents=[1])],
            [],
            "got int_contents, fp32_contents",
        ),
        ([declared()], [], "expected 4 elements in fp32_contents for shape [1, 4], got 0"),
        ([declared("FP16", fp32_contents=[1] * 4)], [], "FP16 can only be sent in raw_input"),
        ([declared("BF16")], [], "BF16 can only be sent in raw_input_contents"),
        ([declared("INT8", (1,), int_contents=[128])], [], "out of the range of INT8"),
        ([declared("INT16", (1,), int_contents=[-32769])], [], "out of the range of INT16"),
        ([declared("UINT8", (1,), uint_contents=[256])], [], "out of the range of UINT8"),
        ([declared("UINT16", (1,), uint_contents=[65536])], [], "out of the range of UINT16"),
        ([declared("BYTES", (1,), bytes_contents=[b"a"])], [], "got 'BYTES'"),
        ([declared("FLOAT")], [b"\0" * 16], "expected a datatype of BOOL, UINT8"),
        ([declared("")], [b"\0" * 16], "got ''"),
        ([declared(shape=(1, -4))], [b"\0" * 16], "negative size in shape [1, -4]"),
        ([declared(shape=(-1, -4))], [b"\0" * 16], "negative size in shape [-1, -4]"),
        ([declared(shape=(2**62, 4))], [b"\0" * 16], "has too many elements"),
        ([declared(shape=(2**63 - 1,) * 32)], [b""], "has too many elements"),
        ([declared(shape=(1,) * 33)], [b"\0" * 4], "expected at most 32 dimensions, got 33"),
        ([declared(shape=(2**40,))], [b"\0" * 16], "expected 4398046511104 bytes"),
        ([declared(shape=(2**23,))], [], "expected at most 4194304 elements as typed"),
        (
            [declared(name=str(i)) for i in range(1025)],
            [],
            "inputs: expected at most 1024, got 1025",
        ),
    ],
)
def test_tensors_that_contradict_themselves_are_refused(
    inputs: list[pb.ModelInferRequest.InferInputTensor], raw: list[bytes], told: str
) -> None:
    request = pb.ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw)
    with pytest.raises(InvalidRequest) as refused:
        decode(request)
    assert told in refused.value.message


def test_parameters_of_tensors_are_few() -> None:
    many = {f"p{number}": parameter(bool_param=True) for number in range(65)}
    tensor = declared(name="x")
    tensor.MergeFrom(pb.ModelInferRequest.InferInputTensor(parameters=many))
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name="y", parameters=many)
    for request in (
        pb.ModelInferRequest(inputs=[tensor], raw_input_contents=[bytes(16)]),
        good_request(outputs=[wanted]),
    ):
        with pytest.raises(InvalidRequest, match="at most 64 parameters of a tensor, got 65"):
            decode(request)


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (parameter(uint64_param=1), 1),
        (parameter(int64_param=1), 1),
        (parameter(uint64_param=0), 0),
        (parameter(uint64_param=2**64 - 1), 2**64 - 1),
    ],
)
def test_priority_comes_as_either_integer_type(value: pb.InferParameter, priority: int) -> None:
    assert decode(with_parameters(priority=value)).priority == priority


@pytest.mark.parametrize("key", ["priority", "timeout"])
@pytest.mark.parametrize(
    ("value", "got"),
    [
        (parameter(int64_param=-1), "got -1"),
        (parameter(string_param="1"), "got string_param"),
        (parameter(bool_param=True), "got bool_param"),
        (parameter(double_param=1.0), "got double_param"),
        (parameter(), "got nothing"),
    ],
)
def test_numbers_of_another_type_are_refused(key: str, value: pb.InferParameter, got: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(with_parameters(**{key: value}))
    assert f"parameter {key!r}: expected a number >= 0" in refused.value.message
    assert got in refused.value.message


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("triton_something", parameter(bool_param=True), InvalidRequest),
        ("shared_memory_region", parameter(string_param="r"), InvalidRequest),
    ],
)
def test_reserved_parameters_are_refused_by_name(
    key: str, value: pb.InferParameter, error: type[GpumuxdError]
) -> None:
    with pytest.raises(error, match=key):
        decode(with_parameters(**{key: value}))


def test_parameters_that_ask_for_nothing_are_ignored() -> None:
    request = with_parameters(
        triton_enable_empty_final_response=parameter(bool_param=True),
        sequence_id=parameter(int64_param=0),
        sequence_start=parameter(bool_param=False),
        my_own=parameter(string_param="anything"),
    )
    call = decode(request)
    assert (call.priority, call.deadline_ns) == (0, None)


@pytest.mark.parametrize(
    ("given", "step"),
    [
        ({"sequence_id": parameter(int64_param=7)}, SequenceStep(7)),
        ({"sequence_id": parameter(uint64_param=2**64 - 1)}, SequenceStep(2**64 - 1)),
        ({"sequence_id": parameter(string_param="7")}, SequenceStep("7")),
        (
            {
                "sequence_start": parameter(bool_param=True),
                "sequence_id": parameter(int64_param=-1),
                "sequence_end": parameter(bool_param=False),
            },
            SequenceStep(-1, is_start=True),
        ),
        (
            {"sequence_id": parameter(int64_param=7), "sequence_end": parameter(bool_param=True)},
            SequenceStep(7, is_end=True),
        ),
        ({"sequence_id": parameter(string_param="")}, None),
        ({}, None),
    ],
)
def test_a_step_of_a_sequence(
    given: dict[str, pb.InferParameter], step: SequenceStep | None
) -> None:
    assert decode(with_parameters(**given)).sequence == step


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sequence_id": parameter(bool_param=True)}, "or string_param, got bool_param"),
        ({"sequence_id": parameter()}, "or string_param, got nothing"),
        ({"sequence_start": parameter(bool_param=True)}, "expected a sequence_id beside it"),
        ({"sequence_end": parameter(bool_param=True)}, "expected a sequence_id beside it"),
        (
            {"sequence_id": parameter(int64_param=7), "sequence_end": parameter(int64_param=1)},
            "'sequence_end': expected bool_param, got int64_param",
        ),
    ],
)
def test_a_step_that_does_not_say_of_what(
    given: dict[str, pb.InferParameter], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode(with_parameters(**given))


def in_region(tensor: Any, region: str, size_bytes: int, offset: int | None = None) -> Any:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = size_bytes
    if offset is not None:
        tensor.parameters["shared_memory_offset"].int64_param = offset
    return tensor


def wanted(name: str = "y") -> pb.ModelInferRequest.InferRequestedOutputTensor:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name)


def test_raw_entries_belong_to_the_inputs_that_are_not_in_shared_memory() -> None:
    request = pb.ModelInferRequest(
        inputs=[
            in_region(declared("UINT8", (2,), "a"), "r", 2),
            declared("UINT8", (1,), "b"),
            in_region(declared("FP32", (2, 4), "c"), "r", 32, 64),
            declared("UINT8", (), "d"),
        ],
        raw_input_contents=[b"\1", b"\2"],
    )
    assert [(t.name, t.data, t.region) for t in decode(request).inputs] == [
        ("a", b"", RegionRef("r", 0, 2)),
        ("b", b"\1", None),
        ("c", b"", RegionRef("r", 64, 32)),
        ("d", b"\2", None),
    ]


def test_typed_contents_beside_shared_memory() -> None:
    inputs = [in_region(declared("UINT8", (2,), "a"), "r", 2), declared(fp32_contents=[0] * 4)]
    in_shm, typed = decode(pb.ModelInferRequest(inputs=inputs)).inputs
    assert in_shm.region == RegionRef("r", 0, 2)
    assert typed.region is None
    assert bytes(typed.data) == bytes(16)


def test_outputs_that_go_to_shared_memory() -> None:
    request = good_request(outputs=[wanted("y"), in_region(wanted("z"), "r", 100, 8)])
    call = decode(request)
    assert call.outputs_wanted == ("y", "z")
    assert call.output_regions == {"z": RegionRef("r", 8, 100)}


@pytest.mark.parametrize("where", ["input", "output"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"shared_memory_region": parameter(string_param="r")}, "needs 'shared_memory_byte_size'"),
        ({"shared_memory_byte_size": parameter(int64_param=16)}, "needs 'shared_memory_region'"),
        ({"shared_memory_offset": parameter(int64_param=0)}, "needs 'shared_memory_region'"),
        ({"shared_memory_kind": parameter(int64_param=0)}, "'shared_memory_kind' is not known"),
        (
            {
                "shared_memory_region": parameter(int64_param=1),
                "shared_memory_byte_size": parameter(int64_param=16),
            },
            "'shared_memory_region' as string_param, got int64_param",
        ),
        (
            {
                "shared_memory_region": parameter(string_param="r"),
                "shared_memory_byte_size": parameter(int64_param=-16),
            },
            "'shared_memory_byte_size': expected a number >= 0",
        ),
    ],
)
def test_a_place_in_shared_memory_that_is_not_whole(
    where: str, given: dict[str, pb.InferParameter], told: str
) -> None:
    tensor: Any = declared() if where == "input" else wanted()
    for key, value in given.items():
        tensor.parameters[key].CopyFrom(value)
    request = (
        pb.ModelInferRequest(inputs=[tensor])
        if where == "input"
        else good_request(outputs=[tensor])
    )
    with pytest.raises(InvalidRequest, match=told):
        decode(request)


@pytest.mark.parametrize(
    ("tensor", "raw", "told"),
    [
        (declared(fp32_contents=[0] * 4), [], "for a tensor in shared memory"),
        (declared(), [b"\0" * 16], "expected 0 entries, one for each input that is not in shared"),
        (declared(shape=(2, 4)), [], "expected 32 bytes for FP32"),
    ],
)
def test_an_input_that_is_in_shared_memory_and_elsewhere(
    tensor: pb.ModelInferRequest.InferInputTensor, raw: list[bytes], told: str
) -> None:
    request = pb.ModelInferRequest(inputs=[in_region(tensor, "r", 16)], raw_input_contents=raw)
    with pytest.raises(InvalidRequest, match=told):
        decode(request)


def test_an_output_in_shared_memory_has_an_empty_entry_and_says_where_it_is() -> None:
    output = OutputTensor("a", "FP32", (2,), b"", RegionRef("r", 64, 8))
    reply = InferReply("m", "7", (output,), RunReport(1, 2, 3, 4, 5))
    response = pb.ModelInferResponse.FromString(codec.encode_infer(reply, ""))
    assert list(response.raw_output_contents) == [b""]
    parameters = response.outputs[0].parameters
    assert parameters["shared_memory_region"].string_param == "r"
    assert parameters["shared_memory_byte_size"].int64_param == 8
    assert parameters["shared_memory_offset"].int64_param == 64


def test_classification_is_refused() -> None:
    request = good_request(outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="y")])
    request.outputs[0].parameters["classification"].int64_param = 3
    with pytest.raises(Unsupported, match="classification"):
        decode(request)


def test_an_output_wanted_twice_is_refused() -> None:
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name="y")
    with pytest.raises(InvalidRequest, match="output 'y' is given more than once"):
        decode(good_request(outputs=[wanted, wanted]))


@pytest.mark.parametrize(
    ("timeout_us", "remaining_s", "expected_ns"),
    [
        # timeout  gRPC     deadline after arrival
        (None, None, None),
        (0, None, None),
        (250, None, 250_000),
        (None, 0.5, 500_000_000),
        (250, 0.5, 250_000),
        (2_000_000, 0.5, 500_000_000),
        (0, 0.5, 500_000_000),
        (None, 0.0, 0),
        (None, -0.1, 0),
        (250, 0.0, 0),
        (2**63 - 1, None, None),
        (None, 1e18, None),
        (None, math.inf, None),
        (None, -math.inf, 0),
        (None, math.nan, None),
        (250, 1e18, 250_000),
        (YEAR_NS // 1000, None, YEAR_NS),
        (YEAR_NS // 1000 + 1, None, None),
    ],
)
def test_the_earliest_deadline_wins(
    timeout_us: int | None, remaining_s: float | None, expected_ns: int | None
) -> None:
    request = good_request()
    if timeout_us is not None:
        request.parameters["timeout"].int64_param = timeout_us
    deadline_ns = decode(request, remaining_s).deadline_ns
    assert deadline_ns == (None if expected_ns is None else ARRIVED_NS + expected_ns)


def test_an_answer_is_raw_with_one_entry_for_each_output_even_an_empty_one() -> None:
    reply = InferReply(
        model="m",
        version="7",
        outputs=(
            OutputTensor("a", "FP32", (1,), b"\0\0\x80?"),
            OutputTensor("b", "UINT8", (0, 2), memoryview(b"")),
            OutputTensor("c", "UINT8", (200,), memoryview(bytes(200))),
        ),
        report=RunReport(1, 2, 3, 4, 5, 7),
        replays=6,
    )
    response = pb.ModelInferResponse.FromString(codec.encode_infer(reply, "request 1"))
    streamed = pb.ModelStreamInferResponse.FromString(codec.encode_stream_infer(reply, "request 1"))
    assert streamed.infer_response.parameters.pop("triton_final_response").bool_param
    assert streamed == pb.ModelStreamInferResponse(infer_response=response)
    assert (response.model_name, response.model_version, response.id) == ("m", "7", "request 1")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("a", "FP32", [1]),
        ("b", "UINT8", [0, 2]),
        ("c", "UINT8", [200]),
    ]
    assert list(response.raw_output_contents) == [b"\0\0\x80?", b"", bytes(200)]
    assert {key: value.int64_param for key, value in response.parameters.items()} == {
        "queue_ns": 1,
        "compute_ns": 2,
        "preemptions": 3,
        "preemption_wait_ns": 4,
        "predicted_ns": 5,
        "batch_rows": 7,
        "replays": 6,
    }


@st.composite
def requests(draw: st.DrawFn) -> pb.ModelInferRequest:
    """Requests that are mostly wrong, and wrong in few places."""
    names = st.sampled_from(["x", "y", "", "é" * 3])
    datatypes = st.sampled_from([*ITEM_BYTES, "BYTES", "nonsense"])
    sizes = st.one_of(st.integers(0, 4), st.integers(-(2**63), 2**63 - 1))
    request = pb.ModelInferRequest(model_name=draw(names), id=draw(st.text(max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.lists(sizes, max_size=4))
        tensor = declared(draw(datatypes), shape, draw(names))
        values = draw(st.lists(st.integers(0, 200), max_size=4))
        getattr(tensor.contents, draw(st.sampled_from(["int_contents", "fp32_contents"]))).extend(
            values
        )
        request.inputs.append(tensor)
    request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=8), max_size=3)))
    key = draw(st.sampled_from(["priority", "timeout", "triton_x", "other"]))
    request.parameters[key].int64_param = draw(st.integers(-(2**63), 2**63 - 1))
    return request


def check_decoded(asked: InferRequest) -> None:
    try:
        call = codec.decode_infer(asked, ADMIN, ARRIVED_NS, None)
    except (InvalidRequest, Unsupported):
        return
    for tensor in call.inputs:
        assert len(tensor.data) == math.prod(tensor.shape) * ITEM_BYTES[tensor.datatype]
    assert call.deadline_ns is None or call.deadline_ns < 2**63


@settings(max_examples=300, deadline=None)
@given(requests())
def test_whatever_comes_is_refused_or_holds_its_bytes(request: pb.ModelInferRequest) -> None:
    check_decoded(read_request(request.SerializeToString()))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_message_is_refused_or_holds_its_bytes(data: st.DataObject) -> None:
    wire = bytearray(good_request().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        asked = read_request(bytes(wire))
    except InvalidRequest:
        return
    check_decoded(asked)
