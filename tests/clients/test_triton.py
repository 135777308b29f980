"""Stock `tritonclient[grpc]`, blocking and asyncio, against the front door."""

import asyncio
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.rpc.fake_node import FakeNode
from tests.rpc.front import WAIT_S, Front

X: NDArray[np.float32] = np.arange(8, dtype=np.float32).reshape(2, 4)


def tensor(array: NDArray[Any]) -> Any:
    made = triton.InferInput("x", list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


async def test_everything_the_blocking_client_offers_of_what_we_serve(
    front: Front, node: FakeNode
) -> None:
    def use() -> None:
        with triton.InferenceServerClient(front.target) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert "model_repository" in client.get_server_metadata().extensions
            metadata = client.get_model_metadata("identity_fp32", as_json=True)
            assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]
            config = client.get_model_config("identity_fp32", as_json=True)["config"]
            assert (config["max_batch_size"], config["input"][0]["dims"]) == (8, ["4"])
            assert not client.is_model_ready("unloaded")
            client.load_model("unloaded")
            assert client.is_model_ready("unloaded")
            states = {m.name: m.state for m in client.get_model_repository_index().models}
            assert states["unloaded"] == "READY"
            client.unload_model("unloaded")
            assert not client.is_model_ready("unloaded")

    await asyncio.to_thread(use)


@pytest.mark.parametrize(
    "array",
    [X, X.astype(np.float16), X > 3, X.astype(np.int8), X.astype(np.uint64)],
    ids=lambda array: str(array.dtype),
)
async def test_an_inference(front: Front, node: FakeNode, array: NDArray[Any]) -> None:
    datatype = np_to_triton_dtype(array.dtype).lower()

    def use() -> Any:
        with triton.InferenceServerClient(front.target) as client:
            return client.infer(
                f"identity_{datatype}",
                [tensor(array)],
                request_id="7",
                priority=2,
                timeout=10_000_000,
                client_timeout=WAIT_S,
                outputs=[triton.InferRequestedOutput("y")],
                parameters={"anything": "goes"},
            )

    result = await asyncio.to_thread(use)
    np.testing.assert_array_equal(result.as_numpy("y"), array)
    assert result.get_response().id == "7"
    assert result.get_response().parameters["queue_ns"].int64_param == 11
    (call,) = node.calls
    assert (call.priority, call.outputs_wanted) == (2, ("y",))
    assert call.deadline_ns is not None
    assert call.deadline_ns - call.arrived_ns <= 10 * 10**9


async def test_errors_have_a_status_and_a_text(front: Front) -> None:
    async with triton_aio.InferenceServerClient(front.target) as client:
        for arguments, options, status, text in [
            (("nobody", [tensor(X)]), {}, "NOT_FOUND", "'nobody'"),
            (("identity_int8", [tensor(X)]), {}, "INVALID_ARGUMENT", "INT8, got FP32"),
        ]:
            with pytest.raises(InferenceServerException, match=text) as refused:
                await client.infer(*arguments, **options)
            assert refused.value.status() == f"StatusCode.{status}"
        result = await client.infer("identity_fp32", [tensor(X)])
        np.testing.assert_array_equal(result.as_numpy("y"), X)


async def test_loading_with_an_override_is_refused(front: Front) -> None:
    async with triton_aio.InferenceServerClient(front.target) as client:
        with pytest.raises(InferenceServerException, match="'config' is not supported"):
            await client.load_model("unloaded", config="{}")


async def test_a_token_goes_in_the_headers(front: Front, node: FakeNode) -> None:
    async with triton_aio.InferenceServerClient(front.shared) as client:
        with pytest.raises(InferenceServerException, match="authorization"):
            await client.infer("identity_fp32", [tensor(X)])
        headers = {"authorization": "Bearer camera-token"}
        await client.infer("identity_fp32", [tensor(X)], headers=headers)
    assert [call.tenant.name for call in node.calls] == ["camera"]
