"""Schedulers that are wrong in one way about runs that several requests share. See `broken.py`."""

import dataclasses

from gpumuxd.commands import Command, Finish, Launch, Retire
from gpumuxd.core.explanation import BOUNDED, Explanation
from gpumuxd.domain import Bucket, Outcome, OutcomeKind, PriorityClass, RunReport
from gpumuxd.events import Event, ModelReady, RequestArrived, RequestCancelled, SliceFailed
from gpumuxd.settings import SchedulerSettings
from tests.sim.broken import Bent


class MixesShapes(Bent):
    """Whoever asks for the model may ride along."""

    def bend_event(self, event: Event) -> Event | None:
        return dataclasses.replace(event, batch_key=()) if _is_small(event) else event


class TakesTooMany(Bent):
    """Twice as many rows as the model allows."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, ModelReady) and event.batching is not None:
            sizes = event.batching.sizes
            more = event.batching._replace(sizes=(*sizes, 2 * sizes[-1]))
            return dataclasses.replace(event, batching=more)
        return event


class ForgetsRowsThatCame(Bent):
    """Every request counts as one row."""

    def bend_event(self, event: Event) -> Event | None:
        return dataclasses.replace(event, rows=1) if _is_small(event) else event


class ForgetsDeadlines(Bent):
    """Takes riders along that will be late with so many."""

    def bend_event(self, event: Event) -> Event | None:
        return dataclasses.replace(event, deadline_ns=None) if _is_small(event) else event


class SharesOverTheBound(Bent):
    """Says of runs of several rows that their groups are longer than the bound it keeps."""

    def explain(
        self, model_key: str, bucket: Bucket | None, priority_class: PriorityClass | None
    ) -> Explanation | None:
        told = super().explain(model_key, bucket, priority_class)
        if told is None or told.mode != BOUNDED or told.bound_ns is None or told.bucket[0] == 1:
            return told
        return dataclasses.replace(told, floor_ns=told.bound_ns + 1)


class HoldsForEver(Bent):
    """Waits for others a hundred times as long as it may."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, ModelReady) and event.batching is not None:
            longer = event.batching._replace(delay_ns_max=100 * event.batching.delay_ns_max)
            return dataclasses.replace(event, batching=longer)
        return event


class _Watching(Bent):
    """Knows who rides where."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.riders: dict[int, tuple[int, ...]] = {}  # by cursor
        self.cursor_of: dict[int, int] = {}  # by slice
        self.rows: dict[int, int] = {}
        self.told: set[int] = set()

    def handle(self, event: Event, now_ns: int) -> None:
        if isinstance(event, RequestArrived):
            self.rows[event.request_id] = event.rows
        super().handle(event, now_ns)

    def poll(self, now_ns: int) -> list[Command]:
        commands = super().poll(now_ns)
        for command in commands:
            if isinstance(command, Launch):
                self.riders[command.slice.cursor_id] = command.slice.members
                self.cursor_of[command.slice.slice_id] = command.slice.cursor_id
            elif isinstance(command, Finish):
                self.told.add(command.request_id)
        return commands


class BlamesEverybody(_Watching):
    """A run that fails fails all who are in it."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.failed: set[int] = set()

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, SliceFailed):
            self.failed.add(self.cursor_of[event.slice_id])
        return event

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        bent: list[Command] = []
        for command in commands:
            if isinstance(command, Retire) and command.cursor_id in self.failed:
                riders = self.riders[command.cursor_id]
                rows = sum(self.rows[rider] for rider in riders)
                if len(riders) > 1:
                    fault = Outcome(OutcomeKind.MODEL_FAULTED, "somebody's fault")
                    report = RunReport(batch_rows=rows)
                    bent += [Finish(r, fault, report) for r in riders if r not in self.told]
            bent.append(command)
        return bent


class TellsTooEarly(_Watching):
    """Who leaves a run that is shared is told before its inputs were read."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.leaves: list[int] = []

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, RequestCancelled) and event.request_id not in self.told:
            self.leaves.append(event.request_id)
        return event

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        told = {command.request_id for command in commands if isinstance(command, Finish)}
        early: list[Command] = []
        for request_id in self.leaves:
            riders = next((r for r in self.riders.values() if request_id in r), ())
            if request_id not in told and len(riders) > 1:
                report = RunReport(batch_rows=sum(self.rows[rider] for rider in riders))
                early.append(Finish(request_id, Outcome(OutcomeKind.CANCELLED), report))
        self.leaves.clear()
        return early + commands


class MisreportsRows(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return [_with_report(c, batch_rows=99) if _shares(c) else c for c in commands]


class CountsEverybody(Bent):
    """Each rider counts the execution of its run."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return [_with_report(c, leads_batch=True) if _shares(c) else c for c in commands]


class CountsNobody(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return [_with_report(c, leads_batch=False) if _shares(c) else c for c in commands]


def _is_small(event: Event) -> bool:
    return isinstance(event, RequestArrived) and event.request_id > 0


def _shares(command: Command) -> bool:
    return isinstance(command, Finish) and command.report.batch_rows > 1


def _with_report(command: Command, **changes: int | bool) -> Command:
    assert isinstance(command, Finish)
    report = dataclasses.replace(command.report, **changes)  # type: ignore[arg-type]  # by name
    return dataclasses.replace(command, report=report)
