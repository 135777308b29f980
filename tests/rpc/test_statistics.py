"""ModelStatistics as it lies on the wire, and whether what is advertised works."""

import grpc

from gpumuxd.rpc.generated import inference_pb2 as pb
from tests.rpc.fake_node import STATISTICS, FakeNode
from tests.rpc.front import INFER, ask, good_request, infer, refusal

SERVICE = "/inference.GRPCInferenceService"
PATH = f"{SERVICE}/ModelStatistics"


def pair(duration: pb.StatisticDuration) -> tuple[int, int]:
    return duration.count, duration.ns


async def test_all_that_is_counted_is_told(channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, PATH, b"", pb.ModelStatisticsResponse)
    (model,) = answer.model_stats
    assert (model.name, model.version) == ("identity_fp32", "1")
    assert model.last_inference == 1_700_000_000_123
    assert (model.inference_count, model.execution_count) == (9, 4)
    stats = model.inference_stats
    assert [pair(each) for each in (stats.success, stats.fail, stats.queue)] == [
        (5, 500),
        (3, 300),
        (5, 51),
    ]
    computed = (stats.compute_input, stats.compute_infer, stats.compute_output)
    assert [pair(each) for each in computed] == [(5, 52), (5, 53), (5, 54)]
    (batch,) = model.batch_stats
    assert batch.batch_size == 2
    computed = (batch.compute_input, batch.compute_infer, batch.compute_output)
    assert [pair(each) for each in computed] == [(4, 41), (4, 42), (4, 43)]
    (memory,) = model.memory_usage
    assert (memory.type, memory.id, memory.byte_size) == ("CPU", 0, 1024)
    answers = model.response_stats["0"]
    told = (answers.success, answers.fail, answers.cancel)
    assert [pair(each) for each in told] == [(5, 500), (2, 200), (1, 100)]


async def test_one_model_or_none(channel: grpc.aio.Channel) -> None:
    request = pb.ModelStatisticsRequest(name=STATISTICS.name, version="1")
    answer = await ask(channel, PATH, request, pb.ModelStatisticsResponse)
    assert len(answer.model_stats) == 1
    status, details, _ = await refusal(channel, PATH, pb.ModelStatisticsRequest(name="other"))
    assert (status, details) == (
        "NOT_FOUND",
        "model 'other' is not loaded, so it has no statistics",
    )


async def test_what_is_no_call_counts_as_refused_and_what_the_node_saw_does_not(
    channel: grpc.aio.Channel, node: FakeNode
) -> None:
    request = good_request(raw_input_contents=[b"short"], model_version="1")
    assert (await refusal(channel, INFER, request))[0] == "INVALID_ARGUMENT"
    assert node.refused == [("default", "identity_fp32", "1")]
    await infer(channel, good_request())
    assert (await refusal(channel, INFER, good_request(model_name="nobody")))[0] == "NOT_FOUND"
    assert len(node.refused) == 1


async def test_it_is_for_tenants_and_advertised(
    channel: grpc.aio.Channel, shared: grpc.aio.Channel
) -> None:
    assert (await refusal(shared, PATH, b""))[0] == "UNAUTHENTICATED"
    metadata = await ask(channel, f"{SERVICE}/ServerMetadata", b"", pb.ServerMetadataResponse)
    assert "statistics" in metadata.extensions
    assert "trace" not in metadata.extensions
