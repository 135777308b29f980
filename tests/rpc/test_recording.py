"""`Control.Record` through both clients and `gpumuxctl record`, in front of a node in memory."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from gpumuxd_client import AsyncClient, Client, RecordingEnd, errors

from gpumuxd.ctl.main import main as gpumuxctl
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import CAMERA_TOKEN, WAIT_S, Front, open_front

RECORD = "/gpumuxd.v1.Control/Record"


@pytest.fixture
async def front(node: FakeNode, socket_dir: Path) -> AsyncIterator[Front]:
    async with open_front(node, socket_dir) as opened:
        yield opened


async def test_parts_come_in_order_and_the_end_last(front: Front) -> None:
    async with AsyncClient(front.target) as client:
        parts = [part async for part in client.record(2.5, device="cpu:0", bytes_max=77)]
    assert parts == [b"one", b"two", RecordingEnd("cpu:0 2500000000 77", 4, 5, is_whole=True)]


async def test_the_blocking_client_gets_the_same(front: Front) -> None:
    def ask() -> list[bytes | RecordingEnd]:
        with Client(front.target) as client:
            return list(client.record(2.5, device="cpu:0", bytes_max=77))

    async with AsyncClient(front.target) as client:
        parts = [part async for part in client.record(2.5, device="cpu:0", bytes_max=77)]
    assert await asyncio.to_thread(ask) == parts


async def test_it_is_for_admins_whoever_they_say_they_are(front: Front) -> None:
    async with AsyncClient(front.shared, token=CAMERA_TOKEN) as client:
        with pytest.raises(errors.PermissionDenied, match="'camera' is not an admin"):
            [part async for part in client.record(1)]
    async with AsyncClient(front.shared, token="wrong") as client:
        with pytest.raises(errors.Unauthenticated):
            [part async for part in client.record(1)]


async def test_a_client_that_leaves_ends_its_recording(front: Front, node: FakeNode) -> None:
    async with AsyncClient(front.target) as client:
        parts = client.record(3600)
        assert await anext(parts) == b"one"
        async with asyncio.timeout(WAIT_S):
            await node.started.wait()
            await parts.aclose()
            await node.cancelled.wait()


async def test_a_message_that_is_none_is_refused(front: Front) -> None:
    async with grpc.aio.insecure_channel(front.target) as channel:
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(RECORD)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            [part async for part in stream(b"\xff\xff", timeout=WAIT_S)]
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_bug_in_the_node_is_an_internal_error_without_its_text(
    front: Front, node: FakeNode
) -> None:
    node.recording = [None]  # type: ignore[list-item]  # what no node sends
    async with AsyncClient(front.target) as client:
        with pytest.raises(errors.InternalError, match="internal error"):
            [part async for part in client.record(1)]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
async def test_wrong_times_are_refused_before_anything_is_sent(
    front: Front, seconds: float
) -> None:
    async with AsyncClient(front.target) as client:
        with pytest.raises(ValueError, match="seconds"):
            [part async for part in client.record(seconds)]


async def run_ctl(front: Front, path: Path, *arguments: str) -> int:
    words = ["--target", front.target, "record", "--output", str(path), *arguments]
    return await asyncio.to_thread(gpumuxctl, words)


async def test_the_file_has_all_parts_and_is_never_overwritten_by_accident(
    front: Front, node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    assert await run_ctl(front, path, "--json") == 0
    assert path.read_bytes() == b"onetwo"
    assert json.loads(capsys.readouterr().out)["size_bytes"] == 6
    node.recording = [b"three"]
    assert await run_ctl(front, path) == 2
    assert path.read_bytes() == b"onetwo"
    assert await run_ctl(front, path, "--force") == 0
    assert path.read_bytes() == b"three"
    assert os.listdir(tmp_path) == ["a"]


async def test_a_refused_recording_leaves_no_file(
    front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", front.shared, "--token", CAMERA_TOKEN, "record"]
    words += ["--output", str(tmp_path / "a")]
    assert await asyncio.to_thread(gpumuxctl, words) == 1
    assert "is not an admin" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


async def test_a_recording_that_breaks_off_is_kept_and_said(
    front: Front, node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.recording = [b"half", None]  # type: ignore[list-item]  # it fails in the middle
    assert await run_ctl(front, tmp_path / "a") == 1
    assert (tmp_path / "a").read_bytes() == b"half"
    assert "what was recorded until then is in" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--seconds", "0"], ["--mib-max", "-1"], ["--mib-max", "nan"]]
)
async def test_wrong_numbers_are_wrong_usage(
    front: Front, tmp_path: Path, arguments: list[str]
) -> None:
    assert await run_ctl(front, tmp_path / "a", *arguments) == 2
    assert await run_ctl(front, tmp_path / "none" / "a") == 2
