"""From the graph in an archive to the nodes of a plan.

Decides, node by node, whether an artifact may be served at all: is the operator allowed, do its
arguments have a form we know, does it write to something that outlives the request. It must not
know bytes of weights or shapes.

Invariant: nothing that enters a plan can change a weight or an input. A value is *shared* when it
may be, or be a view of, one of those; an operator that writes in place needs one that is not.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpumuxd.errors import InvalidModel
from gpumuxd.models import schema
from gpumuxd.models.arithmetic import ARITY, Number
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.operators import (
    ATEN_PREFIX,
    BLANK_OPERATORS,
    DROPPED,
    INTEGER_OPERATORS,
    SCALAR_OPERATORS,
    Effect,
    RequiredArgument,
    allow_list,
)
from gpumuxd.models.plan import (
    Argument,
    Constant,
    Item,
    Many,
    Node,
    Slot,
    Weight,
    operands,
)
from gpumuxd.models.regions import DEPTH_MAX, Region, region_of
from gpumuxd.models.weights import DATATYPES, OTHER_TYPES, STRIDED_LAYOUT

_POSITIONAL, _KEYWORD = 1, 2

_MEMORY_FORMATS = {
    1: "contiguous_format",
    2: "channels_last",
    3: "channels_last_3d",
    4: "preserve_format",
}
_NUMBER_KINDS = frozenset(
    {"as_bool", "as_int", "as_float", "as_sym_bool", "as_sym_int", "as_sym_float"}
)
_NUMBER_TYPES = {"as_sym_int": "INT64", "as_sym_bool": "BOOL", "as_sym_float": "FP64"}
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}

WeightSource = Callable[[], int]
"""Reserves a weight and returns its index; called for weights that something reads."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A node before anyone knows which of its results are read."""

    operator: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    results: tuple[int | None, ...]
    returns_list: bool


