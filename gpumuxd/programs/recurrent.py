"""Recurrent layers of any length through torch.export.

To find the shapes that a recurrent layer gives, torch.export runs it step by step in Python, which
fixes the number of steps at the example's. The graph that comes out holds the layer as one call
either way, so only the shapes matter; here they are stated instead. torch's own remedy
(`torch.export._patches`) traces a loop as an operator, which takes ten seconds a layer.

It must not know of a module: it holds for whatever is exported inside the block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

_KEY = DispatchKey.CompositeImplicitAutograd


@contextmanager
def recurrence_of_any_length() -> Iterator[None]:
    """Inside it torch learns the shapes of recurrent layers from the functions below."""
    shapes: dict[torch._ops.OpOverload, Callable[..., Any]] = {
        torch.ops.aten.lstm.input: _lstm,
        torch.ops.aten.gru.input: _one_state,
        torch.ops.aten.rnn_tanh.input: _one_state,
        torch.ops.aten.rnn_relu.input: _one_state,
    }
    before = {operator: operator.py_kernels.get(_KEY) for operator in shapes}
    try:
        for operator, shape in shapes.items():
            _set_kernel(operator, shape)
        yield
    finally:
        for operator, kernel in before.items():
            _set_kernel(operator, kernel)


def _set_kernel(operator: torch._ops.OpOverload, kernel: Callable[..., Any] | None) -> None:
    if kernel is None:
        operator.py_kernels.pop(_KEY, None)
    else:
        operator.py_kernels[_KEY] = kernel
    # What torch found for the operator earlier is kept apart, and would win.
    operator._dispatch_cache.clear()


def _lstm(
    input: Tensor,  # torch passes some of these by name
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    hidden, cell = hx
    output = _output(input, hidden, bidirectional, batch_first)
    return output, torch.empty_like(hidden), torch.empty_like(cell)


def _one_state(
    input: Tensor,  # torch passes some of these by name
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    return _output(input, hx, bidirectional, batch_first), torch.empty_like(hx)


def _output(input: Tensor, hidden: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    """Steps lie in front in memory, also where the batch is in front in the shape."""
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    if not batch_first:
        return input.new_empty((*input.shape[:2], width))
    return input.new_empty((input.shape[1], input.shape[0], width)).transpose(0, 1)
