"""Runs an ONNX model at several sizes, to see what sizes its outputs take.

Runs on the owner's machine, in ONNX Runtime and whole: what it is told is the owner's own file. A
size at which the model fails is an answer too. It must not know how sizes are explained.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_optimiser import first_line
from gpumuxd.models.onnx_signature import BATCH, GraphTensor
from gpumuxd.models.spec import Size, Symbol, evaluate_shape
from gpumuxd.programs.onnx_fit import Sizes
from gpumuxd.programs.onnx_model import NUMPY_TYPES
from gpumuxd.programs.onnx_runtime import make_session

PROBE_S_MAX = 60.0
"""After that no further size is tried. What was seen until then has to do."""

_STARTS = (64, 96, 128, 160, 192, 256, 320, 48, 32, 512, 576, 640, 16, 8, 1)
_STEPS = (1, 2, 3, 4, 5, 8, 16, 32, 64)
"""Added to the starting size: each way in which layers round shows in one of them."""

_BATCHES = (1, 2, 3, 5)

INPUT_ITEMS_MAX = 1 << 18
"""In one input, for sizes far from the base, which say which of several expressions is meant."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Probe:
    """A model, and what it was seen to do: shapes of its outputs by sizes, None where it failed."""

    session: object
    inputs: Sequence[GraphTensor]
    shapes: Sequence[tuple[Size, ...]]
    fills: Mapping[str, float]
    seen: dict[Sizes, Shapes | None] = field(default_factory=dict)
    reason: str = ""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() - self.started_s > PROBE_S_MAX

    def input_items(self, symbols: Sequence[Symbol], sizes: Sizes) -> int:
        """Items of the largest input at these sizes."""
        bindings = {symbol.name: size for symbol, size in zip(symbols, sizes, strict=True)}
        return max(math.prod(evaluate_shape(shape, bindings)) for shape in self.shapes)

    def look(self, symbols: Sequence[Symbol], sizes: Sizes, seed: int = 0) -> Shapes | None:
        """The shapes of the outputs at these sizes, None when the model fails."""
        if seed == 0 and sizes in self.seen:
            return self.seen[sizes]
        bindings = {symbol.name: size for symbol, size in zip(symbols, sizes, strict=True)}
        draw = np.random.default_rng(seed)
        feeds = {
            tensor.name: _example(tensor, evaluate_shape(shape, bindings), self.fills, draw)
            for tensor, shape in zip(self.inputs, self.shapes, strict=True)
        }
        found: Shapes | None
        try:
            results = self.session.run(None, feeds)  # type: ignore[attr-defined]  # has no types
        except Exception as error:  # of many types, all of the runtime's own
            found, self.reason = None, first_line(error)
        else:
            found = tuple(tuple(result.shape) for result in results)
            if any(0 in shape for shape in found):
                found, self.reason = None, "an output is empty"
        if seed == 0:
            self.seen[sizes] = found
        return found


def open_probe(
    model: bytes,
    inputs: Sequence[GraphTensor],
    shapes: Sequence[tuple[Size, ...]],
    fills: Mapping[str, float],
) -> Probe:
    """`shapes` are those of the inputs, with symbols for what may vary."""
    return Probe(make_session(model, 1, {}), inputs, shapes, fills)


def _example(
    tensor: GraphTensor,
    shape: tuple[int, ...],
    fills: Mapping[str, float],
    draw: np.random.Generator,
) -> object:
    dtype = NUMPY_TYPES[tensor.datatype]
    if tensor.name in fills:
        return np.full(shape, fills[tensor.name], dtype=dtype)
    if np.issubdtype(dtype, np.floating):
        return draw.standard_normal(shape).astype(dtype)
    return np.ones(shape, dtype=dtype) if dtype is np.bool_ else np.zeros(shape, dtype=dtype)


def find_base(
    probe: Probe, symbols: Sequence[Symbol], batch: str | None, given: Mapping[str, int]
) -> Sizes:
    """Sizes at which the model runs. Raises InvalidModel when none was found."""
    if not symbols:
        if probe.look(symbols, ()) is None:
            raise InvalidModel(f"the model fails: {probe.reason}")
        return ()
    for start in _STARTS:
        sizes = tuple(
            given.get(
                symbol.name,
                symbol.minimum if symbol.name in (batch, BATCH) else _fit(start, symbol),
            )
            for symbol in symbols
        )
        if probe.look(symbols, sizes) is not None:
            return sizes
        if probe.is_out_of_time:
            break
    names = ", ".join(symbol.name for symbol in symbols if symbol.name != batch)
    raise InvalidModel(
        f"the model ran at none of {len(probe.seen)} sizes of {names or batch}; name one with "
        f"--try NAME=N, or values it needs with --fill INPUT=VALUE. Its last error: {probe.reason}"
    )


def _fit(size: int, symbol: Symbol) -> int:
    inside = min(max(size, symbol.minimum), symbol.maximum)
    return max(inside - inside % symbol.multiple, symbol.minimum)


def look_around(probe: Probe, symbols: Sequence[Symbol], batch: str | None, base: Sizes) -> None:
    """Look at sizes that differ from the base in one symbol."""
    for index, symbol in enumerate(symbols):
        for size in _neighbours(symbol, base[index], is_batch=symbol.name in (batch, BATCH)):
            sizes = (*base[:index], size, *base[index + 1 :])
            if not probe.is_out_of_time and probe.input_items(symbols, sizes) <= INPUT_ITEMS_MAX:
                probe.look(symbols, sizes)


def look_across(probe: Probe, symbols: Sequence[Symbol], base: Sizes) -> None:
    """Look at some sizes that differ from the base in all symbols, within their ranges."""
    good = [
        [size for size, is_good in axis_of(probe, base, index).items() if is_good]
        for index in range(len(symbols))
    ]
    good = [
        [size for size in sizes if allows(symbol, size)]
        for symbol, sizes in zip(symbols, good, strict=True)
    ]
    for turn in range(1, 5):
        mixed = tuple(sizes[(turn * (index + 1)) % len(sizes)] for index, sizes in enumerate(good))
        if not probe.is_out_of_time:
            probe.look(symbols, mixed)


def _neighbours(symbol: Symbol, size: int, *, is_batch: bool) -> list[int]:
    if is_batch:
        wanted = [*_BATCHES]
    else:
        wanted = [size + step * symbol.multiple for step in _STEPS]
        wanted += [size - step * symbol.multiple for step in (1, 32)]
        wanted += [2 * size, 2 * size + 32, 3 * size, 16 * size, symbol.minimum, symbol.maximum]
    inside = (each for each in wanted if symbol.minimum <= each <= symbol.maximum)
    return [each for each in dict.fromkeys(inside) if each % symbol.multiple == 0 and each != size]


def allows(symbol: Symbol, size: int) -> bool:
    """May this dimension have this size?"""
    return symbol.minimum <= size <= symbol.maximum and size % symbol.multiple == 0


def axis_of(probe: Probe, base: Sizes, index: int) -> dict[int, bool]:
    """Which sizes of one symbol the model was seen to take, all others being as in the base."""
    return {
        sizes[index]: shapes is not None
        for sizes, shapes in sorted(probe.seen.items())
        if (*sizes[:index], *sizes[index + 1 :]) == (*base[:index], *base[index + 1 :])
    }
