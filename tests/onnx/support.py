"""Small ONNX graphs, real models of installed packages, and how a loaded one is run."""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
from gpumuxd.programs.export_onnx import OnnxExport
from gpumuxd.programs.onnx_model import NUMPY_TYPES, OnnxModel
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


def read(made: Any, limits: OnnxLimits = DEFAULT_ONNX_LIMITS) -> OnnxArtifact:
    data = made if isinstance(made, bytes) else made.SerializeToString()
    return OnnxArtifact(io.BytesIO(data), limits)


def opened(artifact: OnnxArtifact) -> OnnxModel:
    """As a device child opens it: from the encoded plan and the image of the weights."""
    image = io.BytesIO()
    artifact.write_weights(image.write)
    assert len(image.getvalue()) == artifact.weights_bytes
    return OnnxModel.open(onnx_plan.encode(artifact.plan), memoryview(bytearray(image.getvalue())))


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


@dataclass(frozen=True)
class Real:
    """A model that an installed package ships, what its owner would say, and sizes to run it at."""

    package: str
    file: str
    request: OnnxExport = field(default_factory=OnnxExport)
    sizes: Sequence[Sequence[int]] = ((),)

    def path(self) -> Path:
        """Found without importing the package, whose own imports need not be installed."""
        spec = importlib.util.find_spec(self.package)
        assert spec is not None, self.package
        assert spec.submodule_search_locations, self.package
        for folder in spec.submodule_search_locations:
            for path in Path(folder).rglob(self.file):
                return path
        raise AssertionError(f"{self.package} ships no {self.file}")


_IMAGE = {"h": (32, 1024, 32), "w": (32, 1024, 32)}
_SIDES = {("x", 2): "h", ("x", 3): "w"}

REAL = {
    "det": Real(
        "rapidocr",
        "PP-OCRv6_det_small.onnx",
        OnnxExport(dimensions=_SIDES, ranges=_IMAGE),
        [(1, 96, 128), (2, 64, 64)],
    ),
    "rec": Real(
        "rapidocr",
        "PP-OCRv6_rec_small.onnx",
        OnnxExport(dimensions={("x", 3): "w"}, ranges={"w": (32, 2048, 1)}),
        [(1, 160), (2, 75)],
    ),
    "cls": Real(
        "rapidocr",
        "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        OnnxExport(dimensions={("x", 2): 48, ("x", 3): 192}),
        [(1,), (3,)],
    ),
    "magika": Real("magika", "model.onnx", sizes=[(1,), (2,)]),
    "silero_ifless": Real(
        "silero_vad",
        "silero_vad_op18_ifless.onnx",
        OnnxExport(fills={"sr": 16000}, dimensions={("input", 1): 576}),
        [(1,), (2,)],
    ),
    "silero_op15": Real(
        "silero_vad",
        "silero_vad_16k_op15.onnx",
        OnnxExport(fills={"sr": 16000}, dimensions={("input", 1): 576}),
        [(1,), (2,)],
    ),
    "nudenet": Real(
        "nudenet",
        "320n.onnx",
        OnnxExport(ranges={"height": (32, 640, 32), "width": (32, 640, 32)}),
        [(1, 96, 64)],
    ),
    "basic_pitch": Real("basic_pitch", "nmp.onnx", sizes=[(1,)]),
}


def example(spec: ModelSpec, fills: Sequence[float | None], sizes: Sequence[int]) -> list[Array]:
    """Smooth waves, as images and sound are: noise is no input that anybody sends."""
    names = [symbol.name for symbol in spec.symbols]
    made = []
    for tensor, fill in zip(spec.inputs, fills, strict=True):
        shape = evaluate_shape(tensor.shape, dict(zip(names, sizes, strict=True)))
        kind = NUMPY_TYPES[tensor.datatype]
        count = int(np.prod(shape))
        if fill is not None:
            made.append(np.full(shape, fill, kind))
        elif np.issubdtype(kind, np.floating):
            step = np.arange(count, dtype=np.float64)
            waves = np.sin(step / 7) * np.cos(step / 53) + 0.3 * np.sin(step / 1.7)
            made.append(np.clip(waves, -1, 1).reshape(shape).astype(kind))
        else:
            made.append((np.arange(count) % 200).reshape(shape).astype(kind))
    return made
