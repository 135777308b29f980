"""The signature of an archive: names, types and shapes of inputs and outputs, ranges of symbols.

torch's schema knows dynamic sizes only as `s23`; the names that the exporter gave them are in our
own file in the archive, and are optional: any torch.export archive can be read. Must not know nodes
or weights.

torch writes an input whose side must be a multiple of 32 as `32*s7`. The spec has no name for the
number of 32s, only for the side itself: `height`, with `multiple` 32, and s7 becomes `height // 32`
wherever else it stands.

Invariant: every symbol of the spec is the whole size of some input dimension, so that a request's
shapes bind it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpumuxd.errors import InvalidModel
from gpumuxd.models import schema
from gpumuxd.models.call_tree import default_names, input_paths
from gpumuxd.models.expressions import parse
from gpumuxd.models.guards import with_guards
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.spec import OPERATORS, ModelSpec, Size, Symbol, TensorSpec
from gpumuxd.models.weights import DATATYPES, OTHER_TYPES, STRIDED_LAYOUT

BATCH = "batch"

_DATA_SIZE = re.compile(r"u[0-9]+", re.ASCII)
"""What torch calls a size that only the data decide."""

_TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/\-]{0,127}", re.ASCII)
_SYMBOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Signature:
    """The spec, and each symbol's value in the example inputs."""

    spec: ModelSpec
    size_hints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScalarOutput:
    """An output that was a Python number: served as a tensor without dimensions."""

    datatype: str


def read_signature(
    program: schema.ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str | ScalarOutput],
    names: schema.Names | None,
    limits: ReadLimits,
) -> Signature:
    """`inputs` and `outputs` are the graph's names of the user's tensors, in order. `names` are
    those of our own file."""
    for what, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not 1 <= len(tensors) <= limits.tensors_max:
            raise InvalidModel(
                f"model with {len(tensors)} {what}: expected 1 to {limits.tensors_max}"
            )
    if names is None:
        names = default_names(program, inputs, len(outputs))
    _check_names(names.inputs, len(inputs), "input")
    _check_names(names.outputs, len(outputs), "output")
    metas = program.graph_module.graph.tensor_values
    reader = _ShapeReader(limits)
    raw_inputs = [reader.tensor(metas, name) for name in inputs]
    raw_outputs = [
        _RawTensor(output.datatype, ())
        if isinstance(output, ScalarOutput)
        else reader.tensor(metas, output)
        for output in outputs
    ]
    multiples = _bound_symbols(raw_inputs, limits)
    symbols = list(multiples)
    new_names, batch = _symbol_names(symbols, raw_inputs, names)
    unbound = reader.symbols - set(symbols)
    if any(_DATA_SIZE.fullmatch(symbol) for symbol in unbound):
        raise InvalidModel(
            "the size of an output depends on values in the data, and memory for outputs is "
            "reserved before a request runs: give a fixed number of rows (torch.topk) and a count "
            "or a mask"
        )
    if unbound:
        raise InvalidModel(
            f"sizes depend on {sorted(unbound)}, which is not the size of any input dimension"
        )
    spec = ModelSpec(
        inputs=_renamed(raw_inputs, names.inputs, new_names, multiples),
        outputs=_renamed(raw_outputs, names.outputs, new_names, multiples),
        symbols=tuple(
            _symbol(program, name, new_names[name], multiple, limits)
            for name, multiple in multiples.items()
        ),
        batch_symbol=batch,
    )
    guards = program.guards_code
    spec = with_guards(spec, guards, inputs, input_paths(program) if guards else None, limits)
    hints = (reader.hints.get(name, 1) * multiple for name, multiple in multiples.items())
    return Signature(spec, tuple(hints))


@dataclass(frozen=True, slots=True)
class _RawTensor:
    datatype: str
    shape: tuple[Size, ...]