class Lowering:
    """One pass over a graph. Declare inputs and weights, add nodes in order, then `finish`."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._values: dict[str, Slot | Weight] = {}
        self._shared: set[Slot | Weight] = set()
        self._numbers: dict[Slot, str] = {}
        self._weight_sources: dict[str, WeightSource] = {}
        self._calls: list[_Call] = []
        self._depth = 0
        self.slot_count = 0

    def add_input(self, name: str) -> None:
        self._define(name, is_shared=True)

    def add_weight(self, name: str, source: WeightSource) -> None:
        self._check_new(name)
        self._weight_sources[name] = source

    def add_node(self, node: schema.Node) -> None:
        if node.target in DROPPED:
            return
        where = f"node {len(self._calls)} ({node.target[:80]})"
        if len(self._calls) >= self._limits.nodes_max:
            raise InvalidModel(f"more than {self._limits.nodes_max} nodes (nodes_max)")
        if len(node.inputs) > self._limits.arguments_max:
            raise InvalidModel(f"{where}: {len(node.inputs)} arguments (arguments_max)")
        region = region_of(node, where)
        if region is not None:
            self._add_region(region, where)
            return
        operator, effect = _allowed(node.target)
        arguments, keywords = self._arguments(node.inputs, where)
        if node.target in BLANK_OPERATORS:
            keywords = (
                _without_layout(keywords, where) if operator == "aten.zeros.default" else keywords
            )
        if operator in SCALAR_OPERATORS:
            self._check_numbers(SCALAR_OPERATORS[operator], arguments, keywords, where)
        required = allow_list().required.get(operator.removeprefix("aten."))
        if required is not None:
            _check_required(required, arguments, dict(keywords), where)
        is_shared = self._check_effect(effect, arguments, keywords, where)
        outputs = node.outputs
        if operator.removeprefix("aten.") in allow_list().first_result_only:
            # The others stay undefined, so that whoever reads one is refused.
            outputs = [*outputs[:1], *(schema.Argument(as_none=True) for _ in outputs[1:])]
        results, returns_list = self._results(outputs, is_shared, where)
        self._calls.append(_Call(operator, arguments, keywords, results, returns_list))

    def _add_region(self, region: Region, where: str) -> None:
        """The nodes of a region, in its place. Its names are its own."""
        if self._depth == DEPTH_MAX:
            raise InvalidModel(f"{where}: more than {DEPTH_MAX} regions inside each other")
        given = [self._argument(argument.arg, where) for argument in region.arguments]
        outer, self._values = self._values, {}
        self._depth += 1
        for value, argument in zip(given, region.graph.inputs, strict=True):
            self._bind(_name_of(argument, where), value, where)
        for node in region.graph.nodes:
            self.add_node(node)
        made = [self._argument(result, where) for result in region.graph.outputs]
        self._depth -= 1
        self._values = outer
        for value, result in zip(made, region.results, strict=True):
            self._bind(_name_of(result, where), value, where)

    def _bind(self, name: str, value: Argument, where: str) -> None:
        """One more name for something that has one."""
        self._check_new(name)
        if not isinstance(value, Slot | Weight):
            raise InvalidModel(f"{where}: {name[:80]!r} stands for something that is no result")
        self._values[name] = value

    def read(self, name: str, where: str) -> Slot | Weight:
        """The operand of a name that was defined before."""
        if name not in self._values and name in self._weight_sources and self._depth == 0:
            weight = Weight(self._weight_sources[name]())
            self._values[name] = weight
            self._shared.add(weight)
        if name not in self._values:
            raise InvalidModel(f"{where} reads {name[:80]!r}, which nothing before it defines")
        return self._values[name]

    def number(self, argument: schema.Argument, where: str) -> tuple[Slot | Number, str] | None:
        """A number, literal or computed, and its datatype. None for anything else."""
        kind, _ = schema.variant(argument, where)
        if kind not in _NUMBER_KINDS:
            return None
        value = self._argument(argument, where)
        assert isinstance(value, Slot | bool | int | float), "of these kinds are numbers only"
        datatype = self._number_type(value)
        assert datatype is not None, "names of these kinds were checked"
        return value, datatype

    def add_tensor_of(self, number: Slot | Number) -> Slot:
        """A tensor without dimensions that holds a number: requests are answered with tensors."""
        datatype = self._number_type(number)
        assert datatype is not None, "tensors are no numbers"
        slot = Slot(self.slot_count)
        self.slot_count += 1
        keywords = (("dtype", Constant("dtype", datatype)),)
        call = _Call("aten.scalar_tensor.default", (number,), keywords, (slot.index,), False)
        self._calls.append(call)
        return slot

    def _number_type(self, value: Slot | Number) -> str | None:
        match value:
            case bool():
                return "BOOL"
            case int():
                return "INT64"
            case float():
                return "FP64"
        return self._numbers.get(value)

    def finish(self, outputs: Iterable[Slot | Weight]) -> tuple[Node, ...]:
        """All nodes, with the results that nobody reads dropped and last uses marked."""
        seen = {item.index for item in outputs if isinstance(item, Slot)}
        nodes: list[Node] = []
        for call in reversed(self._calls):
            results = tuple(slot if slot in seen else None for slot in call.results)
            node = Node(
                call.operator, call.arguments, call.keywords, results, call.returns_list, ()
            )
            reads = {item.index for item in operands(node) if isinstance(item, Slot)}
            clears = tuple(sorted(reads - seen))
            seen |= reads
            nodes.append(
                Node(
                    node.operator,
                    node.arguments,
                    node.keywords,
                    node.results,
                    node.returns_list,
                    clears,
                )
            )
        return tuple(reversed(nodes))

    def _check_new(self, name: str) -> None:
        is_weight = name in self._weight_sources and self._depth == 0
        if name in self._values or is_weight:
            raise InvalidModel(f"the graph defines {name[:80]!r} twice")

    def _define(self, name: str, is_shared: bool) -> int:
        self._check_new(name)
        slot = Slot(self.slot_count)
        self.slot_count += 1
        self._values[name] = slot
        if is_shared:
            self._shared.add(slot)
        return slot.index

    def _arguments(
        self, inputs: Sequence[schema.NamedArgument], where: str
    ) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
        arguments: list[Argument] = []
        keywords: dict[str, Argument] = {}
        for named in inputs:
            value = self._argument(named.arg, f"{where}, argument {named.name[:40]!r}")
            if named.kind == _POSITIONAL and not keywords:
                arguments.append(value)
            elif named.kind == _KEYWORD and is_keyword(named.name) and named.name not in keywords:
                keywords[named.name] = value
            else:
                raise InvalidModel(
                    f"{where}: argument {named.name[:40]!r} of kind {named.kind!r} is misplaced"
                )
        return tuple(arguments), tuple(keywords.items())

    def _argument(self, argument: schema.Argument, where: str) -> Argument:
        kind, value = schema.variant(argument, where)
        match kind:
            case "as_none":
                return None
            case "as_tensor":
                return self.read(value.name, where)
            case "as_optional_tensor":
                return self._optional(value, where)
            case "as_sym_int" | "as_sym_bool" | "as_sym_float":
                return self._symbolic(value, where)
            case "as_tensors":
                return self._many([self.read(item.name, where) for item in value], where)
            case "as_optional_tensors":
                return self._many([self._optional(item, where) for item in value], where)
            case "as_sym_ints" | "as_sym_floats":
                return self._many([self._symbolic(item, where) for item in value], where)
            case "as_floats":
                return self._many([_float(item, where) for item in value], where)
            case "as_ints" | "as_bools":
                return self._many(value, where)
            case "as_float":
                return _float(value, where)
            case "as_graph":
                raise InvalidModel(f"{where}: this operator takes no graph")
            case "as_int" | "as_bool" | "as_string":
                return value  # type: ignore[no-any-return]  # msgspec checked the type
            case _:
                return _constant(kind, value, where)

    def _many(self, items: Sequence[Item], where: str) -> Many:
        if len(items) > self._limits.list_items_max:
            raise InvalidModel(f"{where}: list of {len(items)} items (list_items_max)")
        return Many(tuple(items))

    def _optional(self, value: schema.OptionalTensorArgument, where: str) -> Item:
        return None if value.as_tensor is None else self.read(value.as_tensor.name, where)

    def _symbolic(
        self,
        value: schema.SymIntArgument | schema.SymBoolArgument | schema.SymFloatArgument,
        where: str,
    ) -> Slot | Number:
        if value.as_name is not None:
            operand = self.read(value.as_name, where)
            if not isinstance(operand, Slot) or operand not in self._numbers:
                raise InvalidModel(f"{where}: {value.as_name[:80]!r} is no number")
            return operand
        match value:
            case schema.SymIntArgument(as_int=int() as literal):
                return literal
            case schema.SymBoolArgument(as_bool=bool() as truth):
                return truth
            case schema.SymFloatArgument(as_float=float() | str() as number):
                return _float(number, where)
        raise InvalidModel(f"{where}: expected a name or a literal")

    def _check_numbers(
        self,
        operator: str,
        arguments: tuple[Argument, ...],
        keywords: tuple[tuple[str, Argument], ...],
        where: str,
    ) -> None:
        """Arithmetic on numbers takes numbers: a list times an integer is a long list."""
        is_number = [
            isinstance(argument, Slot | bool | int | float)
            and self._number_type(argument) is not None
            for argument in arguments
        ]
        if keywords or not all(is_number) or len(arguments) != ARITY[operator]:
            raise InvalidModel(f"{where}: expected {ARITY[operator]} numbers")

    def _check_effect(
        self,
        effect: Effect,
        arguments: tuple[Argument, ...],
        keywords: tuple[tuple[str, Argument], ...],
        where: str,
    ) -> bool:
        """Refuse writes to what is shared; tell whether the results are shared."""
        if effect is Effect.WRITE:
            if not arguments or not isinstance(arguments[0], Slot | Weight):
                raise InvalidModel(f"{where} writes in place to something that is no result")
            if arguments[0] in self._shared:
                raise InvalidModel(
                    f"{where} writes in place to a weight, buffer or input: a request would "
                    "change what the next one sees (clone it first, or pass state in and out)"
                )
            return False
        node = Node("", arguments, keywords, (), False, ())
        return effect is Effect.VIEW and any(item in self._shared for item in operands(node))

    def _results(
        self, outputs: Sequence[schema.Argument], is_shared: bool, where: str
    ) -> tuple[tuple[int | None, ...], bool]:
        members = [schema.variant(output, f"{where}, result") for output in outputs]
        match members:
            case [("as_tensors", items)]:
                names = [item.name for item in items]
                if len(names) > self._limits.list_items_max:
                    raise InvalidModel(f"{where}: {len(names)} results (list_items_max)")
                return tuple(self._define(name, is_shared) for name in names), True
            case _:
                results = tuple(self._result(*member, is_shared, where) for member in members)
                return results, len(results) > 1

    def _result(self, kind: str, value: object, is_shared: bool, where: str) -> int | None:
        match kind, value:
            case "as_tensor", schema.TensorArgument(name=name):
                return self._define(name, is_shared)
            case "as_sym_int" | "as_sym_bool" | "as_sym_float", (
                schema.SymIntArgument(as_name=str() as name)
                | schema.SymBoolArgument(as_name=str() as name)
                | schema.SymFloatArgument(as_name=str() as name)
            ):
                slot = self._define(name, is_shared=False)
                self._numbers[Slot(slot)] = _NUMBER_TYPES[kind]
                return slot
            case "as_none", _:
                return None
        raise InvalidModel(f"{where}: a result of kind {kind} is not supported")


def is_keyword(name: str) -> bool:
    """May this be the name of an argument in a call?"""
    return name.isascii() and name.isidentifier() and len(name) <= 64


def _name_of(argument: schema.Argument, where: str) -> str:
    """The name of a region's input or result."""
    match schema.variant(argument, where):
        case _, schema.TensorArgument(name=name):
            return name
        case _, (
            schema.SymIntArgument(as_name=str() as name)
            | schema.SymBoolArgument(as_name=str() as name)
            | schema.SymFloatArgument(as_name=str() as name)
        ):
            return name
        case kind, _:
            raise InvalidModel(f"{where}: a region can't take or give a value of kind {kind}")


