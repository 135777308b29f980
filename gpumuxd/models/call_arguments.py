"""The arguments of a call: from the forms they have in an archive to those of a plan.

It must not know operators. Invariant: what comes out are values, operands that were defined before,
and names of torch objects that are listed here.
"""

import math
from collections.abc import Sequence

from gpumuxd.errors import InvalidModel
from gpumuxd.models import schema
from gpumuxd.models.arithmetic import Number
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.plan import Argument, Constant, Item, Many, Slot
from gpumuxd.models.values import Values
from gpumuxd.models.weights import DATATYPES, OTHER_TYPES, STRIDED_LAYOUT

Positional = tuple[Argument, ...]
Keywords = tuple[tuple[str, Argument], ...]

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
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


class ArgumentReader:
    """Reads arguments that may name `values`."""

    def __init__(self, values: Values, limits: ReadLimits) -> None:
        self._values = values
        self._limits = limits

    def all_of(
        self, inputs: Sequence[schema.NamedArgument], where: str
    ) -> tuple[Positional, Keywords]:
        """The arguments of one call."""
        arguments: list[Argument] = []
        keywords: dict[str, Argument] = {}
        for named in inputs:
            value = self.one(named.arg, f"{where}, argument {named.name[:40]!r}")
            if named.kind == _POSITIONAL and not keywords:
                arguments.append(value)
            elif named.kind == _KEYWORD and is_keyword(named.name) and named.name not in keywords:
                keywords[named.name] = value
            else:
                raise InvalidModel(
                    f"{where}: argument {named.name[:40]!r} of kind {named.kind!r} is misplaced"
                )
        return tuple(arguments), tuple(keywords.items())

    def one(self, argument: schema.Argument, where: str) -> Argument:
        kind, value = schema.variant(argument, where)
        match kind:
            case "as_none":
                return None
            case "as_tensor":
                return self._values.read(value.name, where)
            case "as_optional_tensor":
                return self._optional(value, where)
            case "as_sym_int" | "as_sym_bool" | "as_sym_float":
                return self._symbolic(value, where)
            case "as_tensors":
                return self._many([self._values.read(item.name, where) for item in value], where)
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

    def number(self, argument: schema.Argument, where: str) -> Slot | Number | None:
        """A number, literal or computed. None for anything else."""
        kind, _ = schema.variant(argument, where)
        if kind not in _NUMBER_KINDS:
            return None
        value = self.one(argument, where)
        assert isinstance(value, Slot | bool | int | float), "of these kinds are numbers only"
        return value

    def _many(self, items: Sequence[Item], where: str) -> Many:
        if len(items) > self._limits.list_items_max:
            raise InvalidModel(f"{where}: list of {len(items)} items (list_items_max)")
        return Many(tuple(items))

    def _optional(self, value: schema.OptionalTensorArgument, where: str) -> Item:
        return None if value.as_tensor is None else self._values.read(value.as_tensor.name, where)

    def _symbolic(
        self,
        value: schema.SymIntArgument | schema.SymBoolArgument | schema.SymFloatArgument,
        where: str,
    ) -> Slot | Number:
        if value.as_name is not None:
            return self._values.read_number(value.as_name, where)
        match value:
            case schema.SymIntArgument(as_int=int() as literal):
                return literal
            case schema.SymBoolArgument(as_bool=bool() as truth):
                return truth
            case schema.SymFloatArgument(as_float=float() | str() as number):
                return _float(number, where)
        raise InvalidModel(f"{where}: expected a name or a literal")


def is_keyword(name: str) -> bool:
    """May this be the name of an argument in a call?"""
    return name.isascii() and name.isidentifier() and len(name) <= 64


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
