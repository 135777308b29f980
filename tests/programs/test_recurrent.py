"""Recurrent layers are exported for any length, and regions of other settings as their nodes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpumuxd.programs.exporter import ExportRequest, trace, write_traced
from gpumuxd.programs.recurrent import recurrence_of_any_length
from tests.programs.networks import open_artifact
from tests.programs.test_bit_equality import assert_same, run


class Layers(nn.Module):
    """`dense` asks for the layer's output in one piece, so its strides matter in the export."""

    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y, state = self.layers(x)
        states = state if isinstance(state, tuple) else (state,)
        dense = y.reshape(-1, y.shape[-1]) * 2 + y.flatten(0, 1)
        return {"y": y, "dense": dense, **{f"state_{i}": s for i, s in enumerate(states)}}


LAYERS = {
    "lstm": nn.LSTM(3, 5),
    "lstm, all options": nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True, proj_size=2),
    "gru": nn.GRU(3, 5, 2, bidirectional=True, batch_first=True),
    "gru, no bias": nn.GRU(3, 5, bias=False),
    "rnn": nn.RNN(3, 5, batch_first=True),
    "rnn, relu": nn.RNN(3, 5, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_any_length_is_served_as_the_module_computes_it(name: str, tmp_path: Path) -> None:
    module = Layers(LAYERS[name]).eval()
    batch, length = (0, 1) if LAYERS[name].batch_first else (1, 0)
    dynamic = {"x": {batch: "batch", length: "length"}}
    example = {"x": torch.randn(4, 6, 3)}
    traced = trace(ExportRequest(module, example, dynamic, {"length": (1, 50)}))
    write_traced(traced, tmp_path / "model.pt2")
    model, exported = open_artifact(tmp_path / "model.pt2"), traced.program.module()
    with torch.inference_mode():
        for shape in ((1, 1, 3), (2, 9, 3), (9, 2, 3)):
            x = torch.randn(shape)
            got = run(model.node_program(), [x])
            assert_same([item.contiguous() for item in exported(x=x).values()], got)
            # Of any length: the export must be right, not only be served as it is.
            for want, item in zip(module(x).values(), got, strict=True):
                torch.testing.assert_close(item, want)


def fail_inside(operators: Any, before: list[Any]) -> None:
    with recurrence_of_any_length():
        assert [dict(operator.py_kernels) for operator in operators] != before
        raise ZeroDivisionError


def test_torch_is_left_as_it_was() -> None:
    operators = (torch.ops.aten.lstm.input, torch.ops.aten.rnn_tanh.input)
    before = [dict(operator.py_kernels) for operator in operators]
    with pytest.raises(ZeroDivisionError):
        fail_inside(operators, before)
    assert [dict(operator.py_kernels) for operator in operators] == before


class OtherSettings(nn.Module):
    """As models are written for training: parts without gradients, positions without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        with torch.no_grad():
            largest, where = (y * x.shape[0]).max(1)
        with torch.autocast("cpu", enabled=False):
            with torch.no_grad():
                z = y.relu() + largest[:, None]
            z = self.layer(z)
        return z, where


@pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
def test_regions_of_an_archive_that_torch_wrote_are_served(tmp_path: Path) -> None:
    module, path = OtherSettings().eval(), tmp_path / "model.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    assert any("wrap_with" in str(node.target) for node in program.graph.nodes)
    torch.export.save(program, path)
    model = open_artifact(path)
    with torch.inference_mode():
        for rows in (1, 5):
            x = torch.randn(rows, 4)
            assert_same(list(module(x)), run(model.node_program(), [x]))


def test_our_own_export_has_no_regions_of_gradients() -> None:
    traced = trace(ExportRequest(OtherSettings(), {"x": torch.randn(3, 4)}))
    targets = [str(node.target) for node in traced.program.graph.nodes]
    assert "wrap_with_autocast" in targets
    assert "wrap_with_set_grad_enabled" not in targets
