"""Draws that are laid over a drawn world, each from a generator of its own.

`swarm.py` draws who is there and what they ask; here is what some worlds have beside that: how work
is cut, shapes of several dimensions, launch-bound devices, SLOs that can't be met, memory that is
short, clocks that change. Each is absent in most worlds and leaves all other draws alone, so that
a new overlay gives only those worlds another meaning that it touches. It must not know the
scheduler.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace

from gpumuxd.domain import Batching, Bucket, SyncCost
from gpumuxd.events import ModelProfile
from gpumuxd.settings import Slicing
from gpumuxd.testing.parameters import PPM, DeviceParameters, ModelParameters
from gpumuxd.units import MIB, NS_PER_MS, NS_PER_US

Random = random.Random
Overlay = Callable[[Random, DeviceParameters], DeviceParameters]

BUCKETS_LEARNT = 64
"""As many an estimator learns of a model."""


def lay_over(seed: int, devices: list[DeviceParameters]) -> list[DeviceParameters]:
    """Everything that is drawn beside the worlds of `swarm.py`."""
    for name, overlay in _OVERLAYS.items():
        rng = Random(f"{seed}/{name}")
        devices = [overlay(rng, device) for device in devices]
    return devices


def log_uniform(rng: Random, low: int, high: int) -> int:
    """An integer whose order of magnitude is uniform."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def chance(rng: Random, probability: float) -> bool:
    """True as often as that."""
    return rng.random() < probability


