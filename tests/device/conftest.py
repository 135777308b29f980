"""Small real models, exported once, and one device child that tests of ordinary requests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpumuxd.programs.exporter import export_model
from tests.device.support import DeviceChild, LoadedArtifact, read_artifact


class Mlp(torch.nn.Module):
    """A few small layers: a run takes well under a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Slow(torch.nn.Module):
    """Many kernel groups of some milliseconds: a run takes some 50 ms on one core."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(512, 512) / 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(16):
            x = torch.tanh(torch.matmul(x, self.weight))
        return x


class Lookup(torch.nn.Module):
    """Fails on the device for an index that its table does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.table(index)
        return rows, rows.sum(1)


def make(module: type[torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(7)
    return module().eval()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="session")
def mlp(folder: Path) -> LoadedArtifact:
    export_model(make(Mlp), {"x": torch.randn(2, 32)}, folder / "mlp.pt2")
    return read_artifact(folder / "mlp.pt2")


@pytest.fixture(scope="session")
def slow(folder: Path) -> LoadedArtifact:
    export_model(make(Slow), {"x": torch.randn(2, 256, 512)}, folder / "slow.pt2", batch_max=2)
    return read_artifact(folder / "slow.pt2")


@pytest.fixture(scope="session")
def lookup(folder: Path) -> LoadedArtifact:
    export_model(make(Lookup), {"index": torch.zeros(2, dtype=torch.int64)}, folder / "l.pt2")
    return read_artifact(folder / "l.pt2")


@pytest.fixture(scope="session")
def child(
    mlp: LoadedArtifact, slow: LoadedArtifact, lookup: LoadedArtifact
) -> Iterator[DeviceChild]:
    """A child with `mlp/1`, `slow/1` and `lookup/1`; tests leave it idle."""
    with DeviceChild() as child:
        child.wait_started()
        child.load(mlp, "mlp/1")
        child.load(slow, "slow/1")
        child.load(lookup, "lookup/1")
        yield child
        assert child.stop()[0] == 0
