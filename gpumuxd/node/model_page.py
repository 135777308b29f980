"""The page of a model: what its versions take, how long they run, and how well they yield.

Puts together what manifest, artifact, device and bound say, as far as the tenant that asks may
know: nothing here tells a tenant of another one. It must not change anything, nor look at a disk:
the registry has found the versions.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpumuxd.models.manifest import Manifest
from gpumuxd.models.spec import ModelSpec
from gpumuxd.models.version_policy import VersionPolicy
from gpumuxd.node.api import (
    BoundView,
    BucketView,
    GroupView,
    LoadedView,
    ModelDetail,
    PolicyView,
    Tenant,
    VersionView,
)
from gpumuxd.node.model_table import Replica, VersionFacts, name_of_key
from gpumuxd.node.preemptible import (
    SIZES_NAMED_MAX,
    batch_index,
    bound_for,
    bound_of,
    sizes_text,
    slo_note,
    verdict,
)
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.wire.frames import LongGroup, ModelLoaded, Statistics


async def model_detail(
    name: str, versions: Sequence[VersionFacts], tenant: Tenant, tenants: TenantDirectory
) -> ModelDetail:
    """The page of these versions, as this tenant may see it."""

    def name_of(key: str) -> str:
        told = name_of_key(key)
        return told if tenant.is_admin or told == name else ""

    # Once a device: one that does not answer is waited for as long with many versions as with one.
    links = list(dict.fromkeys(facts.replica.link for facts in versions if facts.replica))
    answers = await asyncio.gather(*(link.fresh_statistics() for link in links))
    statistics = dict(zip(links, answers, strict=True))
    views = []
    for facts in versions:
        loaded = None
        if facts.replica is not None:
            told = statistics[facts.replica.link]
            loaded = replace(loaded_view(facts.replica, told, name_of), replicas=facts.devices)
        policy = None
        if facts.manifest is not None:
            policy = _policy(facts.manifest, tenant, tenants)
        entry = facts.entry
        views.append(VersionView(entry.version, entry.state, entry.reason, policy, loaded))
    return ModelDetail(name, tuple(views))


def loaded_view(
    replica: Replica, statistics: Statistics | None, name_of: Callable[[str], str]
) -> LoadedView:
    """A replica, beside what its device said a moment ago."""
    settings = replica.link.settings
    spec, loaded, artifact = replica.artifact.spec, replica.loaded, replica.artifact
    bound = bound_of(settings.scheduler, statistics, name_of)
    rows_max = rows_limit(spec, replica.manifest)
    buckets = _buckets(spec, loaded, bound, rows_max)
    slo = slo_note(replica.manifest.slo_ns, buckets)
    return LoadedView(
        platform=artifact.platform,
        device=replica.device,
        artifact_hash=artifact.artifact_hash,
        spec=spec,
        batch_max=rows_max,
        parameter_count=artifact.parameter_count,
        weights_bytes=loaded.weights_bytes,
        frame_bytes=loaded.frame_bytes,
        group_count=loaded.group_count,
        buckets=buckets,
        bound=bound_for(spec, buckets, bound),
        verdict=verdict(spec, buckets, bound, replica.device),
        notes=(
            *filter(None, (slo, _batching(loaded))),
            *_notes(spec, buckets, rows_max),
            *_left_out(spec, loaded, rows_max),
        ),
    )


def _policy(manifest: Manifest, tenant: Tenant, tenants: TenantDirectory) -> PolicyView:
    permitted, class_max = manifest.tenants, tenants.class_max_of(manifest)
    if not tenant.is_admin:
        permitted = None if permitted is None else (tenant.name,)
        class_max = min(class_max, tenant.priority_max)
    return PolicyView(
        permitted,
        class_max,
        manifest.slo_ns,
        None if manifest.device is None else ", ".join(manifest.device),
        manifest.batch_max,
        _versions(manifest.versions),
        "all" if manifest.replicas is None else str(manifest.replicas),
    )


def _versions(policy: VersionPolicy) -> str:
    if policy.listed is not None:
        return ", ".join(map(str, policy.listed))
    if policy.latest is None:
        return "all"
    return "latest" if policy.latest == 1 else f"latest {policy.latest}"


def rows_limit(spec: ModelSpec, manifest: Manifest) -> int:
    """Rows in a request, 0 without a batch dimension."""
    index = batch_index(spec)
    if index is None:
        return 0
    maximum = spec.symbols[index].maximum
    return min(maximum, manifest.batch_max or maximum)


def _buckets(
    spec: ModelSpec, loaded: ModelLoaded, bound: BoundView, rows_max: int
) -> tuple[BucketView, ...]:
    longest = loaded.longest_groups or ((),) * len(loaded.run_ns)
    views = []
    for (sizes, run_ns), groups in zip(loaded.run_ns, longest, strict=True):
        limit_ns = bound.bound_ns
        beyond = [one for one in groups if limit_ns is not None and one.device_ns > limit_ns]
        views.append(
            BucketView(
                sizes=sizes,
                run_ns=run_ns,
                longest=_group(groups[0]) if groups else None,
                beyond_count=len(beyond),
                has_more_beyond=0 < len(beyond) == len(groups) < loaded.group_count,
                is_allowed=is_allowed(spec, sizes, rows_max),
            )
        )
    return tuple(views)


def is_allowed(spec: ModelSpec, sizes: Sequence[int], rows_max: int) -> bool:
    """Does some request within the limit of rows get this bucket."""
    index = batch_index(spec)
    return index is None or sizes[index] <= _bucket_of(spec, index, rows_max)


def _group(told: LongGroup) -> GroupView:
    return GroupView(told.group, told.device_ns, told.first_node, told.end_node)


def _notes(spec: ModelSpec, buckets: Sequence[BucketView], rows_max: int) -> list[str]:
    notes = []
    if not spec.symbols:
        first = {tensor.shape[:1] for tensor in spec.inputs}
        rows = next(iter(first))[0] if len(first) == 1 and next(iter(first)) else None
        fixed = f"a fixed batch of {rows}" if rows is not None else "fixed sizes"
        notes.append(f"Exported with {fixed}: `gpumuxd export` makes the batch dynamic.")
    for index, symbol in enumerate(spec.symbols):
        maximum = rows_max if symbol.name == spec.batch_symbol else symbol.maximum
        measured = sorted({bucket.sizes[index] for bucket in buckets})
        ends = {_bucket_of(spec, index, size) for size in (symbol.minimum, maximum)}
        if measured and not ends <= set(measured):
            told = ", ".join(map(str, measured))
            notes.append(
                f"{symbol.name} was measured at {told} of {symbol.minimum} .. {maximum}; how long "
                "other sizes take is learnt from requests."
            )
    return notes


def _batching(loaded: ModelLoaded) -> str:
    """What a trial at load found, where the manifest asks for batching."""
    return f"Batching: {loaded.batching_note}." if loaded.batching_note else ""


def _left_out(spec: ModelSpec, loaded: ModelLoaded, rows_max: int) -> list[str]:
    """What would have disturbed others while it was measured will do so when it is asked for."""
    sizes = [each for each in loaded.left_out if is_allowed(spec, each, rows_max)]
    if not sizes:
        return []
    among = (*sizes, *(sizes for sizes, _ in loaded.run_ns))
    named = "; ".join(sizes_text(spec, each, among) for each in sizes[:SIZES_NAMED_MAX])
    more = f"; {len(sizes) - SIZES_NAMED_MAX} more" if len(sizes) > SIZES_NAMED_MAX else ""
    return [
        f"Left out of the measurement: {named}{more}. A run there would have taken seconds, or a "
        "group longer than the bound for REALTIME requests then in force; a request of that size "
        "may delay urgent work by as much."
    ]


def _bucket_of(spec: ModelSpec, index: int, size: int) -> int:
    """The size of the bucket that a request of this size gets in one dimension."""
    sizes = {symbol.name: symbol.minimum for symbol in spec.symbols}
    sizes[spec.symbols[index].name] = size
    return spec.bucket(sizes)[index]
