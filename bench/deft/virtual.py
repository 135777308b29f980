"""(1) All ordered pairs in virtual time: what each policy costs A, and how long B waits for it.

A, best effort, loops back to back; B, of a higher class, arrives at a random phase. What B waits
for is A's slices in flight, and what B does afterwards changes neither that nor A's loss by sync
points. So A is looped alone under each policy, with B loaded and idle, and B's wait is taken at
even phases of that; B is run alone under each policy; latency is the sum. `pairs.py` holds that
against whole simulations of pairs.

The *delay sum* is Deft's: what sync points add to A's run, plus B's wait at its worst (p99 over
phases, so that one odd slice is not the figure). The same with the mean wait stands beside it.
"""

import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.deft.bed import Bed, settings_of
from bench.deft.profiles import BATCHES_A, BATCHES_B, WINDOWS, ModelTimes, Profiles
from bench.deft.world import Device, Loop, Role, loop_alone, make_world
from bench.harness import percentile
from gpumuxd.core.delay_predictor import GRID
from gpumuxd.domain import PriorityClass
from gpumuxd.units import NS_PER_MS

ADAPTIVE = "adaptive"
NONE = "none"
RIVALS = ("layer", "every(4)", "every(20)")
"""Fixed sync points, of which the average is to be beaten."""
FIXED = (NONE, *RIVALS, "every(1)", "every(50)")
POLICIES = (*FIXED, ADAPTIVE)

SLOS = (2, 3)
"""Of B, as multiples of its run alone."""

PHASES, RUNS = 500, 4
"""Phases of each run: of the longest, two to each slice of its finest cut."""

RUNS_OF_B = 12


@dataclass(frozen=True, slots=True)
class Cost:
    """What one policy does to A, and to who comes beside it. Milliseconds of A's run."""

    added_ms: float
    inflation: float
    run_ms: float
    worst_ms: float
    mean_ms: float
    delay_ns: tuple[int, ...]
    slices: int

    @property
    def sum_ms(self) -> float:
        """Deft's: what A loses and, at its worst, what B waits."""
        return self.added_ms + self.worst_ms

    @property
    def mean_sum_ms(self) -> float:
        return self.added_ms + self.mean_ms


@dataclass(frozen=True, slots=True)
class Looped:
    """One A at one batch size: under each policy, and under every (k, D) of the sweep."""

    role: Role
    policies: Mapping[str, Cost]
    sweep: Mapping[tuple[int, int], Cost]
    chosen: str
    """For people: what the scheduler says it does."""

    @property
    def best(self) -> tuple[int, int]:
        return min(self.sweep, key=lambda each: self.sweep[each].sum_ms)

    @property
    def over_best(self) -> float:
        """The adaptive policy's delay sum over the sweep's best."""
        return self.policies[ADAPTIVE].sum_ms / self.sweep[self.best].sum_ms

    @property
    def mean_over_best(self) -> float:
        best = min(cost.mean_sum_ms for cost in self.sweep.values())
        return self.policies[ADAPTIVE].mean_sum_ms / best

    @property
    def over_rival(self) -> float:
        """The same over the best of the fixed ones that it is compared with."""
        return self.policies[ADAPTIVE].sum_ms / min(self.policies[r].sum_ms for r in RIVALS)


@dataclass(frozen=True, slots=True)
class Misses:
    """One pair at one SLO: the share of B's requests that come too late, by policy."""

    a: Role
    b: Role
    slo: int
    share: Mapping[str, float]


def as_a(model: ModelTimes, batch: int) -> Role:
    return Role(model, batch, PriorityClass.BEST_EFFORT)


def as_b(model: ModelTimes, batch: int, slo_ns: int | None = None) -> Role:
    return Role(model, batch, PriorityClass.REALTIME, slo_ns)


def cost_of(loop: Loop, whole: Loop) -> Cost:
    """A loop against one that launches whole inferences."""
    added_ns = loop.added_ns - whole.added_ns
    return Cost(
        added_ms=added_ns / NS_PER_MS,
        inflation=added_ns / (loop.period_ns - added_ns),
        run_ms=loop.period_ns / NS_PER_MS,
        worst_ms=percentile(loop.delay_ns, 99) / NS_PER_MS,
        mean_ms=statistics.fmean(loop.delay_ns) / NS_PER_MS,
        delay_ns=loop.delay_ns,
        slices=loop.slices,
    )


