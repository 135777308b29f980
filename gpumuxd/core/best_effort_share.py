"""The least share of device time for best-effort work: an exception to the order between classes.

While BEST_EFFORT work waits, it is owed its share of the device time that passes. The books are a
*debt*, in nanoseconds times a million: the time of other classes adds its share, the time of
best-effort slices pays the rest, so that exactly the share balances. Once a whole slice is owed, a
best-effort slice is *due*: the next one launched goes ahead of higher classes. That is a *grant*.
It is a slice like any other, so the bound on work in flight holds for it (or it is one group, if
even that is longer), and where it has no room the lane waits for it: nobody else is tried, as for
everybody who is next. The device's own runs, of profiles and uploads, are no tenant's work: nothing
is owed to them and they take no grant; they pay as all of the class do when it is their turn.

What is owed is not saved up. While nobody of the class waits nothing is owed; a grant that can't be
taken (no frame) is owed once; what piles up behind a long group of others is owed for
GRANTS_OWED_MAX grants. But a grant that was longer than was owed is paid back in full, also
meanwhile. So of any stretch of time grants take at most the share and one slice.

It must not know who waits or where the slices are cut; `launcher` asks and tells. Integers only.

Invariant: no grant is launched while the debt is below one slice.
"""

from gpumuxd.units import PPM

GRANTS_OWED_MAX = 8
"""A group of others may be many times as long as a slice, and pays for as many grants."""

_BEST_EFFORT = 0


class BestEffortShare:
    """The books of one partition. There are none where the share is 0."""

    __slots__ = (
        "_grants_in_flight",
        "_rest_ppm",
        "_share_ppm",
        "debt",
        "due",
        "granted_ns",
        "grants",
        "longest_ns",
    )

    def __init__(self, share_ppm: int) -> None:
        assert 0 < share_ppm < PPM, f"a share of {share_ppm} in a million"
        self._share_ppm = share_ppm
        self._rest_ppm = PPM - share_ppm
        self._grants_in_flight: dict[int, int] = {}  # what was charged, by slice id
        self.debt = 0
        self.due = PPM  # a debt from which on a grant is due
        self.longest_ns = 0  # no grant should be longer
        self.grants = 0
        self.granted_ns = 0

    def slices_are(self, bound_ns: int, slice_ns_max: int, window: int, floor_ns: int) -> None:
        """How long best-effort slices are now: the bound on them, and the longest group."""
        slice_ns = max(1, min(slice_ns_max, bound_ns // window))
        self.due = self._rest_ppm * slice_ns
        self.longest_ns = max(self.longest_ns, slice_ns, floor_ns)

    def granted(self, slice_id: int, predicted_ns: int) -> None:
        """A grant was launched; it is charged at once, and corrected when it has passed."""
        self.grants += 1
        self.debt -= self._rest_ppm * predicted_ns
        self._grants_in_flight[slice_id] = predicted_ns
        self.longest_ns = max(self.longest_ns, predicted_ns)

    def not_taken(self) -> None:
        """A grant is due, and nobody of the class could start: it stays owed, and no more."""
        self.debt = min(self.debt, self.due)

    def passed(self, slice_id: int, rank: int, device_ns: int, is_waiting: bool) -> None:
        """A slice has passed. `is_waiting`: is there best-effort work with groups to launch?"""
        if rank != _BEST_EFFORT:
            debt = min(self.debt, GRANTS_OWED_MAX * self.due) + self._share_ppm * device_ns
            self.debt = debt if is_waiting else min(debt, 0)
            return
        charged_ns = self._grants_in_flight.pop(slice_id, None)
        if charged_ns is not None:
            self.debt -= self._rest_ppm * (device_ns - charged_ns)
            self.granted_ns += device_ns
        elif self.debt > 0:  # it was its turn: it pays, but nothing in advance
            self.debt = max(0, self.debt - self._rest_ppm * device_ns)

    def failed(self, slice_id: int) -> None:
        """A slice ended without its result; what it was charged stays."""
        self._grants_in_flight.pop(slice_id, None)

    def grants_ns(self, work_ns: int) -> int:
        """The most that is granted before so much work of higher classes has passed, whoever may
        come: none, if not even the first grant will be due."""
        debt = self.debt + self._share_ppm * work_ns
        return (debt - self.due) // self._rest_ppm + self.longest_ns if debt >= self.due else 0

    def alone_ns(self, stretched: int) -> int:
        """Stretched work as it is without grants."""
        return stretched * self._rest_ppm // PPM

    def soonest_ahead_ns(self, own_ns: int, higher_ns: int) -> int:
        """Of the stretched work of higher classes, the least that goes before so much best-effort
        work has passed: all of it, or less if grants bring it through before."""
        owed_ns = max(0, self.debt - self.due) // self._rest_ppm + self.longest_ns
        unowed_ns = max(0, own_ns - owed_ns)
        return min(self.alone_ns(higher_ns), unowed_ns * self._rest_ppm // self._share_ppm)


def stretched_ns(work_ns: int, share_ppm: int) -> int:
    """How long work of higher classes takes with grants between, but for the first one."""
    return -(-work_ns * PPM // (PPM - share_ppm))
