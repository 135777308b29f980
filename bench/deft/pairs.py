"""Whole simulations of drawn pairs, to hold `virtual.py`'s shorter way against.

A loops; B's requests come one at a time, at evenly spread phases of a run of A.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.deft.bed import settings_of
from bench.deft.profiles import BATCHES_A, BATCHES_B, Profiles
from bench.deft.virtual import ADAPTIVE, SLOS, as_a, as_b, runs_of_b, share_late
from bench.deft.world import Device, Role, even_phase, loop_alone, make_world
from gpumuxd.units import NS_PER_MS

CHECKED = ("none", "layer", "every(4)", ADAPTIVE)


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one pair under one policy: B's mean wait and its late share, simulated and computed."""

    pair: str
    policy: str
    simulated_ms: float
    computed_ms: float
    simulated_late: float
    computed_late: float

    @property
    def of_delay(self) -> float:
        return abs(self.simulated_ms - self.computed_ms) / self.computed_ms


def simulate(
    a: Role, b: Role, policy: str, device: Device, seed: int, phases: int
) -> tuple[list[int], list[int]]:
    """Waits and latencies of B's requests, one at each phase of A's run."""
    settings = settings_of(policy)
    period_ns = loop_alone(settings, device, [a, b], f"{seed}", 1, runs=2)[0].period_ns
    bed, clock, (looping, arriving) = make_world(settings, device, [a, b], f"{seed}")
    bed.loop(looping)
    found, begun_ns = bed.runs[b.key], bed.begun_ns
    for index in range(phases):
        seen = len(begun_ns)
        while len(begun_ns) == seen:
            bed.turn()
        # A whole period on: nothing of the last request's disorder is left.
        bed.send(arriving, clock.now_ns + round((1 + even_phase(index)) * period_ns))
        while len(found) <= index:
            bed.turn()
    return [run.report.queue_ns for run in found], [run.heard_ns - run.arrived_ns for run in found]


def compare(
    profiles: Profiles, device: Device, seed: int, count: int, phases: int
) -> list[Difference]:
    """So many drawn pairs, under each of the checked policies."""
    rng = random.Random(f"{seed}/pairs")
    found = []
    for _ in range(count):
        model_a, model_b = rng.sample(profiles.models, 2)
        a = as_a(model_a, rng.choice(BATCHES_A))
        batch_b, slo = rng.choice(BATCHES_B), rng.choice(SLOS)
        alone_ns = statistics.fmean(runs_of_b(as_b(model_b, batch_b), "none", device, seed))
        b = as_b(model_b, batch_b, round(slo * alone_ns))
        found += [_compare_one(a, b, policy, device, seed, phases) for policy in CHECKED]
    return found


def _compare_one(
    a: Role, b: Role, policy: str, device: Device, seed: int, phases: int
) -> Difference:
    delay_ns, latency_ns = simulate(a, b, policy, device, seed, phases)
    loop, _ = loop_alone(settings_of(policy), device, [a, b], f"{seed}", phases, runs=4)
    run_ns = runs_of_b(b, policy, device, seed)
    assert b.slo_ns is not None
    return Difference(
        pair=f"{b.model.name}@{b.batch} over {a.model.name}@{a.batch}",
        policy=policy,
        simulated_ms=_mean_ms(delay_ns),
        computed_ms=_mean_ms(loop.delay_ns),
        simulated_late=sum(each > b.slo_ns for each in latency_ns) / len(latency_ns),
        computed_late=share_late(loop.delay_ns, run_ns, b.slo_ns),
    )


def _mean_ms(values: Sequence[int]) -> float:
    return statistics.fmean(values) / NS_PER_MS
