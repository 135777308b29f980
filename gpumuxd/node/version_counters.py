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


class _Batches:
    """Runs of one number of rows."""

    __slots__ = ("compute", "copied_in", "copied_out")

    def __init__(self) -> None:
        self.copied_in = _Sum()
        self.compute = _Sum()
        self.copied_out = _Sum()


class VersionCounters:
    """Of one version, from its load to its unload. `pending` is whoever waits to keep right."""

    def __init__(self) -> None:
        self.pending = 0
        self._ended_ms = 0
        self._rows = 0
        self._runs = 0
        self._success = _Sum()
        self._failed = _Sum()
        self._cancelled = _Sum()
        self._queued = _Sum()
        self._copied_in = _Sum()
        self._compute = _Sum()
        self._copied_out = _Sum()
        self._batches: dict[int, _Batches] = {}

    def succeeded(self, reply: InferReply, took_ns: int) -> None:
        """A request was done, in this time since it arrived."""
        self._ended_ms = time.time_ns() // NS_PER_MS
        report = reply.report
        self._success.add(took_ns)
        self._queued.add(report.queue_ns)
        self._copied_in.add(reply.copied_in_ns)
        self._compute.add(report.compute_ns)
        self._copied_out.add(reply.copied_out_ns)
        self._rows += reply.rows
        if report.batch_rows and not report.leads_batch:
            return  # its run is counted with the one that leads it
        self._runs += 1
        rows = report.batch_rows or reply.rows
        batches = self._batches.get(rows)
        if batches is None:
            batches = self._batches[rows] = _Batches()
        batches.copied_in.add(reply.copied_in_ns)
        batches.compute.add(report.compute_ns)
        batches.copied_out.add(reply.copied_out_ns)

    def failed(self, took_ns: int, is_cancelled: bool = False) -> None:
        """A request was refused, or ended otherwise than well."""
        self._failed.add(took_ns)
        if is_cancelled:
            self._cancelled.add(took_ns)

    def view(
        self, name: str, version: str, weights_bytes: tuple[tuple[int, int], ...]
    ) -> ModelStatistics:
        """All of it at this moment."""
        return ModelStatistics(
            name=name,
            version=version,
            ended_ms=self._ended_ms,
            rows=self._rows,
            runs=self._runs,
            pending=self.pending,
            success=self._success.view(),
            failed=self._failed.view(),
            cancelled=self._cancelled.view(),
            queued=self._queued.view(),
            copied_in=self._copied_in.view(),
            compute=self._compute.view(),
            copied_out=self._copied_out.view(),
            batches=tuple(
                BatchStatistics(
                    rows,
                    batches.copied_in.view(),
                    batches.compute.view(),
                    batches.copied_out.view(),
                )
                for rows, batches in sorted(self._batches.items())
            ),
            weights_bytes=weights_bytes,
        )
