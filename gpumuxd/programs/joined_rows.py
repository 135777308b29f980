"""Do rows that run together come out as they do alone? Inputs to find out with, and the comparison.

A model can mix its rows: a sum over the batch, a norm by it. And a sentence that is padded can come
out otherwise, if nothing masks what was added. Neither shows in a signature, so two different rows
are run alone and together. Kernels round otherwise with other sizes, so floats may differ by a
small part of the largest value. It must not know how a program is run.
"""

from collections.abc import Mapping, Sequence

import torch

from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.programs.operators import DTYPES

SEED = 20_260

_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
_TOLERANCE_ELSE = 1e-4
"""Of the largest value of an output. Sums in another order differ by a hundredth of that, a row
that others had a part in by a hundred times as much."""


def varied_inputs(
    spec: ModelSpec, sizes: Mapping[str, int], number: int, integer_end: int
) -> list[torch.Tensor]:
    """Inputs of these sizes that differ from those of another number. Integers are below
    `integer_end`: 2 is valid for nearly every table, 1 for all."""
    generator = torch.Generator().manual_seed(SEED + number)
    return [
        _varied(
            evaluate_shape(tensor.shape, sizes), DTYPES[tensor.datatype], generator, integer_end
        )
        for tensor in spec.inputs
    ]


def _varied(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, integer_end: int
) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(list(shape), generator=generator).to(dtype)
    end = 2 if dtype is torch.bool else integer_end
    return torch.randint(end, list(shape), generator=generator).to(dtype)


def regions(spec: ModelSpec, sizes: Mapping[str, int]) -> list[torch.Tensor]:
    """Room for the outputs of a run at these sizes."""
    return [
        torch.empty(evaluate_shape(tensor.shape, sizes), dtype=DTYPES[tensor.datatype])
        for tensor in spec.outputs
    ]


def difference(alone: torch.Tensor, together: torch.Tensor) -> tuple[float, str]:
    """By how much of its largest value an output differs, and why that is too much, if it is."""
    if alone.shape != together.shape:
        return 0.0, f"has shape {list(together.shape)}, alone {list(alone.shape)}"
    if not alone.is_floating_point():
        count = int((alone != together).sum())
        return 0.0, f"differs in {count} of {alone.numel()} values" if count else ""
    left, right = alone.double(), together.double()
    differs = (left != right) & ~(left.isnan() & right.isnan())
    if not differs.any():
        return 0.0, ""
    finite = left[left.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    worst = float((left - right)[differs].abs().max())
    part = worst / largest if largest else float("inf")
    limit = _TOLERANCE.get(alone.dtype, _TOLERANCE_ELSE)
    if not part <= limit:  # also NaN
        return part, f"differs by {part:.2g} of its largest value, {limit:g} is allowed"
    return part, ""
