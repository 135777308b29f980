"""A front door over a Unix socket, in front of a node in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.rpc.fake_node import FakeNode, fake_node
from tests.rpc.front import Front, open_front


@pytest.fixture
def node() -> FakeNode:
    return fake_node()


@pytest.fixture
async def front(node: FakeNode, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(node, tmp_path) as opened:
        yield opened


@pytest.fixture
async def channel(front: Front) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(front.target) as opened:
        yield opened


@pytest.fixture
async def shared(front: Front) -> AsyncIterator[grpc.aio.Channel]:
    """The listener that belongs to nobody."""
    async with grpc.aio.insecure_channel(front.shared) as opened:
        yield opened
