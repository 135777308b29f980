"""A daemon that is told to stop while something waits that is no common request."""

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path

import grpc
import numpy as np
import pytest
from gpumuxd_client import AsyncClient, RecordingEnd
from gpumuxd_client.errors import GpumuxdError

from gpumuxd.rpc.generated import inference_pb2 as pb
from tests.daemon.harness import LIMIT_S, Daemon, Site

X = np.arange(8, dtype=np.float32).reshape(2, 4)
BUSY_X = np.ones((1, 384), dtype=np.float32)
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
TENANTS = ("operator", "voice", "index")
REQUESTS = {"voice": 200, "index": 150}


@pytest.fixture
def site(socket_dir: Path, repository: Path) -> Site:
    tables = "".join(f'[tenants.{n}]\nsocket = "{socket_dir}/{n}.sock"\n' for n in TENANTS)
    tables = tables.replace('operator.sock"\n', 'operator.sock"\nadmin = true\n')
    return Site(socket_dir, repository, more_tables=tables)


def client_of(site: Site, tenant: str) -> AsyncClient:
    return AsyncClient(f"unix:{site.directory}/{tenant}.sock", retries=0)


async def wait_in_flight(operator: AsyncClient, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await operator.node_status()).devices[0].requests_in_flight < count:
            pass


async def test_a_stop_that_is_cut_counts_by_tenant_and_ends_a_recording_properly(
    site: Site,
) -> None:
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        async with contextlib.AsyncExitStack() as clients:
            by_name = {
                name: await clients.enter_async_context(client_of(site, name)) for name in TENANTS
            }
            operator = by_name["operator"]
            stream = operator.record(3600.0)
            parts = [await anext(stream)]  # it has begun
            asked = [
                (name, asyncio.ensure_future(by_name[name].infer("busy", {"x": BUSY_X})))
                for name, count in REQUESTS.items()
                for _ in range(count)
            ]
            await wait_in_flight(operator, 100)
            daemon.signal(signal.SIGTERM)
            await asyncio.to_thread(daemon.wait_notified, "STOPPING=1")
            async with asyncio.timeout(LIMIT_S):
                parts += [part async for part in stream]
            daemon.signal(signal.SIGTERM)
            results = await asyncio.gather(*(task for _, task in asked), return_exceptions=True)
        assert await asyncio.to_thread(daemon.wait_exit) == 0
    end = parts[-1]
    assert isinstance(end, RecordingEnd)
    assert end.is_whole
    assert end.records > 0
    refused = Counter(
        name
        for (name, _), result in zip(asked, results, strict=True)
        if isinstance(result, GpumuxdError) and "not done in time" in str(result)
    )
    assert {r.status for r in results if isinstance(r, GpumuxdError)} == {"UNAVAILABLE"}
    assert refused.keys() == REQUESTS.keys(), "everything was finished: nothing was cut"
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    (cut,) = [line for line in lines if line["event"] == "drain_cut_short"]
    assert cut["cut"] == {f"{name}: busy": count for name, count in refused.items()}
    assert (cut["reason"], cut["requests"]) == ("a second signal", refused.total())


async def test_a_stop_waits_for_requests_that_wait_to_be_sent_again(site: Site) -> None:
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        async with client_of(site, "operator") as operator, client_of(site, "voice") as voice:
            await voice.infer("tiny", {"x": X})
            (device,) = (await operator.node_status()).devices
            os.kill(device.pid, signal.SIGSTOP)
            asked = [asyncio.ensure_future(voice.infer("tiny", {"x": X})) for _ in range(10)]
            await wait_in_flight(operator, 10)
            os.kill(device.pid, signal.SIGKILL)
            async with asyncio.timeout(LIMIT_S):
                while "device_lost" not in daemon.log:
                    await operator.node_status()
            daemon.signal(signal.SIGTERM)
            results = await asyncio.gather(*asked)
        assert await asyncio.to_thread(daemon.wait_exit) == 0
        for result in results:
            np.testing.assert_array_equal(result["y"], X * 2 + 1)
        assert "drain_cut_short" not in daemon.log
        assert daemon.log.count('"device_up"') == 2


async def read_into(
    answers: list[pb.ModelStreamInferResponse], stream: "grpc.aio.StreamStreamCall[bytes, bytes]"
) -> None:
    async for data in stream:
        answers += [pb.ModelStreamInferResponse.FromString(data)]


async def test_a_stop_ends_streams_when_what_they_asked_is_answered(site: Site) -> None:
    request = pb.ModelInferRequest(
        model_name="busy",
        inputs=[pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 384])],
        raw_input_contents=[BUSY_X.tobytes()],
    )
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        target = f"unix:{site.directory}/voice.sock"
        async with (
            client_of(site, "operator") as operator,
            grpc.aio.insecure_channel(target) as channel,
        ):
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(STREAM)
            idle, asking = method(timeout=LIMIT_S), method(timeout=LIMIT_S)
            for number in range(20):
                request.id = str(number)
                await asking.write(request.SerializeToString())
            await wait_in_flight(operator, 1)
            daemon.signal(signal.SIGTERM)
            answers: list[pb.ModelStreamInferResponse] = []
            with pytest.raises(grpc.aio.AioRpcError, match="is stopping") as ended:
                await read_into(answers, asking)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError, match="is stopping"):
                await idle.read()
        assert await asyncio.to_thread(daemon.wait_exit) == 0
    assert answers, "what was accepted is answered"
    assert [answer.infer_response.id for answer in answers] == [str(n) for n in range(len(answers))]
    done = [answer for answer in answers if not answer.error_message]
    assert done
    late = answers[len(done) :]
    assert all("stopping" in answer.error_message for answer in late)