def _without_layout(
    keywords: tuple[tuple[str, Argument], ...], where: str
) -> tuple[tuple[str, Argument], ...]:
    """`zeros` has no layout in memory to choose, as `empty` has; without one it is contiguous."""
    formats = [value for name, value in keywords if name == "memory_format"]
    if formats not in ([], [None], [Constant("memory_format", "contiguous_format")]):
        raise InvalidModel(f"{where}: memory_format must be contiguous (use torch.zeros)")
    return tuple(item for item in keywords if item[0] != "memory_format")


def _allowed(target: str) -> tuple[str, Effect]:
    if target in INTEGER_OPERATORS:
        return INTEGER_OPERATORS[target], Effect.FRESH
    target = BLANK_OPERATORS.get(target, target)
    name = target.removeprefix(ATEN_PREFIX)
    effect = allow_list().effects.get(name) if target.startswith(ATEN_PREFIX) else None
    if effect is None:
        reason = allow_list().refused.get(name)
        if reason is not None:
            raise InvalidModel(f"operator {target[:120]!r} is not allowed: {reason}")
        raise InvalidModel(
            f"operator {target[:120]!r} is not allowed (see gpumuxd/models/allowed_operators.toml)"
        )
    return f"aten.{name}", effect


def _check_required(
    required: RequiredArgument,
    arguments: tuple[Argument, ...],
    keywords: dict[str, Argument],
    where: str,
) -> None:
    given = [*arguments[required.position : required.position + 1]]
    if required.argument in keywords:
        given.append(keywords[required.argument])
    for value in given:
        if value != required.value or isinstance(value, bool) is not isinstance(
            required.value, bool
        ):
            raise InvalidModel(
                f"{where}: {required.argument} must be {required.value}, got {value}. "
                f"{required.reason}"
            )


def _float(value: float | str, where: str) -> float:
    if isinstance(value, str):
        if value not in _FLOATS:
            raise InvalidModel(f"{where}: {value[:40]!r} is not a number")
        return _FLOATS[value]
    return value


def _constant(kind: str, value: object, where: str) -> Constant:
    """A torch object by name."""
    name: str | None = None
    match kind, value:
        case "as_scalar_type", int() as number:
            kind, name = "dtype", DATATYPES.get(number)
        case "as_memory_format", int() as number:
            kind, name = "memory_format", _MEMORY_FORMATS.get(number)
        case "as_layout", int() as number:
            kind, name = "layout", "strided" if number == STRIDED_LAYOUT else None
        case "as_device", schema.Device():
            kind, name = "device", ""
    if kind == "dtype" and name is None and value in OTHER_TYPES:
        raise InvalidModel(f"{where}: tensors of type {OTHER_TYPES[value]} are not served")
    if name is None:
        raise InvalidModel(f"{where}: a value of kind {kind} is not supported: {value!r}"[:200])
    return Constant(kind, name)
