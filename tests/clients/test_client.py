"""The blocking and the asyncio client do the same, against a real front door."""

import asyncio
import inspect
from pathlib import Path

import numpy as np
import pytest
from gpumuxd_client import (
    AsyncClient,
    BatchStatistics,
    Client,
    Duration,
    IndexEntry,
    RunReport,
    UnloadedReplica,
    calls,
    errors,
)
from numpy.typing import NDArray

from gpumuxd import __version__
from gpumuxd.errors import DeviceLost, Draining, GpumuxdError, ModelFaulted, QueueFull
from gpumuxd.node.api import InferCall
from gpumuxd.units import MIB
from tests.clients.conftest import AnyClient
from tests.rpc.fake_node import CAMERA, FakeNode
from tests.rpc.front import CAMERA_TOKEN, WAIT_S, Front, open_front

X: NDArray[np.float32] = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(of: type) -> dict[str, list[inspect.Parameter]]:
        return {
            name: list(inspect.signature(function).parameters.values())
            for name, function in inspect.getmembers(of, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    asynchronous = methods(AsyncClient)
    del asynchronous["infer_stream"]  # answers come while requests are sent, which takes a loop
    assert methods(Client) == asynchronous


async def test_an_inference_gives_arrays_and_a_report(client: AnyClient) -> None:
    result = await client("infer", "identity_fp32", {"x": X}, request_id="r1", outputs=["y"])
    assert list(result) == ["y"]
    np.testing.assert_array_equal(result["y"], X)
    assert (result.model, result.model_version, result.request_id) == ("identity_fp32", "1", "r1")
    assert result.report == RunReport(11, 22, 3, 44, 55, 6)


async def test_priority_version_and_the_earliest_deadline_reach_the_node(
    client: AnyClient, node: FakeNode
) -> None:
    await client(
        "infer", "identity_fp32", {"x": X}, version="1", priority=2, deadline=30, timeout=20
    )
    await client("infer", "identity_fp32", {"x": X}, deadline=30)
    await client("infer", "identity_fp32", {"x": X})
    first, second, third = node.calls
    assert (first.priority, second.priority, first.version) == (2, 0, "1")
    assert first.deadline_ns == first.arrived_ns + 20 * 10**9
    assert second.deadline_ns is not None
    assert 29 * 10**9 < second.deadline_ns - second.arrived_ns <= 30 * 10**9
    assert third.deadline_ns is None


async def test_what_the_server_says_of_itself_and_its_models(client: AnyClient) -> None:
    assert await client("server_live") is True
    assert await client("server_ready") is True
    assert (await client("server_metadata")).version == __version__
    metadata = await client("model_metadata", "identity_int64")
    assert (metadata.inputs[0].datatype, metadata.inputs[0].shape) == ("INT64", (-1, 4))
    config = await client("model_config", "identity_int64")
    assert (config.batch_max, config.inputs[0].shape) == (8, (4,))
    assert config.parameters["group_count"] == "7"
    status = await client("node_status")
    assert (status.is_ready, status.devices[0].name) == (True, "cpu:0")


async def test_load_and_unload(client: AnyClient) -> None:
    unloaded = IndexEntry("unloaded", "1", "UNAVAILABLE", "unloaded")
    assert unloaded in await client("index")
    assert unloaded not in await client("index", only_ready=True)
    assert await client("model_ready", "unloaded") is False
    await client("load", "unloaded")
    assert await client("model_ready", "unloaded") is True
    (replica,) = await client("unload", "unloaded")
    assert replica == UnloadedReplica("1", "cpu:0", 12 * MIB, 200 * MIB, 187 * MIB)
    assert await client("model_ready", "unloaded") is False


@pytest.mark.parametrize(
    ("arguments", "error", "status"),
    [
        (("nobody", {"x": X}), errors.UnknownModel, "NOT_FOUND"),
        (("unloaded", {"x": X}), errors.ModelNotReady, "UNAVAILABLE"),
        (("identity_fp32", {"z": X}), errors.InvalidRequest, "INVALID_ARGUMENT"),
        (("identity_fp32", {}), errors.InvalidRequest, "INVALID_ARGUMENT"),
        (("identity_fp64", {"x": X}), errors.InvalidRequest, "INVALID_ARGUMENT"),
        (
            ("identity_fp32", {"x": np.zeros((8, 2**16), np.float32)}),
            errors.ResourceExhausted,
            "RESOURCE_EXHAUSTED",
        ),
    ],
)
async def test_refusals_are_typed(
    client: AnyClient, arguments: tuple[object, ...], error: type[Exception], status: str
) -> None:
    with pytest.raises(errors.GpumuxdError) as refused:
        await client("infer", *arguments)
    assert type(refused.value) is error
    assert refused.value.status == status
    assert refused.value.message
    np.testing.assert_array_equal((await client("infer", "identity_fp32", {"x": X}))["y"], X)


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        (("m", {"x": np.array(["a"])}), {}, "can't be sent"),
        (("m", {"x": np.array([None])}), {}, "can't be sent"),
        (("m", {"x": X}), {"priority": -1}, "priority"),
        (("m", {"x": X}), {"priority": -1, "deadline": 1}, "priority: expected 0"),
        (("m", {"x": X}), {"version": True}, "version: expected a number, or a str .* got True"),
        (("m", {"x": X}), {"version": 1.0}, "version: expected a number"),
        (("m", {"x": X}), {"version": None}, "version: expected a number"),
        (("m", {"x": X}), {"timeout": 0}, "timeout: expected more than 0 seconds"),
        (("m", {"x": X}), {"deadline": 0}, "deadline: expected more than 0 seconds"),
        (("m", {"x": X}), {"deadline": -1}, "deadline: expected more than 0 seconds, .* got -1"),
        (("m", {"x": X}), {"deadline": float("nan")}, "deadline: expected .* got nan"),
        (("m", {"x": X}), {"deadline": float("inf")}, "deadline: expected .* got inf"),
    ],
)
async def test_wrong_arguments_are_found_before_anything_is_sent(
    client: AnyClient, node: FakeNode, arguments: object, options: dict[str, float], told: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        await client("infer", *arguments, **options)  # type: ignore[misc]  # a tuple
    assert node.calls == []


async def test_a_version_may_be_a_number(client: AnyClient, node: FakeNode) -> None:
    await client("infer", "identity_fp32", {"x": X}, version=1)
    assert [call.version for call in node.calls] == ["1"]
    assert await client("model_ready", "identity_fp32", version=1) is True
    assert (await client("model_metadata", "identity_fp32", version=1)).name == "identity_fp32"
    with pytest.raises(TypeError, match="version: expected a number"):
        await client("model_config", "identity_fp32", version=b"1")


@pytest.mark.parametrize(
    ("target", "is_good"),
    [
        ("127.0.0.1:8001", True),
        ("node:1", True),
        ("[::1]:8001", True),
        ("dns:///node:8001", True),
        ("unix:/run/gpumuxd.sock", True),
        ("unix-abstract:name", True),
        ("", False),
        ("node", False),
        ("node:", False),
        (":8001", False),
        ("node:http", False),
        ("node:65536", False),
        ("::1", False),
        ("fe80::1:8001", False),
        ("unix:", False),
    ],
)
async def test_a_target_without_a_port_is_told_at_once(target: str, is_good: bool) -> None:
    if is_good:
        Client(target).close()
        await AsyncClient(target).close()
        return
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="target: host:port or unix:/path expected, got"):
            kind(target)


