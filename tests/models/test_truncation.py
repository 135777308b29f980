"""A file that somebody cuts or rewrites while it is read gives a clear error and nothing else.

That it was changed is told by who opened it (`node/loading.py`); here nothing may crash."""

import os
from pathlib import Path

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.pt2 import Artifact
from tests.models import archives

GOOD = archives.archive(archives.members()).getvalue()
PARTS = 16


def weights(path: Path, size_before: int, size_between: int) -> bytes | None:
    """The weights of an artifact that is cut before its graph is read, and again before its
    weights are; None for one that is refused."""
    image = bytearray()
    # Unbuffered, else a file this small is in memory before it is cut.
    with path.open("rb", buffering=0) as file:
        os.truncate(path, size_before)
        try:
            artifact = Artifact(file)  # type: ignore[arg-type]  # reads alike
            os.truncate(path, size_between)
            artifact.write_weights(image.extend)
        except InvalidModel:
            return None
    return bytes(image)


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    sizes = [len(GOOD) * part // PARTS for part in range(PARTS)]
    path.write_bytes(GOOD)
    whole = weights(path, len(GOOD), len(GOOD))
    assert whole
    cut = []
    for size in sizes:
        path.write_bytes(GOOD)
        assert weights(path, size, size) is None
        path.write_bytes(GOOD)
        cut.append(weights(path, len(GOOD), size))
    # Where the weights lie before the cut they are the right ones.
    assert set(cut) == {None, whole}


def test_bytes_that_change_under_it(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(GOOD)
    with path.open("rb", buffering=0) as file:
        artifact = Artifact(file)  # type: ignore[arg-type]  # as above
        path.write_bytes(bytes(len(GOOD)))
        with pytest.raises(InvalidModel):
            artifact.write_weights(lambda piece: None)
