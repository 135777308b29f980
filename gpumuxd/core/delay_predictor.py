"""How sync points delay an inference, and how work in flight delays whoever would go ahead of it.

The formula of Deft (Xia et al., "Deft: Towards Optimal Preemptive GPU Time-Sharing for Edge Model
Serving", WoC at Middleware 2023; constants as in the authors' code), and nothing else: plain
integers in, plain integers out. It must not know models, queues or settings.

    exec(k)    = a * floor(N / k) + b         an inference of N groups, a sync point every k
    preempt(k) = min(k, Q_max) * tau          what an arrival finds in flight, at worst
    k*         = the first minimum of exec(k) + preempt(k) over GRID

`a` is the time a sync point costs, `b` the time an inference takes whatever k is, tau the mean time
of a group, and Q_max the most groups ever in flight when they are launched freely. Two extensions,
both the paper's formula where D is 1. With D slices in flight, preempt(k, D) is
min(D * k, Q_max) * tau, and `a` and `b` are fitted for each D; (k, D) are chosen together, and of
equals the smaller D, then the smaller k: it leaves less in flight for the same sum. And groups
differ in length: `predict_cut` takes the slices that a program is really cut into.

Where the paper is silent. preempt is the worst case, not the mean over the phase of an arrival, and
it counts as if every inference were preempted once. `share_ppm` weighs it by how likely that is.
"""

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from gpumuxd.domain import SyncCost

GRID = (1, 2, 4, 8, 10, 20, 50, 100, 500, 1_000, 5_000, 10_000, 1_000_000)
"""The values of k that are tried; the last one means never."""

PPM = 1_000_000


class Delay(NamedTuple):
    """What a choice costs the inference that is cut, and who would go ahead of it."""

    exec_ns: int
    preempt_ns: int

    @property
    def total_ns(self) -> int:
        return self.exec_ns + self.preempt_ns


class Choice(NamedTuple):
    """A sync point every `slice_groups` groups, `window` slices in flight."""

    slice_groups: int
    window: int
    delay: Delay


def predict(
    groups: int, tau_ns: int, outstanding_groups_max: int, cost: SyncCost, slice_groups: int
) -> Delay:
    """The paper's formula, for equal groups."""
    assert slice_groups >= 1, "a slice has at least one group"
    in_flight = min(cost.window * slice_groups, outstanding_groups_max)
    return Delay(cost.sync_ns * (groups // slice_groups) + cost.base_ns, in_flight * tau_ns)


def choose(
    groups: int,
    tau_ns: int,
    outstanding_groups_max: int,
    costs: Sequence[SyncCost],
    share_ppm: int = PPM,
) -> Choice:
    """The first minimum over the grid, for equal groups. `costs` has one entry for each window."""
    assert costs, "without the cost of a sync point there is nothing to choose by"
    best: Choice | None = None
    best_ns = 0
    for cost in costs:
        for slice_groups in GRID:
            delay = predict(groups, tau_ns, outstanding_groups_max, cost, slice_groups)
            total_ns = weighed_ns(delay, share_ppm)
            if best is None or total_ns < best_ns:
                best, best_ns = Choice(slice_groups, cost.window, delay), total_ns
    assert best is not None
    return best


def weighed_ns(delay: Delay, share_ppm: int = PPM) -> int:
    """The sum that is minimised; `share_ppm` is the part of inferences that are preempted."""
    return delay.exec_ns + delay.preempt_ns * share_ppm // PPM


def predict_cut(
    ends_ns: list[int], outstanding_ns_max: int, cost: SyncCost, round_trip_ns: int = 0
) -> Delay:
    """The same for the slices that a program is cut into, whatever their lengths. `ends_ns` has
    when each ends, from the 0 at which the first begins. `round_trip_ns` is what a sync point costs
    with one slice in flight.

    Three differences. Where the slices in flight behind one that ends are shorter than the round
    trip, they do not hide it: the rest is added. The end of the last slice is a sync point too, as
    in the paper where k divides N. And a slice is launched as a whole, where Deft looks before each
    kernel whether to go on: so slow launching never keeps less than one slice in the way, and a
    program that is launch-bound gains by sync points here.
    """
    exec_ns = cost.sync_ns * (len(ends_ns) - 1) + cost.base_ns
    if cost.window > 1:
        exec_ns += bared_ns(ends_ns, cost.window, round_trip_ns - cost.sync_ns)
    in_flight_ns = min(worst_in_flight_ns(ends_ns, cost.window), outstanding_ns_max)
    return Delay(exec_ns, max(in_flight_ns, worst_in_flight_ns(ends_ns, 1)))


def bared_ns(ends_ns: list[int], window: int, round_trip_ns: int) -> int:
    """Time of round trips that is not hidden by the `window - 1` slices behind each that ends. What
    follows the run is taken to hide the last ones."""
    ends, behind = ends_ns[1:], ends_ns[window:]
    if round_trip_ns <= 0 or not behind or min(map(sub, behind, ends)) >= round_trip_ns:
        return 0
    return sum(
        [
            round_trip_ns - last_ns + end_ns
            for end_ns, last_ns in zip(ends, behind, strict=False)
            if last_ns - end_ns < round_trip_ns
        ]
    )


def worst_in_flight_ns(ends_ns: list[int], window: int) -> int:
    """The most that is in flight at once: the longest stretch of `window` slices in a row."""
    if window >= len(ends_ns) - 1:
        return ends_ns[-1]
    worst_ns: int = max(map(sub, ends_ns[window:], ends_ns))
    return worst_ns


def share_over_ppm(ends_ns: list[int], window: int, limit_ns: int) -> int:
    """The part of the moments of an undisturbed run at which more than this is left in flight."""
    total_ns, count = ends_ns[-1], len(ends_ns) - 1
    if total_ns == 0:
        return 0
    # As each slice begins: all that is in flight, and of that how much is too much.
    seen_ns = ends_ns[window:] + [total_ns] * min(window - 1, count)
    over_ns = 0
    for start_ns, end_ns, last_ns in zip(ends_ns, ends_ns[1:], seen_ns, strict=False):
        over = last_ns - start_ns - limit_ns
        if over > 0:
            over_ns += over if over < end_ns - start_ns else end_ns - start_ns
    return over_ns * PPM // total_ns
