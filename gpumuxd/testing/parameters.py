"""What one simulated run consists of, drawn from its seed (swarm testing).

Not only the requests are random but also the shape of the world: how many devices, lanes of
settings, tenants and models, which faults, how wrong the estimates are. So the extremes of the
configuration are visited, each by some seeds. It must not know the scheduler.

The truth (`group_ns`) and what the scheduler is told (`profile`) are separate draws.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace

from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.events import ModelProfile
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_US

Random = random.Random

EVENTS_PER_SEED = 350
"""About how many events a seed should have: 200 seeds have to pass in 20 s with all checkers."""

PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """A model: the true time of its groups, and what the scheduler is told of it."""

    name: str
    class_max: PriorityClass
    slo_ns: int | None
    group_ns: Mapping[Bucket, tuple[int, ...]]
    estimates: str
    profile: ModelProfile
    profile_runs: int
    weights_bytes: int
    frame_bytes: int

    @property
    def group_count(self) -> int:
        return self.profile.group_count

    def run_ns(self, bucket: Bucket) -> int:
        """The true time of one undisturbed run."""
        return sum(self.group_ns[bucket])


@dataclass(frozen=True, slots=True)
class TenantParameters:
    """A tenant's share and rate."""

    name: str
    weight: int
    realtime_per_s: int | None
    realtime_burst: int


@dataclass(frozen=True, slots=True)
class ClientParameters:
    """A program that sends requests of one tenant for one model.

    `closed` keeps `width` requests outstanding; `poisson` sends at random moments `interval_ns`
    apart on average; `burst` sends `width` at once every `interval_ns`.
    """

    name: str
    tenant: str
    model: str
    priority_class: PriorityClass
    pattern: str
    width: int
    interval_ns: int
    requests: int
    deadline_ns: int | None
    cancel_ppm: int
    vanish_ns: int | None


@dataclass(frozen=True, slots=True)
class FaultParameters:
    """What goes wrong, until `end_ns`; from then on everything must come to its end."""

    end_ns: int
    noise_sigma: float
    slow_ppm: int
    late_ppm: int
    late_ns_max: int
    failure_ppm: int
    storms_ns: tuple[int, ...]
    lost_ns: int | None
    restart_ns: int
    reloads: tuple[tuple[str, int, int], ...]
    """Model, when it starts to drain, and how long after its release it is loaded again."""


@dataclass(frozen=True, slots=True)
class DeviceParameters:
    """One device with its own scheduler, and all that happens to it."""

    name: str
    settings: SchedulerSettings
    round_trip_ns: int
    launch_cost_ns: int
    loop_cost_ns: int
    has_high_lane: bool
    is_contended: bool
    horizon_ns: int
    models: tuple[ModelParameters, ...]
    tenants: tuple[TenantParameters, ...]
    clients: tuple[ClientParameters, ...]
    faults: FaultParameters


@dataclass(frozen=True, slots=True)
class Parameters:
    """Everything that a seed decides before the first event."""

    seed: int
    devices: tuple[DeviceParameters, ...]

    def lines(self) -> Iterator[str]:
        """The parameters for people, one thing a line."""
        yield f"SEED {self.seed}: {len(self.devices)} devices"
        for device in self.devices:
            yield f"  {device.name}: {_fields(device, skip=('name', 'settings'))}"
            yield f"    settings {_fields(device.settings)}"
            yield f"    faults {_fields(device.faults)}"
            for tenant in device.tenants:
                yield f"    tenant {_fields(tenant)}"
            for model in device.models:
                runs = {bucket: sum(times) for bucket, times in model.group_ns.items()}
                told = _fields(model, skip=("group_ns", "profile"))
                yield f"    model {told} groups={model.group_count} true_run_ns={runs}"
            for client in device.clients:
                yield f"    client {_fields(client)}"


def _fields(value: object, skip: tuple[str, ...] = ()) -> str:
    assert is_dataclass(value)
    shown = []
    for one in fields(value):
        content = getattr(value, one.name)
        if one.name in skip or (isinstance(content, tuple) and one.name not in _SHOWN_TUPLES):
            continue
        if isinstance(content, FaultParameters):
            continue
        text = content.name if isinstance(content, PriorityClass) else content
        shown.append(f"{one.name}={text}")
    return " ".join(shown)


_SHOWN_TUPLES = ("storms_ns", "reloads")


