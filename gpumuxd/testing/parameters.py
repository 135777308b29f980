"""What one simulated run consists of: the shape of the world, before the first event.

Values only. They are drawn from a seed in `swarm.py`, or written by hand in a test. The truth
(`ModelParameters.group_ns`) and what the scheduler is told (`profile`) stand beside each other
and never refer to each other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

from gpumuxd.domain import Batching, Bucket, PriorityClass, SyncCost
from gpumuxd.events import ModelProfile
from gpumuxd.settings import SchedulerSettings

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
    uploads: int
    weights_bytes: int
    frame_bytes: int
    load_ns: int = 0
    """When it is loaded first."""
    chunk_ns: tuple[int, ...] = ()
    """Its weights are brought in before it is ready, by a program of its own of so many groups."""
    tenant: str = ""
    """Whose it is alone, as far as memory goes: others may still ask for it."""
    batching: Batching | None = None
    """How its requests share runs; those that could share one differ in their batch size alone."""

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
    memory_bytes_max: int | None = None
    """Of the models that are its alone."""


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
    """How long after a loss another device is there."""
    reloads: tuple[tuple[str, int, int], ...]
    """Model, when it starts to drain, and how long after its release it is loaded again."""
    reweights: tuple[tuple[str, int, int], ...]
    """Tenant, when its share changes, and to which weight."""
    starved: tuple[str, ...] = ()
    """Models whose weights run out of memory half way, whenever they are brought in."""
    clocks: tuple[tuple[int, int], ...] = ()
    """When everything becomes slower or faster for good, and how long it takes then, in millionths
    of the drawn truth."""
    lost_again_ns: int | None = None
    """So long after it came the other device is lost too."""
    poisoned_ppm: int = 0
    """Requests that fail every run they are in."""


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
    sync_costs: tuple[SyncCost, ...] = ()
    """What its scheduler is told of its sync points, and when; empty: nothing."""
    measured_ns: int = 0
    measured_again: tuple[tuple[int, tuple[SyncCost, ...]], ...] = ()
    """When it is told something else, and what."""


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


_SHOWN_TUPLES = (
    "sync_costs",
    "measured_again",
    "storms_ns",
    "reloads",
    "reweights",
    "starved",
    "clocks",
)
