"""A plan: one model as data. What the loader makes of an artifact and a device child runs.

A flat list of nodes. Each calls one allow-listed operator on *slots*, weights and literals, writes
its results to slots, and names the slots that nobody reads after it. Request inputs are the first
slots. A plan knows nothing of kernel groups, torch or where weights are mapped, and it carries no
code: names of operators are looked up, everything else is a value.

Invariants (checked by `check`): a slot is written once, before it is read, and not read after it
was cleared; weights lie inside the weights' bytes at multiples of their item size.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from gpumuxd.errors import InvalidModel
from gpumuxd.models.spec import ITEM_BYTES, ModelSpec

PLAN_VERSION = 1

WEIGHT_ALIGNMENT_BYTES = 64
"""What torch's own allocator gives, so kernels choose the same path and results stay bit-equal."""


class Slot(Struct, frozen=True, array_like=True, tag="slot"):
    """The value in a slot of the frame."""

    index: int


class Weight(Struct, frozen=True, array_like=True, tag="weight"):
    """A tensor of the weights' table."""

    index: int


class Constant(Struct, frozen=True, array_like=True, tag="constant"):
    """A torch object by name; kind is dtype, layout, memory_format or device.

    A device has no name: it is the one that the program runs on.
    """

    kind: str
    name: str


Item = None | bool | int | float | str | Slot | Weight | Constant


class Many(Struct, frozen=True, array_like=True, tag="many"):
    """A list argument."""

    items: tuple[Item, ...]


Argument = Item | Many


class Node(Struct, frozen=True, array_like=True):
    """One call. `results` are the slots of what it returns, None for what nobody reads.

    `returns_list`: the operator returns a list or tuple, and `results` are its items.
    """

    operator: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    results: tuple[int | None, ...]
    returns_list: bool
    clears: tuple[int, ...]


class WeightEntry(Struct, frozen=True, array_like=True):
    """A tensor in the weights' bytes. Strides count items, as torch does.

    `is_trained`: torch had it as a parameter that takes a gradient. matmul looks at that, also when
    nothing records gradients, and sums in another order.
    """

    offset: int
    datatype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_trained: bool = False


class Plan(Struct, frozen=True):
    """The whole model. `size_hints` are the symbols' values in the example inputs; `layer_ends` the
    ends (exclusive) of the nodes in which layers of the module end, empty if nothing says so."""

    version: int
    spec: ModelSpec
    size_hints: tuple[int, ...]
    weights_bytes: int
    weights: tuple[WeightEntry, ...]
    slot_count: int
    nodes: tuple[Node, ...]
    outputs: tuple[Slot | Weight, ...]
    layer_ends: tuple[int, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Plan)


def encode(plan: Plan) -> bytes:
    """The bytes that travel from the loader to a device child."""
    return _encoder.encode(plan)


def decode(data: bytes | memoryview) -> Plan:
    """A checked plan. Raises InvalidModel."""
    try:
        plan = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"not a plan: {error}") from error
    check(plan)
    return plan


def operands(node: Node) -> Iterator[Slot | Weight]:
    """Every slot and weight a node reads."""
    for argument in (*node.arguments, *(value for _, value in node.keywords)):
        for item in argument.items if isinstance(argument, Many) else (argument,):
            if isinstance(item, Slot | Weight):
                yield item


def check(plan: Plan) -> None:
    """Refuse a plan that breaks an invariant: an assertion's work, but across processes."""
    if plan.version != PLAN_VERSION:
        raise InvalidModel(f"plan version: expected {PLAN_VERSION}, got {plan.version}")
    for tensor in (*plan.spec.inputs, *plan.spec.outputs):
        if tensor.datatype not in ITEM_BYTES:
            raise InvalidModel(f"plan: {tensor.datatype[:40]!r} is no data type of a tensor")
    for index, entry in enumerate(plan.weights):
        _check_weight(index, entry, plan.weights_bytes)
    written = set(range(len(plan.spec.inputs)))
    live = set(written)
    for position, node in enumerate(plan.nodes):
        _check_operands(operands(node), live, plan, f"node {position}")
        results = {slot for slot in node.results if slot is not None}
        if results & written or not all(0 <= slot < plan.slot_count for slot in results):
            raise InvalidModel(f"plan: node {position} writes a slot twice or outside the frame")
        written |= results
        live |= results
        if not set(node.clears) <= live:
            raise InvalidModel(f"plan: node {position} clears a slot that holds nothing")
        live -= set(node.clears)
    _check_operands(plan.outputs, live, plan, "the outputs")
    if len(plan.outputs) != len(plan.spec.outputs):
        raise InvalidModel("plan: outputs and spec differ in number")
    if len(plan.size_hints) != len(plan.spec.symbols):
        raise InvalidModel("plan: size hints and symbols differ in number")
    check_layer_ends(plan.layer_ends, len(plan.nodes))


def check_layer_ends(layer_ends: Sequence[int], node_count: int) -> None:
    """Refuse ends that are not ascending positions of nodes."""
    places = (0, *layer_ends)
    if any(a >= b for a, b in pairwise(places)) or places[-1] > node_count:
        raise InvalidModel("plan: ends of layers are out of order or outside the graph")


def _check_operands(
    reads: Iterator[Slot | Weight] | tuple[Slot | Weight, ...],
    live: set[int],
    plan: Plan,
    what: str,
) -> None:
    for item in reads:
        if isinstance(item, Slot):
            if item.index not in live:
                raise InvalidModel(f"plan: {what} reads slot {item.index}, which holds nothing")
        elif not 0 <= item.index < len(plan.weights):
            raise InvalidModel(f"plan: {what} reads weight {item.index}, which does not exist")


def _check_weight(index: int, entry: WeightEntry, weights_bytes: int) -> None:
    item_bytes = ITEM_BYTES.get(entry.datatype)
    if item_bytes is None or len(entry.shape) != len(entry.strides) or entry.offset % item_bytes:
        raise InvalidModel(f"plan: weight {index} is malformed")
    if min((*entry.shape, *entry.strides, entry.offset)) < 0:
        raise InvalidModel(f"plan: weight {index} has a negative size, stride or offset")
    end = entry.offset + span_items(entry.shape, entry.strides) * item_bytes
    if end > weights_bytes:
        raise InvalidModel(f"plan: weight {index} ends at byte {end} of {weights_bytes}")


def span_items(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Items from the first to the last that a strided tensor touches, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
