"""Operators that torch runs without comparing the sizes of their arguments: here they are compared.

Found with an allocator whose tensors end at a forbidden page: with sizes that differ, each of these
reads or writes what lies behind a tensor, which is another request's. It must not know plans.

Parameters are named as in torch's schemas. Each function raises IndexError for what would leave a
tensor's memory, and otherwise returns what torch returns.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

_attention = torch.ops.aten.scaled_dot_product_attention.default._op
_batch_norm = torch.ops.aten._native_batch_norm_legit_no_training.default._op


def checked_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """`batch_norm` compares the sizes and this, which it calls, does not (torch 2.13)."""
    shape = input.shape
    expected = shape[1:2]  # one number a channel
    if (
        len(shape) < 2
        or running_mean.shape != expected
        or running_var.shape != expected
        or (weight is not None and weight.shape != expected)
        or (bias is not None and bias.shape != expected)
    ):
        raise IndexError(
            f"batch norm of shape {list(shape)}: weight, bias, mean and variance must have one "
            "number for each of its channels"
        )
    return _batch_norm(input, weight, bias, running_mean, running_var, momentum, eps)


def checked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *arguments: Any,
    enable_gqa: bool = False,
    **keywords: Any,
) -> Any:
    """torch 2.13 follows as many keys as there are values, in float32 and float64."""
    mask = None if attn_mask is None else attn_mask.shape
    _check_attention(query.shape, key.shape, value.shape, mask, enable_gqa)
    if enable_gqa:
        keywords["enable_gqa"] = True
    # Only what was given: torch takes a microsecond to look through the rest.
    return _attention(query, key, value, attn_mask, *arguments, **keywords)


@lru_cache(maxsize=1024)  # models have few shapes, and comparing takes longer than finding one
def _check_attention(
    q: torch.Size, k: torch.Size, v: torch.Size, mask: torch.Size | None, is_grouped: bool
) -> None:
    if len(q) < 2 or len(k) < 2 or len(v) < 2 or k[-2] != v[-2] or q[-1] != k[-1]:
        raise _attention_error(q, k, v, "one value for each key, and keys as wide as queries")
    if is_grouped:
        _check_groups(q, k, v)
    else:
        _broadcast(q, k, v)
    if mask is not None:
        _check_mask(mask, q, k, v, is_grouped)


def _check_groups(q: torch.Size, k: torch.Size, v: torch.Size) -> None:
    """Heads of keys and values serve several heads of queries each."""
    is_divided = len(q) >= 3 and len(q) == len(k) == len(v) and q[:-3] == k[:-3] == v[:-3]
    if not is_divided or any(not s[-3] or q[-3] % s[-3] for s in (k, v)):
        raise _attention_error(q, k, v, "heads of queries that heads of keys and values divide")


def _check_mask(
    mask: torch.Size, q: torch.Size, k: torch.Size, v: torch.Size, is_grouped: bool
) -> None:
    batch = q[:-2] if is_grouped else _broadcast(q, k, v)
    weights = (*batch, q[-2], k[-2])
    if len(mask) > len(weights) or any(
        size not in (1, weight) for size, weight in zip(mask[::-1], weights[::-1], strict=False)
    ):
        raise _attention_error(q, k, v, f"a mask that fits {list(weights)}, got {list(mask)}")


def _broadcast(q: torch.Size, k: torch.Size, v: torch.Size) -> Sequence[int]:
    """torch computes attention of batches that differ with matmul, which checks for itself."""
    shapes = (q[:-2], k[:-2], v[:-2])
    sizes: list[int] = []
    for column in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        different = set(column) - {1}
        if len(different) > 1:
            raise _attention_error(q, k, v, "batches that fit each other")
        sizes.append(different.pop() if different else 1)
    return sizes[::-1]


def _attention_error(q: torch.Size, k: torch.Size, v: torch.Size, expected: str) -> IndexError:
    return IndexError(
        f"attention of queries {list(q)}, keys {list(k)}, values {list(v)}: expected {expected}"
    )
