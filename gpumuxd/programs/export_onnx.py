"""Makes of an ONNX model one that the daemon can serve (`export_onnx_command.py` is the command).

A graph seldom says how the sizes of its outputs follow from those of its inputs. This runs the
model at several sizes in ONNX Runtime, finds expressions that give every size seen, and notes them
in the metadata of a copy (`models/onnx_notes.py`), with names and ranges of the dynamic dimensions.
The copy is read back with the daemon's own reader. Runs on the owner's machine, never in the
daemon.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_limits import DEFAULT_ONNX_LIMITS
from gpumuxd.models.onnx_notes import NOTES_KEY, NOTES_VERSION, Notes, encode_notes
from gpumuxd.models.onnx_proto import onnx_package
from gpumuxd.models.onnx_reader import OnnxArtifact, decode_model
from gpumuxd.models.onnx_signature import (
    GraphTensor,
    UnknownSizes,
    default_symbol,
    graph_tensor,
    name_dimensions,
)
from gpumuxd.models.spec import ModelSpec, Size, Symbol
from gpumuxd.programs.onnx_fit import Sizes, common_multiple, fit_size
from gpumuxd.programs.onnx_probe import (
    Probe,
    allows,
    axis_of,
    find_base,
    look_across,
    look_around,
    open_probe,
)
from gpumuxd.programs.publishing import folder_of, publish

_SECOND_SEED = 1


@dataclass(frozen=True, slots=True)
class OnnxExport:
    """What the owner says of the model. `dimensions` names (or fixes, given a number) dimensions of
    inputs; `ranges` are (minimum, maximum, multiple) by name; `sizes` are where the model is tried
    first; `fills` are values that an input has to hold for the model to make sense."""

    dimensions: Mapping[tuple[str, int], str | int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    fills: Mapping[str, float] = field(default_factory=dict)


Tell = Callable[[str], None]


def _tell_nobody(phase: str) -> None:
    pass


def export_onnx(
    source: Path, path: Path, request: OnnxExport | None = None, tell: Tell = _tell_nobody
) -> ModelSpec:
    """Write a servable copy of `source` to `path`; its signature. Raises InvalidModel."""
    request = request or OnnxExport()
    limits = DEFAULT_ONNX_LIMITS
    package = onnx_package()
    data = source.read_bytes()
    model = decode_model(package, io.BytesIO(data), limits)
    _drop_notes(model)
    tell("checking the graph")
    with suppress(UnknownSizes):
        OnnxArtifact(io.BytesIO(model.SerializeToString()), limits)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [graph_tensor(i, "input", limits) for i in model.graph.input if i.name not in stored]
    notes = find_notes(data, inputs, [info.name for info in model.graph.output], request, tell)
    entry = model.metadata_props.add()
    entry.key, entry.value = NOTES_KEY, encode_notes(notes).decode()
    tell(f"writing {path}")
    return _write(model.SerializeToString(), path)


def _drop_notes(model: Any) -> None:
    kept = [(entry.key, entry.value) for entry in model.metadata_props if entry.key != NOTES_KEY]
    model.ClearField("metadata_props")
    for key, value in kept:
        model.metadata_props.add(key=key, value=value)


def _write(data: bytes, path: Path) -> ModelSpec:
    """Only a whole artifact that can be served takes the name, and the place of an older one."""
    spec = OnnxArtifact(io.BytesIO(data)).plan.spec
    unfinished = path.with_name(f".{path.name}")
    with folder_of(path):
        try:
            unfinished.write_bytes(data)
            publish(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    return spec


def find_notes(
    model: bytes,
    inputs: Sequence[GraphTensor],
    outputs: Sequence[str],
    request: OnnxExport,
    tell: Tell = _tell_nobody,
) -> Notes:
    """Run the model and explain what it does."""
    names = [tensor.name for tensor in inputs]
    for name in (*request.fills, *(name for name, _ in request.dimensions)):
        if name not in names:
            raise InvalidModel(f"no input is named {name!r}: they are {names}")
    naming = name_dimensions([_named(tensor, request) for tensor in inputs])
    batch = naming.batch
    symbols = [_symbol(name, batch, request) for name in naming.symbols]
    for name in (*request.ranges, *request.sizes):
        if name not in naming.symbols:
            raise InvalidModel(f"no dynamic dimension is named {name!r}: they are {naming.symbols}")
    probe = open_probe(model, inputs, naming.shapes, request.fills)
    base = find_base(probe, symbols, batch, request.sizes)
    tell(f"it runs at {_told(symbols, base)}; trying other sizes")
    look_around(probe, symbols, batch, base)
    symbols = [
        _learned(probe, base, index, symbol, request, tell) for index, symbol in enumerate(symbols)
    ]
    _hint_at_equal(inputs, naming.shapes, symbols, request, tell)
    look_across(probe, symbols, base)
    tell(f"{len(probe.seen)} sizes tried, {sum(s is not None for s in probe.seen.values())} run")
    if probe.look(symbols, base, _SECOND_SEED) != probe.seen[base]:
        raise InvalidModel("the sizes of its outputs depend on the values in its inputs")
    explained, symbols = _explained_somewhere(probe, symbols, base, outputs, request, tell)
    return Notes(
        version=NOTES_VERSION,
        inputs={t.name: shape for t, shape in zip(inputs, naming.shapes, strict=True)},
        outputs=dict(zip(outputs, explained, strict=True)),
        symbols=tuple(symbols),
        batch=batch,
        hints={symbol.name: size for symbol, size in zip(symbols, base, strict=True)},
        fills=dict(request.fills),
    )


def _hint_at_equal(
    inputs: Sequence[GraphTensor],
    shapes: Sequence[tuple[Size, ...]],
    symbols: Sequence[Symbol],
    request: OnnxExport,
    tell: Tell,
) -> None:
    """Two dimensions that each ran at one size only, the same, are likely one dimension."""
    stuck: dict[int, list[str]] = {}
    for symbol in symbols:
        if symbol.minimum == symbol.maximum and symbol.name not in request.ranges:
            stuck.setdefault(symbol.minimum, []).append(symbol.name)
    for size, names in stuck.items():
        if len(names) > 1:
            options = " ".join(
                f"--dim {tensor.name}:{index}=NAME"
                for tensor, shape in zip(inputs, shapes, strict=True)
                for index, part in enumerate(shape)
                if isinstance(part, tuple) and part[0] in names
            )
            tell(
                f"{' and '.join(names)} ran at {size} only. If they must be equal, give them one "
                f"name: {options}"
            )


def _named(tensor: GraphTensor, request: OnnxExport) -> GraphTensor:
    dimensions = list(tensor.dimensions or ())
    for (name, index), given in request.dimensions.items():
        if name != tensor.name:
            continue
        if not 0 <= index < len(dimensions) or isinstance(dimensions[index], int):
            raise InvalidModel(f"input {name!r} has no dynamic dimension {index}")
        dimensions[index] = given
    return replace(tensor, dimensions=None if tensor.dimensions is None else tuple(dimensions))


def _symbol(name: str, batch: str | None, request: OnnxExport) -> Symbol:
    if name not in request.ranges:
        return default_symbol(name, batch)
    minimum, maximum, multiple = request.ranges[name]
    return Symbol(name, minimum, maximum, multiple)


def _learned(
    probe: Probe, base: Sizes, index: int, symbol: Symbol, request: OnnxExport, tell: Tell
) -> Symbol:
    """The symbol with the multiple and the range that the model was seen to ask for."""
    if symbol.name in request.ranges:
        return symbol
    axis = axis_of(probe, base, index)
    refused = [size for size, is_good in axis.items() if not is_good]
    if not refused:
        return symbol
    accepted = [size for size, is_good in axis.items() if is_good]
    multiple = common_multiple(base[index], accepted, refused)
    fitting = {size: is_good for size, is_good in axis.items() if size % multiple == 0}
    low = _reach(fitting, [size for size in reversed(fitting) if size < base[index]])
    high = _reach(fitting, [size for size in fitting if size > base[index]])
    # An end that nothing was refused before is as far as anybody looked, not as far as it goes.
    minimum = max(symbol.minimum, multiple) if low is None else low or base[index]
    maximum = symbol.maximum - symbol.maximum % multiple if high is None else high or base[index]
    step = f" in multiples of {multiple}" if multiple > 1 else ""
    tell(f"{symbol.name}: it failed at {refused[:8]}, so noted as {minimum} to {maximum}{step}")
    return Symbol(symbol.name, minimum, maximum, multiple)


def _reach(is_good: Mapping[int, bool], sizes: Sequence[int]) -> int | None:
    """The last of these sizes before one was refused, 0 if the first was; None if none was."""
    last = 0
    for size in sizes:
        if not is_good[size]:
            return last
        last = size
    return None


def _explained_somewhere(
    probe: Probe,
    symbols: list[Symbol],
    base: Sizes,
    outputs: Sequence[str],
    request: OnnxExport,
    tell: Tell,
) -> tuple[list[tuple[Size, ...]], list[Symbol]]:
    """The shapes of outputs, and the symbols with ranges in which they hold.

    Where a kernel is larger than what it is laid on, layers round otherwise than above. So as long
    as nothing explains all sizes, the smallest is given up, unless the owner asked for it.
    """
    while True:
        try:
            return _explained(probe, symbols, base, outputs), symbols
        except InvalidModel:
            smaller = [_without_smallest(probe, base, i, s) for i, s in enumerate(symbols)]
            if request.ranges or smaller == symbols:
                raise
            changed = ", ".join(
                f"{now.name} from {now.minimum} on"
                for before, now in zip(symbols, smaller, strict=True)
                if before != now
            )
            symbols = smaller
            tell(f"no expression for all of them; without the smallest sizes: {changed}")


def _without_smallest(probe: Probe, base: Sizes, index: int, symbol: Symbol) -> Symbol:
    good = [size for size, is_good in axis_of(probe, base, index).items() if is_good]
    inside = [size for size in good if allows(symbol, size) and size <= base[index]]
    return _with_minimum(symbol, inside[1] if len(inside) > 1 else symbol.minimum)


def _with_minimum(symbol: Symbol, minimum: int) -> Symbol:
    return Symbol(symbol.name, minimum, symbol.maximum, symbol.multiple)


def _explained(
    probe: Probe, symbols: Sequence[Symbol], base: Sizes, outputs: Sequence[str]
) -> list[tuple[Size, ...]]:
    seen = {
        sizes: shapes
        for sizes, shapes in probe.seen.items()
        if shapes is not None and all(map(allows, symbols, sizes))
    }
    ranks = {tuple(map(len, shapes)) for shapes in seen.values()}
    if len(ranks) != 1:
        raise InvalidModel("the rank of an output depends on sizes")
    names = [symbol.name for symbol in symbols]
    found = []
    for output, name in enumerate(outputs):
        shape: list[Size] = []
        for index in range(len(seen[base][output])):
            samples = {sizes: shapes[output][index] for sizes, shapes in seen.items()}
            size = fit_size(names, base, samples)
            if size is None:
                some = dict(list(samples.items())[:6])
                raise InvalidModel(
                    f"output {name!r}: no expression gives its dimension {index}, which was {some} "
                    f"for {names}; fix a dimension with --dim INPUT:INDEX=NUMBER"
                )
            shape.append(size)
        found.append(tuple(shape))
    return found


def _told(symbols: Sequence[Symbol], sizes: Sizes) -> str:
    pairs = zip(symbols, sizes, strict=True)
    return ", ".join(f"{symbol.name}={size}" for symbol, size in pairs) or "its fixed sizes"
