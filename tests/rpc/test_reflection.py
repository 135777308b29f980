"""Reflection: the standard names, enough to call what is served, and at peace with other code."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.rpc.front import WAIT_S, Front

ROOT = Path(__file__).resolve().parents[2]
INFERENCE = "inference.GRPCInferenceService"
NAMES = [
    "gpumuxd.v1.Control",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    INFERENCE,
]


def path(version: str) -> str:
    return f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"


async def ask(
    channel: grpc.aio.Channel, version: str, *requests: reflection_pb2.ServerReflectionRequest
) -> list[reflection_pb2.ServerReflectionResponse]:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path(version))
    messages = (request.SerializeToString() for request in requests)
    call = method(messages, timeout=WAIT_S)
    return [reflection_pb2.ServerReflectionResponse.FromString(data) async for data in call]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_anyone_may_list_the_services(shared: grpc.aio.Channel, version: str) -> None:
    wanted = reflection_pb2.ServerReflectionRequest(list_services="")
    unknown = reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.Nobody")
    listed, missing = await ask(shared, version, wanted, unknown)
    assert [each.name for each in listed.list_services_response.service] == NAMES
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_what_is_no_question_ends_the_stream(shared: grpc.aio.Channel) -> None:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = shared.stream_stream(path("v1"))
    call = method(iter([b"\x0a\xff"]), timeout=WAIT_S)
    with pytest.raises(grpc.aio.AioRpcError, match="not a well-formed") as refused:
        await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_described_can_be_called(front: Front) -> None:
    """By a client that knows nothing but the address, as grpcurl does."""

    def use() -> None:
        with grpc.insecure_channel(front.target) as channel:
            pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
            for name in NAMES:
                assert pool.FindServiceByName(name).methods
            service = pool.FindServiceByName(INFERENCE)
            asked = service.methods_by_name["ModelReady"]
            method: Any = channel.unary_unary(
                f"/{INFERENCE}/ModelReady",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(asked.output_type).FromString,
            )
            request = GetMessageClass(asked.input_type)(name="identity_fp32")
            assert request.DESCRIPTOR.full_name == "inference.ModelReadyRequest"
            assert method(request, timeout=WAIT_S).ready
            stream = service.methods_by_name["ModelStreamInfer"]
            assert (stream.client_streaming, stream.server_streaming) == (True, True)

    await asyncio.to_thread(use)


async def test_every_method_that_is_served_is_described_and_no_other(front: Front) -> None:
    def described() -> set[str]:
        with grpc.insecure_channel(front.target) as channel:
            pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
            return set(pool.FindServiceByName(INFERENCE).methods_by_name)

    assert await asyncio.to_thread(described) == set(front.door._services[INFERENCE])


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["gpumuxd.rpc.server", "tritonclient.grpc"]))
)
def test_the_standard_names_are_in_nobodys_way(order: tuple[str, ...]) -> None:
    script = "".join(f"import {module}\n" for module in order) + (
        "from gpumuxd.rpc.reflection import ReflectionService\n"
        "ReflectionService(['ModelInfer', 'ModelStreamInfer'])\n"
        "from tritonclient.grpc import service_pb2\n"
        "assert service_pb2.ModelInferRequest(id='x').SerializeToString()\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert (loaded.returncode, loaded.stderr) == (0, "")
