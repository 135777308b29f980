"""Which requests of a model may share a run: the table `[batching]` of a manifest.

    [batching]
    rows_max = 32
    delay_ms_max = 0
    pad.sequence = { input_ids = 0, attention_mask = 0 }

Requests whose sizes agree can share a run; in a dimension under `pad` they need not: each input
that has it is filled up to the longest with the value stated, and what comes out is cut back. That
a model takes no notice of it, and of the rows beside its own, is the owner's claim, which the
device tries before it believes it (`device/joining.py`).

Joining is sound only where the rows are the first dimension of every input and output, and nothing
else depends on how many there are. It must not know requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gpumuxd.domain import Batching
from gpumuxd.errors import InvalidManifest
from gpumuxd.models.spec import ModelSpec, Symbol, format_size, symbols_of
from gpumuxd.units import ns_from_ms

DELAY_MS_MAX = 10_000
ROWS_MAX_MAX = 1024
"""What notes who shares a run has room for so many (`wire/in_flight_board.py`); and conditions on
the number of rows are tried for each number up to it."""

KEYS = ("rows_max", "delay_ms_max", "pad")

EXPECTED = (
    "a table like { rows_max = 32, delay_ms_max = 0, pad.sequence = { input_ids = 0 } }, with "
    f"rows_max of 2 to {ROWS_MAX_MAX}, delay_ms_max of 0 to {DELAY_MS_MAX}, and for each padded "
    "dimension a number or a truth value for each input that has it"
)

Fill = int | float

_INTEGER_RANGES: dict[str, tuple[int, int]] = {
    **{f"INT{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "BOOL": (0, 1),
}


@dataclass(frozen=True, slots=True)
class Pad:
    """What an input is filled with where a dimension of it is shorter than another's."""

    dimension: str
    input: str
    value: Fill


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """`rows_max`: most rows that share a run. `delay_ms_max`: how long a request that could start
    may wait for others to join it."""

    rows_max: int
    delay_ms_max: float = 0
    pads: tuple[Pad, ...] = ()

    def check(self, spec: ModelSpec, batch_max: int | None) -> None:
        """Can a model of this signature be batched like this? Raises InvalidManifest."""
        batch = _batch_symbol(spec)
        limit = self._rows_limit(batch, batch_max)
        if limit < 2 * max(batch.minimum, 1):
            raise InvalidManifest(
                f"batching: at most {limit} rows run together, and a request has at least "
                f"{batch.minimum}: expected a larger rows_max or batch_max"
            )
        padded = self.padded
        for dimension in padded:
            self._check_pad(spec, batch, dimension)
        for condition in spec.conditions:
            symbols = set(symbols_of(condition))
            if symbols == {batch.name}:
                alone = msgspec.structs.replace(spec, conditions=(condition,))
                for rows in range(max(batch.minimum, 1), limit + 1, batch.multiple):
                    if alone.unmet({batch.name: rows}) is not None:
                        raise InvalidManifest(
                            f"batching: the model takes no {rows} rows, it was exported for "
                            f"{format_size(condition)}"
                        )
            elif symbols & {batch.name, *padded}:
                raise InvalidManifest(
                    "batching: sizes that fit alone need not fit together, the model was exported "
                    f"for {format_size(condition)}"
                )

    def batching(self, spec: ModelSpec, batch_max: int | None) -> Batching:
        """What the scheduler is told. The sizes are those that runs are measured at, so the
        largest may be smaller than `rows_max`."""
        batch = _batch_symbol(spec)
        limit = self._rows_limit(batch, batch_max)
        sizes = []
        size = batch.multiple
        while size < batch.maximum:
            sizes.append(size)
            size *= 2
        sizes.append(batch.maximum)
        return Batching(
            place=spec.symbols.index(batch),
            sizes=tuple(each for each in sizes if max(batch.minimum, 1) <= each <= limit),
            delay_ns_max=ns_from_ms(self.delay_ms_max),
        )

    def fills(self, spec: ModelSpec) -> tuple[Fill, ...]:
        """What each input is padded with; empty where nothing is."""
        values = {pad.input: pad.value for pad in self.pads}
        return tuple(values.get(tensor.name, 0) for tensor in spec.inputs) if values else ()

    @property
    def padded(self) -> tuple[str, ...]:
        """The dimensions in which those who share a run may differ."""
        return tuple(dict.fromkeys(pad.dimension for pad in self.pads))

    def _rows_limit(self, batch: Symbol, batch_max: int | None) -> int:
        return min(self.rows_max, batch.maximum, batch_max or batch.maximum)

    def _check_pad(self, spec: ModelSpec, batch: Symbol, dimension: str) -> None:
        names = [symbol.name for symbol in spec.symbols if symbol is not batch]
        if dimension not in names:
            raise InvalidManifest(
                f"batching.pad: no dimension {dimension[:80]!r} that varies; the model has {names}"
            )
        stated = {pad.input: pad.value for pad in self.pads if pad.dimension == dimension}
        having = {
            t.name: t for t in spec.inputs if any(dimension in symbols_of(s) for s in t.shape)
        }
        for name in (*stated, *having):
            if name not in having:
                raise InvalidManifest(
                    f"batching.pad.{dimension}: input {name[:80]!r} has no such dimension; "
                    f"{list(having)} have it"
                )
            if name not in stated:
                raise InvalidManifest(
                    f"batching.pad.{dimension}: expected what input {name!r} is filled with too"
                )
        for name, value in stated.items():
            if not _fits(having[name].datatype, value):
                raise InvalidManifest(
                    f"batching.pad.{dimension}: input {name!r} is {having[name].datatype} and "
                    f"can't be filled with {value!r}"
                )


