"""Statistics of models, as the protocol has them. Values in, a message out.

`response_stats` tells what the protocol has no other place for, how many requests were cancelled;
every request has one answer here, the one with the key "0".
"""

from collections.abc import Sequence

from gpumuxd.node.api import BatchStatistics, Duration, ModelStatistics
from gpumuxd.rpc.generated import inference_pb2 as pb

ONLY_ANSWER = "0"


def encode_statistics(models: Sequence[ModelStatistics]) -> pb.ModelStatisticsResponse:
    """The answer for these versions."""
    return pb.ModelStatisticsResponse(model_stats=[_model(model) for model in models])


def _model(model: ModelStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=model.ended_ms,
        inference_count=model.rows,
        execution_count=model.runs,
        inference_stats=pb.InferStatistics(
            success=_duration(model.success),
            fail=_duration(model.failed),
            queue=_duration(model.queued),
            compute_input=_duration(model.copied_in),
            compute_infer=_duration(model.compute),
            compute_output=_duration(model.copied_out),
        ),
        batch_stats=[_batch(batch) for batch in model.batches],
        memory_usage=[
            pb.MemoryUsage(type="CPU", id=number, byte_size=size_bytes)
            for number, size_bytes in model.weights_bytes
        ],
        response_stats={ONLY_ANSWER: _answers(model)},
    )


def _batch(batch: BatchStatistics) -> pb.InferBatchStatistics:
    return pb.InferBatchStatistics(
        batch_size=batch.rows,
        compute_input=_duration(batch.copied_in),
        compute_infer=_duration(batch.compute),
        compute_output=_duration(batch.copied_out),
    )


def _answers(model: ModelStatistics) -> pb.InferResponseStatistics:
    failed, cancelled = model.failed, model.cancelled
    return pb.InferResponseStatistics(
        compute_infer=_duration(model.compute),
        compute_output=_duration(model.copied_out),
        success=_duration(model.success),
        fail=_duration(Duration(failed.count - cancelled.count, failed.ns - cancelled.ns)),
        cancel=_duration(cancelled),
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
