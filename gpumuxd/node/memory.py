"""Who holds the memory of each device: the books of the children, as far as one may know.

A tenant sees the models that it may see anywhere, and of the tenants itself; what else there is on
a device is its operator's to know. It must not know how memory is booked or limited.
"""

import asyncio
from collections.abc import Iterable, Mapping

from gpumuxd.node.api import Tenant
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.memory_view import DeviceMemory, DeviceTotals, ModelMemory, TenantMemory
from gpumuxd.node.model_table import Replica, VersionEntry, may_see, name_of_key
from gpumuxd.wire.frames import ModelFigures, Statistics


async def memory_of(
    tenant: Tenant,
    links: Mapping[str, DeviceLink | None],
    table: Iterable[VersionEntry],
) -> list[DeviceMemory]:
    """Every device that is up, with the figures of this moment."""
    up = [link for link in links.values() if link is not None]
    answers = await asyncio.gather(*(link.fresh_statistics() for link in up))
    replicas = {each.key: each for entry in table for each in entry.replicas.values()}
    return [
        _device(tenant, link, told, replicas)
        for link, told in zip(up, answers, strict=True)
        if told is not None
    ]


def _device(
    tenant: Tenant, link: DeviceLink, told: Statistics, replicas: Mapping[str, Replica]
) -> DeviceMemory:
    models = [
        _model(each, replicas.get(each.model))
        for each in told.models
        if tenant.is_admin or _is_shown(tenant, replicas.get(each.model))
    ]
    tenants = [
        TenantMemory(each.tenant, each.weights_bytes, each.frame_bytes_held, each.bytes_max)
        for each in told.tenants
        if tenant.is_admin or each.tenant == tenant.name
    ]
    totals = _totals(link, told) if tenant.is_admin else None
    return DeviceMemory(link.settings.device, models, tenants, totals)


def _is_shown(tenant: Tenant, replica: Replica | None) -> bool:
    """Of one that comes or goes, nobody but an admin knows whose it is."""
    return replica is not None and may_see(replica.manifest, tenant)


def _model(figures: ModelFigures, replica: Replica | None) -> ModelMemory:
    permitted = () if replica is None else replica.manifest.tenants or ()
    return ModelMemory(
        name=name_of_key(figures.model),
        version=figures.model.rpartition("/")[2].partition("#")[0],
        tenant=permitted[0] if len(permitted) == 1 else "",
        weights_bytes=figures.weights_bytes,
        frame_bytes_held=figures.frame_bytes_held,
        frame_bytes_max=figures.frame_bytes_max,
    )


def _totals(link: DeviceLink, told: Statistics) -> DeviceTotals:
    settings = link.settings
    frame_bytes = told.frame_bytes_held
    untold_bytes = told.memory_bytes - sum(
        each.weights_bytes + each.frame_bytes_held for each in told.models
    )
    return DeviceTotals(
        bytes_max=settings.scheduler.memory_bytes_max,
        arena_bytes=settings.arena_bytes,
        arena_bytes_used=link.arena_bytes_used,
        weights_bytes=told.memory_bytes - frame_bytes,
        frame_bytes_held=frame_bytes,
        frames_held=told.frames_held,
        frames_max=settings.scheduler.frames_max,
        resident_bytes=told.resident_bytes,
        workspace_bytes=max(0, told.resident_bytes - told.memory_bytes),
        models_untold=told.model_count - len(told.models),
        untold_bytes=max(0, untold_bytes),
    )