class _ShapeReader:
    """Reads tensors' shapes and remembers the symbols it met and their example values."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self.symbols: set[str] = set()
        self.hints: dict[str, int] = {}

    def tensor(self, metas: dict[str, schema.TensorMeta], name: str) -> _RawTensor:
        meta = metas.get(name)
        if meta is None:
            raise InvalidModel(f"tensor {name[:80]!r} has no type and shape in the archive")
        datatype = DATATYPES.get(meta.dtype)
        if datatype is None or meta.layout != STRIDED_LAYOUT:
            raise InvalidModel(
                f"tensor {name[:80]!r}: expected a dense tensor of a plain data type, "
                f"got {OTHER_TYPES.get(meta.dtype, meta.dtype)} of layout {meta.layout}"
            )
        if len(meta.sizes) > self._limits.rank_max:
            raise InvalidModel(f"tensor {name[:80]!r} of rank {len(meta.sizes)} (rank_max)")
        return _RawTensor(datatype, tuple(self._size(size, name) for size in meta.sizes))

    def _size(self, size: schema.SymInt, name: str) -> Size:
        kind, value = schema.variant(size, f"size of tensor {name[:80]!r}")
        if kind == "as_int":
            if value < 0:
                raise InvalidModel(f"tensor {name[:80]!r} has a negative size, {value}")
            return int(value)
        assert isinstance(value, schema.Expression)
        tokens = parse(value.expr_str, self._limits)
        used = {token for token in tokens if isinstance(token, str) and token not in OPERATORS}
        if not used:
            raise InvalidModel(f"tensor {name[:80]!r}: a size without a symbol is not a number")
        self.symbols |= used
        bound = _bound(tokens)
        if bound is not None and value.hint is not None and value.hint.as_int is not None:
            symbol, multiple = bound
            self.hints[symbol] = value.hint.as_int // multiple
        return tokens


def _bound(size: Size) -> tuple[str, int] | None:
    """The symbol and the factor of a size that is a symbol or a multiple of one."""
    match size:
        case (str() as symbol,):
            return symbol, 1
        case (int() as multiple, str() as symbol, "*") | (str() as symbol, int() as multiple, "*"):
            return (symbol, multiple) if multiple >= 1 else None
    return None


def _bound_symbols(inputs: Sequence[_RawTensor], limits: ReadLimits) -> dict[str, int]:
    """Symbols that an input's dimension gives, in the order they appear, and their multiples.

    A dimension that is the symbol itself wins over one that is a multiple of it, then the first.
    """
    multiples: dict[str, int] = {}
    for tensor in inputs:
        for size in tensor.shape:
            bound = _bound(size)
            if bound is not None and (bound[0] not in multiples or bound[1] == 1):
                multiples[bound[0]] = bound[1]
    if len(multiples) > limits.symbols_max:
        raise InvalidModel(f"{len(multiples)} dynamic dimensions (symbols_max)")
    return multiples


def _symbol_names(
    symbols: Sequence[str], inputs: Sequence[_RawTensor], names: schema.Names
) -> tuple[dict[str, str], str | None]:
    """New name of each symbol, and which of the new names is the batch."""
    chosen: dict[str, str] = {}
    for name, tensor in zip(names.inputs, inputs, strict=True):
        for dimension, given in names.dynamic.get(name, {}).items():
            if not dimension.isdecimal() or int(dimension) >= len(tensor.shape):
                raise InvalidModel(f"input {name!r} has no dimension {dimension[:20]!r}")
            bound = _bound(tensor.shape[int(dimension)])
            if bound is not None:
                chosen.setdefault(bound[0], given)
    batch = names.batch
    first = {tensor.shape[:1] for tensor in inputs}
    if not names.dynamic and batch is None and len(first) == 1:
        (shape,) = first
        if shape and isinstance(shape[0], tuple) and len(shape[0]) == 1:
            chosen[str(shape[0][0])] = batch = BATCH
    result = {symbol: chosen.get(symbol, symbol) for symbol in symbols}
    for new in result.values():
        if not _SYMBOL_NAME.fullmatch(new) or new in OPERATORS:
            raise InvalidModel(f"{new[:80]!r} can't name a dynamic dimension")
    if len(set(result.values())) != len(result):
        raise InvalidModel("two dynamic dimensions that may differ have the same name")
    if batch is not None and batch not in result.values():
        batch = None
    return result, batch


def _renamed(
    tensors: Sequence[_RawTensor],
    names: Sequence[str],
    symbols: dict[str, str],
    multiples: dict[str, int],
) -> tuple[TensorSpec, ...]:
    def rename(size: Size) -> Size:
        if isinstance(size, int):
            return size
        bound = _bound(size)
        if bound is not None and bound[1] == multiples[bound[0]]:
            return (symbols[bound[0]],)
        tokens: list[int | float | str] = []
        for token in size:
            multiple = multiples.get(token, 1) if isinstance(token, str) else 1
            tokens.append(symbols.get(token, token) if isinstance(token, str) else token)
            tokens += [multiple, "//"] if multiple > 1 else []
        return tuple(tokens)

    return tuple(
        TensorSpec(name, tensor.datatype, tuple(rename(size) for size in tensor.shape))
        for name, tensor in zip(names, tensors, strict=True)
    )


def _symbol(
    program: schema.ExportedProgram, symbol: str, name: str, multiple: int, limits: ReadLimits
) -> Symbol:
    given = program.range_constraints.get(symbol, schema.RangeConstraint())
    # A size of 0 is never served: kernels differ in what they make of it.
    minimum = max(1, given.min_val if given.min_val is not None else 1)
    if multiple > 1:
        # Tracing takes the symbol for 2 or more. Of a size that is one, torch notes the range that
        # was asked for; of a multiple it notes that at the multiple.
        asked = program.range_constraints.get(f"{multiple}*{symbol}", schema.RangeConstraint())
        if asked.min_val is not None:
            minimum = max(1, min(minimum, -(-asked.min_val // multiple)))
    maximum = given.max_val if given.max_val is not None else limits.dynamic_size_max
    maximum = min(maximum, limits.dynamic_size_max // multiple)
    if minimum > maximum:
        raise InvalidModel(
            f"dynamic dimension {name!r} has no size between {minimum * multiple} "
            f"and {maximum * multiple}"
        )
    return Symbol(name, minimum * multiple, maximum * multiple, multiple)


def _check_names(names: Sequence[str], count: int, what: str) -> None:
    if len(names) != count:
        raise InvalidModel(f"the archive names {len(names)} {what}s, the graph has {count}")
    for name in names:
        if not _TENSOR_NAME.fullmatch(name):
            raise InvalidModel(f"{name[:80]!r} can't name an {what}")
    if len(set(names)) != count:
        raise InvalidModel(f"two {what}s have the same name")
