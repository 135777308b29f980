"""Numbers that choose how an operator runs: which values they may have. The only such place.

torch computes sizes and places from strides, paddings and scales without looking for overflow, and
takes some modes by number without looking whether there is one. A padding of 2^61 or a scale of
1e-20 ended the process, and a mode that does not exist returned memory as it was (torch 2.13,
measured). A literal is checked once, at load; what is computed from sizes of a request in each
call, for which `checked_numbers` wraps the operator.

It must not know plans: who calls it says where a value came from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpumuxd.errors import InvalidModel

GEOMETRY_MAX = 1 << 24
"""Strides, paddings, sizes of windows and of results: the largest that any layer has a use for."""

LENGTH_MAX = (1 << 31) - 1
"""Paddings, shifts and lengths of sound, which has many samples."""

SCALE_MAX = 65536.0
"""Resizing makes this much larger or smaller."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a number, or each of a list of numbers, may be."""

    least: float
    most: float

    def holds(self, value: object) -> bool:
        # A tensor of one item passes for a number with torch: its value nobody has looked at.
        return isinstance(value, int | float) and self.least <= value <= self.most


_GEOMETRY = Range(-GEOMETRY_MAX, GEOMETRY_MAX)
_LENGTH = Range(-LENGTH_MAX, LENGTH_MAX)
_SCALE = Range(1 / SCALE_MAX, SCALE_MAX)

_INTEGERS: Mapping[str, Range] = {
    "conv": _GEOMETRY,
    "avg_pool": _GEOMETRY,
    "max_pool": _GEOMETRY,
    "adaptive_": _GEOMETRY,
    "upsample_": _GEOMETRY,
    "_upsample_": _GEOMETRY,
    "pixel_": _GEOMETRY,
    "channel_shuffle": _GEOMETRY,
    "affine_grid_generator": _GEOMETRY,
    "im2col": _GEOMETRY,
    "col2im": _GEOMETRY,
    "unfold": _LENGTH,
    "pad": _LENGTH,
    "constant_pad": _LENGTH,
    "reflection_pad": _LENGTH,
    "replication_pad": _LENGTH,
    "roll": _LENGTH,
    "fft_": _LENGTH,
    "stft": _LENGTH,
    "istft": _LENGTH,
    "hann_window": _LENGTH,
}
"""What every integer of these operators may be, by how their names begin."""

_SCALED = ("upsample_", "_upsample_")
"""Operators whose floats are scales, by how their names begin."""

_MODES: Mapping[tuple[str, str], tuple[int | None, ...]] = {
    ("grid_sampler.default", "interpolation_mode"): (0, 1, 2),
    ("grid_sampler.default", "padding_mode"): (0, 1, 2),
    ("grid_sampler_2d.default", "interpolation_mode"): (0, 1, 2),
    ("grid_sampler_2d.default", "padding_mode"): (0, 1, 2),
    ("grid_sampler_3d.default", "interpolation_mode"): (0, 1),
    ("grid_sampler_3d.default", "padding_mode"): (0, 1, 2),
    ("embedding_bag.padding_idx", "mode"): (0, 1, 2),
    ("cdist.default", "compute_mode"): (None, 0, 1, 2),
    # No mode, but of the same kind: torch reads a variance without a mean.
    ("instance_norm.default", "running_var"): (None,),
}
"""Arguments that name one of a few things by number: which there are. Names that are strings torch
looks up itself, and says so when there is none."""


def modes_of(operator: str, argument: str) -> tuple[int | None, ...] | None:
    """The values that an argument may have, None when it is no mode."""
    return _MODES.get((operator, argument))


def range_of(operator: str, argument: torch._C.Argument) -> Range | None:
    """What the numbers in an argument may be, None when nobody needs to look."""
    kind = str(argument.real_type)
    if "int" in kind:
        return next((r for name, r in _INTEGERS.items() if operator.startswith(name)), None)
    if "float" in kind and operator.startswith(_SCALED):
        return _SCALE
    return None


def checked_numbers(
    operator: str, schema: torch._C.FunctionSchema, function: Callable[..., Any]
) -> Callable[..., Any]:
    """The operator with its numbers checked in each call. Raises ValueError."""
    ranges = [(i, a.name, range_of(operator, a)) for i, a in enumerate(schema.arguments)]
    bounded = [(i, name, allowed) for i, name, allowed in ranges if allowed is not None]

    def call(*arguments: Any, **keywords: Any) -> Any:
        for i, name, allowed in bounded:
            value = arguments[i] if i < len(arguments) else keywords.get(name)
            if value is not None:
                _check_values(operator, name, allowed, value)
        return function(*arguments, **keywords)

    return call


def _check_values(operator: str, name: str, allowed: Range, value: object) -> None:
    for item in value if isinstance(value, list) else (value,):
        if not allowed.holds(item):
            raise ValueError(out_of_range(operator, name, allowed, item))


def check_literal(operator: str, argument: torch._C.Argument, value: object) -> None:
    """Raise InvalidModel for a literal of a plan that its operator can't be trusted with."""
    modes = modes_of(operator, argument.name)
    if modes is not None and not (value in modes and type(value) in (int, type(None))):
        known = ", ".join("none" if mode is None else str(mode) for mode in modes)
        raise InvalidModel(
            f"{operator}: {argument.name} must be one of {known}, as a literal, got {value!r:.40}"
        )
    allowed = range_of(operator, argument)
    if allowed is not None and value is not None and not allowed.holds(value):
        raise InvalidModel(out_of_range(operator, argument.name, allowed, value))


def out_of_range(operator: str, name: str, allowed: Range, value: object) -> str:
    return f"{operator}: {name} must be from {allowed.least} to {allowed.most}, got {value!r:.40}"
