"""Example inputs of a module, nested as its `forward` takes them, and their names on the wire.

A request is a flat list of named tensors. So a dictionary `feats` with an `image` becomes the input
`feats.image`, and the first of a tuple `pair` becomes `pair.0`; outputs are named in the same way.
What is no tensor (None, a number, a string) is fixed in the artifact, as torch.export does. It must
not know how a module is exported.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gpumuxd.errors import InvalidModel

Examples = Mapping[str, Any] | Sequence[Any]

_LITERALS = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """The arguments of one call of `forward`, by name and in its order.

    `by_position` of them, the first ones, are passed by position. Tensors are copies: one tensor
    given for two inputs would make torch trace them as one.
    """

    values: Mapping[str, Any]
    by_position: int
    named_positions: int

    @classmethod
    def of(cls, module: torch.nn.Module, examples: Examples | torch.Tensor) -> "ExampleInputs":
        """Raises InvalidModel for what can't be the input of a request."""
        signature = inspect.signature(module.forward)
        parameters = signature.parameters.values()
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        keywords = {
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        positional_only = [p.name for p in positional if p.kind is p.POSITIONAL_ONLY]
        if isinstance(examples, Mapping):
            values = dict(examples)
        elif isinstance(examples, torch.Tensor):  # a sequence of its rows
            raise InvalidModel(
                "the example inputs are one tensor: give a dict by name, {'x': tensor}, or a "
                "tuple, (tensor,)"
            )
        else:
            values = dict(_named([p.name for p in positional], examples))
        by_name = set(values) <= keywords | set(positional_only)
        if by_name:  # those that can't be passed by name go first
            first = [name for name in positional_only if name in values]
            values = {name: values[name] for name in (*first, *values)}
        elif any(p.kind is p.VAR_KEYWORD for p in parameters) and (
            keywords & set(values) or len(values) > len(positional)
        ):
            others = sorted(set(values) - keywords)
            raise InvalidModel(
                f"forward takes {others} through **kwargs, whose dimensions torch.export "
                "can't vary: name these arguments in forward"
            )
        copied = {name: _copied(name, value) for name, value in values.items()}
        inputs = cls(copied, len(positional_only) if by_name else len(copied), len(positional))
        if not inputs.tensors:
            raise InvalidModel("at least one example input must be a tensor")
        try:
            signature.bind(*inputs.args, **inputs.kwargs)
        except TypeError as error:
            raise InvalidModel(
                f"the example inputs {list(values)} do not fit forward{signature}: {error}"
            ) from error
        return inputs

    def copied(self) -> "ExampleInputs":
        """The same with tensors of its own: a module may write to what it is given."""
        return self._changed(lambda _, tensor: tensor.clone())

    def cut(
        self, dynamic: Mapping[str, Mapping[int, str]], sizes: Mapping[str, int]
    ) -> "ExampleInputs":
        """The first rows and columns of each, as many as `sizes` says of the dimensions' names."""

        def cut(name: str, tensor: torch.Tensor) -> torch.Tensor:
            for dimension, symbol in dynamic.get(name, {}).items():
                size = min(sizes.get(symbol, tensor.shape[dimension]), tensor.shape[dimension])
                tensor = tensor.narrow(dimension, 0, size)
            return tensor.clone()

        return self._changed(cut)

    def _changed(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> "ExampleInputs":
        values = {}
        for name, value in self.values.items():
            leaves = [
                change(leaf_name, leaf) if isinstance(leaf, torch.Tensor) else leaf
                for leaf_name, leaf in _leaves(name, value)
            ]
            values[name] = pytree.tree_unflatten(leaves, pytree.tree_structure(value))
        return replace(self, values=values)

    @property
    def args(self) -> tuple[Any, ...]:
        return tuple(self.values.values())[: self.by_position]

    @property
    def kwargs(self) -> dict[str, Any]:
        return dict(list(self.values.items())[self.by_position :])

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by their name on the wire."""
        leaves = (leaf for name, value in self.values.items() for leaf in _leaves(name, value))
        return {name: leaf for name, leaf in leaves if isinstance(leaf, torch.Tensor)}

    @property
    def literals(self) -> dict[str, Any]:
        """What is fixed in the artifact, by name."""
        leaves = (leaf for name, value in self.values.items() for leaf in _leaves(name, value))
        return {name: leaf for name, leaf in leaves if not isinstance(leaf, torch.Tensor)}

    def dynamic_shapes(self, sizes: Mapping[str, Mapping[int, Any]]) -> Any:
        """torch.export's `dynamic_shapes`: nested as the inputs, with `sizes` of each tensor."""
        shapes = {name: _shapes_of(name, value, sizes) for name, value in self.values.items()}
        if self.by_position < len(shapes) or self.by_position <= self.named_positions:
            return shapes if self.by_position < len(shapes) else tuple(shapes.values())
        # torch wants the shapes of `*args` in a tuple of their own.
        positional = list(shapes.values())
        return (
            *positional[: self.named_positions],
            tuple(positional[self.named_positions :]),
        )

    def names_in_order_of(self, in_spec: pytree.TreeSpec) -> list[str]:
        """Names of the tensors in the order of a graph: torch sorts keyword arguments."""
        _, kwargs = pytree.tree_unflatten(range(in_spec.num_leaves), in_spec)
        order = [*list(self.values)[: self.by_position], *kwargs]
        leaves = (leaf for name in order for leaf in _leaves(name, self.values[name]))
        return [name for name, leaf in leaves if isinstance(leaf, torch.Tensor)]


def output_names(program: torch.export.ExportedProgram) -> list[str]:
    """Keys and positions on the way to each output: `scores.0`. The elements of a tuple are
    `output_0`, `output_1`, ..., and so is a result that is one tensor."""
    specs = program.graph_signature.output_specs
    tree = program.call_spec.out_spec
    is_none = [getattr(spec.arg, "value", spec) is None for spec in specs]
    try:
        result = pytree.tree_unflatten(range(len(specs)), tree)
        paths = [path for path, _ in pytree.tree_flatten_with_path(result)[0]]
    except ValueError:  # a class whose author told torch no names of its parts
        paths = _paths_of_context(tree.context, len(specs))
    names = [_output_name(path) for path in paths]
    return [name for name, none in zip(names, is_none, strict=True) if not none]


def _paths_of_context(context: object, count: int) -> list[tuple[Any, ...]]:
    keys = context if isinstance(context, list) and len(context) == count else range(count)
    return [
        (pytree.MappingKey(key),) if isinstance(key, str) else (pytree.SequenceKey(key),)
        for key in keys
    ]


def _output_name(path: Sequence[Any]) -> str:
    first, *rest = [_step(key) for key in path] or ["0"]
    if not path or isinstance(path[0], pytree.SequenceKey):
        first = f"output_{first}"
    return ".".join([first, *rest])


def _named(names: Sequence[str], examples: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Names of the first arguments of `forward`; `input_<i>` where it takes `*args`."""
    for i, value in enumerate(examples):
        yield names[i] if i < len(names) else f"input_{i}", value


def _copied(name: str, value: Any) -> Any:
    copied = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), value)
    for leaf_name, leaf in _leaves(name, copied):
        if not isinstance(leaf, torch.Tensor) and type(leaf) not in _LITERALS:
            raise InvalidModel(
                f"example input {leaf_name!r} is a {type(leaf).__name__}, expected a "
                "tensor, or a number, string or None to fix, or a tuple, list or dict of those"
            )
    return copied


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    try:
        leaves, _ = pytree.tree_flatten_with_path(value)
    except ValueError as error:
        raise InvalidModel(
            f"example input {name!r} is a {type(value).__name__}, which has no names for "
            "its parts: give a tuple, list or dict"
        ) from error
    for path, leaf in leaves:
        yield ".".join([name, *(_step(key) for key in path)]), leaf


def _step(key: Any) -> str:
    match key:
        case pytree.SequenceKey(idx=index):
            return str(index)
        case pytree.MappingKey(key=name):
            return str(name)
        case pytree.GetAttrKey(name=name):
            return str(name)
    raise ValueError(f"{key!r} is no step in a nested value")


def _shapes_of(name: str, value: Any, sizes: Mapping[str, Mapping[int, Any]]) -> Any:
    shapes = [
        dict(sizes.get(leaf_name, {})) if isinstance(leaf, torch.Tensor) else None
        for leaf_name, leaf in _leaves(name, value)
    ]
    return pytree.tree_unflatten(shapes, pytree.tree_structure(value))
