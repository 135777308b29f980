"""What became of the requests of one version: counted once each, when they end.

It must not know how a request runs; its reply tells. Invariant: success + failed = all that ended.
"""

import time

from gpumuxd.node.api import BatchStatistics, Duration, InferReply, ModelStatistics
from gpumuxd.units import NS_PER_MS


class _Sum:
    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def view(self) -> Duration:
        return Duration(self.count, self.ns)


class _Runs:
    """How long parts of runs took, altogether. One method: this is on the path of a request."""

    __slots__ = ("compute_ns", "copied_in_ns", "copied_out_ns", "count")

    def __init__(self) -> None:
        self.count = 0
        self.copied_in_ns = 0
        self.compute_ns = 0
        self.copied_out_ns = 0

    def add(self, reply: InferReply) -> None:
        self.count += 1
        self.copied_in_ns += reply.copied_in_ns
        self.compute_ns += reply.report.compute_ns
        self.copied_out_ns += reply.copied_out_ns

    def view(self) -> tuple[Duration, Duration, Duration]:
        """In, compute, out."""
        times = (self.copied_in_ns, self.compute_ns, self.copied_out_ns)
        copied_in, compute, copied_out = (Duration(self.count, ns) for ns in times)
        return copied_in, compute, copied_out


class VersionCounters:
    """Of one version, from its load to its unload. `pending` is whoever waits to keep right."""

    def __init__(self) -> None:
        self.pending = 0
        self._ended_ms = 0
        self._rows = 0
        self._success_ns = 0
        self._queued_ns = 0
        self._done = _Runs()  # as each request saw it
        self._failed = _Sum()
        self._cancelled = _Sum()
        self._batches: dict[int, _Runs] = {}  # by rows, each run once

    def succeeded(self, reply: InferReply, took_ns: int) -> None:
        """A request was done, in this time since it arrived."""
        report = reply.report
        self._ended_ms = time.time_ns() // NS_PER_MS
        self._success_ns += took_ns
        self._queued_ns += report.queue_ns
        self._rows += reply.rows
        self._done.add(reply)
        if report.batch_rows and not report.leads_batch:
            return  # its run is counted with the one that leads it
        rows = report.batch_rows or reply.rows
        runs = self._batches.get(rows)
        if runs is None:
            runs = self._batches[rows] = _Runs()
        runs.add(reply)

    def failed(self, took_ns: int, is_cancelled: bool = False) -> None:
        """A request was refused, or ended otherwise than well."""
        self._failed.add(took_ns)
        if is_cancelled:
            self._cancelled.add(took_ns)

    def view(
        self, name: str, version: str, weights_bytes: tuple[tuple[int, int], ...]
    ) -> ModelStatistics:
        """All of it at this moment."""
        done = self._done.count
        copied_in, compute, copied_out = self._done.view()
        return ModelStatistics(
            name=name,
            version=version,
            ended_ms=self._ended_ms,
            rows=self._rows,
            runs=sum(runs.count for runs in self._batches.values()),
            pending=self.pending,
            success=Duration(done, self._success_ns),
            failed=self._failed.view(),
            cancelled=self._cancelled.view(),
            queued=Duration(done, self._queued_ns),
            copied_in=copied_in,
            compute=compute,
            copied_out=copied_out,
            batches=tuple(
                BatchStatistics(rows, *runs.view()) for rows, runs in sorted(self._batches.items())
            ),
            weights_bytes=weights_bytes,
        )
