"""Operators that torch does not check well enough: what a hostile argument could do is ruled out
before the call. Those that need their sizes compared are in `guarded_shapes.py` and
`guarded_recurrent.py`, numbers that may be literals in `bounds.py`. It must not know plans.

Each function takes what torch's operator takes, raises IndexError or TypeError for what would leave
a tensor's memory, and otherwise returns what torch returns.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gpumuxd.programs.guarded_recurrent import GUARDED_RECURRENT
from gpumuxd.programs.guarded_shapes import checked_attention, checked_batch_norm

_chunk = torch.ops.aten.chunk.default._op
_split = torch.ops.aten.split.Tensor._op
_tensor_split = torch.ops.aten.tensor_split.sections._op
_unbind = torch.ops.aten.unbind.int._op
_embedding_bag = torch.ops.aten.embedding_bag.padding_idx._op
_weight_norm = torch.ops.aten._weight_norm.default._op
_div = torch.ops.aten.div.Tensor_mode._op


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


def _checked_weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """torch 2.13 checks neither sizes nor types, and reads as many lengths as there are rows."""
    direction, length = v, g
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


PIECES_MAX = 4096
"""Views that one call may return, as many as a node may have results. Each is a Python object made
under the GIL: a million of them stop the device loop for seconds, and the parent kills it."""


def _check_pieces(count: int) -> None:
    if count > PIECES_MAX:
        raise ValueError(f"{count} pieces of one tensor, at most {PIECES_MAX} are allowed")


def _checked_unbind(self: Tensor, dim: int = 0) -> Any:
    _check_pieces(self.shape[dim] if self.ndim else 0)
    return _unbind(self, dim)


def _checked_split(self: Tensor, split_size: int, dim: int = 0) -> Any:
    _check_pieces(self.shape[dim] // split_size if self.ndim and split_size > 0 else 0)
    return _split(self, split_size, dim)


def _checked_chunk(self: Tensor, chunks: int, dim: int = 0) -> Any:
    _check_pieces(min(chunks, self.shape[dim]) if self.ndim else 0)
    return _chunk(self, chunks, dim)


def _checked_tensor_split(self: Tensor, sections: int, dim: int = 0) -> Any:
    _check_pieces(sections)
    return _tensor_split(self, sections, dim)


_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)


def _checked_div(self: Tensor, other: Tensor | float, *, rounding_mode: str | None) -> Any:
    """The least integer divided by -1 is a trap of the CPU that ends the process (torch 2.13, with
    truncation). Whatever is divided by -1 is negated instead, which wraps as torch's `neg` does."""
    if rounding_mode == "trunc" and self.dtype in _SIGNED:
        if not isinstance(other, Tensor):
            if other == -1 and isinstance(other, int):
                return self.neg()
        elif other.dtype in _SIGNED:
            is_negated = other == -1
            divided = _div(self, other.masked_fill(is_negated, 1), rounding_mode=rounding_mode)
            # Where nothing is negated this gives `divided`, whose type is that of both operands.
            return torch.where(is_negated, divided.neg(), divided)
    return _div(self, other, rounding_mode=rounding_mode)


GUARDED: Mapping[str, Callable[..., Any]] = {
    "aten.chunk.default": _checked_chunk,
    "aten.split.Tensor": _checked_split,
    "aten.tensor_split.sections": _checked_tensor_split,
    "aten.unbind.int": _checked_unbind,
    "aten._native_batch_norm_legit_no_training.default": checked_batch_norm,
    "aten._weight_norm.default": _checked_weight_norm,
    "aten.div.Tensor_mode": _checked_div,
    "aten.embedding_bag.padding_idx": _checked_embedding_bag,
    "aten.scaled_dot_product_attention.default": checked_attention,
    **GUARDED_RECURRENT,
}
"""By the plan's name."""