def loop_all(profiles: Profiles, device: Device, seed: int, phases: int) -> Iterator[Looped]:
    """Every A at every batch size, under every policy and through the whole sweep."""
    models = profiles.models
    for index, model in enumerate(models):
        beside = as_b(models[index - 1], BATCHES_B[0])  # any: that it is loaded is what counts
        for batch in BATCHES_A:
            yield _loop_one(as_a(model, batch), beside, device, f"{seed}", phases)


def _loop_one(a: Role, beside: Role, device: Device, seed: str, phases: int) -> Looped:
    def loop(policy: str) -> tuple[Loop, Bed]:
        return loop_alone(settings_of(policy), device, [a, beside], seed, phases, RUNS)

    loops = {policy: loop(policy) for policy in POLICIES}
    whole = loops[NONE][0]
    sweep: dict[tuple[int, int], Cost] = {}
    for window in WINDOWS:
        for k in GRID:
            cost = cost_of(loop(f"window({k}, {window})")[0], whole)
            sweep[k, window] = replace(cost, delay_ns=())  # thousands that nobody asks for
            if k >= a.model.operators:
                break  # whole inferences, and so is every longer one
    explained = loops[ADAPTIVE][1].scheduler.explain(a.key, a.bucket)
    assert explained is not None, a
    return Looped(
        role=a,
        policies={policy: cost_of(each, whole) for policy, (each, _) in loops.items()},
        sweep=sweep,
        chosen=f"{explained.mode}, {len(explained.slice_ends)} slices, window {explained.window}",
    )


# SLO misses


def runs_of_b(b: Role, policy: str, device: Device, seed: int) -> list[int]:
    """Latencies of requests that find an idle device."""
    bed, clock, (part,) = make_world(settings_of(policy), device, [b], f"{seed}")
    found = bed.runs[b.key]
    for _ in range(RUNS_OF_B + 1):
        bed.send(part, clock.now_ns + NS_PER_MS)
        bed.drain()
    return [run.heard_ns - run.arrived_ns for run in found[1:]]


def count_misses(
    looped: Sequence[Looped], profiles: Profiles, device: Device, seed: int, phases: int
) -> Iterator[Misses]:
    """Every ordered pair, at both batch sizes of each and both SLOs."""
    waits = Waits(device, seed, phases)
    for model in profiles.models:
        for batch in BATCHES_B:
            b = as_b(model, batch)
            runs = {policy: runs_of_b(b, policy, device, seed) for policy in FIXED}
            alone_ns = statistics.fmean(runs[NONE])
            for slo in SLOS:
                b = as_b(model, batch, round(slo * alone_ns))
                runs[ADAPTIVE] = runs_of_b(b, ADAPTIVE, device, seed)
                for each in looped:
                    if each.role.model is not model:
                        delays = {name: each.policies[name].delay_ns for name in FIXED}
                        delays[ADAPTIVE] = waits.of(each.role, b)
                        yield Misses(each.role, b, slo, _late(delays, runs, b))


class Waits:
    """What B waits for under the adaptive policy, which follows from B's SLO. Many SLOs lead to the
    same cuts of A, by what the scheduler itself says; each is looped once."""

    def __init__(self, device: Device, seed: int, phases: int) -> None:
        self._device, self._seed, self._phases = device, f"{seed}", phases
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}

    def of(self, a: Role, b: Role) -> tuple[int, ...]:
        settings = settings_of(ADAPTIVE)
        bed, _, (part, _) = make_world(settings, self._device, [a, b], self._seed)
        bed.turn()
        found = bed.scheduler.explain(part.key, part.bucket)
        assert found is not None, a
        # In `slo` it goes on to depend on B as estimates are corrected.
        of_b = b.slo_ns if found.mode == "slo" else None
        key = (a.key, a.batch, found.mode, found.slice_ns, found.window, found.bound_ns, of_b)
        if key not in self._known:
            loop, _ = loop_alone(settings, self._device, [a, b], self._seed, self._phases, RUNS)
            self._known[key] = loop.delay_ns
        return self._known[key]


def _late(
    delays: Mapping[str, Sequence[int]], runs: Mapping[str, Sequence[int]], b: Role
) -> Mapping[str, float]:
    assert b.slo_ns is not None
    return {policy: share_late(delays[policy], runs[policy], b.slo_ns) for policy in POLICIES}


def share_late(delay_ns: Sequence[int], run_ns: Sequence[int], slo_ns: int) -> float:
    """Of all combinations of a wait and a run, how many end after the SLO. Waits ascend."""
    late = sum(len(delay_ns) - bisect_right(delay_ns, slo_ns - run) for run in run_ns)
    return late / (len(delay_ns) * len(run_ns))
