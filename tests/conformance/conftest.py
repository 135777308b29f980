"""One daemon for all tests here, with models that take no time, some, and one for sequences."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon, Site
from tests.node.artifacts import export_busy, export_tiny


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, Daemon]]:
    """`tiny` and `busy`, loaded, on a Unix socket and on TCP, with shared memory."""
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    repository = directory / "repository"
    export_tiny(repository / "tiny" / "1" / "model.pt2")
    export_busy(repository / "busy" / "1" / "model.pt2")
    shared = "[shared_memory]\nallow = true\n"
    site = Site(directory, repository, more_tables=shared)
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        yield site, daemon
    shutil.rmtree(directory)
