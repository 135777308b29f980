"""Writes the archives of one torch version: `python make.py FOLDER [CASE ...]`, with that torch.

Three small modules exported with torch alone, as somebody would who has never heard of this daemon,
each with inputs of another size than it was exported with and the outputs that torch gave for them.
The folder is named after the version. It needs numpy, and nothing of this project. torch 2.10 can't
export `attention`: its solver of constraints gives up on the strided length.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

BATCH = torch.export.Dim("batch", min=1, max=64)
LENGTH = torch.export.Dim("length", min=8, max=64)


class Mlp(nn.Module):
    """Dense layers, one weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.second(torch.relu(self.first(x))), dim=-1)


class Attention(nn.Module):
    """A strided convolution and attention over what it leaves of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.mix = nn.Linear(8, 24)

    def forward(self, sound: Tensor) -> Tensor:
        x = nn.functional.gelu(self.norm(self.conv(sound))).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(*self.mix(x).chunk(3, dim=-1))
        return (x + y).mean(1)


class Features(nn.Module):
    """Nested inputs and outputs, literals, data types, views written to, arithmetic on sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.strided = nn.Parameter(torch.randn(3, 4).t())
        self.scale = nn.Buffer(torch.tensor(2.0, dtype=torch.float64))
        self.passing = nn.Buffer(torch.arange(3, dtype=torch.int8), persistent=False)
        self.weights = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))

    def forward(
        self, feats: Mapping[str, Tensor], pair: Sequence[Tensor], flag: bool, bias: Any = None
    ) -> dict[str, Any]:
        image, ids = feats["image"], feats["ids"]
        y = image @ self.strided
        column = y[:, 0]
        column.add_(1)
        y[:, 1:].mul_(self.weights.float()[1:])
        if flag:
            y = y + self.passing
        if bias is not None:
            y = y + bias
        length = ids.shape[1]
        joined = torch.cat([y, pair[0].to(torch.float32)], 1)
        positions = torch.arange(length) + ids
        return {
            "scores": (y, [joined * length, joined / (2 * length + 1)]),
            "ids": positions[:, 1:-1],
            "half": torch.zeros(length // 2),
            "mask": pair[1] & (ids > 1),
            "mean": y.double().mean() * self.scale,
            "padded": nn.functional.pad(positions, (0, (8 - length % 8) % 8)),
            "table": torch.zeros(torch.sym_max(length, 16)) + torch.tensor([0.5]),
        }


def cases() -> dict[str, tuple[nn.Module, tuple[Any, ...], Any, tuple[Any, ...]]]:
    """Module, example inputs, their dynamic dimensions, and the inputs to run with."""

    def features(batch: int, length: int) -> tuple[Any, ...]:
        ids = torch.randint(0, 4, (batch, length))
        feats = {"image": torch.randn(batch, 4), "ids": ids}
        pair = (torch.randn(batch, 2).half(), torch.rand(batch, length) > 0.5)
        return feats, pair, True, None

    sequence = {0: BATCH, 1: LENGTH}
    return {
        "mlp": (Mlp(), (torch.randn(2, 4),), ({0: BATCH},), (torch.randn(5, 4),)),
        "attention": (
            Attention(),
            (torch.randn(2, 3, 16),),
            ({0: BATCH, 2: LENGTH},),
            (torch.randn(3, 3, 21),),
        ),
        "features": (
            Features(),
            features(2, 12),
            ({"image": {0: BATCH}, "ids": sequence}, ({0: BATCH}, sequence), None, None),
            features(3, 21),
        ),
    }


def leaves(value: Any) -> list[Tensor]:
    """The tensors in a nested value, in the order that torch flattens it."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        return []
    return [leaf for item in items for leaf in leaves(item)]


def main(folder: Path, wanted: Sequence[str]) -> None:
    """Writes `<case>.pt2` and `<case>.npz`."""
    warnings.simplefilter("ignore")  # about torch's own future
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    for name, (module, example, dynamic, given) in cases().items():
        if wanted and name not in wanted:
            continue
        module.eval()
        program = torch.export.export(module, example, dynamic_shapes=dynamic, strict=False)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # names the folders of who ran this, at length
        torch.export.save(program, folder / f"{name}.pt2")
        arrays = {f"in_{i}": leaf.numpy() for i, leaf in enumerate(leaves(given))}
        with torch.no_grad():
            results = leaves(module(*given))
        arrays |= {f"out_{i}": leaf.numpy() for i, leaf in enumerate(results)}
        np.savez_compressed(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
