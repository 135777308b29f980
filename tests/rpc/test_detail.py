"""The page of a model over the wire."""

import grpc
import pytest

from gpumuxd.rpc.generated import control_pb2 as pb
from tests.rpc.fake_node import ADMIN, FakeNode
from tests.rpc.front import CAMERA_TOKEN, Front, ask, refusal

PATH = "/gpumuxd.v1.Control/ModelDetail"


async def test_what_is_known_is_there_and_what_is_not_is_absent(
    channel: grpc.aio.Channel,
) -> None:
    page = await ask(channel, PATH, pb.ModelDetailRequest(name="segments"), pb.ModelDetailResponse)
    loaded, unloaded = page.versions
    assert (page.name, loaded.version, loaded.state) == ("segments", "2", "READY")
    assert list(loaded.policy.tenants) == ["camera", "search"]
    assert (loaded.policy.for_everyone, loaded.policy.class_max) == (False, "REALTIME")
    assert [list(tensor.shape) for tensor in loaded.loaded.outputs] == [
        ["batch", "height // 2", "width // 2"],
        ["batch"],
    ]
    assert [d.is_batch for d in loaded.loaded.dimensions] == [True, False, False]
    assert (loaded.loaded.bound.bound_ns, loaded.loaded.bound.origin) == (8_000_000, "laxity")
    assert loaded.loaded.HasField("preemptible")
    assert not loaded.loaded.preemptible
    assert not unloaded.HasField("loaded")

    page = await ask(channel, PATH, pb.ModelDetailRequest(name="fixed"), pb.ModelDetailResponse)
    loaded, broken = page.versions
    assert loaded.policy.for_everyone
    absent = [name for name in ("slo_ns", "device", "batch_max") if loaded.policy.HasField(name)]
    assert absent == []
    assert not loaded.loaded.bound.HasField("bound_ns")
    assert not loaded.loaded.HasField("preemptible"), "there is no telling"
    assert not broken.HasField("policy")


@pytest.mark.parametrize(
    ("request_", "details"),
    [
        (pb.ModelDetailRequest(name="nobody"), "no model 'nobody'"),
        (pb.ModelDetailRequest(name="segments", version="7"), "no version '7'"),
    ],
)
async def test_what_is_not_there_is_not_found(
    channel: grpc.aio.Channel, request_: pb.ModelDetailRequest, details: str
) -> None:
    status, told, _ = await refusal(channel, PATH, request_)
    assert status == "NOT_FOUND"
    assert details in told


async def test_a_version_alone(channel: grpc.aio.Channel) -> None:
    request = pb.ModelDetailRequest(name="segments", version="1")
    page = await ask(channel, PATH, request, pb.ModelDetailResponse)
    assert [version.version for version in page.versions] == ["1"]


async def test_the_node_is_asked_for_the_tenant_of_the_token(front: Front, node: FakeNode) -> None:
    asked = []
    model_detail = node.model_detail

    async def note(tenant: object, name: str, version: str) -> object:
        asked.append(tenant)
        return await model_detail(ADMIN, name, version)

    node.model_detail = note  # type: ignore[method-assign, assignment]  # as the wire calls it
    request = pb.ModelDetailRequest(name="fixed")
    async with grpc.aio.insecure_channel(front.shared) as channel:
        status, _, _ = await refusal(channel, PATH, request)
        assert status == "UNAUTHENTICATED"
        assert asked == []
        metadata = (("authorization", f"Bearer {CAMERA_TOKEN}"),)
        await ask(channel, PATH, request, pb.ModelDetailResponse, metadata=metadata)
    assert [tenant.name for tenant in asked] == ["camera"]  # type: ignore[attr-defined]  # a Tenant
