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
from gpumuxd.models.arithmetic import ARITY, Number, apply

Size = int | tuple[int | float | str, ...]
Bindings = Mapping[str, int]

Condition = tuple[int | float | str, ...]
"""An expression that must not be 0: `("batch", 5, "!=")`."""

CONDITION_TOKENS_MAX = 8192
"""Terms of all conditions of a model. Each takes about half a microsecond of the parent's time,
with every new form of request."""

OPERATORS = frozenset(ARITY)

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
    """A dynamic dimension and the range its model was exported for, both ends included.

    A size is a multiple of `multiple`, and so are both ends: an image that is halved five times
    and doubled again must have sides that are multiples of 32.
    """

    name: str
    minimum: int
    maximum: int
    multiple: int = 1


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One input or output."""

    name: str
    datatype: str
    shape: tuple[Size, ...]


class ModelSpec(msgspec.Struct, frozen=True):
    """The signature of one model. `symbols` are in the order of a `Bucket`. Sizes within their
    ranges must also fulfil the `conditions`."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[Symbol, ...] = ()
    batch_symbol: str | None = None
    conditions: tuple[Condition, ...] = ()

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
        unmet = self.unmet(bindings)
        if unmet is not None:
            sizes = ", ".join(f"{name} of {bindings[name]}" for name in symbols_of(unmet))
            raise InvalidRequest(
                f"input {self._named_by(unmet)!r}: the model takes no {sizes}; it was exported for "
                f"{format_size(unmet)}"
            )
        return bindings

    def unmet(self, bindings: Bindings) -> Condition | None:
        """The first condition that these sizes don't fulfil."""
        for condition in self.conditions:
            try:
                is_met = evaluate(condition, bindings) != 0
            except InvalidModel:  # it divides by zero, say
                is_met = False
            if not is_met:
                return condition
        return None

    def _named_by(self, condition: Condition) -> str:
        """The input that has one of the sizes a condition is about."""
        (symbol, *_) = symbols_of(condition)
        return next(tensor.name for tensor in self.inputs if (symbol,) in tensor.shape)

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
        if actual % symbol.multiple:
            raise InvalidRequest(
                f"input {tensor.name!r}: expected {symbol.name} to be a multiple of "
                f"{symbol.multiple}, got {actual} in shape {list(shape)}"
            )
        bindings.setdefault(name, actual)

    def bucket(self, bindings: Bindings) -> Bucket:
        """The shape bucket of a request: each symbol rounded up to a power of two, within range.

        Of what must be a multiple it is the count of units that is rounded.
        """
        return tuple(_bucket_size(bindings[s.name], s) for s in self.symbols)

    def rows(self, bindings: Bindings) -> int:
        """Batch rows of a request, 1 for a model without a batch dimension."""
        return bindings[self.batch_symbol] if self.batch_symbol is not None else 1


def _bucket_size(size: int, symbol: Symbol) -> int:
    if size <= 0:
        return 0
    units = -(-size // symbol.multiple)
    return min(symbol.multiple << (units - 1).bit_length(), symbol.maximum)


def symbols_of(size: Size) -> list[str]:
    """The symbols in an expression, each once."""
    tokens = size if isinstance(size, tuple) else ()
    names = (token for token in tokens if isinstance(token, str) and token not in OPERATORS)
    return list(dict.fromkeys(names))


def evaluate(size: Size, bindings: Bindings) -> int:
    """The value of a size. Raises InvalidModel for an expression that does not evaluate."""
    if isinstance(size, int):
        return size
    stack: list[Number] = []
    try:
        for token in size:
            if not isinstance(token, str):
                stack.append(token)
            elif token in ARITY:
                first = len(stack) - ARITY[token]
                if first < 0:
                    raise IndexError(f"{token} lacks an operand")
                stack[first:] = [apply(token, *stack[first:])]
            else:
                stack.append(bindings[token])
        (value,) = stack
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise InvalidModel(f"shape expression {size!r} does not evaluate: {error!r}") from error
    if not isinstance(value, int):
        raise InvalidModel(f"shape expression {size!r} is worth {value!r}, expected an integer")
    return value


def evaluate_shape(shape: Sequence[Size], bindings: Bindings) -> tuple[int, ...]:
    """The sizes of a shape."""
    return tuple(evaluate(size, bindings) for size in shape)


def tensor_bytes(datatype: str, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor."""
    return math.prod(shape) * ITEM_BYTES[datatype]


def format_shape(shape: Sequence[Size]) -> str:
    """A declared shape for people: `[batch, 3, 224]`."""
    return "[" + ", ".join(format_size(size) for size in shape) + "]"


_COMPARISON, _SUM, _PRODUCT, _POWER, _ATOM = range(5)
_HOLDS = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT}
_HOLDS["**"] = _POWER
"""How tightly a term holds together."""


def format_size(size: Size) -> str:
    """A size as people write it: `2 * (time - 1)`. Raises InvalidModel for one that makes no
    sense."""
    if isinstance(size, int):
        return str(size)
    stack: list[tuple[str, int]] = []  # terms, and how they hold together
    for token in size:
        arity = ARITY.get(token, 0) if isinstance(token, str) else 0
        if arity == 0:
            stack.append((str(token), _ATOM))
        elif len(stack) >= arity:
            stack[-arity:] = [_format_call(str(token), stack[-arity:])]
        else:
            stack = []
            break
    if len(stack) != 1:
        raise InvalidModel(f"shape expression {size!r} makes no sense")
    return stack[0][0]


def _format_call(operator: str, operands: Sequence[tuple[str, int]]) -> tuple[str, int]:
    if operator.isalpha():
        return f"{operator}({', '.join(text for text, _ in operands)})", _ATOM
    holds = _HOLDS.get(operator, _COMPARISON)
    (left, left_holds), (right, right_holds) = operands
    left = f"({left})" if left_holds < holds else left
    right = f"({right})" if right_holds <= holds else right
    return f"{left} {operator} {right}", holds


def wire_shape(shape: Sequence[Size]) -> list[int]:
    """A declared shape as the Open Inference Protocol shows it: -1 for what may vary."""
    return [size if isinstance(size, int) else -1 for size in shape]
