"""Operators that torch does not check well enough: what a hostile argument could do is ruled out
before the call. It must not know plans.

Each function takes what torch's operator takes, raises IndexError for what would leave a tensor's
memory, and otherwise returns what torch returns.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_embedding_bag = torch.ops.aten.embedding_bag.padding_idx._op


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


GUARDED: Mapping[str, Callable[..., Any]] = {
    "aten.embedding_bag.padding_idx": _checked_embedding_bag,
}
"""By the plan's name."""
