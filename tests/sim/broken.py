"""Schedulers that are wrong in one way each: the production one with something bent around it.

Each breaks one invariant and nothing that it can help beside it.
"""

import dataclasses
from collections.abc import Callable

from gpumuxd.commands import Admit, Command, Finish, Launch, Release, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.core.explanation import Explanation
from gpumuxd.core.statistics import DeviceStatistics
from gpumuxd.domain import (
    COMPLETED,
    Bucket,
    CursorKind,
    Outcome,
    OutcomeKind,
    PriorityClass,
    RunReport,
)
from gpumuxd.events import (
    DeviceLost,
    DeviceMeasured,
    Event,
    ModelDraining,
    ModelReady,
    RequestArrived,
    RequestCancelled,
    SyncPointReached,
    TenantChanged,
)
from gpumuxd.settings import Order, SchedulerSettings, Slicing


class Bent:
    """Passes everything through; subclasses bend one thing."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.inner = DeviceScheduler(self.bend_settings(settings))

    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return settings

    def handle(self, event: Event, now_ns: int) -> None:
        bent = self.bend_event(event)
        if bent is not None:
            self.inner.handle(bent, now_ns)

    def bend_event(self, event: Event) -> Event | None:
        return event

    def poll(self, now_ns: int) -> list[Command]:
        return self.bend_commands(self.inner.poll(now_ns))

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return commands

    def next_wakeup_ns(self) -> int | None:
        return self.inner.next_wakeup_ns()

    def statistics(self) -> DeviceStatistics:
        return self.inner.statistics()

    def explain(
        self, model_key: str, bucket: Bucket | None, priority_class: PriorityClass | None
    ) -> Explanation | None:
        return self.inner.explain(model_key, bucket, priority_class)


def _each(commands: list[Command], change: Callable[[Command], list[Command]]) -> list[Command]:
    return [changed for command in commands for changed in change(command)]


# 1 groups launched once, in order, no gaps


class LaunchesTwice(Bent):
    """Every slice twice, as two slices."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def twice(command: Command) -> list[Command]:
            if not isinstance(command, Launch):
                return [command]
            again = command.slice._replace(slice_id=command.slice.slice_id + 1_000_000)
            return [command, Launch(again)]

        return _each(commands, twice)


class SkipsAGroup(Bent):
    """Every slice begins one group too late."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def late(command: Command) -> list[Command]:
            if isinstance(command, Launch) and command.slice.end_group > 1:
                work = command.slice
                return [Launch(work._replace(first_group=work.first_group + 1))]
            return [command]

        return _each(commands, late)


class GoesPastTheEnd(Bent):
    """The last slice of each cursor has one group too many."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.group_counts: dict[str, int] = {}

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, ModelReady):
            self.group_counts[event.model] = event.profile.group_count
        return event

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def longer(command: Command) -> list[Command]:
            if isinstance(command, Launch):
                work = command.slice
                if work.end_group == self.group_counts[work.model]:
                    return [Launch(work._replace(end_group=work.end_group + 1))]
            return [command]

        return _each(commands, longer)


# 2 windows and budgets


class IgnoresTheWindow(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, window_max=settings.window_max + 1)


class IgnoresTheBound(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, preemption_delay_ns_max=1 << 40)


class NeverCuts(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, slicing=Slicing.NONE)


class CountsOneOperatorMore(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, slicing_operators=settings.slicing_operators + 1)


class DoesNotWait(Bent):
    """One slice more than a baseline may have in flight."""

    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        slicing, window = settings.slicing, settings.window_fixed + 1
        if slicing is Slicing.EVERY:
            slicing = Slicing.WINDOW
        return dataclasses.replace(settings, slicing=slicing, slicing_window=window)


