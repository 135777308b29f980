"""The plan of an ONNX model: its graph as pieces that sub-models are put together from.

The loader makes it (`onnx_reader.py`), a device child cuts it (`programs/onnx_cutter.py`). A piece
is the encoded message of one node, value or weight, already validated; the child joins pieces and
never decodes one, so it needs ONNX Runtime but not the `onnx` package. Neither does this module.

Invariants (checked by `check`): a value is written once, before it is read; weights lie inside the
weights' bytes at aligned offsets.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from gpumuxd.errors import InvalidModel
from gpumuxd.models.plan import WEIGHT_ALIGNMENT_BYTES, check_layer_ends
from gpumuxd.models.spec import ITEM_BYTES, ModelSpec

KIND = "onnx"
PLAN_VERSION = 2


class OnnxValue(Struct, frozen=True, array_like=True):
    """A tensor of the graph that isn't a weight; `info` is its encoded ValueInfoProto.

    `is_declared`: the artifact has one too. The runtime fuses otherwise where it is told shapes, so
    it is told what the whole model would tell it.
    """

    name: str
    info: bytes
    is_declared: bool = False


class OnnxWeight(Struct, frozen=True, array_like=True):
    """A tensor that the artifact holds.

    `tensor` is its encoded TensorProto. `offset` is where its bytes lie among the weights; None for
    a small one, whose message holds them.
    """

    name: str
    tensor: bytes
    datatype: str
    shape: tuple[int, ...]
    offset: int | None
    size_bytes: int


class OnnxNode(Struct, frozen=True, array_like=True):
    """One node. `reads` and `weights` are all that it takes, by number, and what branches inside it
    take from around them; `writes` are the values that it makes. `node` is its NodeProto."""

    domain: str
    operator: str
    reads: tuple[int, ...]
    weights: tuple[int, ...]
    writes: tuple[int, ...]
    node: bytes


class OnnxPlan(Struct, frozen=True):
    """The whole model. The first values are the inputs, in the order of the spec.

    `size_hints` are sizes of the symbols for example inputs, `fills` what those are filled with
    (None: the daemon's own choice). `opsets` are the versions of domains. `is_optimised`: the nodes
    are what ONNX Runtime made of the artifact's, to be run as they are. `layer_ends` are as in a
    torch plan.
    """

    kind: str
    version: int
    spec: ModelSpec
    size_hints: tuple[int, ...]
    fills: tuple[float | None, ...]
    ir_version: int
    opsets: tuple[tuple[str, int], ...]
    is_optimised: bool
    weights_bytes: int
    values: tuple[OnnxValue, ...]
    weights: tuple[OnnxWeight, ...]
    nodes: tuple[OnnxNode, ...]
    outputs: tuple[int, ...]
    layer_ends: tuple[int, ...] = ()


class _Kind(Struct):
    """Reads the kind of any plan; plans of torch models have no such field."""

    kind: str = "torch"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(OnnxPlan)
_kind_decoder = msgspec.msgpack.Decoder(_Kind)


def is_onnx(plan: bytes | memoryview) -> bool:
    """Is this an encoded OnnxPlan? Raises InvalidModel for what is no plan at all."""
    try:
        return _kind_decoder.decode(plan).kind == KIND
    except msgspec.DecodeError as error:
        raise InvalidModel(f"not a plan: {error}") from error


def encode(plan: OnnxPlan) -> bytes:
    """The bytes that travel from the loader to a device child."""
    return _encoder.encode(plan)


def decode(data: bytes | memoryview) -> OnnxPlan:
    """A checked plan. Raises InvalidModel."""
    try:
        plan = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"not a plan: {error}") from error
    check(plan)
    return plan


def check(plan: OnnxPlan) -> None:
    """Refuse a plan that breaks an invariant: an assertion's work, but across processes."""
    if plan.version != PLAN_VERSION or plan.kind != KIND:
        raise InvalidModel(f"plan: expected {KIND} {PLAN_VERSION}, got {plan.kind} {plan.version}")
    if not plan.nodes:
        raise InvalidModel("plan: no nodes")
    for weight in plan.weights:
        _check_weight(weight, plan.weights_bytes)
    written = set(range(len(plan.spec.inputs)))
    for position, node in enumerate(plan.nodes):
        _check_reads(node.reads, written, f"node {position}")
        if not all(0 <= index < len(plan.weights) for index in node.weights):
            raise InvalidModel(f"plan: node {position} reads a weight that does not exist")
        for value in node.writes:
            if value in written or not 0 <= value < len(plan.values):
                raise InvalidModel(f"plan: node {position} writes a value twice or none")
            written.add(value)
    _check_reads(plan.outputs, written, "the outputs")
    if len(plan.outputs) != len(plan.spec.outputs):
        raise InvalidModel("plan: outputs and spec differ in number")
    if len(plan.size_hints) != len(plan.spec.symbols):
        raise InvalidModel("plan: size hints and symbols differ in number")
    if len(plan.fills) != len(plan.spec.inputs):
        raise InvalidModel("plan: fills and inputs differ in number")
    check_layer_ends(plan.layer_ends, len(plan.nodes))


def _check_reads(reads: Iterable[int], written: set[int], what: str) -> None:
    for value in reads:
        if value not in written:
            raise InvalidModel(f"plan: {what} reads value {value}, which nothing has written")


def _check_weight(weight: OnnxWeight, weights_bytes: int) -> None:
    items = 1
    for size in weight.shape:
        if size < 0:
            raise InvalidModel(f"plan: weight {weight.name!r} has a negative size")
        items *= size
    if weight.datatype not in ITEM_BYTES or items * ITEM_BYTES[weight.datatype] != (
        weight.size_bytes
    ):
        raise InvalidModel(f"plan: weight {weight.name!r} is malformed")
    if weight.offset is None:
        return
    if weight.offset < 0 or weight.offset % WEIGHT_ALIGNMENT_BYTES:
        raise InvalidModel(f"plan: weight {weight.name!r} is not aligned")
    if weight.offset + weight.size_bytes > weights_bytes:
        raise InvalidModel(f"plan: weight {weight.name!r} ends outside the weights")
