"""Why the work of a model is cut as it is: what its device says, in the words of whoever asks.

The device's scheduler explains (`core/explanation.py`); here sizes become a bucket, groups get the
nodes of the graph, and no tenant is told of another one's model. It must not change anything.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from gpumuxd.domain import Bucket
from gpumuxd.errors import InvalidRequest, ModelNotReady
from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.node.api import (
    BoundOrigin,
    BoundView,
    ExplanationView,
    GroupView,
    SizedTensor,
    SliceView,
    Tenant,
)
from gpumuxd.node.model_page import is_allowed, rows_limit
from gpumuxd.node.model_table import Replica, VersionFacts, name_of_key
from gpumuxd.node.preemptible import bound_of
from gpumuxd.node.validation import elide
from gpumuxd.settings import SchedulerSettings
from gpumuxd.wire import frames


async def explain_model(
    versions: Sequence[VersionFacts], tenant: Tenant, sizes: Mapping[str, int]
) -> ExplanationView:
    """The newest of these versions that is loaded. Raises ModelNotReady or InvalidRequest."""
    replica = next((facts.replica for facts in versions if facts.replica is not None), None)
    if replica is None:
        entry = versions[0].entry
        version = f" version {entry.version}" if len(versions) == 1 and entry.version else ""
        raise ModelNotReady(
            f"model {entry.name!r}{version}: {entry.reason or 'not loaded'}; only what is loaded "
            "can be explained"
        )
    name = versions[0].entry.name
    bucket = _bucket(replica, sizes)
    told = await replica.link.explain(replica.key, bucket)
    if told is None:
        if not replica.is_alive:
            raise ModelNotReady(f"model {name!r}: its device was lost; retry")
        names = (symbol.name for symbol in replica.artifact.spec.symbols)
        at = ", ".join(f"{each} {size}" for each, size in zip(names, bucket, strict=True))
        raise ModelNotReady(
            f"of model {name!r} version {replica.version} nothing is remembered at "
            f"{at or 'its sizes'}: explain sizes that were run, or send a request of these first"
        )

    def name_of(key: str) -> str:
        whose = name_of_key(key)
        return whose if tenant.is_admin or whose == name else ""

    spec = replica.artifact.spec
    bound = _bound(replica.link.settings.scheduler, told, name_of)
    return ExplanationView(
        name=name,
        version=replica.version,
        device=replica.device,
        sizes=tuple(zip((symbol.name for symbol in spec.symbols), told.bucket, strict=True)),
        inputs=_inputs(spec, told.bucket),
        priority_class=told.priority_class,
        mode=told.mode,
        reason=_in_words(told.reason, name_of),
        bound=bound,
        group_count=told.group_count or replica.loaded.group_count,
        group_ns=told.group_ns,
        run_ns=told.run_ns,
        slice_count=told.slice_count,
        slices=tuple(SliceView(s.first_group, s.end_group, s.predicted_ns) for s in told.slices),
        window=told.window,
        slice_ns=told.slice_ns,
        floor=_floor(replica, told),
        is_floor_over_bound=bound.bound_ns is not None and told.floor_ns > bound.bound_ns,
        exec_ns=told.exec_ns,
        preempt_ns=told.preempt_ns,
        preempt_expected_ns=told.preempt_expected_ns,
        is_guess=told.is_guess,
        is_cost_doubtful=told.is_cost_doubtful,
    )


def _bucket(replica: Replica, sizes: Mapping[str, int]) -> Bucket:
    """What is asked about: of what was measured at the sizes that are named, the longest run; if
    nothing was, the longest of all runs with these sizes instead."""
    spec = replica.artifact.spec
    asked = _asked(spec, sizes)
    rows_max = rows_limit(spec, replica.manifest)
    runs = [run for run in replica.loaded.run_ns if is_allowed(spec, run[0], rows_max)]
    alike = [run for run in runs if all(run[0][index] == size for index, size in asked.items())]
    if alike or runs:
        bucket = max(alike or runs, key=lambda run: run[1])[0]
    else:
        bucket = spec.bucket({symbol.name: symbol.maximum for symbol in spec.symbols})
    return tuple(asked.get(index, size) for index, size in enumerate(bucket))


def _asked(spec: ModelSpec, sizes: Mapping[str, int]) -> dict[int, int]:
    """The bucket's sizes that are named, by their place in it. Raises InvalidRequest."""
    symbols = {symbol.name: symbol for symbol in spec.symbols}
    for name, size in sizes.items():
        symbol = symbols.get(name)
        if symbol is None:
            known = f"expected one of {', '.join(symbols)}" if symbols else "all are fixed"
            raise InvalidRequest(f"no size {elide(name)} varies; {known}")
        if not symbol.minimum <= size <= symbol.maximum or size % symbol.multiple:
            steps = f" in steps of {symbol.multiple}" if symbol.multiple > 1 else ""
            raise InvalidRequest(
                f"expected {name} of {symbol.minimum} to {symbol.maximum}{steps}, got {size}"
            )
    bucket = spec.bucket({name: sizes.get(name, symbols[name].minimum) for name in symbols})
    return {index: bucket[index] for index, name in enumerate(symbols) if name in sizes}


def _inputs(spec: ModelSpec, bucket: Bucket) -> tuple[SizedTensor, ...]:
    sizes = dict(zip((symbol.name for symbol in spec.symbols), bucket, strict=True))
    return tuple(
        SizedTensor(each.name, each.datatype, evaluate_shape(each.shape, sizes))
        for each in spec.inputs
    )


def _floor(replica: Replica, told: frames.Explanation) -> GroupView | None:
    """The longest group with its nodes, which were told when the model was loaded."""
    if not told.floor_ns:
        return None
    for groups in replica.loaded.longest_groups:  # nodes are the same at every size
        for group in groups:
            if group.group == told.floor_group:
                return GroupView(group.group, told.floor_ns, group.first_node, group.end_node)
    return GroupView(told.floor_group, told.floor_ns, 0, 0)


def _bound(
    settings: SchedulerSettings, told: frames.Explanation, name_of: Callable[[str], str]
) -> BoundView:
    """In the words of the model's page."""
    bound = bound_of(settings, told, name_of)
    is_none = told.bound_ns is None and bound.origin not in (
        BoundOrigin.NO_ORDER,
        BoundOrigin.NO_SLICING,
        BoundOrigin.FIXED,
    )
    return BoundView(None, BoundOrigin.LEAST_DELAY) if is_none else bound


_SETTINGS = {
    "slice_ns_max": "slice_ms_max",
    "preemption_delay_ns_max": "preemption_delay_ms_max",
}
"""As the configuration calls them."""

_KEY = re.compile(r"[^\s'\"]+/[0-9]+#[0-9]+")


def _in_words(reason: str, name_of: Callable[[str], str]) -> str:
    """A sentence of the scheduler without our keys, nor the names of others' models."""
    for ours, configured in _SETTINGS.items():
        reason = reason.replace(ours, configured)
    return _KEY.sub(lambda found: name_of(found[0]) or "another model", reason)
