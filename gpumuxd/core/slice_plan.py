"""How long slices are and how many are in flight where no bound decides that: Deft's choice.

A *plan* belongs to one program at one shape bucket, for work of one class. It is made by trying:
the program is cut at each of some lengths, `delay_predictor` says what that costs for each window,
and the best is kept. In `least_delay` that is the smallest sum of delays; in `slo` first the
fewest SLOs that are predicted to be missed, over the co-resident models, then the smallest sum,
then the longer slices. It must not know cursors, queues or what is in flight.

A slice is cut by time, `slice_ns`, not by a count, since groups differ in length: k groups of mean
length. The lengths that are tried are finer than the grid of the paper, whose steps of two and more
are too coarse for programs of a few dozen groups (the paper's have a thousand kernels).

SLOs missed are compared class by class, the highest first, so that nothing that a lower class
declares costs a higher one anything; this program's own counts in the class of its work. Of each
class the SLOS_MAX tightest count. They are counted in percent of the moments at which a request may
come, because a worst case would call a model with one long group lost and then protect nobody: of a
co-resident model, those in which more is in flight than its laxity; of this one, all or none, by
its own run, its sync points and one run of the longest that could be ordered ahead.

Plans are made when they are first needed and kept: making one takes about a millisecond for a
hundred groups, a few in `slo`. `is_current` compares what a plan was made from, within NOTICEABLE.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import sub
from typing import NamedTuple

from gpumuxd.core.delay_predictor import (
    PPM,
    Delay,
    predict_cut,
    share_over_ppm,
    weighed_ns,
    worst_in_flight_ns,
)
from gpumuxd.core.slicing_mode import Mode
from gpumuxd.domain import PriorityClass, SyncCost

NOTICEABLE_SHIFT = 3
"""An estimate that moved by more than 1/8 makes a plan stale. The sum of delays is flat around
its least: half as much in length costs a tenth of a percent."""

NOTICEABLE_NS = 5_000
"""A sync cost that moved by less makes no difference worth a new plan."""

SLOS_MAX = 4
"""Of each class; who may wait longer than those is late more rarely than they are."""

SLICES_MAX = 512
"""The finest cut of a long program has about so many slices, or making a plan would take long."""

WINDOWS_EACH = 4
"""Up to that window each is tried, then powers of two."""

_PERCENT_PPM = PPM // 100
_MISSED_LIMIT = 100 * (SLOS_MAX + 1) + 1  # more than the sum of one class
_LENGTHS_EXACT = 10
"""Up to so many groups each number is tried, then steps of a quarter."""


class Slo(NamedTuple):
    """A co-resident model that declared one: how long its requests may wait, how long they run."""

    model: str
    rank: int
    laxity_ns: int
    run_ns: int


class Basis(NamedTuple):
    """What a plan is made from, besides the times of the program itself."""

    mode: Mode
    costs: tuple[SyncCost, ...]
    slos: tuple[Slo, ...]  # of the models that could be ordered ahead; empty unless in `slo`
    own_slo_ns: int  # of the program's model, 0 if it has none
    share_ppm: int  # of its runs that are preempted, as far as that is weighed
    rank: int = 0  # the class of the work


class SlicePlan:
    """Slices of up to `slice_ns`, `window` of them in flight, and their predicted cost."""

    __slots__ = (
        "basis",
        "bounds",
        "delay",
        "is_new",
        "longest_ns",
        "prefix",
        "slice_ns",
        "total_ns",
        "window",
    )

    def __init__(
        self, basis: Basis, prefix: list[int], slice_ns: int, window: int, delay: Delay
    ) -> None:
        self.basis = basis
        self.slice_ns = slice_ns
        self.window = window
        self.delay = delay
        self.total_ns = prefix[-1]
        self.longest_ns = longest_group_ns(prefix)
        # What it was last held against, by identity: `slicing.choose` looks no further.
        self.prefix = prefix
        self.bounds: object = None
        self.is_new = True  # until the first slice by it

    def is_current(self, basis: Basis, total_ns: int, longest_ns: int) -> bool:
        """Would a plan that is made now be made from about the same?"""
        mine = self.basis
        return (
            not _moved(self.total_ns, total_ns)
            and not _moved(self.longest_ns, longest_ns)
            and abs(mine.share_ppm - basis.share_ppm) <= mine.share_ppm >> 1
            and (mine.mode, mine.own_slo_ns) == (basis.mode, basis.own_slo_ns)
            and _same_costs(mine.costs, basis.costs)
            and _same_slos(mine.slos, basis.slos)
        )


def longest_group_ns(prefix: Sequence[int]) -> int:
    longest_ns: int = max(map(sub, prefix[1:], prefix))
    return longest_ns


def _moved(before: int, after: int) -> bool:
    return abs(after - before) > before >> NOTICEABLE_SHIFT


def _same_costs(before: Sequence[SyncCost], after: Sequence[SyncCost]) -> bool:
    return len(before) == len(after) and all(
        abs(now.sync_ns - was.sync_ns) <= max(NOTICEABLE_NS, was.sync_ns >> 2)
        and now.base_ns == was.base_ns
        for was, now in zip(before, after, strict=True)
    )


def _same_slos(before: Sequence[Slo], after: Sequence[Slo]) -> bool:
    return len(before) == len(after) and all(
        (was.model, was.rank) == (now.model, now.rank)
        and not _moved(was.laxity_ns, now.laxity_ns)
        and not _moved(was.run_ns, now.run_ns)
        for was, now in zip(before, after, strict=True)
    )


def cut(prefix: list[int], slice_ns: int) -> list[int]:
    """When each slice of an undisturbed run ends, from 0; none is longer but for one group."""
    ends_ns, first, count = [0], 0, len(prefix) - 1
    while first < count:
        first = max(first + 1, bisect_right(prefix, prefix[first] + slice_ns, first + 1) - 1)
        ends_ns.append(prefix[first])
    return ends_ns


def lengths_ns(prefix: Sequence[int]) -> Iterator[int]:
    """The slice lengths that are tried, ascending; the last one is the whole run."""
    groups, total_ns = len(prefix) - 1, prefix[-1]
    count = max(1, groups // SLICES_MAX)
    while count < groups:
        yield max(1, total_ns * count // groups)
        count += 1 if count < _LENGTHS_EXACT else count >> 2
    yield total_ns


def make_plan(basis: Basis, prefix: list[int], outstanding_ns_max: int) -> SlicePlan:
    """Try all lengths and windows. `outstanding_ns_max`: the most ever in flight, 0 if unknown."""
    assert basis.costs, "without the cost of a sync point there is nothing to choose by"
    outstanding_ns_max = outstanding_ns_max or prefix[-1]
    best: tuple[tuple[int, int, int, int], int, int, Delay] | None = None
    costs = [cost for cost in basis.costs if _is_tried(cost.window)]
    slos = _weighed(basis.slos) if basis.mode is Mode.SLO else []
    round_trip_ns = basis.costs[0].sync_ns if basis.costs[0].window == 1 else 0
    for slice_ns in lengths_ns(prefix):
        ends_ns = cut(prefix, slice_ns)
        for cost in costs:
            delay = predict_cut(ends_ns, outstanding_ns_max, cost, round_trip_ns)
            total_ns = weighed_ns(delay, basis.share_ppm)
            if basis.mode is Mode.SLO:
                missed = _slos_missed(basis, slos, ends_ns, cost, delay)
                key = (missed, total_ns, cost.window, -slice_ns)
            else:
                key = (0, total_ns, cost.window, slice_ns)
            if best is None or key < best[0]:
                best = (key, slice_ns, cost.window, delay)
    assert best is not None
    return SlicePlan(basis, prefix, *best[1:])


def _is_tried(window: int) -> bool:
    return window <= WINDOWS_EACH or window & (window - 1) == 0


def _weighed(slos: Sequence[Slo]) -> list[Slo]:
    """Those that count: the tightest of each class."""
    counted: dict[int, int] = {}
    weighed = []
    for slo in sorted(slos, key=_laxity_ns):
        counted[slo.rank] = counted.get(slo.rank, 0) + 1
        if counted[slo.rank] <= SLOS_MAX:
            weighed.append(slo)
    return weighed


def _laxity_ns(slo: Slo) -> int:
    return slo.laxity_ns


def _slos_missed(
    basis: Basis, slos: list[Slo], ends_ns: list[int], cost: SyncCost, delay: Delay
) -> int:
    """Predicted, in percent of requests, summed over the models of a class; and one number of the
    sums of all classes, in which no lower class outweighs a higher one."""
    missed = [0] * len(PriorityClass)
    worst_ns = worst_in_flight_ns(ends_ns, cost.window)
    for slo in slos:
        if slo.laxity_ns >= worst_ns:
            continue
        missed[slo.rank] += share_over_ppm(ends_ns, cost.window, slo.laxity_ns) // _PERCENT_PPM
    if basis.own_slo_ns:
        stolen_ns = max((slo.run_ns for slo in basis.slos), default=0)
        run_ns = ends_ns[-1] + delay.exec_ns + stolen_ns
        missed[basis.rank] += 100 * (run_ns > basis.own_slo_ns)
    number = 0
    for percent in reversed(missed):
        number = number * _MISSED_LIMIT + percent
    return number
