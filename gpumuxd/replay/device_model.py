"""A device as a recording shows it: how long groups took, and how long host and device wait for
each other. What-if replays run on that.

    group times    of each request its own, slice times spread over their groups in proportion to
                   the profile; of one that did not run to its end, and where there are too many
                   (`CELLS_MAX`), the medians of its model's runs
    heard          from the end of a slice to the loop's hearing of it: as recorded, in a circle,
                   since its rare long values make the tails
    turn, start    means, because their sum is what the device idles: from there to the decision,
    and gap        from the decision to the start on an idle lane, between slices of a busy lane

It must not know settings. Integers only, so that a prediction is the same everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median_low

from gpumuxd.domain import Bucket
from gpumuxd.replay.history import History, Passage, Request

CELLS_MAX = 4_000_000
"""Groups of all requests that have times of their own; more would take gigabytes."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """`ends_ns` has for each request the true time of its first `i` groups, for each `i`."""

    ends_ns: dict[int, tuple[int, ...]]
    heard_ns: tuple[int, ...]
    turn_ns: int
    start_ns: int
    gap_ns: int
    unknown: int
    """Requests that never ran, of models that never did: nothing can be said of them."""


def device_model(history: History) -> DeviceModel:
    """What the recording says of its device."""
    known: dict[int, list[int]] = {}
    runs: dict[tuple[str, Bucket], list[list[int]]] = {}
    cells = 0
    for request_id, request in history.requests.items():
        group_ns = _group_ns(request, history) if cells < CELLS_MAX else None
        if group_ns is not None:
            cells += len(group_ns)
            known[request_id] = group_ns
            if not request.was_there:
                key = (request.arrival.model, request.arrival.bucket)
                runs.setdefault(key, []).append(group_ns)
    usual: dict[tuple[str, Bucket], list[int] | None]
    usual = {key: _medians(each) for key, each in runs.items()}
    for request_id, request in history.requests.items():
        if request_id not in known:
            key = (request.arrival.model, request.arrival.bucket)
            if key not in usual:
                usual[key] = _profiled(request, history)
            if (group_ns := usual[key]) is not None:
                known[request_id] = group_ns
    passed = [passage for passage in history.passages if passage.has_passed]
    starts = [one.started_ns - one.launched_ns for one in passed if one.launched_on_idle]
    gaps = [
        one.started_ns - one.before.end_ns
        for one in passed
        if one.before is not None and one.before.has_passed and one.before.end_ns > one.launched_ns
    ]
    return DeviceModel(
        ends_ns=_ends_ns(known),
        heard_ns=tuple(_heard(passed)) or (0,),
        turn_ns=_mean(history.turns_ns),
        start_ns=_mean(starts),
        gap_ns=_mean(gaps),
        unknown=len(history.requests) - len(known),
    )


def _ends_ns(known: Mapping[int, list[int]]) -> dict[int, tuple[int, ...]]:
    """Of those that have the same times, once."""
    ends: dict[int, tuple[int, ...]] = {}
    for group_ns in known.values():
        if id(group_ns) not in ends:
            ends[id(group_ns)] = (0, *accumulate(group_ns))
    return {one: ends[id(group_ns)] for one, group_ns in known.items()}


def _heard(passed: Sequence[Passage]) -> list[int]:
    """How late each slice was heard of. When the loop stood still, several are heard of at once:
    the first says for how long, and the others would say it again."""
    late_ns = [max(0, one.heard_ns - one.end_ns) for one in passed]
    usual_ns = _median(late_ns)
    return [
        usual_ns if before is not None and before.heard_ns == one.heard_ns else ns
        for before, one, ns in zip([None, *passed], passed, late_ns, strict=False)
    ]


def _group_ns(request: Request, history: History) -> list[int] | None:
    """The request's own times, if it ran to its end. What it ran before the recording is 0."""
    profile = history.profiles.get(request.arrival.model)
    slices = [passage for passage in request.slices if passage.has_passed]
    if profile is None or not slices or slices[-1].work.end_group != profile.group_count:
        return None
    if slices[0].work.first_group and not request.was_there:
        return None
    group_ns = [0] * profile.group_count
    weights = profile.group_ns.get(request.arrival.bucket) or (1,) * profile.group_count
    for passage in slices:
        first, end = passage.work.first_group, passage.work.end_group
        group_ns[first:end] = _spread(passage.device_ns, weights[first:end])
    return group_ns


def _spread(total_ns: int, weights: Sequence[int]) -> list[int]:
    """In proportion, and nothing is lost by rounding."""
    whole = max(1, sum(weights))
    ends = [total_ns * end // whole for end in accumulate(weights)]
    ends[-1] = total_ns
    return [end - before for before, end in zip([0, *ends], ends, strict=False)]


def _profiled(request: Request, history: History) -> list[int] | None:
    profile = history.profiles.get(request.arrival.model)
    group_ns = profile.group_ns.get(request.arrival.bucket) if profile is not None else None
    return list(group_ns) if group_ns is not None else None


def _medians(runs: Sequence[Sequence[int]]) -> list[int]:
    return [median_low(each) for each in zip(*runs, strict=True)]


def _mean(values: Sequence[int]) -> int:
    return max(0, sum(values) // len(values)) if values else 0


def _median(values: Sequence[int]) -> int:
    return max(0, median_low(values)) if values else 0
