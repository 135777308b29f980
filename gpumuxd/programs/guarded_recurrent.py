"""Recurrent operators, with the sizes of all their arguments compared before the call.

torch 2.13 gives float32 LSTMs to oneDNN by the sizes that the first weights name, and oneDNN writes
beyond states and weights that are smaller (the heap was corrupted, measured). It must not know
plans. Parameters are named as in torch's schemas; IndexError or TypeError says what differs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_lstm = _aten.lstm.input._op
_lstm_cell = _aten.lstm_cell.default._op


def checked_lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """What comes out may be narrower than the cells are: then a layer has a projection."""
    if len(hx) != 2:
        raise IndexError(f"an LSTM takes 2 states, got {len(hx)}")
    hidden, cell = hx
    _check_layers(
        input, hidden, cell, params, 4, has_biases, num_layers, bidirectional, batch_first
    )
    return _lstm(
        input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
    )


def _checked_layers(gates: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        input: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        _check_layers(
            input, hx, hx, params, gates, has_biases, num_layers, bidirectional, batch_first
        )
        return function(
            input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )

    return call


def _check_layers(
    input: Tensor,
    hidden: Tensor,
    cell: Tensor,
    params: Sequence[Tensor],
    gates: int,
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> None:
    if input.ndim != 3 or hidden.ndim != 3 or cell.ndim != 3:
        raise IndexError("a recurrent layer takes an input and states of 3 dimensions")
    directions = 2 if bidirectional else 1
    width, projected = cell.shape[2], hidden.shape[2]
    rows, batch = directions * num_layers, input.shape[0 if batch_first else 1]
    expect("the state", hidden, input, (rows, batch, projected))
    expect("the cells' state", cell, input, (rows, batch, width))
    a_cell: list[tuple[int, ...]] = [(gates * width, projected)]
    if has_biases:
        a_cell += [(gates * width,), (gates * width,)]
    if projected != width:
        a_cell += [(projected, width)]
    if num_layers < 1 or len(params) != rows * (1 + len(a_cell)):
        raise IndexError(f"{rows} recurrent cells have {len(params)} weights, each takes "
                         f"{1 + len(a_cell)}")  # fmt: skip
    weights = iter(params)
    size = input.shape[2]
    for _ in range(num_layers):
        for _ in range(directions):
            for shape in ((gates * width, size), *a_cell):
                expect("a weight", next(weights), input, shape)
        size = projected * directions


def checked_lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    if len(hx) != 2:
        raise IndexError(f"an LSTM takes 2 states, got {len(hx)}")
    for state in hx:
        _check_cell(input, state, w_ih, w_hh, b_ih, b_hh, 4)
    return _lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh)


def _checked_cell(gates: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        input: Tensor,
        hx: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        _check_cell(input, hx, w_ih, w_hh, b_ih, b_hh, gates)
        return function(input, hx, w_ih, w_hh, b_ih, b_hh)

    return call


def _check_cell(
    input: Tensor,
    state: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    gates: int,
) -> None:
    if input.ndim != 2 or state.ndim != 2:
        raise IndexError("a recurrent cell takes an input and states of 2 dimensions")
    width = state.shape[1]
    expect("the state", state, input, (input.shape[0], width))
    expect("a weight", w_ih, input, (gates * width, input.shape[1]))
    expect("a weight", w_hh, input, (gates * width, width))
    for bias in (b_ih, b_hh):
        if bias is not None:
            expect("a bias", bias, input, (gates * width,))


def expect(what: str, tensor: Tensor, input: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless a tensor has this shape and the input's type."""
    if tensor.shape != shape:
        raise IndexError(
            f"recurrent layer: {what} has shape {list(tensor.shape)}, expected {list(shape)} for "
            f"an input of shape {list(input.shape)}"
        )
    if tensor.dtype != input.dtype:
        raise TypeError(f"recurrent layer: {what} is {tensor.dtype}, the input {input.dtype}")


GUARDED_RECURRENT: Mapping[str, Callable[..., Any]] = {
    "aten.lstm.input": checked_lstm,
    "aten.gru.input": _checked_layers(3, _aten.gru.input._op),
    "aten.rnn_relu.input": _checked_layers(1, _aten.rnn_relu.input._op),
    "aten.rnn_tanh.input": _checked_layers(1, _aten.rnn_tanh.input._op),
    "aten.lstm_cell.default": checked_lstm_cell,
    "aten.gru_cell.default": _checked_cell(3, _aten.gru_cell.default._op),
    "aten.rnn_relu_cell.default": _checked_cell(1, _aten.rnn_relu_cell.default._op),
    "aten.rnn_tanh_cell.default": _checked_cell(1, _aten.rnn_tanh_cell.default._op),
}
"""By the plan's name."""
