"""Both clients behind one way to call them, against a front door with a node in memory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gpumuxd_client import AsyncClient, Client

from tests.rpc.fake_node import FakeNode, fake_node
from tests.rpc.front import Front, open_front


class AnyClient:
    """Awaits the same method of either client; the blocking one runs in a thread."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    async def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        function = getattr(self.client, method)
        if isinstance(self.client, AsyncClient):
            return await function(*arguments, **options)
        return await asyncio.to_thread(function, *arguments, **options)


CLIENTS: dict[str, type[Client] | type[AsyncClient]] = {"blocking": Client, "async": AsyncClient}


@pytest.fixture
def node() -> FakeNode:
    return fake_node()


@pytest.fixture
async def front(node: FakeNode, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(node, tmp_path) as opened:
        yield opened


@pytest.fixture(params=CLIENTS)
def client_class(request: pytest.FixtureRequest) -> type[Client] | type[AsyncClient]:
    return CLIENTS[request.param]


@pytest.fixture
async def client(
    front: Front, client_class: type[Client] | type[AsyncClient]
) -> AsyncIterator[AnyClient]:
    call = AnyClient(client_class(front.target))
    yield call
    await call("close")
