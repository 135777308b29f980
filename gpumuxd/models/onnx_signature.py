"""The signature of an ONNX model: from its inputs and outputs, and from notes if there are any.

A graph names dimensions as its exporter liked, or not at all, and says of an output that it is
dynamic, not how large. Without notes only an output whose sizes are fixed, or have the name of an
input's dimension, is known; anything else is refused with the command that finds it out.

Invariant: every symbol of the spec is a whole size of some input, so that a request binds it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_limits import OnnxLimits
from gpumuxd.models.onnx_notes import Notes, check_sizes
from gpumuxd.models.onnx_proto import DATATYPES
from gpumuxd.models.spec import OPERATORS, ModelSpec, Size, Symbol, TensorSpec

BATCH = "batch"
BATCH_MAX = 64
SIZE_MAX = 4096
"""Upper ends for dimensions that nobody gave a range: three of them still fit the largest tensor
that a request may bring."""

SIZE_HINT = 64

EXPORT_HINT = "run `gpumuxd export --onnx FILE -o DIRECTORY`, which finds it out and notes it"

_TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/\-]{0,127}", re.ASCII)
_SYMBOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


class UnknownSizes(InvalidModel):
    """How an output's size follows from the inputs is not known; nothing else was found wrong."""


Dimension = int | str | None
"""A fixed size, a named one, or one that is neither."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output as the graph declares it; no dimensions at all: of unknown rank."""

    name: str
    datatype: str
    dimensions: tuple[Dimension, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxSignature:
    """The spec, and what example inputs are made of."""

    spec: ModelSpec
    size_hints: tuple[int, ...]
    fills: tuple[float | None, ...]


def graph_tensor(info: Any, what: str, limits: OnnxLimits) -> GraphTensor:
    """Of a ValueInfoProto. Raises InvalidModel for what can't travel in a request."""
    if not _TENSOR_NAME.fullmatch(info.name):
        raise InvalidModel(f"{info.name[:80]!r} can't name an {what}: rename it in the model")
    name = f"{what} {info.name!r}"
    if info.type.WhichOneof("value") != "tensor_type":
        raise InvalidModel(f"{name}: expected a tensor")
    tensor = info.type.tensor_type
    datatype = DATATYPES.get(tensor.elem_type)
    if datatype is None:
        raise InvalidModel(f"{name}: ONNX data type {tensor.elem_type} is not supported")
    if not tensor.HasField("shape"):
        return GraphTensor(info.name, datatype, None)
    if len(tensor.shape.dim) > limits.rank_max:
        raise InvalidModel(f"{name}: rank {len(tensor.shape.dim)} (rank_max)")
    return GraphTensor(info.name, datatype, tuple(map(_dimension, tensor.shape.dim)))


def _dimension(dimension: Any) -> Dimension:
    match dimension.WhichOneof("value"):
        case "dim_value" if dimension.dim_value >= 0:
            return int(dimension.dim_value)
        case "dim_param" if any(map(str.isalnum, dimension.dim_param)):
            return str(dimension.dim_param)
        case _:
            return None  # some exporters write -1, or a question mark


def signature_of(
    inputs: Sequence[GraphTensor],
    outputs: Sequence[GraphTensor],
    notes: Notes | None,
    limits: OnnxLimits,
) -> OnnxSignature:
    """The signature. Raises InvalidModel when it can't be known or the notes contradict it."""
    if notes is not None:
        return _noted(inputs, outputs, notes)
    naming = name_dimensions(inputs)
    if len(naming.symbols) > limits.symbols_max:
        raise InvalidModel(f"{len(naming.symbols)} dynamic dimensions (symbols_max)")
    spec = ModelSpec(
        inputs=tuple(
            TensorSpec(tensor.name, tensor.datatype, shape)
            for tensor, shape in zip(inputs, naming.shapes, strict=True)
        ),
        outputs=tuple(
            TensorSpec(tensor.name, tensor.datatype, _known_shape(tensor, naming))
            for tensor in outputs
        ),
        symbols=tuple(default_symbol(name, naming.batch) for name in naming.symbols),
        batch_symbol=naming.batch,
    )
    hints = (1 if name in (naming.batch, BATCH) else SIZE_HINT for name in naming.symbols)
    return OnnxSignature(spec, tuple(hints), (None,) * len(inputs))


def default_symbol(name: str, batch: str | None) -> Symbol:
    """The range of a dimension that nobody gave one."""
    return Symbol(name, 1, BATCH_MAX if name in (batch, BATCH) else SIZE_MAX)


@dataclass(frozen=True, slots=True)
class Naming:
    """Symbols for the dynamic dimensions of inputs; `known` maps the graph's names to them."""

    shapes: Sequence[tuple[Size, ...]]
    symbols: Sequence[str]
    known: dict[str, str]
    batch: str | None


def name_dimensions(inputs: Sequence[GraphTensor]) -> Naming:
    """Dimensions of one name are one symbol; one without a name is a symbol of its own.

    The first dimension of all inputs, if that is one symbol, is the batch.
    """
    for tensor in inputs:
        if tensor.dimensions is None:
            raise InvalidModel(f"input {tensor.name!r}: its rank is unknown; export it with shapes")
    first = {tensor.dimensions[:1] for tensor in inputs if tensor.dimensions is not None}
    batch = None
    if len(first) == 1 and (only := first.pop()) and not isinstance(only[0], int):
        # Several inputs whose first dimension has no name may differ in it.
        batch = BATCH if only[0] is not None or len(inputs) == 1 else None
    known: dict[str, str] = {}
    symbols: list[str] = []
    shapes: list[tuple[Size, ...]] = []
    for tensor in inputs:
        shape: list[Size] = []
        for index, size in enumerate(tensor.dimensions or ()):
            if isinstance(size, int):
                shape.append(size)
                continue
            if size is not None and size in known:
                shape.append((known[size],))
                continue
            wanted = size if size is not None else f"{tensor.name}_{index}"
            symbol = batch if batch and index == 0 else _fresh(wanted, [*symbols, batch or ""])
            symbols.append(symbol)
            shape.append((symbol,))
            if size is not None:
                known[size] = symbol
        shapes.append(tuple(shape))
    return Naming(shapes, symbols, known, batch)


def _fresh(wanted: str, taken: Iterable[str]) -> str:
    """A name that may be a symbol's and is not taken."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", wanted, flags=re.ASCII).strip("_")[:40] or "size"
    if not _SYMBOL_NAME.fullmatch(name) or name in OPERATORS:
        name = f"size_{name}"
    names = set(taken)
    chosen, number = name, 1
    while chosen in names:
        number += 1
        chosen = f"{name}_{number}"
    return chosen


def _known_shape(tensor: GraphTensor, naming: Naming) -> tuple[Size, ...]:
    if tensor.dimensions is None:
        raise UnknownSizes(f"output {tensor.name!r}: its shape is unknown; {EXPORT_HINT}")
    shape: list[Size] = []
    for index, size in enumerate(tensor.dimensions):
        if isinstance(size, int):
            shape.append(size)
        elif size is not None and size in naming.known:
            shape.append((naming.known[size],))
        else:
            raise UnknownSizes(
                f"output {tensor.name!r}: how its dimension {index} follows from the inputs is "
                f"unknown; {EXPORT_HINT}"
            )
    return tuple(shape)


def _noted(
    inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor], notes: Notes
) -> OnnxSignature:
    for what, tensors, shapes in (
        ("inputs", inputs, notes.inputs),
        ("outputs", outputs, notes.outputs),
    ):
        names = [tensor.name for tensor in tensors]
        if sorted(names) != sorted(shapes):
            raise InvalidModel(f"its notes know other {what} than {names}: export it again")
        for tensor in tensors:
            _check_agrees(tensor, shapes[tensor.name])
    for symbol in notes.symbols:
        if not _SYMBOL_NAME.fullmatch(symbol.name) or symbol.name in OPERATORS:
            raise InvalidModel(f"{symbol.name[:80]!r} can't name a dynamic dimension")
        if not 1 <= symbol.minimum <= symbol.maximum or symbol.multiple < 1:
            raise InvalidModel(f"dynamic dimension {symbol.name!r} has no range")
        if symbol.minimum % symbol.multiple or symbol.maximum % symbol.multiple:
            raise InvalidModel(f"dynamic dimension {symbol.name!r}: its ends are no multiples")
    spec = ModelSpec(
        inputs=tuple(TensorSpec(t.name, t.datatype, notes.inputs[t.name]) for t in inputs),
        outputs=tuple(TensorSpec(t.name, t.datatype, notes.outputs[t.name]) for t in outputs),
        symbols=notes.symbols,
        batch_symbol=notes.batch,
    )
    direct = {size[0] for t in spec.inputs for size in t.shape if not isinstance(size, int)}
    names = [symbol.name for symbol in notes.symbols]
    if len(set(names)) != len(names) or not set(names) <= direct:
        raise InvalidModel(f"no input has each of the dimensions {names} by itself")
    if notes.batch is not None and notes.batch not in names:
        raise InvalidModel(f"batch dimension {notes.batch[:80]!r} is not among {names}")
    check_sizes((*spec.inputs, *spec.outputs), spec.symbols)
    hints = (
        min(max(notes.hints.get(symbol.name, symbol.minimum), symbol.minimum), symbol.maximum)
        for symbol in notes.symbols
    )
    return OnnxSignature(
        spec, tuple(hints), tuple(notes.fills.get(tensor.name) for tensor in inputs)
    )


def _check_agrees(tensor: GraphTensor, shape: tuple[Size, ...]) -> None:
    """A fixed size of the graph can't be another one in the notes. The other way round, a request
    is held to the notes, and the graph takes what it is given."""
    if tensor.dimensions is None:
        return
    pairs = list(zip(tensor.dimensions, shape, strict=False))
    is_fixed_otherwise = any(isinstance(size, int) and size != noted for size, noted in pairs)
    if len(tensor.dimensions) != len(shape) or is_fixed_otherwise:
        raise InvalidModel(
            f"tensor {tensor.name!r}: its notes contradict the graph: export it again"
        )
