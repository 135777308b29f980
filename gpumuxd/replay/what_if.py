"""The requests of a recording under other settings, in virtual time.

Arrivals, cancels, deadlines, tenants and models come when they came (open loop: nobody sends later
because he was answered later); the production scheduler decides, and a virtual device takes the
times of the recorded one (`device_model.py`). The loop has the shape of the device loop.

It must not know files or tables. Invariant: the same recording and settings give the same result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpumuxd.commands import Command, Launch, Release, Retire
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import Slice
from gpumuxd.events import (
    DeviceLost,
    Event,
    ModelDraining,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SliceFailed,
    SyncPointReached,
)
from gpumuxd.executors.virtual import SliceTruth, VirtualClock, VirtualExecutor, VirtualProgram
from gpumuxd.replay.device_model import DeviceModel
from gpumuxd.replay.format import BadRecording, Contents
from gpumuxd.replay.history import History
from gpumuxd.settings import OPERATORS_MAX, WINDOW_MAX, SchedulerSettings, Slicing
from gpumuxd.units import NS_PER_S

FRAMES_MAX = 1024

_COUNTING = (Slicing.EVERY, Slicing.WINDOW)

TURNS_MAX = 10_000_000
"""Before a run counts as endless."""

LONGEST_NS = 3600 * NS_PER_S
"""Virtual time after the last event, likewise."""

Timed = tuple[int, Event]


def check_settings(settings: SchedulerSettings) -> None:
    """What a file may say of a scheduler that is to be made anew. Raises BadRecording."""
    if not (
        1 <= settings.window_max <= WINDOW_MAX
        and 1 <= settings.frames_max <= FRAMES_MAX
        and 0 <= 2 * settings.frames_reserved < settings.frames_max
        and settings.slice_ns_max > 0
        and 0 <= settings.slicing_window <= WINDOW_MAX
        and (settings.slicing not in _COUNTING or 1 <= settings.slicing_operators <= OPERATORS_MAX)
        and settings.round_trip_ns >= 0
        and (settings.preemption_delay_ns_max is None or settings.preemption_delay_ns_max > 0)
    ):
        raise BadRecording("its settings are none that gpumuxd takes")


def inputs(contents: Contents, known: Iterable[Event]) -> list[Timed]:
    """All that came from outside: what was known at first, then what happened."""
    began_ns = contents.header.began_ns
    timed: list[Timed] = [(began_ns, event) for event in known]
    for _, now_ns, what in contents.calls:
        if isinstance(what, DeviceLost):
            break  # and with it all that a prediction could be held against
        if not isinstance(what, int | SyncPointReached | SliceFailed):
            timed.append((now_ns, what))
    return timed


def predict(
    settings: SchedulerSettings, events: Sequence[Timed], device: DeviceModel, launch_cost_ns: int
) -> History:
    """What would have happened. Raises BadRecording for what can't be run."""
    check_settings(settings)
    run = _Run(settings, events, device, launch_cost_ns)
    try:
        return run.run()
    except BadRecording:
        raise
    except Exception as error:  # a file may say anything
        raise BadRecording(f"it can't be run under other settings: {error!r}") from error


class _Run:
    def __init__(
        self,
        settings: SchedulerSettings,
        events: Sequence[Timed],
        device: DeviceModel,
        launch_cost_ns: int,
    ) -> None:
        self._events = _with_new_names([one for one in events if _is_known(one[1], device.ends_ns)])
        self._next = 0
        self._device = device
        self._heard = 0
        self._programs = _programs(self._events)
        self._clock = VirtualClock(events[0][0] if events else 0)
        lanes = [event.lanes for _, event in events if isinstance(event, PartitionChanged)]
        if not lanes:
            raise BadRecording("it names no lanes: nothing can run")
        self._executor = VirtualExecutor(
            self._clock,
            lanes[0],
            self._truth_of,
            launch_cost_ns=launch_cost_ns,
            start_ns=max(0, device.start_ns - launch_cost_ns),
            gap_ns=device.gap_ns,
        )
        self._scheduler = DeviceScheduler(settings)
        self._history = History((), self._clock.now_ns)

    def run(self) -> History:
        end_ns = self._events[-1][0] + LONGEST_NS
        for _ in range(TURNS_MAX):
            self._feed_mail()
            self._decide()
            if not self._wait(end_ns):
                return self._history
        raise BadRecording("it does not come to an end")

    def _truth_of(self, work: Slice, program: VirtualProgram) -> SliceTruth:
        ends_ns = self._device.ends_ns[work.members[0]]
        heard_ns = self._device.heard_ns
        self._heard = (self._heard + 1) % len(heard_ns)
        return SliceTruth(
            ends_ns[work.end_group] - ends_ns[work.first_group], late_ns=heard_ns[self._heard]
        )

    def _feed_mail(self) -> None:
        now_ns, events = self._clock.now_ns, self._events
        while self._next < len(events) and events[self._next][0] <= now_ns:
            event = events[self._next][1]
            self._next += 1
            if isinstance(event, ModelReady):
                self._executor.load(event.model, self._programs[event.model])
            self._tell(event, now_ns)

    def _tell(self, event: Event, now_ns: int) -> None:
        self._scheduler.handle(event, now_ns)
        self._history.handled(event, now_ns)

    def _decide(self) -> None:
        now_ns = self._clock.now_ns
        self._history.asked(now_ns)
        commands: list[Command] = self._scheduler.poll(now_ns)
        self._history.answered(commands, now_ns)
        for command in commands:
            match command:
                case Launch(slice=work):
                    self._executor.launch(work)
                case Retire(cursor_id=cursor_id):
                    self._executor.retire(cursor_id)
                case Release(model=model):
                    self._executor.unload(model)
                case _:
                    pass

    def _wait(self, end_ns: int) -> bool:
        """Until something happens. False when nothing can any more."""
        until_ns = self._scheduler.next_wakeup_ns()
        if self._next < len(self._events):
            mail_ns = self._events[self._next][0]
            until_ns = mail_ns if until_ns is None else min(until_ns, mail_ns)
        if until_ns is None and self._executor.next_sync_point_ns is None:
            return False
        told = self._executor.wait(until_ns)
        if self._clock.now_ns > end_ns:
            raise BadRecording("it does not come to an end")
        now_ns = self._clock.now_ns
        for event in told:
            self._tell(event, now_ns)
        if told:
            self._clock.now_ns += self._device.turn_ns
        return True


def _is_known(event: Event, ends_ns: dict[int, tuple[int, ...]]) -> bool:
    return not isinstance(event, RequestArrived) or event.request_id in ends_ns


def _with_new_names(events: Sequence[Timed]) -> list[Timed]:
    """Each load under a key of its own: a key that was free again when it was recorded may still be
    in use where everything takes longer."""
    loads: dict[str, int] = {}
    named: list[Timed] = []
    for now_ns, event in events:
        if isinstance(event, ModelReady):
            loads[event.model] = loads.get(event.model, 0) + 1
        if isinstance(event, ModelReady | ModelDraining | RequestArrived):
            load = loads.get(event.model, 1)
            if load > 1:
                event = replace(event, model=f"{event.model} (load {load})")
        named.append((now_ns, event))
    return named


def _programs(events: Sequence[Timed]) -> dict[str, VirtualProgram]:
    """By model key. Their own times are of no account: each request has its own."""
    counts = {
        event.model: event.profile.group_count
        for _, event in events
        if isinstance(event, ModelReady)
    }
    return {model: VirtualProgram(count, {}) for model, count in counts.items()}