@pytest.mark.parametrize("method", ["server_live", "index", "node_status"])
async def test_every_call_refuses_a_deadline_that_is_no_time(
    client: AnyClient, method: str
) -> None:
    for deadline in (0, -1):
        with pytest.raises(ValueError, match="deadline: expected more than 0 seconds"):
            await client(method, deadline=deadline)
    await client(method, deadline=WAIT_S)


async def test_a_token_says_who_calls(
    front: Front, client_class: type[Client] | type[AsyncClient]
) -> None:
    stranger = AnyClient(client_class(front.shared))
    with pytest.raises(errors.Unauthenticated):
        await stranger("infer", "identity_fp32", {"x": X})
    await stranger("close")
    known = AnyClient(client_class(front.shared, token=CAMERA_TOKEN))
    await known("infer", "identity_fp32", {"x": X})
    with pytest.raises(errors.PermissionDenied):
        await known("infer", "identity_fp32", {"x": X}, priority=1)
    await known("close")
    assert [call.tenant for call in front.node.calls] == [CAMERA, CAMERA]


def failing(error: Exception, times: int) -> object:
    left = [error] * times

    async def before_reply(call: InferCall) -> None:
        if left:
            raise left.pop()

    return before_reply


async def test_statistics(client: AnyClient) -> None:
    (model,) = await client("model_statistics")
    assert await client("model_statistics", "identity_fp32", version=1) == (model,)
    assert (model.name, model.version) == ("identity_fp32", "1")
    assert (model.last_inference_ms, model.rows, model.runs) == (1_700_000_000_123, 9, 4)
    assert (model.success, model.fail, model.cancelled) == (
        Duration(5, 500),
        Duration(3, 300),
        Duration(1, 100),
    )
    assert (model.queue, model.copied_in) == (Duration(5, 51), Duration(5, 52))
    assert (model.compute, model.copied_out) == (Duration(5, 53), Duration(5, 54))
    assert model.batches == (BatchStatistics(2, Duration(4, 41), Duration(4, 42), Duration(4, 43)),)
    assert model.memory == ((0, 1024),)
    assert (model.success.mean_ns, Duration(0, 0).mean_ns) == (100, 0)
    with pytest.raises(errors.UnknownModel, match="no statistics"):
        await client("model_statistics", "other")


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_DELAY_S_FIRST", 0.0001)


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("error", [DeviceLost("restarting"), Draining("stopping")])
async def test_what_passes_by_itself_is_tried_again(
    client: AnyClient, node: FakeNode, error: GpumuxdError
) -> None:
    node.before_reply = failing(error, 3)  # type: ignore[assignment]  # a callable
    await client("infer", "identity_fp32", {"x": X}, deadline=WAIT_S)
    assert len(node.calls) == 4


