"""At which sizes a model is measured, and with what inputs. For models of every kind."""

from collections.abc import Mapping, Sequence

import torch

from gpumuxd.domain import Bucket
from gpumuxd.models.spec import ModelSpec

_EXAMPLE_VALUE = 0.05
"""What floats of example inputs hold: small, and not zero, so that no kernel takes a short cut."""


def profile_buckets(spec: ModelSpec, size_hints: Sequence[int], batch_max: int) -> list[Bucket]:
    """Buckets to measure: batches of powers of two, other sizes as in the example inputs.

    The largest batch is `batch_max`, or the model's own maximum where that is smaller. A model that
    takes none of these sizes is measured at those of the example inputs.
    """
    sizes = {
        symbol.name: min(max(hint, symbol.minimum), symbol.maximum)
        for symbol, hint in zip(spec.symbols, size_hints, strict=True)
    }
    return [bucket for bucket in _buckets(spec, sizes, batch_max) if _is_taken(spec, bucket)] or [
        tuple(sizes[symbol.name] for symbol in spec.symbols)
    ]


def _is_taken(spec: ModelSpec, bucket: Bucket) -> bool:
    names = (symbol.name for symbol in spec.symbols)
    return spec.unmet(dict(zip(names, bucket, strict=True))) is None


def _buckets(spec: ModelSpec, sizes: Mapping[str, int], batch_max: int) -> list[Bucket]:
    batch = next((s for s in spec.symbols if s.name == spec.batch_symbol), None)
    if batch is None:
        return [spec.bucket(sizes)]
    top = min(batch_max, batch.maximum)
    powers = [batch.multiple << i for i in range(top.bit_length())]
    batches = [size for size in powers if batch.minimum <= size <= top]
    if top == batch.maximum and top not in batches:
        batches.append(top)
    # A model whose smallest batch is above batch_max still gets one bucket.
    return [spec.bucket({**sizes, batch.name: size}) for size in batches or [batch.minimum]]


def example(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    fill: float | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """An input of this shape, filled. Without a `fill`: 0 for integers (valid for every table),
    True for masks."""
    if fill is None:
        fill = _EXAMPLE_VALUE if dtype.is_floating_point else float(dtype is torch.bool)
    value = fill if dtype.is_floating_point else int(fill)
    return torch.full(shape, value, dtype=dtype, device=device)
