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

from gpumuxd.daemon.config import parse_config
from gpumuxd.domain import OutcomeKind
from gpumuxd.errors import ConfigError, GpumuxdError, InvalidModel, error_of
from gpumuxd.models import expressions
from gpumuxd.models import plan as plans
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.manifest import parse_manifest
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import (
    ModelSpec,
    Symbol,
    TensorSpec,
    evaluate,
    evaluate_shape,
    format_shape,
    tensor_bytes,
)
from gpumuxd.node.api import InferReply, Tenant
from gpumuxd.node.model_page import is_allowed
from gpumuxd.node.spec_check import check_spec, why_wrong_loaded
from gpumuxd.node.validation import CallChecker
from gpumuxd.rpc.codec import decode_infer, encode_infer
from gpumuxd.rpc.generated import control_pb2
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.raw_request import read_request
from gpumuxd.rpc.status import TEXT_WIRE_BYTES_MAX, failure_of
from gpumuxd.units import MIB
from gpumuxd.wire import frames
from tests.fuzz.mutate import mutate_archive, mutate_bytes, mutate_tree
from tests.fuzz.requests import GOOD, mutated_infer
from tests.models import archives
from tests.wire.test_told import TOLD

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


# Requests, from bytes to the call that a node checks against a model


def request_seeds() -> list[bytes]:
    draw = random.Random(1)
    return [make(draw)[0].SerializeToString() for make in GOOD for _ in range(5)]


def mutate_request(data: bytes, draw: random.Random) -> bytes:
    return mutate_bytes(data, draw) if draw.randrange(2) else mutated_infer(draw)


SPECS = (
    ModelSpec(
        inputs=(TensorSpec("x", "FP32", (("batch",), 4)),),
        outputs=(TensorSpec("y", "FP32", (("batch",), 4)), TensorSpec("n", "FP32", (("batch",),))),
        symbols=(Symbol("batch", 1, 4),),
        batch_symbol="batch",
    ),
    ModelSpec(
        inputs=(
            TensorSpec("ids", "INT64", (("batch",), ("length",))),
            TensorSpec("mask", "BOOL", (("batch",), ("length",))),
            TensorSpec("scale", "FP32", (("batch",),)),
        ),
        outputs=(TensorSpec("total", "INT64", (("batch", "length", "*"),)),),
        symbols=(Symbol("batch", 1, 4), Symbol("length", 3, 512, 3)),
        conditions=(("length", 9, "!="),),
    ),
)
CHECKERS = [CallChecker(spec, rows_max=3) for spec in SPECS]
ANYONE = Tenant("anyone")


def _told(error: GpumuxdError) -> None:
    """A refusal can be sent: what clients accept of trailers is little."""
    failure = failure_of(error, "/a/B")
    assert len(failure.details) < TEXT_WIRE_BYTES_MAX, failure


def run_request(data: bytes) -> None:
    try:
        request = read_request(data)
        assert list(request.raw) == list(pb.ModelInferRequest.FromString(data).raw_input_contents)
        call = decode_infer(request, ANYONE, 1, 0.5)
    except GpumuxdError as error:
        _told(error)
        return
    for tensor in call.inputs:
        assert tensor.size_bytes == tensor_bytes(tensor.datatype, tensor.shape)
    assert call.priority >= 0
    assert call.deadline_ns is not None
    for checker in CHECKERS:
        try:
            fit = checker.check(call).fit
        except GpumuxdError as error:
            _told(error)
            continue
        assert fit.input_bytes == sum(tensor.size_bytes for tensor in call.inputs)


# What a child or a loader says


def frame_seeds() -> list[bytes]:
    return [frames.encode(frame) for frame in TOLD]


def mutate_frame(data: bytes, draw: random.Random) -> bytes:
    try:
        return msgspec.msgpack.encode(mutate_tree(msgspec.msgpack.decode(data), draw))
    except (msgspec.DecodeError, OverflowError, ValueError, RecursionError, TypeError):
        return mutate_bytes(data, draw)


def run_frame(data: bytes) -> None:
    """What is decoded can be sent on, and its figures fit the messages that show them."""
    try:
        frame = frames.decode(data)
    except msgspec.DecodeError:
        return
    match frame:
        case frames.Finished(outcome=outcome, report=report):
            encode_infer(InferReply("m", "1", (), report), "1")
            if outcome.kind is not OutcomeKind.COMPLETED:
                _told(error_of(outcome, 1))
        case frames.ModelLoaded():
            for spec in SPECS:
                if not why_wrong_loaded(spec, frame):
                    assert all(
                        is_allowed(spec, bucket, 4) in (True, False) for bucket, _ in frame.run_ns
                    )
        case frames.Explained(explanation=told) if told is not None:
            control_pb2.ExplainModelResponse(
                group_ns=told.group_ns, run_ns=told.run_ns, window=told.window
            ).SerializeToString()
        case frames.ReadDone():
            try:
                spec = msgspec.msgpack.decode(frame.spec, type=ModelSpec)
                check_spec(spec)
            except (msgspec.DecodeError, GpumuxdError):
                return
            for tensor in (*spec.inputs, *spec.outputs):
                format_shape(tensor.shape).encode()


# The configuration


CONFIG = b"""[node]
state_dir = "/s"
startup_models = ["a"]
drain_timeout_s = 1.5
[repository]
paths = ["/r"]
mode = "poll"
[listen]
tcp = ["127.0.0.1:1"]
unix = ["/run/x.sock"]
message_mib_max = 8
[[device]]
name = "cpu:0"
threads = 2
[scheduler]
slicing = "window(2, 3)"
preemption_delay_ms_max = 0.5
[tenants.voice]
token = "a token of voice"
priority_max = "REALTIME"
"""


def run_config(data: bytes) -> None:
    try:
        parse_config(data.decode("utf-8", "replace"), {})
    except ConfigError as error:
        str(error).encode("utf-8", "replace")


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
        Target("request", request_seeds, mutate_request, run_request),
        Target("frame", frame_seeds, mutate_frame, run_frame),
        Target("config", lambda: [CONFIG], mutate_bytes, run_config),
    ]
    return {target.name: target for target in found}


TARGETS = _targets()
