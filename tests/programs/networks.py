"""Small modules that between them use every form a graph can take, and how to serve one."""

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from gpumuxd.models import plan as plans
from gpumuxd.models.pt2 import Artifact
from gpumuxd.programs.exporter import export_model
from gpumuxd.programs.model import ServedModel


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.layers(x), dim=-1)


class Cnn(nn.Module):
    """A residual block with norms, pooling, in-place activations and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding="same", groups=2)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = nn.functional.relu(self.norm(self.first(image)), inplace=True)
        y = self.second(x)
        y += x
        y = self.pool(nn.functional.silu(y, inplace=True))
        y = nn.functional.interpolate(y, scale_factor=2.0, mode="nearest")
        y = nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)
        return self.head(self.drop(y))


class SpeechCell(nn.Module):
    """As a voice detector: STFT by convolution, an encoder, one LSTM cell, state in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.basis = nn.Buffer(torch.randn(18, 1, 16))
        self.encoder = nn.Conv1d(9, 8, 3, padding=1, stride=2)
        self.cell = nn.LSTMCell(8, 8)
        self.head = nn.Conv1d(8, 1, 1)

    def forward(self, audio: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        padded = nn.functional.pad(audio, (0, 8), mode="reflect")
        spectrum = nn.functional.conv1d(padded.unsqueeze(1), self.basis, stride=8)
        real, imaginary = spectrum[:, :9], spectrum[:, 9:]
        magnitude = torch.sqrt(real**2 + imaginary**2)
        features = torch.relu(self.encoder(magnitude)).mean(-1)
        hidden, cell = self.cell(features, (state[0], state[1]))
        probability = torch.sigmoid(self.head(torch.relu(hidden).unsqueeze(-1)))
        return probability.squeeze(2).mean(dim=1, keepdim=True), torch.stack([hidden, cell])


class UnrolledLstm(nn.Module):
    """The arithmetic of a cell written out, with chunked gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(4 + 6, 24)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> dict[str, Tensor]:
        for t in range(2):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], dim=1)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return {"h": h, "c": c}


class ManyForms(nn.Module):
    """Multi-output nodes, lists, None, literals, sizes as values, tied and strided weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.tied = self.linear.weight
        self.strided = nn.Parameter(torch.randn(3, 5).t())
        self.persistent = nn.Buffer(torch.arange(3.0))
        self.passing = nn.Buffer(torch.ones(2), persistent=False)

    def forward(self, x: Tensor, ids: Tensor) -> dict[str, Tensor]:
        y = self.linear(x) + self.persistent
        a, b = y.split([1, 2], dim=1)
        largest, where = y.max(dim=1)
        first, *_ = y.unbind(1)
        joined = torch.cat([a, b, largest[:, None]], 1) * torch.tensor([1.0, 2.0, -0.0, 4.0])
        positions = torch.arange(ids.shape[1], device=ids.device) + ids
        square = (y.unsqueeze(-1) @ y.unsqueeze(1)).reshape(ids.shape[0] * 3, 3)
        masked = ids.masked_fill(ids > 1, 0).to(torch.float64)
        clamped = torch.clamp(y, min=None, max=0.25)
        filled = torch.full_like(y, float("inf")).where(y > 0, first[:, None])
        return {
            "joined": joined,
            "where": where,
            "positions": positions.float().sum(1),
            "weights": self.tied.sum() + self.strided[1:, 0].sum() + self.passing.sum(),
            "square": square,
            "half": torch.zeros(ids.shape[1] // 2 + 1, dtype=torch.half),
            "masked": masked.cumsum(1),
            "clamped": clamped + filled.clamp(max=9),
            "same": x,
            "sizes": y.new_full((ids.shape[0], 1), torch.sym_max(ids.shape[1] * 2 - 1, 9)),
        }


class Constants(nn.Module):
    """Outputs that are a weight, a view of an input, and one thing twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return self.table, x.transpose(0, 1), y, y


Inputs = Callable[[int], dict[str, Tensor]]


@dataclass(frozen=True)
class Case:
    """A module, example inputs for a batch, and how it is exported."""

    make: Callable[[], nn.Module]
    inputs: Inputs
    dynamic: Mapping[str, Mapping[int, str]] | None = None
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def bert_module() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        attn_implementation="sdpa",
    )
    return Sentence(BertModel(config, add_pooling_layer=False))


class Sentence(nn.Module):
    """Mean-pooled, normalised embeddings, as sentence transformers compute them."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, p=2.0, dim=1)


def tokens(batch: int) -> dict[str, Tensor]:
    """Sequences of another length for every batch, the last one padded."""
    length = 5 + batch
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, 3:] = 0
    return {"input_ids": torch.randint(0, 50, (batch, length)), "attention_mask": mask}


TOKENS = {0: "batch", 1: "tokens"}

CASES: dict[str, Case] = {
    "mlp": Case(Mlp, lambda b: {"x": torch.randn(b, 4)}),
    "cnn": Case(Cnn, lambda b: {"image": torch.randn(b, 3, 8, 8)}),
    "speech": Case(
        SpeechCell,
        lambda b: {"audio": torch.randn(b, 64), "state": torch.randn(2, b, 8)},
        {"audio": {0: "batch"}, "state": {1: "batch"}},
    ),
    "lstm": Case(
        UnrolledLstm,
        lambda b: {"x": torch.randn(b, 2, 4), "h": torch.randn(b, 6), "c": torch.randn(b, 6)},
    ),
    "forms": Case(
        ManyForms,
        lambda b: {"x": torch.randn(b, 4), "ids": torch.randint(0, 4, (b, 4 + b))},
        {"x": {0: "batch"}, "ids": TOKENS},
        {"tokens": (4, 32)},
    ),
    "constants": Case(Constants, lambda b: {"x": torch.randn(b, 3)}),
    "bert": Case(
        bert_module,
        tokens,
        {"input_ids": TOKENS, "attention_mask": TOKENS},
        {"tokens": (2, 32)},
    ),
}


def export(case: Case, path: Path) -> nn.Module:
    torch.manual_seed(7)
    module = case.make().eval()
    export_model(module, case.inputs(2), path, dynamic=case.dynamic, sizes=case.sizes)
    return module


def open_artifact(path: Path) -> ServedModel:
    """What loader and device child do, without the processes."""
    with path.open("rb") as file:
        artifact = Artifact(file)
        # Mapped, as the child has it: at a page's start, as kernels may sum otherwise elsewhere.
        weights = mmap.mmap(-1, artifact.weights_bytes)
        artifact.write_weights(weights.write)
    return ServedModel.open(plans.encode(artifact.plan), weights)
