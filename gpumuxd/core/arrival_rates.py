"""How often requests arrive that would go ahead of work of each class.

Asked for only where predicted preemption delay is weighed by it (`weigh_preemption_by_arrivals`).
It must not know what is queued. Integers only: an average gap that moves 1/8 of the way at each
arrival, and never less than the silence since the last one.

A request goes ahead of work of lower classes, and of REALTIME work too if it is REALTIME: its
deadline may be earlier.
"""

from gpumuxd.core.delay_predictor import PPM
from gpumuxd.domain import PriorityClass

ARRIVALS_MIN = 8
"""Fewer say nothing, and every run counts as preempted, as without weighing."""

_CLASSES = len(PriorityClass)
_REALTIME = int(PriorityClass.REALTIME)


class ArrivalRates:
    """Average gaps between arrivals, by the class of the work that they go ahead of."""

    __slots__ = ("_count", "_gap_ns", "_last_ns")

    def __init__(self) -> None:
        self._count = [0] * _CLASSES
        self._gap_ns = [0] * _CLASSES
        self._last_ns = [0] * _CLASSES

    def arrived(self, rank: int, arrived_ns: int) -> None:
        """One more of this class was admitted."""
        above = range(rank + 1) if rank == _REALTIME else range(rank)
        for below in above:
            gap_ns = max(0, arrived_ns - self._last_ns[below])
            self._last_ns[below] = max(arrived_ns, self._last_ns[below])
            self._count[below] = count = self._count[below] + 1
            if count == 2:
                self._gap_ns[below] = gap_ns
            elif count > 2:
                self._gap_ns[below] += (gap_ns - self._gap_ns[below]) >> 3

    def gap_ns(self, rank: int, now_ns: int) -> int:
        """The average gap between those that go ahead of work of this class; 0: not known."""
        if self._count[rank] < ARRIVALS_MIN:
            return 0
        return max(1, self._gap_ns[rank], now_ns - self._last_ns[rank])


def share_ppm(run_ns: int, gap_ns: int) -> int:
    """The part of runs of this length in which such a request arrives: at most one for each gap."""
    return PPM if gap_ns == 0 else min(PPM, run_ns * PPM // gap_ns)
