"""Is a model preemptible within the bound of its device, and if not, why and what would help.

A device is not preempted inside a kernel group, so it is the longest group of a shape bucket that
decides, against the tightest bound that covers work of the lowest class. Pure: figures in, words
out. It must not know links or tenants.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gpumuxd.domain import Bucket
from gpumuxd.models.spec import ModelSpec
from gpumuxd.node.api import BoundOrigin, BoundView, BucketView, GroupView, Verdict
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.units import format_duration, ms_from_ns
from gpumuxd.wire.frames import Explanation, Statistics

SIZES_NAMED_MAX = 3
"""In one sentence."""

_ORIGINS = {
    "preemption_delay_ns_max": BoundOrigin.STATED,
    "slice_ns_max": BoundOrigin.SLICE_MAX,
    "laxity": BoundOrigin.LAXITY,
    "least_delay": BoundOrigin.LEAST_DELAY,
}
"""The words of a Statistics frame; others are no bound that is known here."""


def bound_of(
    settings: SchedulerSettings,
    statistics: Statistics | Explanation | None,
    name_of: Callable[[str], str],
) -> BoundView:
    """The bound in force on a device. `name_of` tells of a model's key whose it is, "" where that
    may not be told."""
    if settings.order is Order.FIFO:
        return BoundView(None, BoundOrigin.NO_ORDER)
    if settings.slicing is Slicing.NONE:
        return BoundView(None, BoundOrigin.NO_SLICING)
    if settings.slicing is not Slicing.ADAPTIVE:
        return BoundView(None, BoundOrigin.FIXED)
    origin = _ORIGINS.get(statistics.bound_origin) if statistics is not None else None
    if statistics is None or origin is None:
        return BoundView(None, BoundOrigin.UNKNOWN)
    if origin is BoundOrigin.LEAST_DELAY:
        return BoundView(None, origin)
    model = name_of(statistics.bound_model) if origin is BoundOrigin.LAXITY else ""
    if not isinstance(statistics, Statistics) or statistics.laxity_ns is None:
        return BoundView(statistics.bound_ns, origin, model)
    whose = name_of(statistics.laxity_model)
    return BoundView(statistics.bound_ns, origin, model, statistics.laxity_ns, whose)


def verdict(
    spec: ModelSpec, buckets: Sequence[BucketView], bound: BoundView, device: str
) -> Verdict:
    """The plain sentence, and advice where it is a no."""
    allowed = [bucket for bucket in buckets if bucket.is_allowed] or list(buckets)
    if bound.bound_ns is None or not allowed:
        return _unbounded(allowed, bound, device)
    limit = format_duration(bound.bound_ns)
    beyond = _beyond(spec, allowed, bound.laxity_ns)
    if beyond is not None:
        whose = bound.laxity_model or "another model"
        laxity_ns = bound.laxity_ns or 0
        return Verdict(
            False,
            f"No bound can be kept{beyond.where}: its longest group ({nodes_text(beyond.group)}) "
            f"takes {beyond.takes}{beyond.at_worst}, more than the laxity of {whose}, "
            f"{format_duration(laxity_ns)}; {beyond.who} can make {whose} miss its slo_ms.",
            _advice(spec, allowed, beyond, _raise_slo(whose, beyond.group.device_ns - laxity_ns)),
            is_beyond_laxity=True,
        )
    beyond = _beyond(spec, allowed, bound.bound_ns)
    if beyond is None:
        everywhere = " at every profiled size" if spec.symbols else ""
        return Verdict(True, f"Preemptible within the bound of {limit}{everywhere}.")
    over = format_duration(beyond.group.device_ns - bound.bound_ns)
    last = f"raise {bound.origin}"
    if bound.origin is BoundOrigin.LAXITY:
        last = f"raise slo_ms of {bound.model or 'the model that sets the bound'}"
    return Verdict(
        False,
        f"Not preemptible within the bound{beyond.where}: its longest group "
        f"({nodes_text(beyond.group)}) takes {beyond.takes}{beyond.at_worst}, {over} beyond the "
        f"bound of {limit}; {beyond.who} can delay urgent work by {beyond.takes}.",
        _advice(spec, allowed, beyond, last),
    )


def bound_for(spec: ModelSpec, buckets: Sequence[BucketView], bound: BoundView) -> BoundView:
    """The bound that a model keeps of its device's: none where it is too long at every size."""
    allowed = [bucket for bucket in buckets if bucket.is_allowed] or list(buckets)
    beyond = _beyond(spec, allowed, bound.laxity_ns)
    if beyond is None or len(beyond.late) < len(allowed):
        return bound
    return BoundView(None, BoundOrigin.SLO, bound.laxity_model)


def slo_note(slo_ns: int | None, buckets: Sequence[BucketView]) -> str:
    """Of an SLO that can't be met, however little others delay it; "" where it can be."""
    allowed = [bucket for bucket in buckets if bucket.is_allowed] or list(buckets)
    run_ns = min((each.run_ns for each in allowed), default=0)
    if slo_ns is None or run_ns <= slo_ns:
        return ""
    return (
        f"Its SLO can't be met: its own run takes {format_duration(run_ns)}, more than its slo_ms "
        f"of {ms_from_ns(slo_ns):g}."
    )