class SaysAnotherLength(Bent):
    """Explains its slices of least delay as half as long as they are."""

    def explain(
        self, model_key: str, bucket: Bucket | None, priority_class: PriorityClass | None
    ) -> Explanation | None:
        told = super().explain(model_key, bucket, priority_class)
        return told and dataclasses.replace(told, slice_ns=told.slice_ns // 2)


class SaysAShorterWindow(Bent):
    """Explains its slices of least delay with one in flight less than there are."""

    def explain(
        self, model_key: str, bucket: Bucket | None, priority_class: PriorityClass | None
    ) -> Explanation | None:
        told = super().explain(model_key, bucket, priority_class)
        return told and dataclasses.replace(told, window=max(1, told.window - 1))


class IgnoresMeasurements(Bent):
    """Does not hear what sync points cost, and keeps bounds that nobody asked for."""

    def bend_event(self, event: Event) -> Event | None:
        return None if isinstance(event, DeviceMeasured) else event


class NamesAnotherRule(Bent):
    def explain(
        self, model_key: str, bucket: Bucket | None, priority_class: PriorityClass | None
    ) -> Explanation | None:
        told = super().explain(model_key, bucket, priority_class)
        return told and dataclasses.replace(told, mode="every" if told.mode == "none" else "none")


class MissesALayer(Bent):
    """Does not see where the first layer of a model ends."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, ModelReady) and len(event.profile.layer_ends) > 1:
            profile = dataclasses.replace(event.profile, layer_ends=event.profile.layer_ends[1:])
            return dataclasses.replace(event, profile=profile)
        return event


class InventsAProfile(Bent):
    """Takes what was never measured to take a microsecond a group."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, ModelReady) and not event.profile.group_ns:
            times = (1_000,) * event.profile.group_count
            profile = dataclasses.replace(
                event.profile, group_ns={(1,): times}, run_ns={(1,): sum(times)}
            )
            return dataclasses.replace(event, profile=profile)
        return event


class ProfilesInOne(Bent):
    """Profile runs are cut like all others."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, RequestArrived):
            return dataclasses.replace(event, kind=CursorKind.INFER)
        return event


# 4 work conservation


class ForgetsToLaunch(Bent):
    """Keeps its launches to itself now and then, when nothing else is in flight."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.polls = 0

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        launches = sum(isinstance(command, Launch) for command in commands)
        self.polls += 1
        if self.polls < 10 or self.inner.statistics().in_flight_slices > launches:
            return commands
        return [command for command in commands if not isinstance(command, Launch)]


class SleepsBetween(Bent):
    """Decides only at every third poll; what it decides then is right."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.polls = 0

    def poll(self, now_ns: int) -> list[Command]:
        self.polls += 1
        return self.inner.poll(now_ns) if self.polls % 3 == 0 else []


# 5 order


class FirstComeFirstServed(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, order=Order.FIFO)


class IgnoresDeadlines(Bent):
    """Does not hear of any deadline."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, RequestArrived):
            return dataclasses.replace(event, deadline_ns=None)
        return event


class GrantsTooMuch(Bent):
    """Gives best-effort work four times its share."""

    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        share_ppm = min(900_000, 4 * settings.best_effort_share_min_ppm)
        return dataclasses.replace(settings, best_effort_share_min_ppm=share_ppm)


class GrantsNothing(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, best_effort_share_min_ppm=0)


class GrantsOverTheBound(Bent):
    """What it launches ahead of higher classes is a hundred times as long."""

    def poll(self, now_ns: int) -> list[Command]:
        before = self.inner.statistics().best_effort_grants
        commands = self.inner.poll(now_ns)
        granted = self.inner.statistics().best_effort_grants - before
        share = self.inner._launcher.share
        grants = set(share._grants_in_flight) if share is not None and granted else set()

        def longer(command: Command) -> list[Command]:
            if isinstance(command, Launch) and command.slice.slice_id in grants:
                work = command.slice
                return [Launch(work._replace(predicted_ns=100 * work.predicted_ns))]
            return [command]

        return _each(commands, longer)


class GrantsOwnWork(Bent):
    """Takes the device's own work for that of a tenant."""

    def handle(self, event: Event, now_ns: int) -> None:
        super().handle(event, now_ns)
        if isinstance(event, RequestArrived):
            self.inner._endings.cursors[event.request_id].is_own = False


class MiscountsGrants(Bent):
    def statistics(self) -> DeviceStatistics:
        told = self.inner.statistics()
        return dataclasses.replace(told, best_effort_grants=told.best_effort_grants + 1)


# 6 exactly one Finish


class GivesUpTooSoon(Bent):
    """Ends what has a deadline as soon as it is admitted, and tells of an end that is late."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.deadlines: dict[int, int] = {}

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, RequestArrived) and event.deadline_ns is not None:
            self.deadlines[event.request_id] = event.deadline_ns
        return event

    def poll(self, now_ns: int) -> list[Command]:
        commands = self.inner.poll_fates(now_ns)
        for command in tuple(commands):
            if isinstance(command, Admit) and command.request_id in self.deadlines:
                self.inner.handle(RequestCancelled(command.request_id), now_ns)
        commands += [self.late(command) for command in self.inner.poll_fates(now_ns)]
        return self.inner.poll_launches(now_ns, commands)

    def late(self, command: Command) -> Command:
        if not isinstance(command, Finish) or command.request_id not in self.deadlines:
            return command
        due_ns = self.deadlines[command.request_id]
        outcome = Outcome(OutcomeKind.DEADLINE_MISSED, "late", due_ns + 1, due_ns)
        return dataclasses.replace(command, outcome=outcome)


class GivesUpInTime(Bent):
    """What is given up would have ended in time, by its own word."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def in_time(command: Command) -> list[Command]:
            if isinstance(command, Finish):
                outcome = command.outcome
                told = dataclasses.replace(outcome, predicted_finish_ns=outcome.deadline_ns)
                return [dataclasses.replace(command, outcome=told)]
            return [command]

        return _each(commands, in_time)


class ForgetsTheDeadline(Bent):
    """Refuses and gives up without telling the deadline."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def forget(command: Command) -> list[Command]:
            if isinstance(command, Finish):
                told = dataclasses.replace(command.outcome, deadline_ns=0)
                return [dataclasses.replace(command, outcome=told)]
            return [command]

        return _each(commands, forget)


class DropsAFinish(Bent):
    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.dropped = 0

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def drop(command: Command) -> list[Command]:
            is_first = isinstance(command, Finish) and not self.dropped
            self.dropped += is_first
            return [] if is_first else [command]

        return _each(commands, drop)


class FinishesTwice(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return _each(commands, lambda c: [c, c] if isinstance(c, Finish) else [c])


class FinishesAtOnce(Bent):
    """Tells of success as soon as a request is admitted."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def early(command: Command) -> list[Command]:
            if not isinstance(command, Admit):
                return [command]
            return [command, Finish(command.request_id, COMPLETED, RunReport())]

        return _each(commands, early)


class AdmitsSilently(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return [command for command in commands if not isinstance(command, Admit)]


class BlamesTheModel(Bent):
    """Every success is told as a fault of the model."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def blame(command: Command) -> list[Command]:
            if isinstance(command, Finish) and command.outcome.kind is OutcomeKind.COMPLETED:
                fault = dataclasses.replace(command.outcome, kind=OutcomeKind.MODEL_FAULTED)
                return [dataclasses.replace(command, outcome=fault)]
            return [command]

        return _each(commands, blame)


class MisreportsTime(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def wrong(command: Command) -> list[Command]:
            if not isinstance(command, Finish):
                return [command]
            report = dataclasses.replace(command.report, compute_ns=command.report.compute_ns + 1)
            return [dataclasses.replace(command, report=report)]

        return _each(commands, wrong)


class MiscountsPreemptions(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def more(command: Command) -> list[Command]:
            if not isinstance(command, Finish):
                return [command]
            report = dataclasses.replace(command.report, preemptions=command.report.preemptions + 1)
            return [dataclasses.replace(command, report=report)]

        return _each(commands, more)


class MisreportsWaiting(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def wrong(command: Command) -> list[Command]:
            if not isinstance(command, Finish):
                return [command]
            report = dataclasses.replace(command.report, queue_ns=command.report.queue_ns + 1)
            return [dataclasses.replace(command, report=report)]

        return _each(commands, wrong)


class RefusesWithoutCause(Bent):
    """Says that a queue is full which is not."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def refuse(command: Command) -> list[Command]:
            if not isinstance(command, Admit):
                return [command]
            return [Finish(command.request_id, Outcome(OutcomeKind.QUEUE_FULL), RunReport())]

        return _each(commands, refuse)


class RefusesTheUnmeasured(Bent):
    """Says that what was never measured can't be done in time."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.unmeasured: set[str] = set()
        self.deadlines: dict[int, int] = {}

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, ModelReady) and not event.profile.group_ns:
            self.unmeasured.add(event.model)
        if isinstance(event, RequestArrived) and event.model in self.unmeasured:
            self.deadlines[event.request_id] = event.deadline_ns or 0
        return event

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def refuse(command: Command) -> list[Command]:
            due_ns = isinstance(command, Admit) and self.deadlines.get(command.request_id)
            if not isinstance(command, Admit) or not due_ns:
                return [command]
            told = Outcome(OutcomeKind.DEADLINE_INFEASIBLE, "who knows", due_ns + 1, due_ns)
            return [Finish(command.request_id, told, RunReport())]

        return _each(commands, refuse)


class IgnoresCancels(Bent):
    def bend_event(self, event: Event) -> Event | None:
        return None if isinstance(event, RequestCancelled) else event


# 7 resources


class KeepsFrames(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return [command for command in commands if not isinstance(command, Retire)]


class IgnoresReservedFrames(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, frames_reserved=0)


class IgnoresMemory(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, memory_bytes_max=1 << 50)


class IgnoresTheQueueLimit(Bent):
    def bend_settings(self, settings: SchedulerSettings) -> SchedulerSettings:
        return dataclasses.replace(settings, queue_requests_max=1 << 20)


class SharesFrames(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def share(command: Command) -> list[Command]:
            if isinstance(command, Launch):
                return [Launch(command.slice._replace(frame=0))]
            if isinstance(command, Retire):
                return [dataclasses.replace(command, frame=0)]
            return [command]

        return _each(commands, share)


class ChangesFrames(Bent):
    """A cursor goes on in another frame than it began in."""

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        def move(command: Command) -> list[Command]:
            if isinstance(command, Launch) and command.slice.first_group:
                return [Launch(command.slice._replace(frame=command.slice.frame + 1))]
            return [command]

        return _each(commands, move)


class MiscountsSlices(Bent):
    def statistics(self) -> DeviceStatistics:
        told = self.inner.statistics()
        return dataclasses.replace(told, slices_launched=told.slices_launched + 1)


# 8 draining


class IgnoresDraining(Bent):
    def bend_event(self, event: Event) -> Event | None:
        return None if isinstance(event, ModelDraining) else event


class DrainsBeforeItDecides(Bent):
    """Refuses what arrived before the drain that it heard of in the same turn."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.heard: list[tuple[Event, int]] = []

    def handle(self, event: Event, now_ns: int) -> None:
        self.heard.append((event, now_ns))

    def poll(self, now_ns: int) -> list[Command]:
        # Stable: all else stays in its order.
        for event, at_ns in sorted(self.heard, key=lambda h: isinstance(h[0], RequestArrived)):
            self.inner.handle(event, at_ns)
        self.heard.clear()
        return super().poll(now_ns)


class ReleasesTwice(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return _each(commands, lambda c: [c, c] if isinstance(c, Release) else [c])


class NeverReleases(Bent):
    def bend_commands(self, commands: list[Command]) -> list[Command]:
        return [command for command in commands if not isinstance(command, Release)]


# 9 a lost device


class IgnoresTheLoss(Bent):
    def bend_event(self, event: Event) -> Event | None:
        return None if isinstance(event, DeviceLost) else event


# 10 liveness


class FallsAsleep(Bent):
    """Stops deciding after a while, and asks for no wake-up."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.polls = 0

    def poll(self, now_ns: int) -> list[Command]:
        self.polls += 1
        return self.inner.poll(now_ns) if self.polls < 20 else []

    def next_wakeup_ns(self) -> int | None:
        return self.inner.next_wakeup_ns() if self.polls < 20 else None


class NeverRests(Bent):
    """Asks to be woken at once, for ever."""

    def next_wakeup_ns(self) -> int | None:
        return 0


# 11 fairness


class FavoursOne(Bent):
    """One tenant counts five times."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, TenantChanged) and event.tenant == "t0":
            return dataclasses.replace(event, weight=event.weight * 5)
        return event


class ForgetsToCharge(Bent):
    """Device time seems to be free: whoever came first goes on."""

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, SyncPointReached):
            return dataclasses.replace(event, device_ns=event.device_ns // 50)
        return event
