"""Small ONNX graphs, and how a loaded model is run."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gpumuxd.domain import Slice
from gpumuxd.events import SyncPointReached
from gpumuxd.executors.cpu import COMPUTE, CpuExecutor
from gpumuxd.models import onnx_plan
from gpumuxd.models.onnx_limits import DEFAULT_ONNX_LIMITS, OnnxLimits
from gpumuxd.models.onnx_reader import OnnxArtifact
from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.programs.onnx_model import OnnxModel
from gpumuxd.programs.onnx_program import OnnxProgram
from gpumuxd.programs.operators import DTYPES

FLOAT = TensorProto.FLOAT

Array = NDArray[Any]


def info(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, array: Array) -> Any:
    return onnx.numpy_helper.from_array(array, name)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any] = (info("x", ["n", 4]),),
    outputs: Sequence[Any] = (info("y", ["n", 4]),),
    weights: Sequence[Any] = (),
    *,
    opset: int = 17,
    ir: int = 8,
) -> Any:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def layers(count: int = 6, width: int = 32) -> Any:
    """A chain of dense layers with a residual, large enough for weights outside of the graph."""
    draw = np.random.default_rng(7)
    nodes, weights, value = [], [], "x"
    for i in range(count):
        weights.append(weight(f"w{i}", draw.standard_normal((width, width)).astype(np.float32) / 6))
        nodes += [
            helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]),
            helper.make_node("Relu", [f"m{i}"], [f"r{i}"]),
            helper.make_node("Add", [f"r{i}", "x"], [f"a{i}"]),
        ]
        value = f"a{i}"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    return model(nodes, [info("x", ["n", width])], [info("y", ["n", width])], weights)


def read(
    made: Any, limits: OnnxLimits = DEFAULT_ONNX_LIMITS, *, is_optimised: bool = False
) -> OnnxArtifact:
    data = made if isinstance(made, bytes) else made.SerializeToString()
    return OnnxArtifact(io.BytesIO(data), limits, is_optimised=is_optimised)


def opened(artifact: OnnxArtifact, threads: int = 1) -> OnnxModel:
    """As a device child opens it: from the encoded plan and the image of the weights."""
    image = io.BytesIO()
    artifact.write_weights(image.write)
    assert len(image.getvalue()) == artifact.weights_bytes
    weights = memoryview(bytearray(image.getvalue()))
    return OnnxModel.open(onnx_plan.encode(artifact.plan), weights, threads)


def run(program: OnnxProgram, spec: ModelSpec, inputs: Sequence[Array]) -> list[Array]:
    """On the CPU device, group by group, into the room that the spec says outputs take.

    Raises Failed with the device's reason.
    """
    shapes = {tensor.name: array.shape for tensor, array in zip(spec.inputs, inputs, strict=True)}
    bindings = spec.bind(shapes)
    regions = [
        torch.empty(evaluate_shape(tensor.shape, bindings), dtype=DTYPES[tensor.datatype])
        for tensor in spec.outputs
    ]
    executor = CpuExecutor()
    try:
        executor.load("m", program)
        executor.bind(1, [torch.from_numpy(array) for array in inputs], regions)
        for group in range(program.group_count):
            executor.launch(Slice(group, 1, "m", (), (1,), 0, group, group + 1, COMPUTE, (), 0))
        passed: list[Any] = []
        while len(passed) < program.group_count:
            passed += executor.wait(None)
        failed = [each for each in passed if not isinstance(each, SyncPointReached)]
        if failed:
            raise Failed(failed[0].reason)
        return [result.numpy() for result in executor.result(1)[1]]
    finally:
        executor.close()


class Failed(Exception):
    """A run that the device could not finish."""


def whole(data: bytes, spec: ModelSpec, inputs: Sequence[Array]) -> list[Array]:
    """The model as it is, in one session with the runtime's own optimisation."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feeds = {tensor.name: array for tensor, array in zip(spec.inputs, inputs, strict=True)}
    results: list[Array] = session.run([tensor.name for tensor in spec.outputs], feeds)
    return results


def largest_difference(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Absolute; relative to the largest value of an output where that is above 1."""
    worst = 0.0
    for one, other in zip(got, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if one.size:
            scale = max(1.0, float(np.max(np.abs(other))))
            apart = np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)))
            worst = max(worst, float(apart) / scale)
    return worst
