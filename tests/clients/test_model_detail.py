"""The page of a model as both clients give it: every field, and what is not there as None."""

import pytest
from gpumuxd_client import (
    BoundDetail,
    BucketDetail,
    DimensionDetail,
    GroupDetail,
    PolicyDetail,
    TensorDetail,
    errors,
)

from tests.clients.conftest import AnyClient
from tests.rpc.details import FIXED, SEGMENTS


async def test_every_field_comes_through(client: AnyClient) -> None:
    detail = await client("model_detail", "segments")
    assert [v.version for v in detail.versions] == ["2", "1"]
    ready, unloaded = detail.versions
    assert (unloaded.state, unloaded.reason) == ("UNAVAILABLE", "replaced by version 2")
    assert unloaded.loaded is None
    assert ready.policy == PolicyDetail(
        ("camera", "search"),
        "REALTIME",
        slo_ns=30_000_000,
        device="cpu:0",
        batch_max=16,
        versions="all",
        replicas="1",
    )
    view, loaded = SEGMENTS.versions[0].loaded, ready.loaded
    assert view is not None
    for name in (
        "platform",
        "device",
        "artifact_hash",
        "batch_max",
        "parameter_count",
        "weights_bytes",
        "frame_bytes",
        "group_count",
        "notes",
        "replicas",
    ):
        assert getattr(loaded, name) == getattr(view, name), name
    size = ("batch", "3", "height", "width")
    assert loaded.inputs == (TensorDetail("image", "FP32", size),)
    assert loaded.outputs[1] == TensorDetail("score", "FP16", ("batch",))
    assert loaded.dimensions[:2] == (
        DimensionDetail("batch", 1, 64, multiple=1, is_batch=True),
        DimensionDetail("height", 32, 512, multiple=32, is_batch=False),
    )
    assert loaded.buckets[1:] == (
        BucketDetail(
            (16, 256, 256), 91_000_000, GroupDetail(12, 11_200_000, 96, 99), 1, False, True
        ),
        BucketDetail(
            (32, 256, 256), 182_000_000, GroupDetail(13, 22_000_000, 99, 100), 16, True, False
        ),
    )
    assert loaded.bound == BoundDetail(8_000_000, "laxity", "voice")
    assert loaded.is_preemptible is False
    assert (loaded.verdict, loaded.advice) == (view.verdict.sentence, view.verdict.advice)


async def test_what_is_not_there_is_none(client: AnyClient) -> None:
    loaded, broken = (await client("model_detail", "fixed")).versions
    assert loaded.policy == PolicyDetail(None, "STANDARD", None, None, None, "latest", "1")
    assert loaded.loaded.bound == BoundDetail(None, "unknown", "")
    assert loaded.loaded.is_preemptible is None
    assert loaded.loaded.dimensions == ()
    assert (broken.policy, broken.loaded, broken.version) == (None, None, "")


async def test_one_version(client: AnyClient) -> None:
    detail = await client("model_detail", FIXED.name, version="3")
    assert [v.version for v in detail.versions] == ["3"]
    for arguments in ({"version": "9"}, {}):
        name = FIXED.name if arguments else "nobody"
        with pytest.raises(errors.UnknownModel):
            await client("model_detail", name, **arguments)
