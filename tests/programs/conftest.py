"""One compute thread, and every small model exported once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.programs.networks import CASES, export

# As a CPU device has by default: on a busy machine two threads would spin for each other.
torch.set_num_threads(1)

Exported = Callable[[str], tuple[nn.Module, Path]]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A case's module and its artifact, which no test may change."""
    made: dict[str, tuple[nn.Module, Path]] = {}

    def get(name: str) -> tuple[nn.Module, Path]:
        if name not in made:
            path = tmp_path_factory.mktemp(name) / "model.pt2"
            made[name] = export(CASES[name], path), path
        return made[name]

    return get
