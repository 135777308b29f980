"""The models that daemons serve in these tests, exported once."""

from pathlib import Path

import pytest

from tests.node.artifacts import export_busy, export_tiny


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` takes no time, `busy` some milliseconds. Nothing in it may be changed."""
    path = tmp_path_factory.mktemp("repository")
    export_tiny(path / "tiny" / "1" / "model.pt2")
    export_busy(path / "busy" / "1" / "model.pt2")
    return path
