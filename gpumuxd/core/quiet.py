"""When the next REALTIME request is to be expected, by the gaps between those that came.

Most of what is REALTIME is periodic: frames of cameras and microphones. So the device's own work,
which has time, can keep out of its way: see `Launcher`, which asks. It must not know who sent what,
or what is done about it. Integers only.

For each small *lag* k, the shortest time seen between an arrival and the k-th after it says from
when on the next one must be expected; the latest of these is still no later than what was seen.
With two streams of one period, a lag of two finds the period where single gaps only alternate.
Without any pattern the shortest gap is next to nothing, and the answer is: from now on.
"""

from collections import deque
from operator import sub

LAGS = 4
"""Interleaved streams of one period that are told apart."""

ARRIVALS_KEPT = 32
"""Half a second of two streams with 30 frames a second: few enough to follow a change."""

ARRIVALS_MIN = 8
"""Fewer say nothing."""

FOREVER_NS = 1 << 62


class Quiet:
    """Arrivals of REALTIME requests, as far as they are remembered."""

    __slots__ = ("_arrivals", "_expected_ns", "_over_ns")

    def __init__(self) -> None:
        self._arrivals: deque[int] = deque(maxlen=ARRIVALS_KEPT)
        self._expected_ns: int | None = None
        self._over_ns = 0

    def arrived(self, arrived_ns: int) -> None:
        """One more came, at that time."""
        last_ns = self._arrivals[-1] if self._arrivals else 0
        self._arrivals.append(max(arrived_ns, last_ns))
        self._expected_ns = None

    def until_ns(self, now_ns: int) -> int:
        """No request is expected before this time, which may have passed.

        FOREVER_NS when too few came to say, or none for twice the longest gap: they have ended.
        """
        if len(self._arrivals) < ARRIVALS_MIN:
            return FOREVER_NS
        expected_ns = self._expected_ns
        if expected_ns is None:
            expected_ns = self._expected_ns = self._foresee()
        return expected_ns if now_ns < self._over_ns else FOREVER_NS

    def _foresee(self) -> int:
        """Once for each arrival at most, and only if somebody asks: 10 us."""
        seen = list(self._arrivals)
        self._over_ns = seen[-1] + 2 * max(map(sub, seen[1:], seen))
        expected_ns: int = max(
            seen[-lag] + min(map(sub, seen[lag:], seen)) for lag in range(1, LAGS + 1)
        )
        return expected_ns
