"""Arrays to messages and back, without a connection."""

import builtins
import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpumuxd_client import SequenceStep, calls, codec, errors
from gpumuxd_client.generated import inference_pb2 as pb
from numpy.typing import NDArray

CHOICE = "parameter_choice"


def encode(array: NDArray[Any], **options: Any) -> pb.ModelInferRequest:
    defaults: dict[str, Any] = {
        "version": "",
        "priority": 0,
        "timeout": None,
        "outputs": None,
        "request_id": "",
    }
    return pb.ModelInferRequest.FromString(
        codec.encode_infer("m", {"x": array}, **{**defaults, **options})
    )


def answer(datatype: str, shape: list[int], data: bytes) -> bytes:
    output = pb.ModelInferResponse.InferOutputTensor(name="y", datatype=datatype, shape=shape)
    return pb.ModelInferResponse(
        model_name="m", outputs=[output], raw_output_contents=[data]
    ).SerializeToString()


@pytest.mark.parametrize(
    ("dtype", "datatype"),
    [
        (np.bool_, "BOOL"),
        (np.uint8, "UINT8"),
        (np.uint16, "UINT16"),
        (np.uint32, "UINT32"),
        (np.uint64, "UINT64"),
        (np.int8, "INT8"),
        (np.int16, "INT16"),
        (np.int32, "INT32"),
        (np.int64, "INT64"),
        (np.float16, "FP16"),
        (ml_dtypes.bfloat16, "BF16"),
        (np.float32, "FP32"),
        (np.float64, "FP64"),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3), (1,), (), (0, 3)])
def test_every_type_goes_there_and_back(dtype: Any, datatype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    request = encode(array)
    tensor = request.inputs[0]
    assert (tensor.datatype, tuple(tensor.shape)) == (datatype, shape)
    data = answer(tensor.datatype, list(tensor.shape), request.raw_input_contents[0])
    back = codec.decode_infer(data)["y"]
    assert (back.dtype, back.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(back, array)


BASE = np.arange(12, dtype=np.int32).reshape(3, 4)


@pytest.mark.parametrize(
    "array",
    [BASE.T, BASE[:, ::2], BASE[::-1], np.asfortranarray(BASE), BASE.astype(">i4")],
    ids=["transposed", "strided", "reversed", "fortran", "big-endian"],
)
def test_any_layout_is_sent_in_c_order_and_little_endian(array: NDArray[Any]) -> None:
    expected = np.ascontiguousarray(array).astype("<i4").tobytes()
    assert list(encode(array).raw_input_contents) == [expected]


def test_parameters_are_sent_only_when_they_say_something() -> None:
    assert dict(encode(BASE).parameters) == {}
    request = encode(BASE, priority=1, timeout=0.0025, outputs=["y"], request_id="r", version="2")
    assert request.parameters["priority"].uint64_param == 1
    assert request.parameters["timeout"].int64_param == 2500
    assert ([o.name for o in request.outputs], request.id, request.model_version) == (
        ["y"],
        "r",
        "2",
    )


@pytest.mark.parametrize(
    ("step", "sent"),
    [
        (SequenceStep(7), {"sequence_id": 7}),
        (SequenceStep("a", is_start=True), {"sequence_id": "a", "sequence_start": True}),
        (SequenceStep(-1, is_end=True), {"sequence_id": -1, "sequence_end": True}),
    ],
)
def test_a_step_of_a_sequence_says_of_which(step: SequenceStep, sent: dict[str, Any]) -> None:
    parameters = encode(np.zeros(1), sequence=step).parameters
    found = {key: getattr(each, each.WhichOneof(CHOICE)) for key, each in parameters.items()}
    assert found == sent


def test_a_sequence_has_a_name() -> None:
    for name in (0, ""):
        with pytest.raises(ValueError, match="sequence_id: a number or a text expected"):
            SequenceStep(name)


def test_a_step_is_sent_once_and_other_inferences_may_be_sent_again() -> None:
    options: dict[str, Any] = {"version": "", "priority": 0, "deadline": None, "timeout": None}
    options |= {"outputs": None, "request_id": ""}
    assert calls.infer("m", {}, **options).is_idempotent
    assert not calls.infer("m", {}, **options, sequence=SequenceStep(1)).is_idempotent


def test_a_timeout_below_a_microsecond_is_not_none() -> None:
    assert encode(BASE, timeout=1e-9).parameters["timeout"].int64_param == 1


def test_results_are_views_that_nobody_can_write() -> None:
    result = codec.decode_infer(answer("UINT8", [2], b"\1\2"))
    assert not result["y"].flags.writeable
    assert not result["y"].flags.owndata
    assert result.report == type(result.report)()
    with pytest.raises(KeyError):
        result["z"]


def test_an_answer_that_lacks_its_contents_is_an_error() -> None:
    output = pb.ModelInferResponse.InferOutputTensor(name="y", datatype="UINT8", shape=[1])
    data = pb.ModelInferResponse(outputs=[output]).SerializeToString()
    with pytest.raises(errors.InternalError, match="1 outputs and 0 raw contents"):
        codec.decode_infer(data)


def test_bf16_without_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without_ml_dtypes(name: str, package: str | None = None) -> object:
        if name == "ml_dtypes":
            raise builtins.ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without_ml_dtypes)
    with pytest.raises(ImportError, match="ml_dtypes"):
        codec.decode_infer(answer("BF16", [1], b"\0\0"))
    assert codec.dtype_of("FP16") == np.float16


def test_a_type_that_numpy_lacks_is_named() -> None:
    with pytest.raises(TypeError, match="BYTES"):
        codec.dtype_of("BYTES")