@dataclass(frozen=True, slots=True)
class _Beyond:
    """Buckets with a group longer than some limit, in words: where that is, and who asks there."""

    late: list[BucketView]
    group: GroupView
    where: str
    who: str
    at_worst: str

    @property
    def takes(self) -> str:
        return format_duration(self.group.device_ns)


def _beyond(spec: ModelSpec, allowed: Sequence[BucketView], limit_ns: int | None) -> _Beyond | None:
    """None if no group is longer than the limit."""
    late = [each for each in allowed if limit_ns is not None and _longest_ns(each) > limit_ns]
    if not late:
        return None
    worst = max(late, key=_longest_ns)
    assert worst.longest is not None, "what is late has a longest group"
    where, who = _where(spec, allowed, late)
    sizes = sizes_text(spec, worst.sizes, [each.sizes for each in allowed])
    at_worst = f" at {sizes}" if len(late) > 1 else ""
    return _Beyond(late, worst.longest, where, who, at_worst)


def _raise_slo(whose: str, missing_ns: int) -> str:
    return f"raise slo_ms of {whose} by {ms_from_ns(missing_ns):.2f} or more"


def nodes_text(group: GroupView) -> str:
    """Which nodes of the graph a group is made of, the last one included."""
    last = group.end_node - 1
    return f"node {last}" if last == group.first_node else f"nodes {group.first_node} .. {last}"


def sizes_text(spec: ModelSpec, sizes: Bucket, among: Collection[Bucket]) -> str:
    """A bucket for people: the sizes in which it differs from the others."""
    named = [
        f"{symbol.name} {sizes[index]}"
        for index, symbol in enumerate(spec.symbols)
        if len({each[index] for each in among}) > 1 or len(among) == 1
    ]
    return ", ".join(named)


def _unbounded(buckets: Sequence[BucketView], bound: BoundView, device: str) -> Verdict:
    match bound.origin:
        case BoundOrigin.NO_ORDER:
            return Verdict(
                False, f"Never preempted: with order = fifo nothing is ordered ahead on {device}."
            )
        case BoundOrigin.NO_SLICING:
            longest_ns = max((each.run_ns for each in buckets), default=0)
            return Verdict(
                False,
                "Not preemptible: with slicing = none a whole inference is launched at once on "
                f"{device}, up to {format_duration(longest_ns)} of this model.",
            )
        case BoundOrigin.FIXED:
            return Verdict(
                None,
                f"No bound is promised on {device}: slicing is a baseline with fixed sync points.",
            )
        case BoundOrigin.LEAST_DELAY:
            return Verdict(
                None,
                f"No bound is promised on {device}: no model there has an slo_ms that can be met, "
                "and none is configured. Slices are as long as is best for all.",
            )
    return Verdict(None, f"Not known at this moment: {device} has not told its bound. Ask again.")


def _longest_ns(bucket: BucketView) -> int:
    return bucket.longest.device_ns if bucket.longest is not None else 0


def _where(
    spec: ModelSpec, allowed: Sequence[BucketView], late: Sequence[BucketView]
) -> tuple[str, str]:
    """At which sizes it is late, and who asks for those."""
    if len(late) == len(allowed):
        return " at any profiled size" if spec.symbols else "", "any request for it"
    first = _late_from_batch(spec, allowed, late)
    if first is not None:
        return f" at batch {first} and more", "a request of that size"
    among = [each.sizes for each in allowed]
    named = [sizes_text(spec, each.sizes, among) for each in late[:SIZES_NAMED_MAX]]
    if len(late) > len(named):
        named.append(f"{len(late) - len(named)} more")
    return f" at {'; '.join(named)}", "a request of such a size"


def batch_index(spec: ModelSpec) -> int | None:
    """The place of the batch in a bucket."""
    names = [symbol.name for symbol in spec.symbols]
    return names.index(spec.batch_symbol) if spec.batch_symbol in names else None


def _late_from_batch(
    spec: ModelSpec, allowed: Sequence[BucketView], late: Sequence[BucketView]
) -> int | None:
    """The batch from which on all is late, if all below is in time."""
    index = batch_index(spec)
    if index is None:
        return None
    first = min(each.sizes[index] for each in late)
    is_late = [each in late for each in allowed]
    is_large = [each.sizes[index] >= first for each in allowed]
    return first if is_late == is_large else None


def _advice(spec: ModelSpec, allowed: Sequence[BucketView], beyond: _Beyond, last: str) -> str:
    choices = []
    index, first = batch_index(spec), _late_from_batch(spec, allowed, beyond.late)
    if index is not None and first is not None:
        fitting = [each.sizes[index] for each in allowed if each.sizes[index] < first]
        if fitting:
            choices.append(f"set batch_max = {max(fitting)} in model.toml")
    if beyond.group.end_node - beyond.group.first_node > 1:
        choices.append("lower group_target_ms, so that groups are cut shorter")
    choices.append(last)
    # A single node is an operator: nothing cuts it.
    why = "" if len(choices) > 1 else "That group is one operator, which can't be cut: "
    text = f"{why}{', or '.join(choices)}."
    return text if why else text[0].upper() + text[1:]
