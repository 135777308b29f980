"""Regions of shared memory over the wire: who sees which, what is refused, and CUDA's."""

import os
from collections.abc import Awaitable, Iterator
from pathlib import Path

import grpc
import pytest

from gpumuxd.node.settings import SharedMemorySettings
from gpumuxd.node.shared_memory import SharedMemory
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.rpc.generated import inference_pb2 as pb
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import CAMERA_TOKEN, Front, ask, open_front

SERVICE = "/inference.GRPCInferenceService"
STATUS = f"{SERVICE}/SystemSharedMemoryStatus"
REGISTER = f"{SERVICE}/SystemSharedMemoryRegister"
UNREGISTER = f"{SERVICE}/SystemSharedMemoryUnregister"
METADATA = f"{SERVICE}/ServerMetadata"

Register = pb.SystemSharedMemoryRegisterRequest
Unregister = pb.SystemSharedMemoryUnregisterRequest
BEARER = (("authorization", f"Bearer {CAMERA_TOKEN}"),)


@pytest.fixture
def key() -> Iterator[str]:
    """An object of 100 bytes, whose name is not like those that others count the open ones of."""
    name = f"gpumuxd-wire-test-{os.getpid()}"
    path = Path("/dev/shm") / name
    path.write_bytes(bytes(100))
    yield f"/{name}"
    path.unlink()


async def status(channel: grpc.aio.Channel, name: str = "") -> dict[str, tuple[str, int, int]]:
    request = pb.SystemSharedMemoryStatusRequest(name=name)
    answer = await ask(channel, STATUS, request, pb.SystemSharedMemoryStatusResponse)
    assert all(name == region.name for name, region in answer.regions.items())
    return {name: (r.key, r.offset, r.byte_size) for name, r in answer.regions.items()}


async def register(
    channel: grpc.aio.Channel, name: str, key: str, offset: int, size_bytes: int
) -> None:
    request = Register(name=name, key=key, offset=offset, byte_size=size_bytes)
    await ask(channel, REGISTER, request, pb.SystemSharedMemoryRegisterResponse)


async def unregister(channel: grpc.aio.Channel, name: str) -> None:
    await ask(channel, UNREGISTER, Unregister(name=name), pb.SystemSharedMemoryUnregisterResponse)


async def refused(call: Awaitable[object]) -> tuple[str, str]:
    """Status and text of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


async def test_a_region_is_registered_told_and_unregistered(
    channel: grpc.aio.Channel, key: str
) -> None:
    await register(channel, "a", key, 10, 90)
    await register(channel, "b", key, 0, 100)
    assert await status(channel) == {"a": (key, 10, 90), "b": (key, 0, 100)}
    assert await status(channel, "a") == {"a": (key, 10, 90)}
    await unregister(channel, "a")
    await unregister(channel, "a")  # as in Triton, one that is not there is no error
    assert await status(channel) == {"b": (key, 0, 100)}
    await register(channel, "a", key, 0, 1)
    await unregister(channel, "")
    assert await status(channel) == {}


async def test_tenants_do_not_see_each_others_regions(front: Front, key: str) -> None:
    async with (
        grpc.aio.insecure_channel(front.target) as own,
        grpc.aio.insecure_channel(front.shared) as shared,
    ):
        request = Register(name="a", key=key, offset=0, byte_size=10)
        registered = pb.SystemSharedMemoryRegisterResponse
        await ask(own, REGISTER, request, registered)
        await ask(shared, REGISTER, request, registered, metadata=BEARER)
        nothing = pb.SystemSharedMemoryUnregisterResponse
        await ask(shared, UNREGISTER, Unregister(), nothing, metadata=BEARER)
        assert await status(own) == {"a": (key, 0, 10)}
        await unregister(own, "")


@pytest.mark.parametrize(
    ("name", "other_key", "offset", "size_bytes", "code", "told"),
    [
        # name     key               offset     bytes      status              what is told
        ("", "", 0, 1, "INVALID_ARGUMENT", "name of 1 to 256"),
        ("n" * 257, "", 0, 1, "INVALID_ARGUMENT", "name of 1 to 256"),
        ("a", "", 0, 0, "INVALID_ARGUMENT", "at least 1 byte"),
        ("a", "", 0, 101, "INVALID_ARGUMENT", "has 100 bytes"),
        ("a", "", 100, 1, "INVALID_ARGUMENT", "has 100 bytes"),
        ("a", "", 2**64 - 1, 1, "INVALID_ARGUMENT", "at most"),
        ("a", "", 1, 2**64 - 1, "INVALID_ARGUMENT", "at most"),
        ("a", "/none of ours", 0, 1, "NOT_FOUND", "none of ours"),
        ("a", "/../etc/passwd", 0, 1, "INVALID_ARGUMENT", "a slash"),
    ],
)
async def test_what_can_not_be_registered_is_refused(
    channel: grpc.aio.Channel,
    key: str,
    name: str,
    other_key: str,
    offset: int,
    size_bytes: int,
    code: str,
    told: str,
) -> None:
    found, text = await refused(register(channel, name, other_key or key, offset, size_bytes))
    assert found == code
    assert told in text
    assert await status(channel) == {}


async def test_names_that_are_taken_or_unknown(channel: grpc.aio.Channel, key: str) -> None:
    await register(channel, "a", key, 0, 1)
    assert (await refused(register(channel, "a", key, 0, 1)))[0] == "ALREADY_EXISTS"
    assert (await refused(status(channel, "b")))[0] == "NOT_FOUND"


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_it_is_advertised_where_it_is_on(tmp_path: Path, is_allowed: bool) -> None:
    node = FakeNode()
    node.shared_memory = SharedMemory(SharedMemorySettings(is_allowed), TenantDirectory(()))
    async with (
        open_front(node, tmp_path) as front,
        grpc.aio.insecure_channel(front.target) as channel,
    ):
        answer = await ask(channel, METADATA, pb.ServerMetadataRequest(), pb.ServerMetadataResponse)
        assert ("system_shared_memory" in answer.extensions) is is_allowed
        assert "cuda_shared_memory" not in answer.extensions
        if not is_allowed:
            for call in (
                status(channel),
                register(channel, "a", "/a", 0, 1),
                unregister(channel, ""),
            ):
                code, text = await refused(call)
                assert code == "UNIMPLEMENTED"
                assert "[shared_memory]" in text


async def test_cuda_shared_memory_is_not_supported(channel: grpc.aio.Channel) -> None:
    for method in ("Status", "Register", "Unregister"):
        request = pb.CudaSharedMemoryStatusRequest()  # all of it is optional, as in all three
        code, text = await refused(
            ask(
                channel,
                f"{SERVICE}/CudaSharedMemory{method}",
                request,
                pb.CudaSharedMemoryStatusResponse,
            )
        )
        assert code == "UNIMPLEMENTED"
        assert "CUDA shared memory is not supported" in text
