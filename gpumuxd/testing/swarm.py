"""Draws a world from its seed (swarm testing).

Not only the requests are random but also the shape of the world: how many devices, which
settings, tenants and models, which faults, how wrong the estimates are. So the extremes of the
configuration are visited, each by some seeds. The truth and what the scheduler is told of it are
separate draws. What only some worlds have is laid over them (`overlays.py`). It must not know the
scheduler.

A change here gives every seed another world: look at `tests/sim/test_regressions.py` then.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import replace

from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.events import ModelProfile
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.testing.overlays import chance, lay_over, log_uniform
from gpumuxd.testing.parameters import (
    PPM,
    ClientParameters,
    DeviceParameters,
    FaultParameters,
    ModelParameters,
    Parameters,
    TenantParameters,
)
from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_US

Random = random.Random

EVENTS_PER_SEED = 350
"""About how many events a seed should have: 200 seeds have to pass in 20 s with all checkers."""


def draw(seed: int) -> Parameters:
    """The world of a seed."""
    rng = Random(seed)
    count = rng.choices((1, 2, 3, 4), weights=(6, 2, 1, 1))[0]
    events = max(60, int(EVENTS_PER_SEED * rng.uniform(0.3, 1.7)) // count)
    devices = [_draw_device(rng, f"cpu:{i}", events) for i in range(count)]
    return Parameters(seed, tuple(lay_over(seed, devices)))


def _draw_device(rng: Random, name: str, events: int) -> DeviceParameters:
    median_ns = log_uniform(rng, 20 * NS_PER_US, NS_PER_MS)
    models = tuple(_draw_model(rng, f"m{i}", median_ns) for i in range(rng.randint(1, 4)))
    settings = _draw_settings(rng, models)
    tenants = tuple(_draw_tenant(rng, f"t{i}") for i in range(rng.randint(1, 4)))
    # Every group may become a slice of its own; two events a slice is what bounds mostly give.
    groups = sum(model.group_count for model in models) / len(models)
    requests = max(6, int(events / (1 + groups * rng.uniform(0.4, 0.8))))
    run_ns = sum(m.run_ns(b) for m in models for b in m.group_ns) // sum(
        len(m.group_ns) for m in models
    )
    horizon_ns = int(requests * run_ns / rng.uniform(0.3, 1.6))
    clients = _draw_clients(rng, models, tenants, requests, horizon_ns)
    is_contended = len(clients) > 1 and chance(rng, 0.25)
    if is_contended:
        tenants, clients = _contend(tenants, clients)
    return DeviceParameters(
        name=name,
        settings=settings,
        round_trip_ns=rng.choice((0, 0, rng.randint(5_000, 150_000))),
        launch_cost_ns=rng.choice((0, rng.randint(1_000, 20_000))),
        loop_cost_ns=rng.choice((0, rng.randint(5_000, 50_000))),
        has_high_lane=chance(rng, 0.15),
        is_contended=is_contended,
        horizon_ns=horizon_ns,
        models=models,
        tenants=tenants,
        clients=clients,
        faults=_draw_faults(rng, models, tenants, horizon_ns),
    )


def _draw_settings(rng: Random, models: tuple[ModelParameters, ...]) -> SchedulerSettings:
    frames_max = rng.randint(1, 8)
    weights_bytes = sum(model.weights_bytes for model in models)
    frame_bytes = max(model.frame_bytes for model in models)
    bound_ns = log_uniform(rng, 100 * NS_PER_US, 10 * NS_PER_MS)
    return SchedulerSettings(
        slicing=Slicing.NONE if chance(rng, 0.05) else Slicing.ADAPTIVE,
        order=Order.FIFO if chance(rng, 0.05) else Order.POLICY,
        preemption_delay_ns_max=None if chance(rng, 0.3) else bound_ns,
        slice_ns_max=log_uniform(rng, 200 * NS_PER_US, 5 * NS_PER_MS),
        window_max=rng.randint(1, 4),
        round_trip_ns=log_uniform(rng, 10 * NS_PER_US, 500 * NS_PER_US),
        queue_requests_max=rng.randint(2, 12) if chance(rng, 0.1) else 20_000,
        frames_max=frames_max,
        frames_reserved=rng.randint(0, (frames_max - 1) // 2),
        # Room for the weights that reloads may double, and sometimes for one or two frames only.
        memory_bytes_max=2 * weights_bytes + rng.randint(1, 2) * frame_bytes
        if chance(rng, 0.15)
        else 8 * GIB,
    )


def _draw_model(rng: Random, name: str, device_median_ns: int) -> ModelParameters:
    median_ns = device_median_ns * rng.uniform(0.5, 2.0)
    group_count = rng.choice((1, 2, rng.randint(3, 12), rng.randint(8, 40)))
    sigma = rng.uniform(0.1, 1.0)
    base_ns = [median_ns * math.exp(rng.gauss(0.0, sigma)) for _ in range(group_count)]
    base_ns = [ns * 10 if chance(rng, 0.03) else ns for ns in base_ns]
    exponent = rng.uniform(0.3, 1.0)
    buckets: list[Bucket] = [(1 << i,) for i in range(rng.randint(1, 3))]
    group_ns: dict[Bucket, tuple[int, ...]] = {
        bucket: tuple(max(1, int(ns * bucket[0] ** exponent)) for ns in base_ns)
        for bucket in buckets
    }
    estimates, profile = _draw_profile(rng, group_ns, group_count)
    class_max = rng.choice(tuple(PriorityClass))
    slo = rng.uniform(1.2, 20.0) if class_max is PriorityClass.REALTIME else rng.uniform(3, 100)
    return ModelParameters(
        name=name,
        class_max=class_max,
        slo_ns=int(sum(group_ns[buckets[-1]]) * slo) if chance(rng, 0.4) else None,
        group_ns=group_ns,
        estimates=estimates,
        profile=profile,
        profile_runs=rng.randint(0, 2) if not profile.group_ns else 0,
        uploads=1 if chance(rng, 0.15) else 0,
        weights_bytes=rng.randint(1, 200) * MIB,
        frame_bytes=rng.randint(1, 64) * MIB,
    )


def _draw_profile(
    rng: Random, group_ns: Mapping[Bucket, tuple[int, ...]], group_count: int
) -> tuple[str, ModelProfile]:
    """What a profiler might have measured, with the name of how it erred."""
    kind = rng.choices(("exact", "noisy", "wrong", "none"), weights=(3, 9, 4, 4))[0]
    if kind == "none":
        return kind, ModelProfile(group_count)
    factor = {"exact": 1.0, "noisy": 1.0, "wrong": math.exp(rng.uniform(-1.6, 1.6))}[kind]
    sigma = 0.0 if kind == "exact" else rng.uniform(0.02, 0.4)
    known = [bucket for bucket in group_ns if bucket == (1,) or chance(rng, 0.8)]
    told = {
        bucket: tuple(
            max(1, round(ns * factor * math.exp(rng.gauss(0.0, sigma)))) for ns in group_ns[bucket]
        )
        for bucket in known
    }
    runs = {
        bucket: max(1, round(sum(group_ns[bucket]) * factor * math.exp(rng.gauss(0.0, sigma / 2))))
        for bucket in known
    }
    return f"{kind} x{factor:.2f} sigma {sigma:.2f}", ModelProfile(group_count, told, runs)


def _draw_tenant(rng: Random, name: str) -> TenantParameters:
    limited = chance(rng, 0.3)
    return TenantParameters(
        name=name,
        weight=1 if chance(rng, 0.7) else rng.randint(2, 5),
        realtime_per_s=log_uniform(rng, 5, 500) if limited else None,
        realtime_burst=rng.randint(1, 4),
    )


def _draw_clients(
    rng: Random,
    models: tuple[ModelParameters, ...],
    tenants: tuple[TenantParameters, ...],
    requests: int,
    horizon_ns: int,
) -> tuple[ClientParameters, ...]:
    count = min(rng.randint(1, 6), requests)
    shares = [rng.uniform(0.2, 1.0) for _ in range(count)]
    clients = []
    for i, share in enumerate(shares):
        own = max(1, int(requests * share / sum(shares)))
        model = rng.choice(models)
        priority_class = PriorityClass(rng.randint(0, model.class_max))
        urgent = priority_class is PriorityClass.REALTIME
        pattern = rng.choice(("closed", "closed", "poisson", "burst"))
        width = rng.randint(1, 6)
        interval_ns = max(1, horizon_ns // own)
        run_ns = max(sum(times) for times in model.group_ns.values())
        has_deadline = chance(rng, 0.9 if urgent else 0.2)
        clients.append(
            ClientParameters(
                name=f"c{i}",
                tenant=rng.choice(tenants).name,
                model=model.name,
                priority_class=priority_class,
                pattern=pattern,
                width=width,
                interval_ns=interval_ns * width if pattern == "burst" else interval_ns,
                requests=own,
                deadline_ns=int(run_ns * log_uniform(rng, 120, 3_000) / 100)
                if has_deadline
                else None,
                cancel_ppm=rng.choice((0, 0, rng.randint(0, PPM // 3))),
                vanish_ns=rng.randint(0, horizon_ns) if chance(rng, 0.1) else None,
            )
        )
    return tuple(clients)


def _contend(
    tenants: tuple[TenantParameters, ...], clients: tuple[ClientParameters, ...]
) -> tuple[tuple[TenantParameters, ...], tuple[ClientParameters, ...]]:
    """Make the first two clients equal tenants that never run out of best-effort work."""
    equal = tuple(replace(tenants[0], name=f"t{i}", weight=1) for i in range(2))
    saturating = tuple(
        replace(
            client,
            tenant=tenant.name,
            priority_class=PriorityClass.BEST_EFFORT,
            pattern="closed",
            width=4,
            deadline_ns=None,
            cancel_ppm=0,
        )
        for client, tenant in zip(clients, equal, strict=False)
    )
    return equal + tenants[2:], saturating + clients[2:]


def _draw_faults(
    rng: Random,
    models: tuple[ModelParameters, ...],
    tenants: tuple[TenantParameters, ...],
    horizon_ns: int,
) -> FaultParameters:
    """Each kind of fault is absent in most seeds, so that it also meets the others' absence."""
    end_ns = horizon_ns * 7 // 10
    names = [model.name for model in models if chance(rng, 0.15)]
    return FaultParameters(
        end_ns=end_ns,
        noise_sigma=rng.choice((0.0, 0.03, 0.2)),
        slow_ppm=rng.choice((0, 0, rng.randint(1_000, 60_000))),
        late_ppm=rng.choice((0, 0, rng.randint(1_000, 60_000))),
        late_ns_max=log_uniform(rng, 100 * NS_PER_US, 20 * NS_PER_MS),
        failure_ppm=rng.choice((0, 0, rng.randint(1_000, 30_000))),
        storms_ns=tuple(sorted(rng.randint(0, end_ns) for _ in range(rng.choice((0, 0, 0, 1, 2))))),
        lost_ns=rng.randint(0, end_ns) if chance(rng, 0.12) else None,
        restart_ns=log_uniform(rng, NS_PER_MS, 50 * NS_PER_MS),
        reloads=tuple(
            (name, rng.randint(0, end_ns), log_uniform(rng, NS_PER_MS // 10, 10 * NS_PER_MS))
            for name in names
        ),
        reweights=tuple(
            (tenant.name, rng.randint(0, end_ns), rng.randint(1, 5))
            for tenant in tenants
            if chance(rng, 0.1)
        ),
    )
