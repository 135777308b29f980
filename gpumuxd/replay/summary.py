"""Tables of histories: per model and class, how many requests came to what, and how long they took.

Plain values first, which `--json` prints, then text for people. It must not know how a history came
about.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.replay.history import History, Request
from gpumuxd.units import NS_PER_MS, printable

_LATE = (OutcomeKind.DEADLINE_MISSED, OutcomeKind.DEADLINE_INFEASIBLE)
_REFUSED = (
    OutcomeKind.QUEUE_FULL,
    OutcomeKind.DRAINING,
    OutcomeKind.MODEL_NOT_READY,
    OutcomeKind.OUT_OF_DEVICE_MEMORY,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One model in one class. Times of completed requests, None where there are none.

    late      deadline missed, or refused because it would have been
    waits_*   preemption delay, see `history.py`, of `went_ahead` requests
    """

    model: str
    priority_class: str
    requests: int
    completed: int
    late: int
    refused: int
    cancelled: int
    failed: int
    latency_ns_p50: int | None
    latency_ns_p99: int | None
    queue_ns_p50: int | None
    queue_ns_p99: int | None
    compute_ns_p50: int | None
    preempted: int
    went_ahead: int
    waits_ns_p50: int | None
    waits_ns_p99: int | None


def rows(history: History, counted: frozenset[int]) -> list[Row]:
    """The rows, the highest class first. `counted` are the requests that count."""
    groups: dict[tuple[int, str], list[Request]] = {}
    for request_id, request in history.requests.items():
        if request_id in counted and request.outcome is not None:
            arrival = request.arrival
            groups.setdefault((-arrival.priority_class, arrival.model), []).append(request)
    return [_row(model, -rank, groups[rank, model]) for rank, model in sorted(groups)]


def _row(model: str, rank: int, requests: Sequence[Request]) -> Row:
    kinds = [request.outcome.kind for request in requests if request.outcome is not None]
    completed = [
        request
        for request, kind in zip(requests, kinds, strict=True)
        if kind is OutcomeKind.COMPLETED
    ]
    latencies = sorted(request.latency_ns for request in completed)
    queues = sorted(request.report.queue_ns for request in completed)
    waits = sorted(request.report.queue_ns for request in completed if request.went_ahead)
    return Row(
        model=model,
        priority_class=PriorityClass(rank).name,
        requests=len(requests),
        completed=len(completed),
        late=sum(kind in _LATE for kind in kinds),
        refused=sum(kind in _REFUSED for kind in kinds),
        cancelled=kinds.count(OutcomeKind.CANCELLED),
        failed=kinds.count(OutcomeKind.MODEL_FAULTED) + kinds.count(OutcomeKind.DEVICE_LOST),
        latency_ns_p50=percentile(latencies, 50),
        latency_ns_p99=percentile(latencies, 99),
        queue_ns_p50=percentile(queues, 50),
        queue_ns_p99=percentile(queues, 99),
        compute_ns_p50=percentile(sorted(request.report.compute_ns for request in completed), 50),
        preempted=sum(request.report.preemptions for request in requests),
        went_ahead=len(waits),
        waits_ns_p50=percentile(waits, 50),
        waits_ns_p99=percentile(waits, 99),
    )


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The nearest rank, of values in order."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def values(table: Sequence[Row]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(row) for row in table]


def show_recorded(console: Console, table: Sequence[Row]) -> None:
    """What was recorded."""
    shown = _table("model", "class")
    for heading in ("requests", "completed", "late", "refused", "cancelled", "failed"):
        shown.add_column(heading, justify="right")
    for heading in ("p50", "p99", "queue p99", "run p50", "preempted", "delay p50", "delay p99"):
        shown.add_column(heading, justify="right")
    for row in table:
        counts = (row.requests, row.completed, row.late, row.refused, row.cancelled, row.failed)
        shown.add_row(
            printable(row.model),
            row.priority_class,
            *map(str, counts),
            _ms(row.latency_ns_p50),
            _ms(row.latency_ns_p99),
            _ms(row.queue_ns_p99),
            _ms(row.compute_ns_p50),
            str(row.preempted),
            _ms(row.waits_ns_p50),
            _ms(row.waits_ns_p99),
        )
    console.print(shown)
    console.print("Times in ms; delay: preemption delay, of requests that went ahead of others.")


def show_predicted(console: Console, tables: Sequence[tuple[str, Sequence[Row]]]) -> None:
    """Several tables of the same requests, model by model."""
    shown = _table("model", "class", "settings")
    for heading in ("completed", "late", "p50", "p99", "delay p50", "delay p99", "preempted"):
        shown.add_column(heading, justify="right")
    by_place = [
        (name, {(row.model, row.priority_class): row for row in table}) for name, table in tables
    ]
    for place in [(row.model, row.priority_class) for row in tables[0][1]]:
        names: tuple[str, str] = printable(place[0]), place[1]
        for name, table_of in by_place:
            row = table_of.get(place)
            if row is None:
                continue
            shown.add_row(
                *names,
                name,
                str(row.completed),
                str(row.late),
                _ms(row.latency_ns_p50),
                _ms(row.latency_ns_p99),
                _ms(row.waits_ns_p50),
                _ms(row.waits_ns_p99),
                str(row.preempted),
            )
            names = ("", "")
    console.print(shown)


def _table(*headings: str) -> Table:
    return Table(*headings, box=None, pad_edge=False)


def _ms(duration_ns: int | None) -> str:
    return "-" if duration_ns is None else f"{duration_ns / NS_PER_MS:.2f}"
