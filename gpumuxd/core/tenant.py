"""A tenant as the scheduler sees it: a weight and an admitted rate of REALTIME requests.

It must not know requests or queues. The rate is a token bucket in integers: a token is worth
NS_PER_S, and every nanosecond brings `realtime_per_s` of it, so nothing is ever rounded.

Invariant: `0 <= level <= burst * NS_PER_S`.
"""

from gpumuxd.units import NS_PER_S


class Tenant:
    """One tenant. Unknown ones have weight 1 and no limit; TenantChanged says otherwise."""

    __slots__ = ("_filled_ns", "_level", "burst", "name", "realtime_per_s", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1
        self.realtime_per_s: int | None = None
        self.burst = 1
        self._level = 0
        self._filled_ns = 0

    def change(self, weight: int, per_s: int | None, burst: int, now_ns: int) -> None:
        """A changed rate starts with a full bucket: the burst is what the tenant was promised."""
        assert weight >= 1, f"tenant {self.name!r}: weight {weight} is not positive"
        assert per_s is None or per_s >= 0, f"tenant {self.name!r}: rate {per_s} is negative"
        assert burst >= 1, f"tenant {self.name!r}: burst {burst} is not positive"
        self.weight = weight
        self.realtime_per_s = per_s
        self.burst = burst
        self._level = burst * NS_PER_S if per_s != 0 else 0
        self._filled_ns = now_ns

    def is_within_rate(self, now_ns: int) -> bool:
        """May one more request be ordered as REALTIME now?"""
        if self.realtime_per_s is None:
            return True
        elapsed_ns = max(0, now_ns - self._filled_ns)
        self._level = min(self.burst * NS_PER_S, self._level + elapsed_ns * self.realtime_per_s)
        self._filled_ns = max(now_ns, self._filled_ns)
        return self._level >= NS_PER_S

    def take(self) -> None:
        """One request was admitted as REALTIME."""
        if self.realtime_per_s is not None:
            assert self._level >= NS_PER_S, "taken without asking is_within_rate"
            self._level -= NS_PER_S
