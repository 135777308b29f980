"""Operators that torch does not check well enough: what a hostile argument could do is ruled out
before the call. It must not know plans.

Each function takes what torch's operator takes, raises IndexError or TypeError for what would leave
a tensor's memory, and otherwise returns what torch returns.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_embedding_bag = torch.ops.aten.embedding_bag.padding_idx._op
_weight_norm = torch.ops.aten._weight_norm.default._op


def _checked_embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, *arguments: Any, **keywords: Any
) -> Any:
    """torch 2.13 checks indices, and the first and the last offset. It follows no offsets at all,
    and offsets that fall, out of the table (a segmentation fault, measured)."""
    if offsets.ndim != 1 or offsets.shape[0] == 0:
        raise IndexError(f"expected a row of offsets, got shape {list(offsets.shape)}")
    if bool((offsets[1:] < offsets[:-1]).any()):
        raise IndexError("the offsets of bags fall")
    if int(offsets[0]) < 0 or int(offsets[-1]) > indices.numel():
        raise IndexError(
            f"offsets of {int(offsets[0])} to {int(offsets[-1])} for {indices.numel()} indices"
        )
    return _embedding_bag(weight, indices, offsets, *arguments, **keywords)


def _checked_weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Any:
    """torch 2.13 checks neither sizes nor types, and reads as many lengths as there are rows."""
    expected = [1] * direction.ndim
    if -direction.ndim <= dim < direction.ndim:
        expected[dim] = direction.shape[dim]
    # A dim of -1 is "none" to torch and a row's last here: only one length would be left to read.
    if direction.ndim == 0 or dim < 0 or list(length.shape) != expected:
        raise IndexError(
            f"a weight of shape {list(direction.shape)} needs lengths of shape {expected} along "
            f"a dimension from 0, got {list(length.shape)} along {dim}"
        )
    if not direction.is_floating_point() or length.dtype != direction.dtype:
        raise TypeError(f"lengths of {length.dtype} for a weight of {direction.dtype}")
    return _weight_norm(direction, length, dim)


GUARDED: Mapping[str, Callable[..., Any]] = {
    "aten._weight_norm.default": _checked_weight_norm,
    "aten.embedding_bag.padding_idx": _checked_embedding_bag,
}
"""By the plan's name."""
