"""Stock `tritonclient[grpc]`: streams, statistics, log and trace settings, at the front door."""

import asyncio
import queue
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from gpumuxd.node.api import InferCall
from tests.clients.test_triton import X, tensor
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import WAIT_S, Front


async def test_a_stream_of_the_blocking_client(front: Front) -> None:
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def use() -> None:
        with triton.InferenceServerClient(front.target) as client:
            client.start_stream(lambda result, error: heard.put((result, error)))
            for number in range(5):
                model = "nobody" if number == 2 else "identity_fp32"
                client.async_stream_infer(
                    model,
                    [tensor(X)],
                    request_id=str(number),
                    enable_empty_final_response=True,
                    priority=2,
                    timeout=10_000_000,
                )
            client.stop_stream()  # half-closes it, and waits for what is pending

    await asyncio.to_thread(use)
    answers = [heard.get_nowait() for _ in range(5)]
    assert heard.empty()
    for number, (result, error) in enumerate(answers):
        if number == 2:
            assert "'nobody'" in error.message()
            continue
        assert error is None
        response = result.get_response()
        assert response.id == str(number)
        assert response.parameters["triton_final_response"].bool_param
        np.testing.assert_array_equal(result.as_numpy("y"), X)


async def test_a_stream_that_is_stopped_with_its_requests(front: Front, node: FakeNode) -> None:
    async def hang(call: InferCall) -> None:
        await asyncio.Event().wait()

    node.before_reply = hang
    client = triton.InferenceServerClient(front.target)
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    client.async_stream_infer("identity_fp32", [tensor(X)])
    await asyncio.wait_for(node.started.wait(), WAIT_S)
    await asyncio.to_thread(client.stop_stream, cancel_requests=True)
    await asyncio.wait_for(node.cancelled.wait(), WAIT_S)
    await asyncio.to_thread(client.close)


async def test_a_stream_of_the_asyncio_client(front: Front) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for name in ("identity_fp32", "identity_int8", "identity_fp32"):
            yield {"model_name": name, "inputs": [tensor(X)], "request_id": name}

    async with triton_aio.InferenceServerClient(front.target) as client:
        answers = [answer async for answer in client.stream_infer(requests())]
    (first, no_error), (none, error), (last, _) = answers
    assert (no_error, none) == (None, None)
    assert "INT8, got FP32" in error.message()
    for result in (first, last):
        np.testing.assert_array_equal(result.as_numpy("y"), X)


async def test_a_stream_that_wants_the_status(front: Front) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "nobody", "inputs": [tensor(X)]}

    async with triton_aio.InferenceServerClient(front.target) as client:
        answers = client.stream_infer(requests(), headers={"triton_grpc_error": "true"})
        # The client hands on gRPC's own error.
        with pytest.raises(grpc.aio.AioRpcError, match="'nobody'") as refused:
            await anext(answers)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_statistics(front: Front) -> None:
    async with triton_aio.InferenceServerClient(front.target) as client:
        told = await client.get_inference_statistics(as_json=True)
        (model,) = told["model_stats"]
        assert (model["name"], int(model["version"])) == ("identity_fp32", 1)
        assert model["inference_stats"]["queue"] == {"count": "5", "ns": "51"}
        assert model["memory_usage"] == [{"type": "CPU", "byte_size": "1024"}]
        with pytest.raises(InferenceServerException, match="no statistics"):
            await client.get_inference_statistics("nobody")


async def test_log_and_trace_settings(front: Front) -> None:
    async with triton_aio.InferenceServerClient(front.target) as client:
        settings = (await client.get_log_settings(as_json=True))["settings"]
        assert settings["log_info"] == {"bool_param": True}
        await client.update_log_settings({"log_verbose_level": 1, "log_info": False})
        assert (front.switches.levels.verbose, front.switches.levels.info) == (1, False)
        await client.update_log_settings({"log_verbose_level": None, "log_info": None})
        assert (front.switches.levels.verbose, front.switches.levels.info) == (0, True)
        with pytest.raises(InferenceServerException, match="standard error"):
            await client.update_log_settings({"log_file": "/tmp/log"})
        traces = (await client.get_trace_settings(as_json=True))["settings"]
        assert traces["trace_level"] == {"value": ["OFF"]}
        await client.update_trace_settings(
            settings={key: value["value"] for key, value in traces.items()}
        )
        with pytest.raises(InferenceServerException, match="traces nothing"):
            await client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
