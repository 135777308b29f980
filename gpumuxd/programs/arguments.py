"""Are the arguments of a node what its operator takes? Checked once, before anything runs.

torch checks most of that itself in each call, but an integer passes for a data type, a layout or a
memory format: it becomes an index into tables of torch's, unchecked (`to` with a type of -1 never
returned in torch 2.13, measured). So those arguments are names that a plan spells out, or absent.
Numbers and modes that torch takes unseen are held to `bounds.py`. It must not know values of
tensors.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models.plan import Argument, Constant, Many, Node, Slot
from gpumuxd.programs.bounds import check_literal, checked_numbers, modes_of, range_of
from gpumuxd.programs.operators import overload_of, resolve

_KINDS = {
    "ScalarType": "dtype",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
    "Device": "device",
}
"""torch's name of a type to the kind of a plan's constant."""

_FOREIGN = frozenset({"Generator", "Storage", "Stream", "QScheme", "Dimname"})
"""Types that no plan has values of."""


def check_arguments(node: Node) -> None:
    """Raise InvalidModel for a call that its operator's schema does not allow."""
    if not node.operator.startswith("aten."):
        return
    for argument, value in _pairs(node):
        kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
        if kind in _KINDS:
            if not (value is None or _is_constant(value, _KINDS[kind])):
                raise _wrong(node, argument, f"a {_KINDS[kind]}")
        elif kind in _FOREIGN:
            if value is not None:
                raise _wrong(node, argument, "nothing")
        elif _has_constant(value):
            raise _wrong(node, argument, kind)
        else:
            _check_numbers(node, argument, value)


def _check_numbers(node: Node, argument: torch._C.Argument, value: Argument) -> None:
    operator = node.operator.removeprefix("aten.")
    is_looked_at = modes_of(operator, argument.name) or range_of(operator, argument)
    for item in _items(value) if is_looked_at else ():
        # What is in a slot may depend on sizes: each call looks at it, unless it is a mode.
        if not isinstance(item, Slot) or modes_of(operator, argument.name):
            check_literal(operator, argument, item)


def operators_of(nodes: Iterable[Node]) -> dict[str, Callable[..., Any]]:
    """The callable of each operator by its plan name. Raises InvalidModel.

    One that somewhere takes a number from a slot, and does not check numbers itself, checks them in
    each call of this model. Others run without a Python frame around them.
    """
    functions: dict[str, Callable[..., Any]] = {}
    computed: set[str] = set()
    for node in nodes:
        if node.operator not in functions:
            functions[node.operator] = resolve(node.operator)
        if node.operator not in computed and _computes_a_number(node):
            computed.add(node.operator)
            name = node.operator.removeprefix("aten.")
            schema = overload_of(name)._schema
            functions[node.operator] = checked_numbers(name, schema, functions[node.operator])
    return functions


def _computes_a_number(node: Node) -> bool:
    if not node.operator.startswith("aten."):
        return False
    operator = node.operator.removeprefix("aten.")
    return any(
        isinstance(item, Slot)
        for argument, value in _pairs(node)
        for item in _items(value)
        if range_of(operator, argument) is not None
    )


def _items(value: Argument) -> Iterable[object]:
    return value.items if isinstance(value, Many) else (value,)


def _pairs(node: Node) -> Iterator[tuple[torch._C.Argument, Argument]]:
    """Each value with the argument of the schema that it is for."""
    schema = overload_of(node.operator.removeprefix("aten."))._schema
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(node.arguments) > len(positional):
        raise InvalidModel(
            f"{node.operator} takes {len(positional)} arguments, got {len(node.arguments)}"
        )
    yield from zip(positional, node.arguments, strict=False)
    names = {argument.name: argument for argument in schema.arguments}
    for argument in positional[: len(node.arguments)]:
        del names[argument.name]
    for name, value in node.keywords:
        if name not in names:
            raise InvalidModel(
                f"{name[:40]!r} can't be the keyword of an argument of {node.operator}"
            )
        yield names[name], value


def _is_constant(value: Argument, kind: str) -> bool:
    return isinstance(value, Constant) and value.kind == kind


def _has_constant(value: Argument) -> bool:
    return any(isinstance(item, Constant) for item in _items(value))


def _wrong(node: Node, argument: torch._C.Argument, expected: str) -> InvalidModel:
    return InvalidModel(f"{node.operator}: argument {argument.name!r} must be {expected}")
