"""The gRPC client of KServe's SDK: the six methods of the protocol's core, and loads and unloads in
a dialect of its own. What it was told is noted by one process, since its import takes seconds."""

import json
from typing import Any

import pytest

from tests.conformance.script import run_script
from tests.daemon.harness import Daemon, Site

SCRIPT = """
import asyncio, json, sys
import grpc, numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.grpc.grpc_predict_v2_pb2 import RepositoryModelLoadRequest
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

heard = {}

def request(model, width, is_raw):
    given = InferInput("x", [2, width], "FP32")
    x = np.arange(2 * width, dtype=np.float32).reshape(2, width)
    given.set_data_from_numpy(x, binary_data=is_raw)
    return InferRequest(model, [given], request_id="7", model_version="1")

async def infer(client, model, width, is_raw):
    try:
        answer = await client.infer(request(model, width, is_raw), timeout=30)
    except grpc.RpcError as error:
        return error.code().name
    outputs = {o.name: o.as_numpy().tolist() for o in answer.outputs}
    return [answer.id, answer.model_version, outputs]

async def main(target):
    client = InferenceGRPCClient(target)
    heard["live"] = await client.is_server_live()
    heard["ready"] = await client.is_server_ready()
    heard["model ready"] = await client.is_model_ready("tiny")
    heard["nobody ready"] = await client.is_model_ready("nobody")
    heard["raw"] = await infer(client, "tiny", 4, True)
    heard["typed"] = await infer(client, "tiny", 4, False)
    heard["nobody"] = await infer(client, "nobody", 4, True)
    heard["too narrow"] = await infer(client, "tiny", 3, True)

asyncio.run(main(sys.argv[1]))
with grpc.insecure_channel(sys.argv[1]) as channel:
    try:
        GRPCInferenceServiceStub(channel).RepositoryModelLoad(
            RepositoryModelLoadRequest(model_name="tiny"), timeout=30
        )
    except grpc.RpcError as error:
        heard["load"] = [error.code().name, error.details()]
print(json.dumps(heard))
"""

RIGHT = ["7", "1", {"y": [[1, 3, 5, 7], [9, 11, 13, 15]], "n": [6, 22]}]


@pytest.fixture(scope="module")
def heard(served: tuple[Site, Daemon]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run_script(SCRIPT, served[0].target))
    return told


def test_health_and_readiness(heard: dict[str, Any]) -> None:
    assert (heard["live"], heard["ready"]) == (True, True)
    assert (heard["model ready"], heard["nobody ready"]) == (True, False)


@pytest.mark.parametrize("contents", ["raw", "typed"])
def test_an_inference(heard: dict[str, Any], contents: str) -> None:
    assert heard[contents] == RIGHT


def test_errors_have_their_status(heard: dict[str, Any]) -> None:
    assert (heard["nobody"], heard["too narrow"]) == ("NOT_FOUND", "INVALID_ARGUMENT")


def test_a_load_in_its_dialect_is_refused_with_the_reason(heard: dict[str, Any]) -> None:
    status, message = heard["load"]
    assert status == "INVALID_ARGUMENT"
    assert "KServe" in message
