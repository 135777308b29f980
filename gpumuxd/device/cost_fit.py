"""What sync points cost, from runs that were cut at different lengths: a least-squares fit.

Deft (Middleware WoC 2023) takes a run of N kernel groups, cut every k of them, to last
`a * floor(N / k) + b`. Here `a` is `sync_ns`, and `b` without what the groups themselves take is
`base_ns`. Pure: times in, costs out. It must not know how they were measured.

Each length counts with the median of its runs, so one that the machine interrupted moves nothing.
"""

from collections.abc import Mapping, Sequence

from gpumuxd.domain import SyncCost
from gpumuxd.programs.profiler import median_ns


def fit(
    window: int, group_count: int, groups_ns: int, runs: Mapping[int, Sequence[int]]
) -> SyncCost:
    """The costs of one window. `runs` has, for each number of groups in a slice, how long runs took
    from end to end; `groups_ns` is what all groups of one take.

    A sync point never costs less than nothing, and neither does a run.
    """
    points = [(group_count // length, median_ns(samples)) for length, samples in runs.items()]
    count = len(points)
    sum_x, sum_y = sum(x for x, _ in points), sum(y for _, y in points)
    sum_xx, sum_xy = sum(x * x for x, _ in points), sum(x * y for x, y in points)
    spread = count * sum_xx - sum_x * sum_x
    assert spread > 0, "two lengths at least, that give different numbers of sync points"
    slope = count * sum_xy - sum_x * sum_y
    if slope <= 0:
        return SyncCost(window, 0, max(_rounded(sum_y, count) - groups_ns, 0))
    intercept_ns = _rounded(sum_y * sum_xx - sum_x * sum_xy, spread)
    return SyncCost(window, _rounded(slope, spread), max(intercept_ns - groups_ns, 0))


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
