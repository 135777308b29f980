"""What a model takes and gives: names, types and shapes, with sizes that may depend on the input.

A `ModelSpec` comes from an artifact (the loader reads it, `models/pt2.py`) and is all that the
parent knows of a model: requests are validated against it and nothing else. It must not know
weights, operators or torch.

A size is an integer or an expression over *symbols*, the model's dynamic dimensions. Expressions
are postfix tuples, `("batch", 2, "*")`, so that evaluating one needs a stack and no parser, and a
hostile one can only be refused or be slow in proportion to its length.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from gpumuxd.domain import Bucket
from gpumuxd.errors import InvalidModel, InvalidRequest

Size = int | tuple[int | str, ...]
Bindings = Mapping[str, int]

OPERATORS = frozenset({"+", "-", "*", "//", "%", "min", "max"})

ITEM_BYTES: dict[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes of one element per Open Inference Protocol datatype. BYTES has no fixed size: a torch
model can't take it."""


class Symbol(msgspec.Struct, frozen=True, array_like=True):
    """A dynamic dimension and the range its model was exported for, both ends included."""

    name: str
    minimum: int
    maximum: int


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One input or output."""

    name: str
    datatype: str
    shape: tuple[Size, ...]


class ModelSpec(msgspec.Struct, frozen=True):
    """The signature of one model. `symbols` are in the order of a `Bucket`."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[Symbol, ...] = ()
    batch_symbol: str | None = None

    @property
    def batch_max(self) -> int:
        """Most rows in a request, 0 if the model has no batch dimension in front."""
        tensors = (*self.inputs, *self.outputs)
        first_dimensions = {tensor.shape[:1] for tensor in tensors}
        if self.batch_symbol is None or first_dimensions != {((self.batch_symbol,),)}:
            return 0
        return next(s.maximum for s in self.symbols if s.name == self.batch_symbol)

    def bind(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Check the shape of every input and return the value of each symbol.

        `shapes` maps input names to shapes; names and ranks must have been checked before or are
        refused here. Raises InvalidRequest naming the input, what was expected and what came.
        """
        bindings: dict[str, int] = {}
        for tensor in self.inputs:
            shape = shapes[tensor.name]
            if len(shape) != len(tensor.shape):
                raise InvalidRequest(
                    f"input {tensor.name!r}: expected {len(tensor.shape)} dimensions "
                    f"{format_shape(tensor.shape)}, got {len(shape)}: {list(shape)}"
                )
            for size, actual in zip(tensor.shape, shape, strict=True):
                if isinstance(size, tuple) and len(size) == 1 and isinstance(size[0], str):
                    self._bind_symbol(bindings, size[0], actual, tensor, shape)
        for tensor in self.inputs:
            expected = evaluate_shape(tensor.shape, bindings)
            if tuple(shapes[tensor.name]) != expected:
                raise InvalidRequest(
                    f"input {tensor.name!r}: expected shape {list(expected)} "
                    f"(declared {format_shape(tensor.shape)}), got {list(shapes[tensor.name])}"
                )
        return bindings

    def _bind_symbol(
        self,
        bindings: dict[str, int],
        name: str,
        actual: int,
        tensor: TensorSpec,
        shape: Sequence[int],
    ) -> None:
        symbol = next(s for s in self.symbols if s.name == name)
        if not symbol.minimum <= actual <= symbol.maximum:
            raise InvalidRequest(
                f"input {tensor.name!r}: expected {symbol.name} of "
                f"{symbol.minimum} to {symbol.maximum}, got {actual} in shape {list(shape)}"
            )
        bindings.setdefault(name, actual)

    def bucket(self, bindings: Bindings) -> Bucket:
        """The shape bucket of a request: each symbol rounded up to a power of two, within range."""
        return tuple(
            min(1 << (bindings[s.name] - 1).bit_length(), s.maximum) if bindings[s.name] > 0 else 0
            for s in self.symbols
        )

    def rows(self, bindings: Bindings) -> int:
        """Batch rows of a request, 1 for a model without a batch dimension."""
        return bindings[self.batch_symbol] if self.batch_symbol is not None else 1


def evaluate(size: Size, bindings: Bindings) -> int:
    """The value of a size. Raises InvalidModel for an expression that does not evaluate."""
    if isinstance(size, int):
        return size
    stack: list[int] = []
    try:
        for token in size:
            if isinstance(token, int):
                stack.append(token)
            elif token in OPERATORS:
                right, left = stack.pop(), stack.pop()
                stack.append(_apply(token, left, right))
            else:
                stack.append(bindings[token])
        (value,) = stack
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
        raise InvalidModel(f"shape expression {size!r} does not evaluate: {error!r}") from error
    return value


def _apply(operator: str, left: int, right: int) -> int:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//":
            return left // right
        case "%":
            return left % right
        case "min":
            return min(left, right)
        case _:
            return max(left, right)


def evaluate_shape(shape: Sequence[Size], bindings: Bindings) -> tuple[int, ...]:
    """The sizes of a shape."""
    return tuple(evaluate(size, bindings) for size in shape)


def tensor_bytes(datatype: str, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor."""
    return math.prod(shape) * ITEM_BYTES[datatype]


def format_shape(shape: Sequence[Size]) -> str:
    """A declared shape for people: `[batch, 3, 224]`."""
    return "[" + ", ".join(_format_size(size) for size in shape) + "]"


def _format_size(size: Size) -> str:
    if isinstance(size, int):
        return str(size)
    return " ".join(str(token) for token in size)


def wire_shape(shape: Sequence[Size]) -> list[int]:
    """A declared shape as the Open Inference Protocol shows it: -1 for what may vary."""
    return [size if isinstance(size, int) else -1 for size in shape]
