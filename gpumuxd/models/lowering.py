"""From the graph in an archive to the nodes of a plan.

Decides, node by node, whether an artifact may be served at all: is the operator allowed, do its
arguments have a form we know, does it write to something that outlives the request. It must not
know bytes of weights or shapes.

Invariant: nothing that enters a plan can change a weight or an input. A value is *shared* when it
may be, or be a view of, one of those; an operator that writes in place needs one that is not.
"""

from collections.abc import Iterable, Sequence

from gpumuxd.errors import InvalidModel
from gpumuxd.models import schema
from gpumuxd.models.arithmetic import Number
from gpumuxd.models.call_arguments import ArgumentReader
from gpumuxd.models.calls import allowed, check_arguments, check_effect, without_layout
from gpumuxd.models.layers import Layers, torch_stack
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.liveness import with_last_uses
from gpumuxd.models.operators import BLANK_OPERATORS, DROPPED, allow_list
from gpumuxd.models.plan import Constant, Node, Slot, Weight
from gpumuxd.models.regions import Region, region_of
from gpumuxd.models.values import Values, WeightSource

_NUMBER_TYPES = {"as_sym_int": "INT64", "as_sym_bool": "BOOL", "as_sym_float": "FP64"}


class Lowering:
    """One pass over a graph. Declare inputs and weights, add nodes in order, then `finish`."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._values = Values()
        self._arguments = ArgumentReader(self._values, limits)
        self._nodes: list[Node] = []
        self._layers = Layers()

    @property
    def layer_ends(self) -> tuple[int, ...]:
        """Where layers of the module end, in nodes; empty if the archive does not say."""
        return self._layers.ends()

    @property
    def slot_count(self) -> int:
        return self._values.slot_count

    def add_input(self, name: str) -> None:
        self._values.define(name, is_shared=True)

    def add_weight(self, name: str, source: WeightSource) -> None:
        self._values.define_weight(name, source)

    def add_node(self, node: schema.Node) -> None:
        if node.target in DROPPED:
            return
        where = f"node {len(self._nodes)} ({node.target[:80]})"
        if len(self._nodes) >= self._limits.nodes_max:
            raise InvalidModel(f"more than {self._limits.nodes_max} nodes (nodes_max)")
        if len(node.inputs) > self._limits.arguments_max:
            raise InvalidModel(f"{where}: {len(node.inputs)} arguments (arguments_max)")
        region = region_of(node, where)
        if region is None:
            self._add_call(node, where)
        else:
            self._add_region(region, where)

    def _add_call(self, node: schema.Node, where: str) -> None:
        operator, effect = allowed(node.target)
        arguments, keywords = self._arguments.all_of(node.inputs, where)
        if node.target in BLANK_OPERATORS and operator == "aten.zeros.default":
            keywords = without_layout(keywords, where)
        check_arguments(operator, arguments, keywords, self._values, where)
        is_shared = check_effect(effect, arguments, keywords, self._values, where)
        outputs = node.outputs
        if operator.removeprefix("aten.") in allow_list().first_result_only:
            # The others stay undefined, so that whoever reads one is refused.
            outputs = [*outputs[:1], *(schema.Argument(as_none=True) for _ in outputs[1:])]
        results, returns_list = self._results(outputs, is_shared, where)
        self._nodes.append(Node(operator, arguments, keywords, results, returns_list, ()))
        self._layers.add(torch_stack(node.metadata))

    def _add_region(self, region: Region, where: str) -> None:
        """The nodes of a region, in its place. Its names are its own."""
        given = [self._arguments.one(argument.arg, where) for argument in region.arguments]
        with self._values.region(where):
            for value, argument in zip(given, region.graph.inputs, strict=True):
                self._values.bind(_name_of(argument, where), value, where)
            for node in region.graph.nodes:
                self.add_node(node)
            made = [self._arguments.one(result, where) for result in region.graph.outputs]
        for value, result in zip(made, region.results, strict=True):
            self._values.bind(_name_of(result, where), value, where)

    def read(self, name: str, where: str) -> Slot | Weight:
        """The operand of a name that was defined before."""
        return self._values.read(name, where)

    def number(self, argument: schema.Argument, where: str) -> tuple[Slot | Number, str] | None:
        """A number, literal or computed, and its datatype. None for anything else."""
        value = self._arguments.number(argument, where)
        if value is None:
            return None
        datatype = self._values.number_type(value)
        assert datatype is not None, "names of these kinds were checked"
        return value, datatype

    def add_tensor_of(self, number: Slot | Number) -> Slot:
        """A tensor without dimensions that holds a number: requests are answered with tensors."""
        datatype = self._values.number_type(number)
        assert datatype is not None, "tensors are no numbers"
        slot = self._values.add_slot()
        keywords = (("dtype", Constant("dtype", datatype)),)
        node = Node("aten.scalar_tensor.default", (number,), keywords, (slot.index,), False, ())
        self._nodes.append(node)
        self._layers.add(())
        return slot

    def finish(self, outputs: Iterable[Slot | Weight]) -> tuple[Node, ...]:
        """All nodes, with the results that nobody reads dropped and last uses marked."""
        return with_last_uses(self._nodes, outputs)

    def _results(
        self, outputs: Sequence[schema.Argument], is_shared: bool, where: str
    ) -> tuple[tuple[int | None, ...], bool]:
        members = [schema.variant(output, f"{where}, result") for output in outputs]
        match members:
            case [("as_tensors", items)]:
                names = [item.name for item in items]
                if len(names) > self._limits.list_items_max:
                    raise InvalidModel(f"{where}: {len(names)} results (list_items_max)")
                slots = (self._values.define(name, is_shared=is_shared) for name in names)
                return tuple(slot.index for slot in slots), True
            case _:
                results = tuple(self._result(*member, is_shared, where) for member in members)
                return results, len(results) > 1

    def _result(self, kind: str, value: object, is_shared: bool, where: str) -> int | None:
        match kind, value:
            case "as_tensor", schema.TensorArgument(name=name):
                return self._values.define(name, is_shared=is_shared).index
            case "as_sym_int" | "as_sym_bool" | "as_sym_float", (
                schema.SymIntArgument(as_name=str() as name)
                | schema.SymBoolArgument(as_name=str() as name)
                | schema.SymFloatArgument(as_name=str() as name)
            ):
                return self._values.define_number(name, _NUMBER_TYPES[kind]).index
            case "as_none", _:
                return None
        raise InvalidModel(f"{where}: a result of kind {kind} is not supported")


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
