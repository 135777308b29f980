"""The front door as a client meets it: real gRPC over a real socket, a node in memory."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from structlog.testing import capture_logs

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import PriorityClass
from gpumuxd.errors import ConfigError, DeviceLost, Draining, QueueFull
from gpumuxd.node.api import InferCall, Tenant
from gpumuxd.rpc import server
from gpumuxd.rpc.generated import control_pb2
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.listener import AddressInUse, Listener
from gpumuxd.rpc.server import FrontDoor
from tests.rpc.fake_node import ADMIN, CAMERA, FakeNode, FakeTenants
from tests.rpc.front import (
    CAMERA_TOKEN,
    INFER,
    MESSAGE_BYTES_MAX,
    WAIT_S,
    Front,
    ask,
    declared,
    good_request,
    infer,
    open_front,
    refusal,
)

SERVICE = "/inference.GRPCInferenceService"
STATUS = "/gpumuxd.v1.Control/NodeStatus"
Method = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
StreamMethod = grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
BEARER = (("authorization", f"Bearer {CAMERA_TOKEN}"),)


async def test_an_inference_comes_back_with_id_version_and_report(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    response = await infer(channel, good_request())
    assert (response.id, response.model_version) == ("42", "1")
    assert list(response.raw_output_contents) == [bytes(range(16))]
    assert response.parameters["preemption_wait_ns"].int64_param == 44
    (call,) = node.calls
    assert call.tenant == ADMIN
    assert 0 <= monotonic_ns() - call.arrived_ns < WAIT_S * 1e9


def bad_priority(number: int) -> pb.ModelInferRequest:
    return good_request(parameters={"priority": pb.InferParameter(int64_param=number)})


@pytest.mark.parametrize(
    ("request_", "status", "told"),
    [
        (good_request(model_name="nobody"), "NOT_FOUND", "'nobody'"),
        (good_request(model_name="unloaded"), "UNAVAILABLE", "not loaded"),
        (good_request(model_name="n" * 10_000), "NOT_FOUND", "nnnn..."),
        (good_request(model_name="\U0001f600" * 2_500), "NOT_FOUND", "\U0001f600..."),
        (good_request(model_name="a\0b\n"), "NOT_FOUND", "'a\\x00b\\n'"),
        (good_request(model_version="9"), "NOT_FOUND", "version 9"),
        (good_request(inputs=[declared(name="z")]), "INVALID_ARGUMENT", "got ['z']"),
        (good_request(inputs=[], raw_input_contents=[]), "INVALID_ARGUMENT", "expected input 'x'"),
        (good_request(raw_input_contents=[]), "INVALID_ARGUMENT", "expected 4 elements"),
        (good_request(inputs=[declared("INT32")]), "INVALID_ARGUMENT", "FP32, got INT32"),
        (good_request(inputs=[declared(shape=(4,))]), "INVALID_ARGUMENT", "2 dimensions"),
        (good_request(inputs=[declared(shape=(2, 4))]), "INVALID_ARGUMENT", "expected 32 bytes"),
        (good_request(inputs=[declared(shape=(-1, 4))]), "INVALID_ARGUMENT", "[-1, 4]"),
        (good_request(inputs=[declared(shape=(2**62, 4))]), "INVALID_ARGUMENT", "too many"),
        (
            good_request(inputs=[declared(shape=(9, 4))], raw_input_contents=[b"\0" * 144]),
            "INVALID_ARGUMENT",
            "batch of 1 to 8, got 9",
        ),
        (
            good_request(inputs=[declared(shape=(0, 4))], raw_input_contents=[b""]),
            "INVALID_ARGUMENT",
            "batch of 1 to 8, got 0",
        ),
        (
            good_request(inputs=[declared(fp32_contents=[0.0] * 4)]),
            "INVALID_ARGUMENT",
            "together with raw_input_contents",
        ),
        (
            good_request(outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="q")]),
            "INVALID_ARGUMENT",
            "'q'",
        ),
        (bad_priority(-1), "INVALID_ARGUMENT", "got -1"),
        (
            good_request(parameters={"priority": pb.InferParameter(string_param="high")}),
            "INVALID_ARGUMENT",
            "got string_param",
        ),
        (b"\xff\xff\xff", "INVALID_ARGUMENT", "not a well-formed ModelInferRequest"),
        (b"\x0a\x02\xc3\x28", "INVALID_ARGUMENT", "not a well-formed ModelInferRequest"),
        (b"", "NOT_FOUND", "''"),
    ],
)
async def test_bad_input_gets_a_clear_status_and_the_next_request_works(
    channel: grpc.aio.Channel, request_: Message | bytes, status: str, told: str
) -> None:
    got_status, details, _ = await refusal(channel, INFER, request_)
    assert got_status == status
    assert told in details
    assert (await infer(channel, good_request())).id == "42"


async def test_a_message_over_the_limit_is_refused_and_one_at_the_limit_not(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    overhead = good_request(raw_input_contents=[b"\0" * 2**20]).ByteSize() - 2**20
    for size, status in [
        (MESSAGE_BYTES_MAX - overhead, "INVALID_ARGUMENT"),  # it is read, and its size is wrong
        (MESSAGE_BYTES_MAX - overhead + 1, "RESOURCE_EXHAUSTED"),
        (4 * MESSAGE_BYTES_MAX, "RESOURCE_EXHAUSTED"),
    ]:
        got, _, _ = await refusal(channel, INFER, good_request(raw_input_contents=[b"\0" * size]))
        assert (size, got) == (size, status)
    assert node.calls == []
    assert (await infer(channel, good_request())).id == "42"


@pytest.mark.parametrize(
    ("method", "request_", "status", "told"),
    [
        # KServe's clients put the name at field 1, which is Triton's repository_name.
        ("RepositoryModelLoad", {"repository_name": "m"}, "INVALID_ARGUMENT", "KServe"),
        ("RepositoryModelUnload", {"repository_name": "m"}, "INVALID_ARGUMENT", "KServe"),
        ("RepositoryModelLoad", {}, "INVALID_ARGUMENT", "model_name (field 2) is empty"),
        (
            "RepositoryModelLoad",
            {"repository_name": "r", "model_name": "m"},
            "UNIMPLEMENTED",
            "repository_name",
        ),
        ("RepositoryModelLoad", {"model_name": "nobody"}, "NOT_FOUND", "'nobody'"),
        ("RepositoryModelUnload", {"model_name": "unloaded"}, "NOT_FOUND", "'unloaded'"),
        ("RepositoryIndex", {"repository_name": "r"}, "UNIMPLEMENTED", "repository_name"),
        ("ModelMetadata", {"name": "nobody"}, "NOT_FOUND", "'nobody'"),
        ("ModelConfig", {"name": "unloaded"}, "UNAVAILABLE", "not loaded"),
        ("CudaSharedMemoryStatus", {}, "UNIMPLEMENTED", ""),
    ],
)
async def test_other_methods_refuse_clearly(
    channel: grpc.aio.Channel, method: str, request_: dict[str, str], status: str, told: str
) -> None:
    request_type: Any = getattr(pb, f"{method}Request", pb.ModelInferRequest)
    got, details, _ = await refusal(channel, f"{SERVICE}/{method}", request_type(**request_))
    assert got == status
    assert told in details


async def test_loading_with_an_override_is_refused_by_name(channel: grpc.aio.Channel) -> None:
    request = pb.RepositoryModelLoadRequest(model_name="unloaded")
    request.parameters["file:../x"].bytes_param = b"artifact"
    status, details, _ = await refusal(channel, f"{SERVICE}/RepositoryModelLoad", request)
    assert (status, "'file:../x'" in details) == ("UNIMPLEMENTED", True)


async def test_load_and_unload_change_what_is_ready(channel: grpc.aio.Channel) -> None:
    async def is_ready(name: str) -> bool:
        request = pb.ModelReadyRequest(name=name)
        return (await ask(channel, f"{SERVICE}/ModelReady", request, pb.ModelReadyResponse)).ready

    assert not await is_ready("unloaded")
    await ask(
        channel,
        f"{SERVICE}/RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="unloaded"),
        pb.RepositoryModelLoadResponse,
    )
    assert await is_ready("unloaded")
    unload = pb.RepositoryModelUnloadRequest(model_name="unloaded")
    unload.parameters["unload_dependents"].bool_param = False
    await ask(channel, f"{SERVICE}/RepositoryModelUnload", unload, pb.RepositoryModelUnloadResponse)
    assert not await is_ready("unloaded")
    assert not await is_ready("nobody")


async def test_the_index_lists_all_or_only_what_is_ready(channel: grpc.aio.Channel) -> None:
    path = f"{SERVICE}/RepositoryIndex"
    every = await ask(channel, path, pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)
    ready = await ask(
        channel, path, pb.RepositoryIndexRequest(ready=True), pb.RepositoryIndexResponse
    )
    assert {(m.name, m.state, m.reason) for m in every.models} - {
        (m.name, m.state, m.reason) for m in ready.models
    } == {("unloaded", "UNAVAILABLE", "unloaded")}
    assert {m.state for m in ready.models} == {"READY"}


async def test_metadata_and_config_agree_on_the_batch_dimension(
    channel: grpc.aio.Channel,
) -> None:
    metadata = await ask(
        channel,
        f"{SERVICE}/ModelMetadata",
        pb.ModelMetadataRequest(name="identity_bf16"),
        pb.ModelMetadataResponse,
    )
    config = (
        await ask(
            channel,
            f"{SERVICE}/ModelConfig",
            pb.ModelConfigRequest(name="identity_bf16"),
            pb.ModelConfigResponse,
        )
    ).config
    assert (list(metadata.inputs[0].shape), metadata.inputs[0].datatype) == ([-1, 4], "BF16")
    assert (config.max_batch_size, list(config.input[0].dims)) == (8, [4])
    assert config.input[0].data_type == pb.TYPE_BF16
    assert config.parameters["longest_group_ns"].string_value == "700"
    assert config.parameters["batch_rows_max"].string_value == "4"
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500


async def test_only_what_works_is_advertised(channel: grpc.aio.Channel) -> None:
    metadata = await ask(channel, f"{SERVICE}/ServerMetadata", b"", pb.ServerMetadataResponse)
    assert metadata.name == "gpumuxd"
    assert set(metadata.extensions).isdisjoint({"classification", "trace"})


# Deadlines and cancellation


async def hang(call: InferCall) -> None:
    await asyncio.Event().wait()


async def test_the_grpc_deadline_reaches_the_node(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    before_ns = monotonic_ns()
    await infer(channel, good_request(), timeout_s=30)
    (call,) = node.calls
    assert call.deadline_ns is not None
    # gRPC rounds what it sends up to three digits, here to a tenth of a second.
    assert call.deadline_ns <= call.arrived_ns + 30.2 * 10**9
    assert call.deadline_ns >= before_ns + 29 * 10**9


@pytest.mark.parametrize(
    ("asked", "grpc_s", "earliest_s", "latest_s"),
    [
        # asked for, in us                   gRPC   deadline after arrival, None: there is none
        (None, None, None, None),
        (pb.InferParameter(int64_param=0), None, None, None),
        (pb.InferParameter(int64_param=5_000_000), None, 5, 5),
        (pb.InferParameter(uint64_param=5_000_000), None, 5, 5),
        (pb.InferParameter(int64_param=5_000_000), 60, 5, 5),
        # What is left of gRPC's when it arrives; the client rounds it up to three digits.
        (pb.InferParameter(int64_param=90_000_000), 60, 55, 60.5),
        (pb.InferParameter(int64_param=0), 60, 55, 60.5),
        (None, 60, 55, 60.5),
        (pb.InferParameter(int64_param=2**63 - 1), 60, 55, 60.5),
        (pb.InferParameter(uint64_param=2**64 - 1), None, None, None),
        (pb.InferParameter(int64_param=2**63 - 1), None, None, None),
        (pb.InferParameter(int64_param=5_000_000), 1e9, 5, 5),
        (None, 1e9, None, None),  # 30 years
    ],
)
async def test_the_earlier_deadline_is_the_one_of_the_call(
    channel: grpc.aio.Channel,
    node: FakeNode,
    asked: pb.InferParameter | None,
    grpc_s: float | None,
    earliest_s: float | None,
    latest_s: float | None,
) -> None:
    request = good_request(parameters={} if asked is None else {"timeout": asked})
    method: Method = channel.unary_unary(INFER)
    await method(request.SerializeToString(), timeout=grpc_s)
    (call,) = node.calls
    after_s = None if call.deadline_ns is None else (call.deadline_ns - call.arrived_ns) / 10**9
    if earliest_s is None or latest_s is None:
        assert after_s is None
    else:
        assert after_s is not None
        assert earliest_s <= after_s <= latest_s


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        (pb.InferParameter(int64_param=-1), "got -1"),
        (pb.InferParameter(int64_param=-(2**63)), "got -9223372036854775808"),
        (pb.InferParameter(double_param=0.5), "got double_param"),
        (pb.InferParameter(string_param="5 ms"), "got string_param"),
        (pb.InferParameter(bool_param=True), "got bool_param"),
        (pb.InferParameter(), "got nothing"),
    ],
)
async def test_a_timeout_that_is_no_time_is_refused(
    channel: grpc.aio.Channel, node: FakeNode, asked: pb.InferParameter, got: str
) -> None:
    request = good_request(parameters={"timeout": asked})
    status, details, _ = await refusal(channel, INFER, request)
    assert (status, got in details) == ("INVALID_ARGUMENT", True)
    assert "microseconds, 0 for none" in details
    assert node.calls == []


async def test_a_deadline_that_passes_cancels_the_request(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    node.before_reply = hang
    status, _, _ = await refusal(channel, INFER, good_request(), timeout_s=0.5)
    assert status == "DEADLINE_EXCEEDED"
    await asyncio.wait_for(node.cancelled.wait(), WAIT_S)


async def test_a_timeout_that_is_past_on_arrival_is_refused_by_the_node(
    channel: grpc.aio.Channel,
) -> None:
    request = good_request(parameters={"timeout": pb.InferParameter(int64_param=1)})
    status, details, reason = await refusal(channel, INFER, request)
    assert (status, reason) == ("DEADLINE_EXCEEDED", "DeadlineMissed")
    assert "past" in details


async def test_a_client_that_cancels_cancels_the_request(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    node.before_reply = hang
    method: Method = channel.unary_unary(INFER)
    call = method(good_request().SerializeToString())
    with capture_logs() as logs:
        started = asyncio.ensure_future(node.started.wait())
        waiting = asyncio.ensure_future(call.wait_for_connection())
        await asyncio.wait_for(started, WAIT_S)
        call.cancel()
        await asyncio.wait_for(node.cancelled.wait(), WAIT_S)
        await asyncio.gather(waiting, return_exceptions=True)
        await infer_undisturbed(channel, node)
    assert logs == [], "that a client leaves is nothing to log"


async def test_a_client_that_vanishes_cancels_the_request(front: Front) -> None:
    front.node.before_reply = hang
    async with grpc.aio.insecure_channel(front.target) as leaving:
        task = asyncio.ensure_future(infer(leaving, good_request()))
        await asyncio.wait_for(front.node.started.wait(), WAIT_S)
    await asyncio.wait_for(front.node.cancelled.wait(), WAIT_S)
    await asyncio.gather(task, return_exceptions=True)


async def infer_undisturbed(channel: grpc.aio.Channel, node: FakeNode) -> None:
    """One more call, after which the one before has run to its end."""
    node.before_reply = None
    assert (await infer(channel, good_request())).id == "42"


# Errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull("20000 requests are queued"), "RESOURCE_EXHAUSTED"),
        (DeviceLost("cpu:0 is restarting"), "UNAVAILABLE"),
        (Draining("the daemon is stopping"), "UNAVAILABLE"),
    ],
)
async def test_errors_of_the_node_keep_their_class(
    channel: grpc.aio.Channel, node: FakeNode, error: Exception, status: str
) -> None:
    async def fail(call: InferCall) -> None:
        raise error

    node.before_reply = fail
    assert await refusal(channel, INFER, good_request()) == (
        status,
        str(error),
        type(error).__name__,
    )


async def test_a_bug_is_answered_without_its_text(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    async def fail(call: InferCall) -> None:
        raise RuntimeError("/home/secret/path")

    node.before_reply = fail
    with capture_logs() as logs:
        answer = await refusal(channel, INFER, good_request())
    assert answer == ("INTERNAL", "internal error", "Internal")
    assert [str(entry["exc_info"]) for entry in logs] == ["/home/secret/path"]
    node.before_reply = None
    assert (await infer(channel, good_request())).id == "42"


async def test_a_cancellation_inside_the_node_still_answers(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    async def wait_for_something_cancelled(call: InferCall) -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    node.before_reply = wait_for_something_cancelled
    with capture_logs():
        status, _, _ = await refusal(channel, INFER, good_request())
    assert status == "UNAVAILABLE"


async def test_every_call_of_a_burst_gets_an_answer_of_ours(channel: grpc.aio.Channel) -> None:
    # gRPC by itself drops calls at random while over 1000 have come and were not taken.
    data = good_request().SerializeToString()
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
    calls = [method(data, timeout=60) for _ in range(3000)]
    codes = await asyncio.gather(*(call.code() for call in calls))
    assert {code: codes.count(code) for code in codes} == {grpc.StatusCode.OK: 3000}


# Identity


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ((), "got none"),
        ((("authorization", "Bearer wrong"),), "not known"),
        ((("authorization", f"Basic {CAMERA_TOKEN}"),), "Bearer <token>"),
        ((("authorization", CAMERA_TOKEN),), "Bearer <token>"),
        ((("authorization", "Bearer "),), "Bearer <token>"),
        ((*BEARER, ("authorization", "Bearer wrong")), "one metadata entry"),
    ],
)
@pytest.mark.parametrize("path", [INFER, f"{SERVICE}/RepositoryIndex", STATUS])
async def test_without_a_known_token_nothing_is_told(
    shared: grpc.aio.Channel,
    node: FakeNode,
    path: str,
    metadata: tuple[tuple[str, str], ...],
    told: str,
) -> None:
    status, details, reason = await refusal(shared, path, b"\xff", metadata=metadata)
    assert (status, reason) == ("UNAUTHENTICATED", "Unauthenticated")
    assert told in details
    assert CAMERA_TOKEN not in details
    assert node.calls == []


@pytest.mark.parametrize("path", [INFER, STATUS])
async def test_a_strangers_message_is_never_read(shared: grpc.aio.Channel, path: str) -> None:
    # One that is read is refused for its size, or waited for.
    huge = bytes(4 * MESSAGE_BYTES_MAX)
    status, _, _ = await refusal(shared, path, huge)
    assert status == "UNAUTHENTICATED"
    assert (await refusal(shared, path, huge, metadata=BEARER))[0] == "RESOURCE_EXHAUSTED"
    silent: grpc.aio.StreamUnaryCall[bytes, bytes] = shared.stream_unary(path)(timeout=WAIT_S)
    assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_a_token_says_who_calls(
    shared: grpc.aio.Channel, node: FakeNode, scheme: str
) -> None:
    metadata = (("authorization", f"{scheme} {CAMERA_TOKEN}"),)
    await ask(shared, INFER, good_request(), pb.ModelInferResponse, metadata=metadata)
    assert [call.tenant for call in node.calls] == [CAMERA]


async def test_on_a_socket_of_its_own_a_tenant_stays_itself(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    await ask(channel, INFER, good_request(), pb.ModelInferResponse, metadata=BEARER)
    assert [call.tenant for call in node.calls] == [ADMIN]


async def test_a_priority_above_the_ceiling_is_denied(shared: grpc.aio.Channel) -> None:
    status, _, _ = await refusal(shared, INFER, bad_priority(1), metadata=BEARER)
    assert status == "PERMISSION_DENIED"


async def test_liveness_and_health_need_no_token(shared: grpc.aio.Channel) -> None:
    live = await ask(shared, f"{SERVICE}/ServerLive", b"", pb.ServerLiveResponse)
    ready = await ask(shared, f"{SERVICE}/ServerReady", b"", pb.ServerReadyResponse)
    health = await ask(shared, "/grpc.health.v1.Health/Check", b"", health_pb2.HealthCheckResponse)
    assert (live.live, ready.ready) == (True, True)
    assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_node_status_is_for_admins(
    channel: grpc.aio.Channel, shared: grpc.aio.Channel
) -> None:
    status = await ask(channel, STATUS, b"", control_pb2.NodeStatusResponse)
    assert [(d.name, d.state, d.pid, d.preemptions) for d in status.devices] == [
        ("cpu:0", "ready", 4711, 3)
    ]
    assert status.uptime_ns == 5_000_000_000
    assert (await refusal(shared, STATUS, b"", metadata=BEARER))[0] == "PERMISSION_DENIED"


# Health


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_health_that_is_asked_for_in_no_words_of_its_own(
    channel: grpc.aio.Channel, method: str
) -> None:
    path = f"/grpc.health.v1.Health/{method}"
    status, details, reason = await refusal(channel, path, b"\x0a\xff")
    assert (status, reason) == ("INVALID_ARGUMENT", "InvalidRequest")
    assert details == "the message is not a well-formed HealthCheckRequest"


async def test_health_of_a_service_that_is_not_there(channel: grpc.aio.Channel) -> None:
    request = health_pb2.HealthCheckRequest(service="nothing")
    assert (await refusal(channel, "/grpc.health.v1.Health/Check", request))[0] == "NOT_FOUND"


async def test_watchers_see_every_change_and_end_with_the_server(
    front: Front, channel: grpc.aio.Channel
) -> None:
    path = "/grpc.health.v1.Health/Watch"

    async def watch(service: str) -> tuple[grpc.aio.UnaryStreamCall[bytes, bytes], int]:
        method: StreamMethod = channel.unary_stream(path)
        call = method(
            health_pb2.HealthCheckRequest(service=service).SerializeToString(), timeout=WAIT_S
        )
        return call, await status_of(call)

    async def status_of(call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> int:
        data = await call.read()
        assert isinstance(data, bytes), "the stream ended"
        return health_pb2.HealthCheckResponse.FromString(data).status

    leaving, _ = await watch("")
    first, first_status = await watch("")
    second, second_status = await watch("inference.GRPCInferenceService")
    _, unknown_status = await watch("nothing")
    states = health_pb2.HealthCheckResponse
    assert (first_status, second_status) == (states.SERVING, states.SERVING)
    assert unknown_status == states.SERVICE_UNKNOWN
    leaving.cancel()  # takes nobody else's news along
    front.door.set_serving(False)
    assert await status_of(first) == states.NOT_SERVING
    assert await status_of(second) == states.NOT_SERVING
    front.door.set_serving(True)
    assert await status_of(first) == states.SERVING
    await asyncio.wait_for(front.door.stop(grace_s=60), WAIT_S)  # watchers do not hold it up
    assert await status_of(first) == states.NOT_SERVING
    assert await first.read() is grpc.aio.EOF


# Starting and stopping


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_socket_is_for_user_and_group(front: Front) -> None:
    assert permissions(Path(front.target.removeprefix("unix:"))) == 0o660


async def test_a_second_door_is_refused_on_either_address_and_the_first_lives(
    front: Front, channel: grpc.aio.Channel, node: FakeNode
) -> None:
    for address in front.door.addresses:
        second = FrontDoor(node, [Listener(address, ADMIN)], FakeTenants(), MESSAGE_BYTES_MAX)
        with pytest.raises(AddressInUse, match=r"in use by process \d+"):
            await second.start()
    assert (await infer(channel, good_request())).id == "42"


async def test_a_port_that_is_taken_after_the_check_is_refused_too(
    front: Front, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "check_tcp_free", lambda address: None)
    second = FrontDoor(node, [Listener(front.shared)], FakeTenants(), MESSAGE_BYTES_MAX)
    with pytest.raises(AddressInUse, match=r"in use by process \d+"):
        await second.start()


async def test_starting_is_all_or_nothing(front: Front, node: FakeNode, tmp_path: Path) -> None:
    listeners = [Listener(f"unix:{tmp_path}/new.sock", ADMIN), Listener(front.shared)]
    second = FrontDoor(node, listeners, FakeTenants(), MESSAGE_BYTES_MAX)
    with pytest.raises(AddressInUse):
        await second.start()
    assert names_in(tmp_path) == ["own.sock", "own.sock.lock"]


async def test_addresses_can_be_claimed_before_anything_listens(
    node: FakeNode, tmp_path: Path
) -> None:
    listeners = [Listener(f"unix:{tmp_path}/{name}.sock", ADMIN) for name in "ab"]
    door = FrontDoor(node, listeners, FakeTenants(), MESSAGE_BYTES_MAX)
    door.claim()
    assert names_in(tmp_path) == ["a.sock.lock", "b.sock.lock"]
    free = Listener(f"unix:{tmp_path}/free.sock", ADMIN)
    other = FrontDoor(node, [free, listeners[1]], FakeTenants(), MESSAGE_BYTES_MAX)
    with pytest.raises(AddressInUse, match=f"process {os.getpid()} "):
        other.claim()
    assert names_in(tmp_path) == ["a.sock.lock", "b.sock.lock"]
    await door.start()
    assert list(door.addresses) == [listener.address for listener in listeners]
    await door.stop(0)
    assert names_in(tmp_path) == []


async def test_an_address_that_makes_no_sense_is_a_configuration_error(node: FakeNode) -> None:
    door = FrontDoor(node, [Listener("nowhere")], FakeTenants(), MESSAGE_BYTES_MAX)
    with pytest.raises(ConfigError, match="nowhere"):
        await door.start()


async def test_stopping_lets_calls_finish_and_leaves_nothing_behind(
    node: FakeNode, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def wait(call: InferCall) -> None:
        await go.wait()

    node.before_reply = wait
    async with (
        open_front(node, tmp_path) as front,
        grpc.aio.insecure_channel(front.target) as channel,
    ):
        call = asyncio.ensure_future(infer(channel, good_request()))
        await asyncio.wait_for(node.started.wait(), WAIT_S)
        stopping = asyncio.ensure_future(front.door.stop(grace_s=60))
        await asyncio.sleep(0)
        go.set()
        assert (await call).id == "42"
        await asyncio.wait_for(stopping, WAIT_S)
        assert names_in(tmp_path) == []


async def test_stopping_aborts_what_outlasts_the_grace_time(node: FakeNode, tmp_path: Path) -> None:
    node.before_reply = hang
    async with (
        open_front(node, tmp_path) as front,
        grpc.aio.insecure_channel(front.target) as channel,
    ):
        call = asyncio.ensure_future(refusal(channel, INFER, good_request()))
        await asyncio.wait_for(node.started.wait(), WAIT_S)
        await asyncio.wait_for(front.door.stop(grace_s=0.05), WAIT_S)
        assert node.cancelled.is_set()
        assert (await call)[0] == "UNAVAILABLE"


async def test_two_tenants_have_a_socket_each(node: FakeNode, tmp_path: Path) -> None:
    night = Tenant("night", priority_max=PriorityClass.BEST_EFFORT)
    listeners = [
        Listener(f"unix:{tmp_path}/{tenant.name}.sock", tenant) for tenant in (CAMERA, night)
    ]
    door = FrontDoor(node, listeners, FakeTenants(), MESSAGE_BYTES_MAX)
    await door.start()
    try:
        for address in door.addresses:
            async with grpc.aio.insecure_channel(address) as channel:
                await infer(channel, good_request())
    finally:
        await door.stop(0)
    assert [call.tenant for call in node.calls] == [CAMERA, night]
