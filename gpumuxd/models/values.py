"""The values of a graph by their names, while it is read: where each lies, and what is known of it.

It must not know operators. Invariants: a name is defined once, and before it is read; a region's
names are its own. A value is *shared* when it may be, or be a view of, a weight or an input.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpumuxd.errors import InvalidModel
from gpumuxd.models.arithmetic import Number
from gpumuxd.models.plan import Argument, Slot, Weight
from gpumuxd.models.regions import DEPTH_MAX

WeightSource = Callable[[], int]
"""Reserves a weight and returns its index; called for weights that something reads."""


class Values:
    """Names to operands, of one pass over a graph."""

    def __init__(self) -> None:
        self._operands: dict[str, Slot | Weight] = {}
        self._shared: set[Slot | Weight] = set()
        self._numbers: dict[Slot, str] = {}
        self._weight_sources: dict[str, WeightSource] = {}
        self._depth = 0
        self.slot_count = 0

    def define(self, name: str, *, is_shared: bool = False) -> Slot:
        """A tensor."""
        self._check_new(name)
        slot = self.add_slot()
        self._operands[name] = slot
        if is_shared:
            self._shared.add(slot)
        return slot

    def define_number(self, name: str, datatype: str) -> Slot:
        slot = self.define(name)
        self._numbers[slot] = datatype
        return slot

    def define_weight(self, name: str, source: WeightSource) -> None:
        self._check_new(name)
        self._weight_sources[name] = source

    def bind(self, name: str, value: Argument, where: str) -> None:
        """One more name for something that has one."""
        self._check_new(name)
        if not isinstance(value, Slot | Weight):
            raise InvalidModel(f"{where}: {name[:80]!r} stands for something that is no result")
        self._operands[name] = value

    def add_slot(self) -> Slot:
        """A slot without a name."""
        slot = Slot(self.slot_count)
        self.slot_count += 1
        return slot

    def read(self, name: str, where: str) -> Slot | Weight:
        """The operand of a name that was defined before."""
        if name not in self._operands and name in self._weight_sources and self._depth == 0:
            weight = Weight(self._weight_sources[name]())
            self._operands[name] = weight
            self._shared.add(weight)
        if name not in self._operands:
            raise InvalidModel(f"{where} reads {name[:80]!r}, which nothing before it defines")
        return self._operands[name]

    def read_number(self, name: str, where: str) -> Slot:
        operand = self.read(name, where)
        if not isinstance(operand, Slot) or operand not in self._numbers:
            raise InvalidModel(f"{where}: {name[:80]!r} is no number")
        return operand

    def is_shared(self, operand: Slot | Weight) -> bool:
        return operand in self._shared

    def number_type(self, value: Slot | Number) -> str | None:
        """The datatype of a number, literal or computed. None for a tensor."""
        match value:
            case bool():
                return "BOOL"
            case int():
                return "INT64"
            case float():
                return "FP64"
        return self._numbers.get(value)

    @contextmanager
    def region(self, where: str) -> Iterator[None]:
        """Inside, the names outside mean nothing; after it, the names inside don't."""
        if self._depth == DEPTH_MAX:
            raise InvalidModel(f"{where}: more than {DEPTH_MAX} regions inside each other")
        outer, self._operands = self._operands, {}
        self._depth += 1
        yield
        self._depth -= 1
        self._operands = outer

    def _check_new(self, name: str) -> None:
        is_weight = name in self._weight_sources and self._depth == 0
        if name in self._operands or is_weight:
            raise InvalidModel(f"the graph defines {name[:80]!r} twice")
