"""What is fuzzed: for each target seeds, a mutation, and a run that raises on a finding alone.

A refusal (GpumuxdError) is no finding, and neither is an operator that fails while a plan runs;
anything else is.
"""

import contextlib
import io
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpumuxd.errors import GpumuxdError, InvalidModel
from gpumuxd.models import expressions
from gpumuxd.models import plan as plans
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.manifest import parse_manifest
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import evaluate, evaluate_shape, format_shape
from gpumuxd.units import MIB
from tests.fuzz.mutate import mutate_archive, mutate_bytes, mutate_tree
from tests.models import archives

CORPUS = Path(__file__).parent / "corpus"

LIMITS = ReadLimits(artifact_bytes_max=MIB, weights_bytes_max=4 * MIB)

RUN_S_MAX = 0.5
"""A plan is given up after the node in which it has taken so long."""


@dataclass(frozen=True)
class Target:
    """One reader and how it is fed."""

    name: str
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    run: Callable[[bytes], None]

    def inputs(self) -> list[bytes]:
        """The seeds and the corpus."""
        folder = CORPUS / self.name
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        return [*self.seeds(), *(path.read_bytes() for path in files)]


# The archive


def archive_seeds() -> list[bytes]:
    from tests.fuzz.programs import draw_archive

    draw = random.Random(1)
    drawn = [draw_archive(draw) for _ in range(20)]
    return [archives.archive(archives.members()).getvalue(), *drawn]


def run_archive(data: bytes) -> None:
    try:
        artifact = Artifact(io.BytesIO(data), LIMITS)
        written = [0]

        def count(piece: bytes) -> None:
            written[0] += len(piece)

        artifact.write_weights(count)
    except InvalidModel as error:
        error.message.encode()
        return
    assert written[0] == artifact.weights_bytes <= LIMITS.weights_bytes_max
    again = plans.decode(plans.encode(artifact.plan))
    assert again.slot_count == artifact.plan.slot_count
    for tensor in (*again.spec.inputs, *again.spec.outputs):
        format_shape(tensor.shape).encode()
        with contextlib.suppress(GpumuxdError):
            evaluate_shape(tensor.shape, {s.name: s.minimum for s in again.spec.symbols})


# Expressions


EXPRESSIONS = (
    "Symbol('s0', positive=True, integer=True)",
    "Add(Mul(Integer(2), Symbol('s0')), Integer(-1))",
    "FloorDiv(Add(Symbol('s27', integer=True), Integer(2)), Integer(3))",
    "Max(Integer(1), Mod(Symbol('s0'), Integer(7)), Min(Symbol('s1'), Integer(5)))",
    "Pow(Symbol('s0'), Integer(2))",
)
PIECES = (
    *("Symbol('s0')", "Integer(1)", "Integer(-", "Add(", "Mul(", "Pow(", "FloorDiv(", "Mod(", ")"),
    *(", ", "lambda: ", "*", "**", "f'{", "'", '"', "\\", "\n", "#", "0x", "1_0", "é", "[", "((("),
)


def mutate_expression(data: bytes, draw: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    if draw.randrange(2):
        return mutate_bytes(data, draw)
    start = draw.randrange(len(text) + 1)
    end = draw.choice((start, start, min(start + draw.randint(0, 20), len(text))))
    return (text[:start] + draw.choice(PIECES) + text[end:])[:5000].encode()


def run_expression(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        size = expressions.parse(text, LIMITS)
        value = evaluate(size, {token: 3 for token in size if isinstance(token, str)})
        assert isinstance(value, int)
        assert value.bit_length() <= 64 * LIMITS.expression_tokens_max
        format_shape([size])
    except GpumuxdError as error:
        error.message.encode()


# Plans, as a device child gets them


def plan_seeds() -> list[bytes]:
    found = []
    for data in archive_seeds():
        try:
            found.append(plans.encode(Artifact(io.BytesIO(data)).plan))
        except InvalidModel:
            continue
    return found


def mutate_plan(data: bytes, draw: random.Random) -> bytes:
    try:
        tree = mutate_tree(msgspec.msgpack.decode(data), draw)
        return msgspec.msgpack.encode(tree)
    except (msgspec.DecodeError, OverflowError, ValueError, RecursionError, TypeError):
        return mutate_bytes(data, draw)


def run_plan(data: bytes) -> None:
    import torch

    from gpumuxd.programs.model import ServedModel

    try:
        model = ServedModel.open(data, memoryview(bytearray(4096)))
        buckets = model.profile_buckets(2)
        program = model.node_program()
        sizes = dict(zip([s.name for s in model.spec.symbols], buckets[0], strict=True))
        shapes = [evaluate_shape(each.shape, sizes) for each in model.spec.inputs]
    except GpumuxdError:
        return
    if any(not 0 <= size <= 64 for shape in shapes for size in shape) or len(shapes) > 16:
        return
    try:
        inputs = model.example_inputs(buckets[0])
    except (RuntimeError, MemoryError):
        return
    began = time.monotonic()
    with torch.inference_mode():
        try:
            slots = program.start(inputs)
            for group in program.groups:
                group(slots)
                if time.monotonic() - began > RUN_S_MAX:
                    return
            program.outputs(slots)
            program.bytes_held(slots)
        except Exception:
            return  # what an operator says of its arguments; the device child hears it too


# ONNX


def onnx_seeds() -> list[bytes]:
    import onnx
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    w = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [0.5] * 12)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return [model.SerializeToString()]


def run_onnx(data: bytes) -> None:
    from gpumuxd.models import onnx_plan
    from gpumuxd.models.onnx_reader import OnnxArtifact

    try:
        artifact = OnnxArtifact(io.BytesIO(data))
        artifact.write_weights(lambda piece: None)
        onnx_plan.decode(onnx_plan.encode(artifact.plan))
    except GpumuxdError as error:
        error.message.encode()


# Manifests


MANIFEST = b"""slo_ms = 12.5
tenants = ["a", "b"]
device = "cpu:0"
priority_max = "REALTIME"
batch_max = 8
"""


def run_manifest(data: bytes) -> None:
    try:
        manifest = parse_manifest(data)
    except GpumuxdError as error:
        error.message.encode()
        return
    assert manifest.slo_ns is None or manifest.slo_ns > 0


def _targets() -> Mapping[str, Target]:
    found = [
        Target("pt2", archive_seeds, mutate_archive, run_archive),
        Target(
            "expressions",
            lambda: [text.encode() for text in EXPRESSIONS],
            mutate_expression,
            run_expression,
        ),
        Target("plan", plan_seeds, mutate_plan, run_plan),
        Target("onnx", onnx_seeds, mutate_bytes, run_onnx),
        Target("manifest", lambda: [MANIFEST], mutate_bytes, run_manifest),
    ]
    return {target.name: target for target in found}


TARGETS = _targets()
