"""One daemon for all faults: what a test breaks is whole again when the next one comes."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.rig import Rig
from tests.faults.small_disk import small_disk


@pytest.fixture(scope="session")
async def rig() -> AsyncIterator[Rig]:
    folder = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    with small_disk(folder / "state"):
        async with Rig.running(folder) as rig:
            yield rig
    shutil.rmtree(folder)
