"""What became of the requests of a version: the values, and how they are read from an answer."""

from dataclasses import dataclass

from gpumuxd_client.generated import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something was done, and how long it took altogether."""

    count: int
    ns: int

    @property
    def mean_ns(self) -> float:
        """Of each time, 0 where there was none."""
        return self.ns / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Runs of so many rows together."""

    rows: int
    copied_in: Duration
    compute: Duration
    copied_out: Duration


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Of one version since it was loaded.

    last_inference_ms   when the last request was done, in ms since 1970; 0: none was
    rows, runs          of requests that were done; those that ran together share a run
    success, fail       from arrival to the end; `fail` is all others, `cancelled` among them
    queue .. copied_out of requests that were done
    memory              of its weights, in bytes, by the number of the device
    """

    name: str
    version: str
    last_inference_ms: int
    rows: int
    runs: int
    success: Duration
    fail: Duration
    cancelled: Duration
    queue: Duration
    copied_in: Duration
    compute: Duration
    copied_out: Duration
    batches: tuple[BatchStatistics, ...]
    memory: tuple[tuple[int, int], ...]


def decode_statistics(data: bytes) -> tuple[ModelStatistics, ...]:
    """A ModelStatistics answer."""
    response = pb.ModelStatisticsResponse.FromString(data)
    return tuple(_model(model) for model in response.model_stats)


def _model(model: pb.ModelStatistics) -> ModelStatistics:
    stats = model.inference_stats
    return ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference_ms=model.last_inference,
        rows=model.inference_count,
        runs=model.execution_count,
        success=_duration(stats.success),
        fail=_duration(stats.fail),
        cancelled=_duration(model.response_stats["0"].cancel),
        queue=_duration(stats.queue),
        copied_in=_duration(stats.compute_input),
        compute=_duration(stats.compute_infer),
        copied_out=_duration(stats.compute_output),
        batches=tuple(
            BatchStatistics(
                batch.batch_size,
                _duration(batch.compute_input),
                _duration(batch.compute_infer),
                _duration(batch.compute_output),
            )
            for batch in model.batch_stats
        ),
        memory=tuple((usage.id, usage.byte_size) for usage in model.memory_usage),
    )


def _duration(duration: pb.StatisticDuration) -> Duration:
    return Duration(duration.count, duration.ns)