def parse_batching(value: object) -> BatchingPolicy | None:
    """A policy as TOML states it; None for anything else (`EXPECTED` says what there is)."""
    match value:
        case {"rows_max": int() as rows_max, **others} if not isinstance(rows_max, bool):
            delay_ms = others.pop("delay_ms_max", 0)
            pads = _pads(others.pop("pad", {}))
        case _:
            return None
    if others or pads is None or not 2 <= rows_max <= ROWS_MAX_MAX:
        return None
    if isinstance(delay_ms, bool) or not isinstance(delay_ms, int | float):
        return None
    if not 0 <= delay_ms <= DELAY_MS_MAX:  # also refuses nan
        return None
    return BatchingPolicy(rows_max, delay_ms, pads)


def _pads(value: object) -> tuple[Pad, ...] | None:
    """None for anything but tables of values, and where an input has two of them."""
    if not isinstance(value, Mapping):
        return None
    pads: dict[str, list[Pad]] = {}
    for dimension, inputs in value.items():
        if not isinstance(inputs, Mapping) or not inputs:
            return None
        for name, fill in inputs.items():
            if not isinstance(fill, int | float):
                return None
            pads.setdefault(name, []).append(Pad(dimension, name, fill))
    if any(pad.value != each[0].value for each in pads.values() for pad in each):
        return None
    return tuple(pad for each in pads.values() for pad in each)


def _batch_symbol(spec: ModelSpec) -> Symbol:
    """The dimension that rows are counted in. Raises InvalidManifest where rows can't be joined."""
    if not spec.batch_max:
        raise InvalidManifest(
            "batching: expected a model whose inputs and outputs all have a batch dimension that "
            "varies in front"
        )
    for tensor in (*spec.inputs, *spec.outputs):
        for size in tensor.shape[1:]:
            if spec.batch_symbol in symbols_of(size):
                raise InvalidManifest(
                    f"batching: tensor {tensor.name!r} has a dimension {format_size(size)}, which "
                    "depends on how many rows there are"
                )
    return next(symbol for symbol in spec.symbols if symbol.name == spec.batch_symbol)


def _fits(datatype: str, value: Fill) -> bool:
    if datatype not in _INTEGER_RANGES:
        return not isinstance(value, bool)
    least, most = _INTEGER_RANGES[datatype]
    is_truth = isinstance(value, bool)
    return isinstance(value, int) and is_truth == (datatype == "BOOL") and least <= value <= most
