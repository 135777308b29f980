"""What tests of several folders share: the event loop of the daemon, and short socket paths."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test on the loop that the daemon uses, so that it meets its habits."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A folder for Unix sockets. A socket's path has at most 107 bytes, pytest's own are longer."""
    path = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)
