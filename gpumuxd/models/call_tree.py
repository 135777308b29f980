"""How a module is called, as its archive tells it: where in the arguments and in the result each
tensor is. From it come names for archives that have none of ours: `feats.image`, `scores`.

torch writes the nesting of arguments and results as JSON in a string. It gives the types in it to
Python's imports; here they are looked at as text, and only the keys and positions mean anything. It
must not know shapes.

Invariant: a path is made of identifiers and positions, and there is one for each leaf, or none at
all: a nesting of a form that is not known here costs the names and never the model.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from gpumuxd.models import schema

Path = tuple[str, ...]

_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}|[0-9]{1,4}", re.ASCII)
_SEQUENCES = frozenset(
    {"builtins.tuple", "builtins.list", "torch.fx.immutable_collections.immutable_list"}
)
_NAMED_TUPLE = "collections.namedtuple"
_VERSION = 1
_DEPTH_MAX = 16


class _Tree(Struct, frozen=True):
    """A leaf has no type."""

    type: str | None
    context: Any = None
    children_spec: list["_Tree"] = []


class _UnknownForm(Exception):
    """No names can be made of this nesting."""


def input_paths(program: schema.ExportedProgram) -> list[Path] | None:
    """Where in the arguments each input of the user is, in their order. None if it is not told."""
    call = _call(program)
    if call is None or call.forward_arg_names is None:
        return None
    specs = program.graph_module.signature.input_specs
    is_input = [
        spec.constant_input is msgspec.UNSET
        for spec in specs
        if spec.user_input is not msgspec.UNSET or spec.constant_input is not msgspec.UNSET
    ]
    try:
        tree = _tree(call.in_spec)
        leaves = _argument_leaves(tree, call.forward_arg_names, _named_tuples(program))
        return _chosen(leaves, is_input)
    except _UnknownForm:
        return None


def output_paths(program: schema.ExportedProgram) -> list[Path] | None:
    """The same for the outputs in the result."""
    call = _call(program)
    if call is None:
        return None
    is_output = [
        spec.user_output is not msgspec.UNSET and spec.user_output.arg.as_none is msgspec.UNSET
        for spec in program.graph_module.signature.output_specs
    ]
    try:
        leaves = _leaves(_tree(call.out_spec), (), _named_tuples(program))
        return _chosen(leaves, is_output)
    except _UnknownForm:
        return None


def default_names(
    program: schema.ExportedProgram, inputs: Sequence[str], output_count: int
) -> schema.Names:
    """Names for an archive that has none of ours. `inputs` are those of the graph."""
    input_names = [".".join(path) for path in input_paths(program) or ()]
    output_names = [_output_name(path) for path in output_paths(program) or ()]
    if len(input_names) != len(inputs) or len(set(input_names)) != len(inputs):
        input_names = list(inputs)
    if len(output_names) != output_count or len(set(output_names)) != output_count:
        output_names = [f"output_{i}" for i in range(output_count)]
    return schema.Names(input_names, output_names)


def _output_name(path: Path) -> str:
    """`output_0` for the result itself or the first of a tuple, the key for one of a dict."""
    if not path:
        return "output_0"
    return ".".join((f"output_{path[0]}" if path[0].isdecimal() else path[0], *path[1:]))


def _call(program: schema.ExportedProgram) -> schema.ModuleCallSignature | None:
    calls = program.graph_module.module_call_graph
    return next((call.signature for call in calls if call.fqn == ""), None)


def _named_tuples(program: schema.ExportedProgram) -> dict[str, list[str]]:
    fields = program.graph_module.treespec_namedtuple_fields
    return {name: definition.field_names for name, definition in fields.items()}


def _tree(text: str) -> _Tree:
    try:
        version, tree = msgspec.json.decode(text, type=tuple[int, _Tree])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _UnknownForm from error
    if version != _VERSION:
        raise _UnknownForm
    return tree


def _chosen(leaves: Iterator[Path], is_chosen: Sequence[bool]) -> list[Path]:
    paths = list(islice(leaves, len(is_chosen) + 1))
    if len(paths) != len(is_chosen):
        raise _UnknownForm
    return [path for path, chosen in zip(paths, is_chosen, strict=True) if chosen]


def _argument_leaves(
    tree: _Tree, names: Sequence[str], named_tuples: dict[str, list[str]]
) -> Iterator[Path]:
    """Of `(args, kwargs)`. `names` are those of the positional arguments, then of the others."""
    if len(tree.children_spec) != 2:
        raise _UnknownForm
    positional, keywords = tree.children_spec
    if len(positional.children_spec) > len(names):
        raise _UnknownForm
    for name, child in zip(names, positional.children_spec, strict=False):
        yield from _leaves(child, (_step(name),), named_tuples)
    yield from _leaves(keywords, (), named_tuples)


def _leaves(tree: _Tree, path: Path, named_tuples: dict[str, list[str]]) -> Iterator[Path]:
    if tree.type is None:
        yield path
        return
    if len(path) == _DEPTH_MAX:
        raise _UnknownForm
    keys = _keys(tree, named_tuples)
    if not isinstance(keys, list) or len(keys) != len(tree.children_spec):
        raise _UnknownForm
    for key, child in zip(keys, tree.children_spec, strict=True):
        yield from _leaves(child, (*path, _step(key)), named_tuples)


def _keys(tree: _Tree, named_tuples: dict[str, list[str]]) -> object:
    """A key for each child; anything else where the type is not known."""
    if tree.type in _SEQUENCES:
        return list(range(len(tree.children_spec)))
    if tree.type == _NAMED_TUPLE and isinstance(tree.context, str):
        return named_tuples.get(tree.context)
    if isinstance(tree.context, dict):  # of a defaultdict
        return tree.context.get("dict_context")
    if not isinstance(tree.context, str):
        return None
    try:
        context = msgspec.json.decode(tree.context)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    match context:
        case [[*fields], [*_]]:  # a dataclass, and its fields that are None
            return fields
        case [*keys]:
            return keys
    return None


def _step(key: object) -> str:
    step = str(key) if type(key) in (str, int) else ""
    if not _STEP.fullmatch(step):
        raise _UnknownForm
    return step
