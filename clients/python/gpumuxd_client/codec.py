"""numpy and plain values to messages and back. Pure: no connection, no clock.

Tensors travel raw: C order, little-endian. An array is copied once into the message; an answer's
arrays are views of its bytes.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumuxd_client import types
from gpumuxd_client.errors import InternalError
from gpumuxd_client.generated import control_pb2 as control
from gpumuxd_client.generated import inference_pb2 as pb

_DATATYPE_OF_DTYPE = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
_DTYPE_OF_DATATYPE = {datatype: dtype for dtype, datatype in _DATATYPE_OF_DTYPE.items()}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy type. Raises TypeError for one it has none for."""
    datatype = _DATATYPE_OF_DTYPE.get(dtype.name)
    if datatype is None:
        raise TypeError(f"arrays of {dtype} can't be sent, only of {', '.join(_DATATYPE_OF_DTYPE)}")
    return datatype


def dtype_of(datatype: str) -> np.dtype[Any]:
    """The numpy type of a protocol name. BF16 needs the package ml_dtypes."""
    name = _DTYPE_OF_DATATYPE.get(datatype)
    if name is None:
        raise TypeError(f"numpy has no type for {datatype}")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise ImportError(
            "BF16 tensors need the package ml_dtypes: pip install 'gpumuxd-client[bf16]'"
        ) from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def check_seconds(name: str, seconds: float | None) -> None:
    """Raises ValueError for what can't be a time to wait. None is no limit."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(
            f"{name}: expected more than 0 seconds, or None for no limit, got {seconds}"
        )


def encode_infer(
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    *,
    version: str,
    priority: int,
    timeout: float | None,
    outputs: Sequence[str] | None,
    request_id: str,
    sequence: types.SequenceStep | None = None,
) -> bytes:
    """A ModelInfer request."""
    if priority < 0:
        raise ValueError(f"priority: expected 0 (the default) or more, got {priority}")
    check_seconds("timeout", timeout)
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    if priority:
        request.parameters["priority"].uint64_param = priority
    if timeout is not None:
        request.parameters["timeout"].int64_param = max(1, round(timeout * 1_000_000))
    if sequence is not None:
        _add_step(request, sequence)
    for name, value in inputs.items():
        array = np.asarray(value)
        datatype = datatype_of(array.dtype)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name in outputs or ():
        request.outputs.add(name=name)
    return request.SerializeToString()


def _add_step(request: pb.ModelInferRequest, step: types.SequenceStep) -> None:
    name = step.sequence_id
    if isinstance(name, str):
        request.parameters["sequence_id"].string_param = name
    else:
        request.parameters["sequence_id"].int64_param = name
    if step.is_start:
        request.parameters["sequence_start"].bool_param = True
    if step.is_end:
        request.parameters["sequence_end"].bool_param = True


def decode_infer(data: bytes) -> types.InferResult:
    """A ModelInfer answer."""
    return result_of(pb.ModelInferResponse.FromString(data))


def result_of(response: pb.ModelInferResponse) -> types.InferResult:
    """The result that a message holds."""
    if len(response.raw_output_contents) != len(response.outputs):
        raise InternalError(
            f"the answer has {len(response.outputs)} outputs and "
            f"{len(response.raw_output_contents)} raw contents",
            "INTERNAL",
        )
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    outputs = {
        output.name: types.frozen_array(raw, dtype_of(output.datatype), tuple(output.shape))
        for output, raw in pairs
    }
    figures = {key: value.int64_param for key, value in response.parameters.items()}
    report = types.RunReport(
        queue_ns=figures.get("queue_ns", 0),
        compute_ns=figures.get("compute_ns", 0),
        preemptions=figures.get("preemptions", 0),
        preemption_wait_ns=figures.get("preemption_wait_ns", 0),
        predicted_ns=figures.get("predicted_ns", 0),
        replays=figures.get("replays", 0),
        batch_rows=figures.get("batch_rows", 0),
    )
    return types.InferResult(
        response.model_name, response.model_version, response.id, report, outputs
    )


def decode_server_metadata(data: bytes) -> types.ServerMetadata:
    response = pb.ServerMetadataResponse.FromString(data)
    return types.ServerMetadata(response.name, response.version, tuple(response.extensions))


def decode_model_metadata(data: bytes) -> types.ModelMetadata:
    response = pb.ModelMetadataResponse.FromString(data)
    inputs, outputs = (
        tuple(types.TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in tensors)
        for tensors in (response.inputs, response.outputs)
    )
    return types.ModelMetadata(
        response.name, tuple(response.versions), response.platform, inputs, outputs
    )


def decode_model_config(data: bytes) -> types.ModelConfig:
    config = pb.ModelConfigResponse.FromString(data).config
    inputs = tuple(_tensor(t.name, t.data_type, t.dims) for t in config.input)
    outputs = tuple(_tensor(t.name, t.data_type, t.dims) for t in config.output)
    parameters = {key: value.string_value for key, value in sorted(config.parameters.items())}
    return types.ModelConfig(
        name=config.name,
        platform=config.platform,
        backend=config.backend,
        batch_max=config.max_batch_size,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
    )


def _tensor(name: str, data_type: int, dims: Sequence[int]) -> types.TensorMetadata:
    datatype = pb.DataType.Name(data_type).removeprefix("TYPE_")
    return types.TensorMetadata(name, datatype, tuple(dims))


def decode_index(data: bytes) -> tuple[types.IndexEntry, ...]:
    response = pb.RepositoryIndexResponse.FromString(data)
    return tuple(
        types.IndexEntry(entry.name, entry.version, entry.state, entry.reason)
        for entry in response.models
    )


def decode_unloaded(data: bytes) -> tuple[types.UnloadedReplica, ...]:
    response = control.UnloadModelResponse.FromString(data)
    return tuple(
        types.UnloadedReplica(
            replica.version,
            replica.device,
            replica.weights_bytes,
            replica.resident_bytes_before,
            replica.resident_bytes_after,
        )
        for replica in response.replicas
    )


def decode_drained(data: bytes) -> tuple[types.DrainedModel, ...]:
    response = control.DrainResponse.FromString(data)
    return tuple(
        types.DrainedModel(model.name, model.version, model.fate, model.reason)
        for model in response.models
    )


def decode_node_status(data: bytes) -> types.NodeStatus:
    response = control.NodeStatusResponse.FromString(data)
    devices = tuple(
        types.DeviceStatus(
            name=device.name,
            state=device.state,
            description=device.description,
            pid=device.pid,
            restarts=device.restarts,
            requests_in_flight=device.requests_in_flight,
            queued=device.queued,
            preemptions=device.preemptions,
            bound_ns=device.bound_ns,
            window=device.window,
            memory_bytes=device.memory_bytes,
            device_busy_ns=device.device_busy_ns,
            best_effort_grants=device.best_effort_grants,
            best_effort_granted_ns=device.best_effort_granted_ns,
        )
        for device in response.devices
    )
    return types.NodeStatus(
        version=response.version,
        is_ready=response.ready,
        uptime_ns=response.uptime_ns,
        devices=devices,
        reason=response.reason,
    )
