"""The virtual device of this bench, and a model looping on it.

The truth is drawn apart from what the scheduler is told: estimates are off by a factor of their
own for each operator, and every run deviates anew. Between two slices of a lane that is kept busy
passes what a sync point was measured to cost with several in flight; when nothing is queued, what
it was measured to cost with one.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from bench.deft.bed import OUTSTANDING, Bed, Flown, Part, window_of
from bench.deft.profiles import Batch, ModelTimes
from gpumuxd.domain import Bucket, Lane, LaneKind, PriorityClass, Slice, SyncCost
from gpumuxd.events import ModelProfile
from gpumuxd.executors.virtual import (
    SliceTruth,
    VirtualClock,
    VirtualExecutor,
    VirtualProgram,
)
from gpumuxd.settings import SchedulerSettings, Slicing

LANE = Lane(0, LaneKind.COMPUTE)

ESTIMATE_SIGMA = 0.1
TRUTH_SIGMA = 0.05
"""Of the logarithm: how far estimates of operators are from the truth, and how far the truth of one
run is from that of another."""

TRUTHS = 16
"""Different runs of a model; then they come again. Under every policy the same ones are measured,
or what the policies cost would drown in how lucky they were."""

RUNS_BEFORE = 2
RUNS_TO_SETTLE = RUNS_BEFORE + TRUTHS
"""An estimate looks back on sixteen runs (`core/bucket_table.py`)."""

GOLDEN = (math.sqrt(5) - 1) / 2


class Device(NamedTuple):
    """What a sync point costs: `gap_ns` in any case, `round_trip_ns` if nothing is queued."""

    gap_ns: int
    round_trip_ns: int
    costs: tuple[SyncCost, ...]

    @classmethod
    def of(cls, costs: Sequence[SyncCost]) -> "Device":
        """The device on which these costs were fitted."""
        gap_ns = min(cost.sync_ns for cost in costs)
        alone_ns = next(cost.sync_ns for cost in costs if cost.window == 1)
        return cls(gap_ns, alone_ns, tuple(costs))


@dataclass(frozen=True, slots=True)
class Role:
    """A model at one batch size, as what it takes part."""

    model: ModelTimes
    batch: int
    priority_class: PriorityClass
    slo_ns: int | None = None

    @property
    def times(self) -> Batch:
        return self.model.batches[self.batch]

    @property
    def bucket(self) -> Bucket:
        return (self.batch,)

    @property
    def key(self) -> str:
        return f"{self.model.name}@{self.priority_class.name}"

    def part(self, seed: str) -> Part:
        """As the scheduler and the device know it, estimates drawn from the seed."""
        rng = random.Random(f"{seed}/{self.key}/{self.batch}")
        operator_ns = self.times.operator_ns
        count = len(operator_ns)
        told_ns = tuple(
            max(1, round(true_ns * math.exp(rng.gauss(0, ESTIMATE_SIGMA))))
            for true_ns in operator_ns
        )
        profile = ModelProfile(
            count,
            {self.bucket: told_ns},
            {self.bucket: sum(told_ns)},
            layer_ends=self.model.layer_ends,
            outstanding_ns={self.bucket: self.times.outstanding_ns},
        )
        program = VirtualProgram(count, {self.bucket: (0, *accumulate(operator_ns))})
        return Part(self.key, self.bucket, self.priority_class, profile, program, [], self.slo_ns)


class World(NamedTuple):
    """A virtual device with its parts, and its clock."""

    bed: Bed
    clock: VirtualClock
    parts: Sequence[Part]


def make_world(
    settings: SchedulerSettings, device: Device, roles: Sequence[Role], seed: str
) -> World:
    clock = VirtualClock()
    ends_ns = {
        role.key: true_ends_ns(role.times.operator_ns, f"{seed}/{role.key}") for role in roles
    }

    def truth(work: Slice, program: VirtualProgram) -> SliceTruth:
        ends = ends_ns[work.model][work.cursor_id % TRUTHS]
        return SliceTruth(ends[work.end_group] - ends[work.first_group])

    executor = VirtualExecutor(
        clock, (LANE,), truth, round_trip_ns=device.round_trip_ns, gap_ns=device.gap_ns
    )
    parts = [role.part(seed) for role in roles]
    return World(Bed(settings, executor, lambda: clock.now_ns, device.costs, parts), clock, parts)


@cache
def true_ends_ns(operator_ns: tuple[int, ...], seed: str) -> tuple[tuple[int, ...], ...]:
    """When operators end, in one run after the other."""
    draw = random.Random(f"{seed}/truth").gauss

    def drawn() -> Iterator[int]:
        for true_ns in operator_ns:
            yield round(true_ns * math.exp(draw(0, TRUTH_SIGMA)))

    return tuple(tuple(accumulate(drawn(), initial=0)) for _ in range(TRUTHS))


@dataclass(frozen=True, slots=True)
class Loop:
    """A model looping alone.

    `added_ns` is the part of its period that is not work of its operators, as that was drawn: what
    sync points cost. `delay_ns` is how long an arrival would wait, at evenly spread phases,
    ascending.
    """

    period_ns: float
    added_ns: float
    slices: int
    delay_ns: tuple[int, ...]


def loop_alone(
    settings: SchedulerSettings,
    device: Device,
    roles: Sequence[Role],
    seed: str,
    phases: int,
    runs: int,
) -> tuple[Loop, Bed]:
    """Loop the first model with the others loaded and idle."""
    bed, _, parts = make_world(settings, device, roles, seed)
    bed.loop(parts[0])
    ended = bed.runs[parts[0].key]
    # Before anything counts: the first run finds an idle device, and estimates have to settle.
    first = RUNS_TO_SETTLE if settings.slicing is Slicing.ADAPTIVE else RUNS_BEFORE
    while len(ended) < first + runs + OUTSTANDING:
        bed.turn()
    begin_ns, end_ns = ended[first - 1].heard_ns, ended[first - 1 + runs].heard_ns
    window = window_of(settings) or most_in_flight(bed.flown)
    starts = Starts(bed.flown, window, device.gap_ns)
    count = phases * runs
    delays = []
    for i in range(count):
        time_ns = begin_ns + round((end_ns - begin_ns) * even_phase(i))
        delays.append(starts.of(time_ns) - time_ns)
    slices = sum(begin_ns < flown.end_ns <= end_ns for flown in bed.flown)
    busy_ns = sum(
        max(0, min(flown.end_ns, end_ns) - max(flown.started_ns, begin_ns)) for flown in bed.flown
    )
    added_ns = (end_ns - begin_ns - busy_ns) / runs
    return Loop(
        (end_ns - begin_ns) / runs, added_ns, round(slices / runs), tuple(sorted(delays))
    ), bed


def even_phase(index: int) -> float:
    """The phases of a series, spread evenly however many there are, and in step with nothing: a
    regular grid could meet every slice at the same few places."""
    return (index + 0.5) * GOLDEN % 1.0


def most_in_flight(flown: Sequence[Flown]) -> int:
    """Slices at once."""
    most, heard = 1, 0
    for index, each in enumerate(flown):
        while flown[heard].heard_ns <= each.launched_ns:
            heard += 1
        most = max(most, index - heard + 1)
    return most


class Starts:
    """When an arrival would start, in a loop of one model on one lane.

    It is launched at once if the window has room, and else when the head has passed; it starts when
    all that was launched before it has ended.
    """

    def __init__(self, flown: Sequence[Flown], window: int, gap_ns: int) -> None:
        self._flown = flown
        self._gap_ns = gap_ns
        self._window = window
        self._launched_ns = [each.launched_ns for each in flown]
        self._heard_ns = [each.heard_ns for each in flown]

    def of(self, time_ns: int) -> int:
        """The start of one that arrives then."""
        # Who arrives is decided on first: what is launched at that very time comes behind.
        end = bisect_right(self._launched_ns, time_ns - 1)
        begin = bisect_right(self._heard_ns, time_ns)
        if begin >= end:
            return time_ns
        launch_ns = time_ns
        if end - begin >= self._window:
            launch_ns = self._flown[end - self._window].heard_ns
        return max(launch_ns, self._flown[end - 1].end_ns + self._gap_ns)
