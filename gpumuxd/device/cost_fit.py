"""What sync points cost, from runs that were cut at different lengths: a least-squares fit.

Deft (Middleware WoC 2023) takes a run of N kernel groups, cut every k of them, to last
`a * floor(N / k) + b`. Here it is the time in which the device idles meanwhile that is fitted, so
that `b` is without what the groups themselves take: `a` is `sync_ns`, `b` is `base_ns`. `a` depends
on how many slices may be in flight; `b` does not, since a run without sync points is one slice, so
all windows are fitted together: else the noise of each would make windows look better than others
for nothing. Pure: times in, costs out.
"""

from collections.abc import Collection, Mapping
from fractions import Fraction

from gpumuxd.domain import SyncCost

Runs = Mapping[int, Mapping[int, int]]
"""How long the device idled in a run, by window and by the number of groups in a slice."""

_Points = list[tuple[int, int]]
"""Sync points of a run, and how long the device idled."""


def fit(group_count: int, runs: Runs) -> tuple[SyncCost, ...]:
    """The costs of each window.

    A sync point never costs less than nothing, and neither does a run.
    """
    points = {
        window: [(group_count // length, idle_ns) for length, idle_ns in of_window.items()]
        for window, of_window in runs.items()
    }
    free: list[int] = []  # windows whose sync points seem to cost less than nothing
    while True:
        base_ns = _intercept(points, free)
        slopes = {window: _slope(each, base_ns) for window, each in points.items()}
        found = [window for window in points if slopes[window] < 0 and window not in free]
        if not found:
            break
        free.extend(found)
    return tuple(
        SyncCost(
            window,
            0 if window in free else round(slopes[window]),
            max(round(base_ns), 0),
        )
        for window in points
    )


def _intercept(points: Mapping[int, _Points], free: Collection[int]) -> Fraction:
    """Where the lines of all windows begin: the common one that leaves the least squares."""
    total = weight = Fraction(0)
    for window, each in points.items():
        total += sum(y for _, y in each)
        weight += len(each)
        if window not in free:
            sum_x, sum_xx = sum(x for x, _ in each), sum(x * x for x, _ in each)
            assert sum_xx > 0, "one length at least gives sync points"
            total -= Fraction(sum_x * sum(x * y for x, y in each), sum_xx)
            weight -= Fraction(sum_x * sum_x, sum_xx)
    assert weight > 0, "two lengths at least, that give different numbers of sync points"
    return total / weight


def _slope(points: _Points, base_ns: Fraction) -> Fraction:
    return sum(x * (y - base_ns) for x, y in points) / Fraction(sum(x * x for x, _ in points))