def _loads(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """Some models come while the others serve, and some of all bring their weights in first."""
    models = []
    for model in device.models:
        chunks = rng.randint(1, 8) if chance(rng, 0.2) else 0
        chunk_ns = log_uniform(rng, 20 * NS_PER_US, NS_PER_MS)
        is_late = len(device.models) > 1 and chance(rng, 0.2)
        load_ns = rng.randrange(device.horizon_ns) if is_late else 0
        models.append(replace(model, load_ns=load_ns, chunk_ns=(chunk_ns,) * chunks))
    return replace(device, models=tuple(models))


def _modes(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """Some devices are told what their sync points cost, and some cut as a baseline does."""
    settings = device.settings
    if chance(rng, 0.15):
        kind = rng.choice((Slicing.LAYER, Slicing.EVERY, Slicing.WINDOW))
        settings = replace(
            settings,
            slicing=kind,
            slicing_operators=0 if kind is Slicing.LAYER else log_uniform(rng, 1, 100),
            slicing_window=rng.randint(1, 4) if kind is Slicing.WINDOW else 0,
        )
        models = tuple(_layers(rng, model) for model in device.models)
        return replace(device, settings=settings, models=models)
    if chance(rng, 0.5):
        return device
    if chance(rng, 0.7):
        settings = replace(settings, preemption_delay_ns_max=None)
    settings = replace(settings, weigh_preemption_by_arrivals=chance(rng, 0.3))
    alone_ns, base_ns = log_uniform(rng, 1_000, 500_000), rng.randint(0, 500_000)
    queued_ns = rng.choice((alone_ns, alone_ns // 20))
    costs = tuple(
        SyncCost(window, alone_ns if window == 1 else rng.randint(0, queued_ns), base_ns)
        for window in range(1, 5)
    )
    measured_ns = rng.choice((0, rng.randrange(device.horizon_ns)))
    return replace(device, settings=settings, sync_costs=costs, measured_ns=measured_ns)


def _layers(rng: Random, model: ModelParameters) -> ModelParameters:
    """What the baselines count: operators and layers; some artifacts say nothing of either."""
    count = model.group_count
    operators = tuple(rng.randint(1, 30) for _ in range(count)) if chance(rng, 0.8) else ()
    ends = [end for end in range(1, count) if chance(rng, 0.5)]
    layer_ends = (*ends, count) if chance(rng, 0.8) else ()
    profile = replace(model.profile, operators=operators, layer_ends=layer_ends)
    return replace(model, profile=profile)


def _share(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """On some devices best-effort work has a share for certain."""
    if not chance(rng, 0.2):
        return device
    share_ppm = rng.choice((10_000, 50_000, 250_000, 500_000, rng.randint(1, 500_000)))
    settings = replace(device.settings, best_effort_share_min_ppm=share_ppm)
    return replace(device, settings=settings)


def _measured_again(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """Some devices are measured twice, and the second time for other windows and far off."""
    if not device.sync_costs or not chance(rng, 0.3):
        return device
    factor = math.exp(rng.uniform(-3, 3))
    costs = tuple(
        SyncCost(window, round(sync_ns * factor), base_ns)
        for window, sync_ns, base_ns in device.sync_costs[: rng.randint(1, 4)]
    )
    return replace(device, measured_again=((rng.randrange(device.horizon_ns), costs),))


def _sizes(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """Some models have shapes of two or three dimensions, of which few or none were profiled."""
    models = tuple(_more_sizes(rng, m) if chance(rng, 0.15) else m for m in device.models)
    return replace(device, models=models)


def _more_sizes(rng: Random, model: ModelParameters) -> ModelParameters:
    first, base_ns = next(iter(model.group_ns.items()))
    is_crowded = chance(rng, 0.15)  # as many sizes as are learnt at all, and then some
    count = 2 * BUCKETS_LEARNT if is_crowded else rng.randint(2, 8)
    dimensions = 2 if is_crowded else rng.randint(1, 2)
    exponent = rng.uniform(0.1, 0.6)
    group_ns: dict[Bucket, tuple[int, ...]] = {}
    for _ in range(count):
        more = [1 << rng.randint(3, 9) for _ in range(dimensions)]
        bucket = (first[0] << rng.randint(0, 2), *more)
        work = math.prod(bucket) / (1 << 6 * dimensions)
        group_ns[bucket] = tuple(max(1, int(ns * work**exponent)) for ns in base_ns)
    told = model.profile
    error = math.exp(rng.gauss(0.0, 0.1))
    share = 0.9 if is_crowded else 0.4
    known = [bucket for bucket in group_ns if told.group_ns and chance(rng, share)]
    times = {bucket: tuple(max(1, int(ns * error)) for ns in group_ns[bucket]) for bucket in known}
    profile = ModelProfile(
        told.group_count,
        times,
        {bucket: sum(ns) for bucket, ns in times.items()},
        told.operators,
        told.layer_ends,
    )
    estimates = f"{len(known)} of {len(group_ns)} sizes"
    profile_runs = 0 if known else model.profile_runs
    return replace(
        model, group_ns=group_ns, profile=profile, estimates=estimates, profile_runs=profile_runs
    )


def _launch_bound(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """On some devices a launch takes longer than most groups, and profiles may say what piles up
    when groups are launched freely: hardly anything there."""
    is_bound = chance(rng, 0.12)
    models = []
    for model in device.models:
        told = model.profile
        outstanding_ns = {
            bucket: max(1, int(sum(ns) * rng.uniform(0.0, 0.2 if is_bound else 1.0)))
            for bucket, ns in told.group_ns.items()
            if chance(rng, 0.8)
        }
        if not is_bound and not chance(rng, 0.2):
            outstanding_ns = {}
        models.append(replace(model, profile=replace(told, outstanding_ns=outstanding_ns)))
    launch_cost_ns = rng.randint(50, 500) * NS_PER_US if is_bound else device.launch_cost_ns
    return replace(device, models=tuple(models), launch_cost_ns=launch_cost_ns)


def _hopeless(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """Some models have an SLO that is tight or can't be met at all, and some clients ask for what
    can't be done in time."""
    models = []
    for model in device.models:
        run_ns = max(map(sum, model.group_ns.values()))
        slo_ns = rng.choice((1, run_ns // 2, run_ns, int(run_ns * rng.uniform(1.0, 1.3))))
        models.append(replace(model, slo_ns=slo_ns) if chance(rng, 0.1) else model)
    clients = tuple(
        replace(client, deadline_ns=int(client.deadline_ns * rng.uniform(0.0, 0.5)))
        if client.deadline_ns is not None and chance(rng, 0.1)
        else client
        for client in device.clients
    )
    return replace(device, models=tuple(models), clients=clients)


def _short_memory(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """Some devices have no room for all: weights that come late leave none for frames, or a load
    runs out of memory half way, again and again until faults end."""
    if not chance(rng, 0.1):
        return device
    models = tuple(m if m.chunk_ns else replace(m, chunk_ns=(100_000,) * 3) for m in device.models)
    starved = tuple(model.name for model in models if chance(rng, 0.4))
    faults = replace(device.faults, starved=starved)
    settings = device.settings
    if chance(rng, 0.5):
        weights_bytes = sum(model.weights_bytes for model in models)
        least = min(model.frame_bytes for model in models)
        settings = replace(settings, memory_bytes_max=weights_bytes + rng.randint(0, 3) * least)
    return replace(device, models=models, faults=faults, settings=settings)


def _frames(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """On some devices frames were measured size by size, and tenants have limits of their own,
    which leave room for the weights of their models, since those come again and again."""
    if not chance(rng, 0.2):
        return device
    names = ["", *(tenant.name for tenant in device.tenants)]
    models = []
    for model in device.models:
        buckets = [bucket for bucket in model.group_ns if chance(rng, 0.7)]
        frame_bytes = {bucket: rng.randint(1, 64) * MIB for bucket in buckets}
        profile = replace(model.profile, frame_bytes=frame_bytes)
        models.append(replace(model, profile=profile, tenant=rng.choice(names)))
    tenants = []
    for tenant in device.tenants:
        weights_bytes = sum(each.weights_bytes for each in models if each.tenant == tenant.name)
        limit = weights_bytes + rng.randint(0, 150) * MIB if chance(rng, 0.5) else None
        tenants.append(replace(tenant, memory_bytes_max=limit))
    return replace(device, models=tuple(models), tenants=tuple(tenants))


def _clocks(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """On some devices all models become slower or faster from a moment on, and maybe again."""
    if not chance(rng, 0.12):
        return device
    moments = sorted(rng.randrange(device.horizon_ns) for _ in range(rng.randint(1, 2)))
    clocks = tuple((at_ns, int(PPM * math.exp(rng.uniform(-1, 1.5)))) for at_ns in moments)
    return replace(device, faults=replace(device.faults, clocks=clocks))


def _losses(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """Some devices that are lost are lost while a model drains, and some whose replacement is lost
    as well, mostly while it is given its models."""
    faults = device.faults
    if faults.lost_ns is None:
        return device
    drains_ns = [drain_ns for _, drain_ns, _ in faults.reloads]
    if drains_ns and chance(rng, 0.5):
        faults = replace(faults, lost_ns=rng.choice(drains_ns) + log_uniform(rng, 1, NS_PER_MS))
    if chance(rng, 0.5):
        lost_again_ns = log_uniform(rng, 1, 20 * NS_PER_MS)
        restart_ns = faults.restart_ns if chance(rng, 0.5) else log_uniform(rng, 1, NS_PER_MS)
        faults = replace(faults, lost_again_ns=lost_again_ns, restart_ns=restart_ns)
    return replace(device, faults=faults)


def _batching(rng: Random, device: DeviceParameters) -> DeviceParameters:
    """On some devices requests of some models share runs, and some fail whoever they are with."""
    if not chance(rng, 0.35):
        return device
    models = tuple(_shared(rng, m) if chance(rng, 0.7) else m for m in device.models)
    poisoned_ppm = rng.choice((0, 0, 100_000))
    return replace(device, models=models, faults=replace(device.faults, poisoned_ppm=poisoned_ppm))


def _shared(rng: Random, model: ModelParameters) -> ModelParameters:
    if len(model.group_ns) > 8:
        return model
    sizes = tuple(1 << power for power in range(rng.randint(1, 4) + 1))
    exponent = rng.uniform(0.1, 0.9)
    group_ns, told = dict(model.group_ns), model.profile
    times = dict(told.group_ns)
    is_told = bool(times) and chance(rng, 0.7)
    for first, base_ns in model.group_ns.items():
        for size in sizes:
            bucket = (size, *first[1:])
            if bucket not in group_ns:
                factor = (size / first[0]) ** exponent
                group_ns[bucket] = tuple(max(1, int(ns * factor)) for ns in base_ns)
                if is_told:
                    times[bucket] = group_ns[bucket]
    run_ns = dict(told.run_ns) | {b: sum(times[b]) for b in times.keys() - told.run_ns.keys()}
    delay_ns_max = rng.choice((0, 0, log_uniform(rng, NS_PER_US, 5 * NS_PER_MS)))
    return replace(
        model,
        group_ns=group_ns,
        profile=replace(told, group_ns=times, run_ns=run_ns),
        batching=Batching(0, sizes, delay_ns_max),
    )


_OVERLAYS: dict[str, Overlay] = {
    "loads": _loads,
    "modes": _modes,
    "shares": _share,
    "measured again": _measured_again,
    "sizes": _sizes,
    "launch-bound": _launch_bound,
    "hopeless": _hopeless,
    "short memory": _short_memory,
    "clocks": _clocks,
    "losses": _losses,
    "frames": _frames,
    "batching": _batching,
}
