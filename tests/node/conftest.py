"""What tests of the node share."""

from pathlib import Path

import pytest

from tests.node.fakes import add_model
from tests.node.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    add_model(tmp_path / "models", "m")
    return World(tmp_path / "models")
