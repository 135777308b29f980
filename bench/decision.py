"""How long the device scheduler takes to decide, with few and with many requests queued.

One decision is what stands between a sync point and the next launch: `handle(SyncPointReached)`
and the `poll` that launches. The device is imagined: it passes slices in order and takes as long
as the profile says, give or take a tenth, so only the scheduler is measured. Queues are kept at
their length: for each finished request another arrives, outside of the measurement; arrivals have
figures of their own.

Requests come from four tenants in three classes, on three models of 64 kernel groups of 60 us,
REALTIME ones with deadlines far enough that none is refused.
"""

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence

from bench.harness import Bench, at_most, run
from gpumuxd.commands import Command, Finish, Launch
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import Lane, LaneKind, PriorityClass, Slice
from gpumuxd.events import (
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    SyncPointReached,
)
from gpumuxd.settings import SchedulerSettings
from gpumuxd.units import NS_PER_MS, NS_PER_S, NS_PER_US

MODELS = ("vision", "speech", "text")
TENANTS = ("camera", "phone", "batch", "search")
GROUPS = 64
GROUP_NS = 60 * NS_PER_US
DEADLINE_NS = 1_000 * NS_PER_S


class Queue:
    """A scheduler with a constant number of requests, and an imagined device under it."""

    def __init__(self, queued: int, classes: Sequence[PriorityClass]) -> None:
        self._scheduler = DeviceScheduler(SchedulerSettings(queue_requests_max=queued + 1))
        self._classes = classes
        self._flights: deque[Slice] = deque()
        self._now_ns = 0
        self._request_id = 0
        self.arrival_ns: list[float] = []
        compute = Lane(0, LaneKind.COMPUTE)
        self._scheduler.handle(PartitionChanged(0, (compute,)), 0)
        times = (GROUP_NS,) * GROUPS
        for model in MODELS:
            profile = ModelProfile(GROUPS, {(1,): times}, {(1,): sum(times)})
            ready = ModelReady(model, profile, PriorityClass.REALTIME, slo_ns=50 * NS_PER_MS)
            self._scheduler.handle(ready, 0)
        for _ in range(queued):
            self._arrive()

    def decisions_us(self, count: int) -> list[float]:
        """The time of so many decisions that launched something."""
        clock = time.perf_counter_ns
        samples: list[float] = []
        self.arrival_ns = []
        scheduler = self._scheduler
        while len(samples) < count:
            work = self._flights.popleft()
            started_ns = self._now_ns
            device_ns = GROUP_NS * (work.end_group - work.first_group)
            device_ns += device_ns * (work.slice_id * 7_919 % 21 - 10) // 100
            self._now_ns += device_ns
            passed = SyncPointReached(work.slice_id, started_ns, device_ns)
            began = clock()
            scheduler.handle(passed, self._now_ns)
            commands = scheduler.poll(self._now_ns)
            ended = clock()
            if self._carry_out(commands):
                samples.append((ended - began) / NS_PER_US)
        return samples

    def arrivals_us(self, count: int) -> list[float]:
        """The time to admit a request, for the arrivals of as many finished ones."""
        self.decisions_us(1)
        samples: list[float] = []
        while len(samples) < count:
            self.decisions_us(4)
            samples += [sample / NS_PER_US for sample in self.arrival_ns]
        return samples

    def _carry_out(self, commands: list[Command]) -> bool:
        has_launched = False
        for command in commands:
            if isinstance(command, Launch):
                self._flights.append(command.slice)
                has_launched = True
            elif isinstance(command, Finish):
                self._arrive()
        return has_launched

    def _arrive(self) -> None:
        self._request_id += 1
        number = self._request_id
        priority_class = self._classes[number % len(self._classes)]
        is_realtime = priority_class is PriorityClass.REALTIME
        # Spread over the deadlines of those queued, so that the test has to look among them.
        spread_ns = number * 7_919 % 10_007 * NS_PER_MS
        arrived = RequestArrived(
            request_id=number,
            tenant=TENANTS[number % len(TENANTS)],
            model=MODELS[number % len(MODELS)],
            priority_class=priority_class,
            bucket=(1,),
            arrived_ns=self._now_ns,
            deadline_ns=self._now_ns + DEADLINE_NS + spread_ns if is_realtime else None,
        )
        began = time.perf_counter_ns()
        self._scheduler.handle(arrived, self._now_ns)
        commands = self._scheduler.poll(self._now_ns)
        self.arrival_ns.append(time.perf_counter_ns() - began)
        self._flights.extend(each.slice for each in commands if isinstance(each, Launch))
        assert not any(isinstance(each, Finish) for each in commands), "an arrival was refused"


def body(bench: Bench) -> None:
    best_effort, standard, realtime = PriorityClass
    mixed = (best_effort, standard, best_effort, standard, realtime)
    count = bench.pick(400, 100)
    rounds = bench.pick(60, 15)
    few, many = Queue(10, mixed), Queue(10_000, mixed)
    urgent_few, urgent_many = Queue(10, (realtime,)), Queue(10_000, (realtime,))
    variants: dict[str, Callable[[], Sequence[float]]] = {
        "decision, 10 queued": lambda: few.decisions_us(count),
        "decision, 10,000 queued": lambda: many.decisions_us(count),
        "REALTIME arrival, 10 queued": lambda: urgent_few.arrivals_us(count // 4),
        "REALTIME arrival, 10,000 queued": lambda: urgent_many.arrivals_us(count // 4),
    }
    goals = {"decision, 10 queued": at_most(15), "decision, 10,000 queued": at_most(15)}
    tails = {"decision, 10 queued": at_most(100), "decision, 10,000 queued": at_most(100)}
    gc.disable()  # as a device child does
    with bench.measuring():
        samples = bench.interleave(variants, rounds)
    for name, measured in samples.items():
        bench.figure(f"{name}, median", measured.median, "us", goals.get(name), measured.spread)
        bench.figure(f"{name}, p99", measured.p99, "us", tails.get(name))


if __name__ == "__main__":
    raise SystemExit(run("decision", "One decision of the device scheduler.", body))
