"""Divisions of integers in an ONNX graph that could end the process.

The least integer divided by -1 is a trap of the CPU, and ONNX Runtime's `Div` walks into it (1.32,
measured; dividing by zero it refuses itself, and so does `Mod`). Kernels can't be checked in each
call, so a graph has to show that it can't happen: either the divisor holds no -1, or the dividend
never is the least integer. Constants show that, and so do sizes, which are never negative.

It must not know how a graph is read: it is told the nodes, in order, and types by name.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_tensors import raw_bytes

_WIDTHS = {6: 4, 7: 8}
"""Bytes of an item of int32 and int64. Smaller ones are divided as int32, where their least is not
the least."""

_ITEMS_MAX = 4096
"""Constants larger than this are not looked through: no divisor is."""

_SIZES = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size"})
"""What gives sizes and places, which are never negative."""

_MOVES = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split",
     "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)  # fmt: skip
"""What gives items of its first operand (of all, for Concat) and nothing else."""

_GRAPH = 5  # a kind of attribute
_INT64 = 7


class Divisions:
    """Follows what values can't be. `types` are ONNX's element types of the graph's values."""

    def __init__(self, types: Mapping[str, int]) -> None:
        self._types = dict(types)
        self._never_minus_one: set[str] = set()
        self._never_least: set[str] = set()

    def check(self, constants: Iterable[Any], nodes: Iterable[Any]) -> None:
        """Raise InvalidModel for a division of integers that nothing shows to be safe. `constants`
        are TensorProtos, nodes are in order."""
        for tensor in constants:
            self._take_constant(tensor.name, tensor)
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == _GRAPH:
                    self._check_branch(attribute.g)
            self._take(node)
            if node.op_type == "Div":
                self._check_division(node)

    def _check_branch(self, graph: Any) -> None:
        """A name of a branch means nothing outside it, and may mean something else there."""
        own = {tensor.name for tensor in graph.initializer}
        own.update(name for node in graph.node for name in node.output)
        inner = Divisions({name: t for name, t in self._types.items() if name not in own})
        inner._never_minus_one = self._never_minus_one - own
        inner._never_least = self._never_least - own
        inner.check(graph.initializer, graph.node)

    def _check_division(self, node: Any) -> None:
        dividend, divisor = (*node.input, "", "")[:2]
        if divisor in self._never_minus_one or dividend in self._never_least:
            return
        types = {self._types.get(name, 0) for name in (dividend, divisor, *node.output)} - {0}
        if types and not types & _WIDTHS.keys():
            return
        kind = "of integers" if types else "of a type that is not known"
        raise InvalidModel(
            f"Div to {node.output[0][:80]!r} {kind}: its divisor could be -1 and its dividend the "
            "least integer, which ends the process: divide by a constant, divide floats, or use "
            "Where to replace a divisor of -1 by a constant and Mul"
        )

    def _take(self, node: Any) -> None:
        operator, names = node.op_type, node.output
        if operator == "Constant":
            for tensor in self._tensors_of(node):
                self._take_constant(names[0], tensor)
        elif operator in _SIZES:
            self._never_minus_one.update(names)
            self._never_least.update(names)
        elif operator in _MOVES:
            # A Cast makes what it likes of numbers too large for it, and of fractions.
            if operator == "Cast" and (
                self._types.get(node.input[0]) not in _WIDTHS or self._types.get(names[0]) != _INT64
            ):
                return
            taken = list(node.input) if operator == "Concat" else list(node.input[:1])
            for known in (self._never_minus_one, self._never_least):
                if known.issuperset(taken):
                    known.update(names)

    def _tensors_of(self, node: Any) -> Iterator[Any]:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                yield attribute.t

    def _take_constant(self, name: str, tensor: Any) -> None:
        self._types[name] = tensor.data_type
        width = _WIDTHS.get(tensor.data_type)
        if width is None or tensor.data_location or math.prod(tensor.dims) > _ITEMS_MAX:
            return
        data = raw_bytes(tensor, f"weight {name[:80]!r}")
        items = {data[i : i + width] for i in range(0, len(data), width)}
        if b"\xff" * width not in items:
            self._never_minus_one.add(name)
        if bytes(width - 1) + b"\x80" not in items:
            self._never_least.add(name)
