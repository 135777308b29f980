"""Who holds the memory of a device, as it is told: plain values."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """A version on a device. `tenant`: whose it is alone, "" for one of several or of everyone.
    `frame_bytes_held` of runs that are started, each of at most `frame_bytes_max` so far."""

    name: str
    version: str
    tenant: str
    weights_bytes: int
    frame_bytes_held: int
    frame_bytes_max: int


@dataclass(frozen=True, slots=True)
class TenantMemory:
    """What the models that are a tenant's alone hold. `bytes_max` is its own limit on a device,
    None where it is the device's."""

    name: str
    weights_bytes: int
    frame_bytes_held: int
    bytes_max: int | None


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """All of a device, for its operator.

    bytes_max         what weights, held frames and the arena may take (`memory_mib_max`)
    arena_bytes       set aside for the tensors of requests, of which `arena_bytes_used` are taken
    frames_held       runs that are started and not ended, at most `frames_max`
    resident_bytes    of its process, as the kernel counts: anonymous and shared memory
    workspace_bytes   what that is beyond weights and held frames: what operators take while they
                      run, the arena as far as it was touched, and the process itself
    models_untold     models beyond those that are told, and what they hold
    """

    bytes_max: int
    arena_bytes: int
    arena_bytes_used: int
    weights_bytes: int
    frame_bytes_held: int
    frames_held: int
    frames_max: int
    resident_bytes: int
    workspace_bytes: int
    models_untold: int
    untold_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device, as far as the tenant that asks may know. Without `totals` for who is no admin."""

    name: str
    models: Sequence[ModelMemory] = ()
    tenants: Sequence[TenantMemory] = ()
    totals: DeviceTotals | None = None
