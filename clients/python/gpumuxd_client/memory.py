"""Who holds the memory of a node's devices, as `Client.memory` tells it."""

from dataclasses import dataclass

from gpumuxd_client.generated import control_pb2 as control


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """A version on a device. `tenant`: whose it is alone, "" for one of several or of everyone.
    `frame_bytes_held` by runs that are started, each of at most `frame_bytes_max` so far."""

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
    """All of a device. `bytes_max` is for weights, held frames and the arena; `workspace_bytes` is
    what its process holds (`resident_bytes`) beyond weights and held frames. Models beyond those
    that are told are `models_untold`, and hold `untold_bytes`."""

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
    """A device that is up. `models` and `tenants` as far as one may know; `totals` for admins."""

    name: str
    models: tuple[ModelMemory, ...]
    tenants: tuple[TenantMemory, ...]
    totals: DeviceTotals | None


def decode_memory(data: bytes) -> tuple[DeviceMemory, ...]:
    """Of a `MemoryResponse`."""
    return tuple(_device(device) for device in control.MemoryResponse.FromString(data).devices)


def _device(device: control.DeviceMemory) -> DeviceMemory:
    models = tuple(
        ModelMemory(
            model.name,
            model.version,
            model.tenant,
            model.weights_bytes,
            model.frame_bytes_held,
            model.frame_bytes_max,
        )
        for model in device.models
    )
    tenants = tuple(
        TenantMemory(
            tenant.name,
            tenant.weights_bytes,
            tenant.frame_bytes_held,
            tenant.bytes_max if tenant.HasField("bytes_max") else None,
        )
        for tenant in device.tenants
    )
    totals = _totals(device.totals) if device.HasField("totals") else None
    return DeviceMemory(device.name, models, tenants, totals)


def _totals(totals: control.DeviceTotals) -> DeviceTotals:
    return DeviceTotals(
        bytes_max=totals.bytes_max,
        arena_bytes=totals.arena_bytes,
        arena_bytes_used=totals.arena_bytes_used,
        weights_bytes=totals.weights_bytes,
        frame_bytes_held=totals.frame_bytes_held,
        frames_held=totals.frames_held,
        frames_max=totals.frames_max,
        resident_bytes=totals.resident_bytes,
        workspace_bytes=totals.workspace_bytes,
        models_untold=totals.models_untold,
        untold_bytes=totals.untold_bytes,
    )