def draw(seed: int) -> Parameters:
    """The world of a seed."""
    rng = Random(seed)
    count = rng.choices((1, 2, 3, 4), weights=(6, 2, 1, 1))[0]
    events = max(60, int(EVENTS_PER_SEED * rng.uniform(0.3, 1.7)) // count)
    return Parameters(seed, tuple(_draw_device(rng, f"cpu:{i}", events) for i in range(count)))


def log_uniform(rng: Random, low: int, high: int) -> int:
    """An integer whose order of magnitude is uniform."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


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
    is_contended = len(clients) > 1 and _chance(rng, 0.25)
    if is_contended:
        tenants, clients = _contend(tenants, clients)
    return DeviceParameters(
        name=name,
        settings=settings,
        round_trip_ns=rng.choice((0, 0, rng.randint(5_000, 150_000))),
        launch_cost_ns=rng.choice((0, rng.randint(1_000, 20_000))),
        loop_cost_ns=rng.choice((0, rng.randint(5_000, 50_000))),
        has_high_lane=_chance(rng, 0.15),
        is_contended=is_contended,
        horizon_ns=horizon_ns,
        models=models,
        tenants=tenants,
        clients=clients,
        faults=_draw_faults(rng, models, horizon_ns),
    )


def _draw_settings(rng: Random, models: tuple[ModelParameters, ...]) -> SchedulerSettings:
    frames_max = rng.randint(1, 8)
    weights_bytes = sum(model.weights_bytes for model in models)
    frame_bytes = max(model.frame_bytes for model in models)
    bound_ns = log_uniform(rng, 100 * NS_PER_US, 10 * NS_PER_MS)
    return SchedulerSettings(
        slicing=Slicing.NONE if _chance(rng, 0.05) else Slicing.BOUNDED,
        order=Order.FIFO if _chance(rng, 0.05) else Order.POLICY,
        preemption_delay_ns_max=None if _chance(rng, 0.3) else bound_ns,
        slice_ns_max=log_uniform(rng, 200 * NS_PER_US, 5 * NS_PER_MS),
        window_max=rng.randint(1, 4),
        round_trip_ns=log_uniform(rng, 10 * NS_PER_US, 500 * NS_PER_US),
        queue_requests_max=rng.randint(2, 12) if _chance(rng, 0.1) else 20_000,
        frames_max=frames_max,
        frames_reserved=rng.randint(0, (frames_max - 1) // 2),
        # Room for the weights that reloads may double, and sometimes for one or two frames only.
        memory_bytes_max=2 * weights_bytes + rng.randint(1, 2) * frame_bytes
        if _chance(rng, 0.15)
        else 8 * GIB,
    )


def _draw_model(rng: Random, name: str, device_median_ns: int) -> ModelParameters:
    median_ns = device_median_ns * rng.uniform(0.5, 2.0)
    group_count = rng.choice((1, 2, rng.randint(3, 12), rng.randint(8, 40)))
    sigma = rng.uniform(0.1, 1.0)
    base_ns = [median_ns * math.exp(rng.gauss(0.0, sigma)) for _ in range(group_count)]
    base_ns = [ns * 10 if _chance(rng, 0.03) else ns for ns in base_ns]
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
        slo_ns=int(sum(group_ns[buckets[-1]]) * slo) if _chance(rng, 0.4) else None,
        group_ns=group_ns,
        estimates=estimates,
        profile=profile,
        profile_runs=rng.randint(0, 2) if not profile.group_ns else 0,
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
    known = [bucket for bucket in group_ns if bucket == (1,) or _chance(rng, 0.8)]
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
    limited = _chance(rng, 0.3)
    return TenantParameters(
        name=name,
        weight=1 if _chance(rng, 0.7) else rng.randint(2, 5),
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
        has_deadline = _chance(rng, 0.9 if urgent else 0.2)
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
                vanish_ns=rng.randint(0, horizon_ns) if _chance(rng, 0.1) else None,
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
    rng: Random, models: tuple[ModelParameters, ...], horizon_ns: int
) -> FaultParameters:
    """Each kind of fault is absent in most seeds, so that it also meets the others' absence."""
    end_ns = horizon_ns * 7 // 10
    names = [model.name for model in models if _chance(rng, 0.15)]
    return FaultParameters(
        end_ns=end_ns,
        noise_sigma=rng.choice((0.0, 0.03, 0.2)),
        slow_ppm=rng.choice((0, 0, rng.randint(1_000, 60_000))),
        late_ppm=rng.choice((0, 0, rng.randint(1_000, 60_000))),
        late_ns_max=log_uniform(rng, 100 * NS_PER_US, 20 * NS_PER_MS),
        failure_ppm=rng.choice((0, 0, rng.randint(1_000, 30_000))),
        storms_ns=tuple(sorted(rng.randint(0, end_ns) for _ in range(rng.choice((0, 0, 0, 1, 2))))),
        lost_ns=rng.randint(0, end_ns) if _chance(rng, 0.12) else None,
        restart_ns=log_uniform(rng, NS_PER_MS, 50 * NS_PER_MS),
        reloads=tuple(
            (name, rng.randint(0, end_ns), log_uniform(rng, NS_PER_MS // 10, 10 * NS_PER_MS))
            for name in names
        ),
    )
