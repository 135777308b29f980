"""The nodes of an ONNX graph: each checked and made a piece of the plan.

Walks the graph in its own order. What a node reads must have been written before: so a graph with a
cycle, a dangling name or an order that is not topological is refused. Constants become weights.
Branches (`If`) stay whole, inside their node; what they take from around them counts as read by
it. It must not know types, shapes or how the graph will be cut.

Invariant: wherever a name can be read it means one thing. (Two branches of one `If` may use a name
each for itself, and exporters do.)
"""

from collections.abc import Iterable, Iterator
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_limits import OnnxLimits
from gpumuxd.models.onnx_operators import OnnxAllowList, onnx_allow_list
from gpumuxd.models.onnx_plan import OnnxNode
from gpumuxd.models.onnx_tensors import OnnxWeightImage, check_tensor

_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = range(1, 9)
_SCALARS = frozenset({_FLOAT, _INT})
_LISTS = {_FLOATS: "floats", _INTS: "ints", _STRINGS: "strings"}

_CONSTANTS = {"value_float": 1, "value_floats": 1, "value_int": 7, "value_ints": 7}
"""The attributes of a Constant that hold plain numbers, and ONNX's type of each."""

_UNNAMED = ""
"""The name of an operand or result that is left out."""


class OnnxGraph:
    """Takes the graph in, piece by piece. `values` are the names of all that is no weight."""

    def __init__(
        self,
        package: Any,
        weights: OnnxWeightImage,
        limits: OnnxLimits,
        allowed: OnnxAllowList | None = None,
    ) -> None:
        self._package = package
        self._weights = weights
        self._limits = limits
        self._allowed = allowed or onnx_allow_list()
        self._node_count = 0
        self._seen: set[str] = set()
        self._weight_numbers: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.nodes: list[OnnxNode] = []
        self.kept: list[Any] = []
        """The messages of `nodes`."""

    def add_weight(self, tensor: Any) -> None:
        """An initializer."""
        self._declare(tensor.name, "weight")
        self._weight_numbers[tensor.name] = self._weights.add(tensor, self._package.TensorProto)

    def add_input(self, name: str) -> None:
        """An input of the model; before any node."""
        self._declare(name, "input")
        self.values[name] = len(self.values)

    def add_node(self, node: Any) -> None:
        """The next node of the graph itself."""
        if node.op_type == "Constant" and self._fold(node):
            return
        taken = list(self._check_node(node, set(), 0))
        for name in node.output:
            if name != _UNNAMED:
                self._declare(name, "result")
                self.values[name] = len(self.values)
        self.nodes.append(
            OnnxNode(
                domain=node.domain,
                operator=node.op_type,
                reads=_unique(self.values[name] for name in taken if name in self.values),
                weights=_unique(
                    self._weight_numbers[name] for name in taken if name in self._weight_numbers
                ),
                writes=tuple(self.values[name] for name in node.output if name != _UNNAMED),
                node=node.SerializeToString(),
            )
        )
        self.kept.append(node)

    def drop_unused(self, outputs: Iterable[str]) -> tuple[int, ...]:
        """Forget nodes that no output needs; the numbers of the outputs."""
        numbers = []
        for name in outputs:
            if name not in self.values:
                what = "is a weight" if name in self._weight_numbers else "is written by no node"
                raise InvalidModel(f"output {name[:80]!r} {what}")
            numbers.append(self.values[name])
        wanted = set(numbers)
        needed: list[int] = []
        for position in reversed(range(len(self.nodes))):
            if wanted & set(self.nodes[position].writes):
                needed.append(position)
                wanted |= set(self.nodes[position].reads)
        needed.reverse()
        self.nodes = [self.nodes[position] for position in needed]
        self.kept = [self.kept[position] for position in needed]
        return tuple(numbers)

    def _declare(self, name: str, what: str) -> None:
        self._check_name(name)
        if name in self._seen:
            raise InvalidModel(
                f"{what} {name[:80]!r}: the name is taken, each has a name of its own"
            )
        self._seen.add(name)

    def _check_new(self, name: str, inner: set[str], where: str) -> None:
        self._check_name(name)
        if name in inner or name in self._seen:
            raise InvalidModel(f"{where}: the name {name[:80]!r} is taken around it")

    def _check_name(self, name: str) -> None:
        if not 0 < len(name.encode()) <= self._limits.name_bytes_max:
            raise InvalidModel(
                f"a name of {len(name.encode())} bytes, expected 1 to "
                f"{self._limits.name_bytes_max} (name_bytes_max)"
            )

    def _check_node(self, node: Any, inner: set[str], depth: int) -> Iterator[str]:
        """Refuse a node that may not be; yield the names outside of `inner` that it takes."""
        self._node_count += 1
        if self._node_count > self._limits.nodes_max:
            raise InvalidModel(f"more than {self._limits.nodes_max} nodes (nodes_max)")
        self._allowed.check(node.domain, node.op_type)
        what = f"node {self._node_count} ({node.op_type})"
        if node.overload:
            raise InvalidModel(f"{what}: functions are not supported")
        if max(len(node.input), len(node.output)) > self._limits.operands_max:
            raise InvalidModel(f"{what}: over {self._limits.operands_max} operands (operands_max)")
        rule = self._allowed.operands.get(node.op_type)
        if rule is not None and any(node.input[rule.maximum :]):
            raise InvalidModel(f"{what}: {rule.reason}")
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        for name in node.input:
            if name == _UNNAMED or name in inner:
                continue
            if name not in self.values and name not in self._weight_numbers:
                raise InvalidModel(
                    f"{what} reads {name[:80]!r}, which nothing before it writes: a cycle, a "
                    "dangling name, or nodes that are not sorted"
                )
            yield name
        yield from self._check_attributes(node, what, inner, depth)

    def _check_attributes(self, node: Any, what: str, inner: set[str], depth: int) -> Iterator[str]:
        limits = self._limits
        names = [attribute.name for attribute in node.attribute]
        if len(names) > limits.attributes_max or len(set(names)) != len(names):
            raise InvalidModel(
                f"{what}: expected at most {limits.attributes_max} attributes (attributes_max), "
                "each once"
            )
        for attribute in node.attribute:
            self._check_name(attribute.name)
            attribute.ClearField("doc_string")
            where = f"{what}, attribute {attribute.name[:80]!r}"
            if attribute.ref_attr_name:
                raise InvalidModel(f"{where}: functions are not supported")
            required = self._allowed.required.get(node.op_type)
            if required and attribute.name == required.attribute and attribute.i != required.value:
                raise InvalidModel(f"{where}: {required.reason}")
            if attribute.type == _GRAPH:
                if node.op_type != "If":
                    raise InvalidModel(f"{where}: only an If has branches")
                yield from self._check_branch(attribute.g, where, inner, depth + 1)
            else:
                self._check_value(attribute, where)

    def _check_value(self, attribute: Any, where: str) -> None:
        limits = self._limits
        if attribute.type == _STRING:
            if len(attribute.s) > limits.attribute_bytes_max:
                raise InvalidModel(f"{where}: {len(attribute.s)} bytes (attribute_bytes_max)")
        elif attribute.type == _TENSOR:
            check_tensor(attribute.t, where, limits)
        elif attribute.type in _LISTS:
            items = getattr(attribute, _LISTS[attribute.type])
            if len(items) > limits.attribute_items_max:
                raise InvalidModel(f"{where}: {len(items)} items (attribute_items_max)")
            if attribute.type == _STRINGS and sum(map(len, items)) > limits.attribute_bytes_max:
                raise InvalidModel(f"{where}: its strings are too long (attribute_bytes_max)")
        elif attribute.type not in _SCALARS:
            raise InvalidModel(f"{where}: attributes of type {attribute.type} are not supported")

    def _check_branch(self, graph: Any, where: str, outer: set[str], depth: int) -> Iterator[str]:
        if depth > self._limits.depth_max:
            raise InvalidModel(f"{where}: branches nest deeper than {self._limits.depth_max}")
        if len(graph.input) or len(graph.sparse_initializer):
            raise InvalidModel(f"{where}: a branch has no inputs and no sparse tensors")
        graph.ClearField("doc_string")
        graph.ClearField("value_info")
        inner = set(outer)
        for tensor in graph.initializer:
            self._check_new(tensor.name, inner, where)
            check_tensor(tensor, f"weight {tensor.name[:80]!r}", self._limits)
            inner.add(tensor.name)
        for node in graph.node:
            yield from self._check_node(node, inner, depth)
            for name in node.output:
                if name != _UNNAMED:
                    self._check_new(name, inner, where)
                    inner.add(name)
        for output in graph.output:
            if output.name in inner:
                continue
            if output.name not in self.values and output.name not in self._weight_numbers:
                raise InvalidModel(f"{where}: nothing writes its output {output.name[:80]!r}")
            yield output.name

    def _fold(self, node: Any) -> bool:
        """Make a Constant a weight. False for what is no plain tensor: the checks will say."""
        if len(node.attribute) != 1 or len(node.output) != 1 or node.domain not in ("", "ai.onnx"):
            return False
        (attribute,) = node.attribute
        if attribute.name == "value" and attribute.type == _TENSOR:
            tensor = attribute.t
        elif attribute.name in _CONSTANTS:
            self._check_value(attribute, f"constant {node.output[0][:80]!r}")
            tensor = self._tensor_of(attribute)
        else:
            return False
        tensor.name = node.output[0]
        tensor.ClearField("doc_string")
        self.add_weight(tensor)
        return True

    def _tensor_of(self, attribute: Any) -> Any:
        tensor = self._package.TensorProto()
        tensor.data_type = _CONSTANTS[attribute.name]
        is_float = tensor.data_type == 1
        items = tensor.float_data if is_float else tensor.int64_data
        if attribute.name.endswith("s"):
            items.extend(attribute.floats if is_float else attribute.ints)
            tensor.dims.append(len(items))
        else:
            items.append(attribute.f if is_float else attribute.i)
        return tensor


def _unique(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))
