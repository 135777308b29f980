"""Are the arguments of a node what its operator takes? Checked once, before anything runs.

torch checks most of that itself in each call, but an integer passes for a data type, a layout or a
memory format: it becomes an index into tables of torch's, unchecked (`to` with a type of -1 never
returned in torch 2.13, measured). So those arguments are names that a plan spells out, or absent.
It must not know values of tensors.
"""

from collections.abc import Iterator

import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models.plan import Argument, Constant, Many, Node
from gpumuxd.programs.operators import overload_of

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
    items = value.items if isinstance(value, Many) else (value,)
    return any(isinstance(item, Constant) for item in items)


def _wrong(node: Node, argument: torch._C.Argument, expected: str) -> InvalidModel:
    return InvalidModel(f"{node.operator}: argument {argument.name!r} must be {expected}")
