"""Tells the log of models that can't keep the bound in force on their device, whoever set it, of
those with which an SLO can't be kept, and of SLOs that can't be met at all.

A device is not preempted inside a kernel group, so a model whose longest group is longer than the
bound may delay urgent work by that group. It is served all the same. Bounds come and go with
models and with what is learnt of them, so whenever a device tells its figures all models on it are
looked at: one that was loaded before the model with the tight SLO is told of as well.

The judgement is that of a model's page (`preemptible.py`); here is only when it is worth a line. It
must not know tenants: the log is the operator's. Invariant: one line per artifact of a version and
cause of the bound while the version is on the device; a bound that moves is no news.
"""

from collections.abc import Sequence

import structlog

from gpumuxd.node.api import BucketView, GroupView
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.model_page import loaded_view
from gpumuxd.node.model_table import ModelTable, Replica, VersionEntry
from gpumuxd.node.preemptible import bound_of, nodes_text, slo_note
from gpumuxd.settings import Slicing
from gpumuxd.wire.frames import Statistics

_log = structlog.get_logger()

_Served = tuple[str, str]
"""A version of a model, and the hash of its artifact."""

_Cause = tuple[str, str]
"""What gave a bound: a setting, or laxity and then whose; or the SLO that can't be kept."""

_OWN_RUN = ("own run", "")
"""The cause where a model's SLO can't be met."""


class BoundWatch:
    """Looks at the models of each device that has told its figures."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table
        self._told: dict[str, dict[_Served, set[_Cause]]] = {}  # by device

    def hear(self, link: DeviceLink) -> None:
        """A device has told its figures anew."""
        statistics = link.statistics
        assert statistics is not None, "figures came"
        device, settings = link.settings.device, link.settings.scheduler
        on_device = [
            (entry, replica, (entry.label, replica.artifact.artifact_hash))
            for entry in self._table
            if (replica := entry.replicas.get(device)) is not None
        ]
        before = self._told.get(device, {})
        told = self._told[device] = {served: before.get(served, set()) for *_, served in on_device}
        for entry, replica, served in on_device:
            if entry.is_ready and _OWN_RUN not in told[served] and _warn_of_slo(entry, replica):
                told[served].add(_OWN_RUN)
        bound = bound_of(settings, statistics, _label_of)
        if bound.bound_ns is None or settings.slicing is not Slicing.ADAPTIVE:
            return  # none is promised; nor do the baselines keep any
        for entry, replica, served in on_device:
            cause = (bound.origin.value, bound.model)
            if bound.laxity_ns is not None and replica.loaded.longest_group_ns > bound.laxity_ns:
                cause = ("slo", bound.laxity_model)
            if (
                replica.link is link
                and entry.is_ready
                and cause not in told[served]
                and replica.loaded.longest_group_ns > bound.bound_ns
                and _warn(entry, replica, statistics)
            ):
                told[served].add(cause)


def _warn(entry: VersionEntry, replica: Replica, statistics: Statistics) -> bool:
    """False if the model keeps the bound at all sizes that may be asked of it."""
    view = loaded_view(replica, statistics, _label_of)
    if view.verdict.is_preemptible is not False:
        return False
    bucket, group = _longest(view.buckets)
    if view.verdict.is_beyond_laxity:
        bound = bound_of(replica.link.settings.scheduler, statistics, _label_of)
        event = "slo_not_kept"
        asked = {"laxity_us": (bound.laxity_ns or 0) // 1000, "laxity_model": bound.laxity_model}
    else:
        event = "group_longer_than_bound"
        asked = {
            "bound_us": (view.bound.bound_ns or 0) // 1000,
            "bound": view.bound.origin.value,
            "bound_model": view.bound.model,
        }
    _log.warning(
        event,
        model=entry.label,
        device=replica.device,
        group=group.group,
        nodes=nodes_text(group),
        sizes=list(bucket.sizes),
        longest_group_us=group.device_ns // 1000,
        **asked,
        meaning=view.verdict.sentence,
        advice=view.verdict.advice,
    )
    return True


def _warn_of_slo(entry: VersionEntry, replica: Replica) -> bool:
    """False if the model's own SLO can be met, or there is none."""
    sentence = slo_note(replica.manifest.slo_ns, loaded_view(replica, None, _label_of).buckets)
    if sentence:
        _log.warning("slo_impossible", model=entry.label, device=replica.device, meaning=sentence)
    return bool(sentence)


def _longest(buckets: Sequence[BucketView]) -> tuple[BucketView, GroupView]:
    """As the verdict has it: of the buckets that may be asked for, if any may."""
    allowed = [each for each in buckets if each.is_allowed] or buckets
    groups = [(each, each.longest) for each in allowed if each.longest is not None]
    return max(groups, key=lambda pair: pair[1].device_ns)


def _label_of(key: str) -> str:
    """A model and its version, as the rest of the log names it."""
    return key.rpartition("#")[0]
