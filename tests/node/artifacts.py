"""Real artifacts for tests that run real children: small, and exported in a second."""

from pathlib import Path

import torch

from gpumuxd.programs.exporter import export_model


class Tiny(torch.nn.Module):
    """y = 2 x + 1, n = the sum of each row."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + 1, x.sum(dim=1)


class Busy(torch.nn.Module):
    """Some milliseconds of matrix products on one core."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(384))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.unsqueeze(1) * x.unsqueeze(2)
        for _ in range(6):
            y = y @ self.weight
        return y.sum(dim=2)


def export_tiny(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    export_model(Tiny(), {"x": torch.zeros(2, 4)}, path, batch_max=4, output_names=("y", "n"))


def export_busy(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    example = {"x": torch.zeros(2, 384)}
    export_model(Busy(), example, path, batch_max=2, output_names=("y",))