@pytest.mark.usefixtures("quick_retries")
async def test_it_is_not_tried_for_ever(client: AnyClient, node: FakeNode) -> None:
    node.before_reply = failing(DeviceLost("restarting"), 99)  # type: ignore[assignment]  # same
    with pytest.raises(errors.DeviceLost):
        await client("infer", "identity_fp32", {"x": X})
    assert len(node.calls) == 4


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("error", [QueueFull("full"), ModelFaulted("bad index")])
async def test_other_failures_are_told_at_once(
    client: AnyClient, node: FakeNode, error: GpumuxdError
) -> None:
    node.before_reply = failing(error, 99)  # type: ignore[assignment]  # same
    with pytest.raises(errors.GpumuxdError, match=str(error)):
        await client("infer", "identity_fp32", {"x": X})
    assert len(node.calls) == 1


async def test_a_deadline_ends_the_call_on_both_sides(client: AnyClient, node: FakeNode) -> None:
    async def hang(call: InferCall) -> None:
        await asyncio.Event().wait()

    node.before_reply = hang
    with pytest.raises(errors.DeadlineExceeded):
        await client("infer", "identity_fp32", {"x": X}, deadline=0.5)
    await asyncio.wait_for(node.cancelled.wait(), WAIT_S)
    assert len(node.calls) == 1


@pytest.mark.usefixtures("quick_retries")
async def test_nobody_there(tmp_path: Path, client_class: type[Client] | type[AsyncClient]) -> None:
    lonely = AnyClient(client_class(f"unix:{tmp_path}/absent.sock"))
    with pytest.raises(errors.Unreachable):
        await lonely("server_live", deadline=WAIT_S)
    await lonely("close")


async def test_a_daemon_that_restarts_is_found_again(
    node: FakeNode, tmp_path: Path, client_class: type[Client] | type[AsyncClient]
) -> None:
    async with open_front(node, tmp_path) as front:
        client = AnyClient(client_class(front.target, retries=10))
        assert await client("server_live") is True
    async with open_front(node, tmp_path):
        assert await client("server_live", deadline=WAIT_S) is True
    await client("close")


async def test_a_closed_client_says_so(client: AnyClient) -> None:
    await client("close")
    await client("close")
    with pytest.raises(ValueError, match="closed"):
        await client("server_live")


async def test_closing_ends_the_calls_in_progress(client: AnyClient, node: FakeNode) -> None:
    async def hang(call: InferCall) -> None:
        await asyncio.Event().wait()

    node.before_reply = hang
    waiting = asyncio.ensure_future(client("infer", "identity_fp32", {"x": X}))
    await asyncio.wait_for(node.started.wait(), WAIT_S)
    await client("close")
    with pytest.raises(errors.Cancelled):
        await asyncio.wait_for(waiting, WAIT_S)
    await asyncio.wait_for(node.cancelled.wait(), WAIT_S)


async def test_cancelling_the_task_cancels_the_request(front: Front) -> None:
    async def hang(call: InferCall) -> None:
        await asyncio.Event().wait()

    front.node.before_reply = hang
    async with AsyncClient(front.target) as client:
        task = asyncio.ensure_future(client.infer("identity_fp32", {"x": X}))
        await asyncio.wait_for(front.node.started.wait(), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(front.node.cancelled.wait(), WAIT_S)


async def test_a_blocking_client_is_a_context_manager(front: Front) -> None:
    def use() -> bool:
        with Client(front.target) as client:
            return client.server_live()

    assert await asyncio.to_thread(use) is True
