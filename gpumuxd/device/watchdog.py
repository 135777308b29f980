"""The watchdog: a slice that never passes ends its device, since nothing can stop it in there.

It looks now and then which slice is at the head of each lane, and counts for how many looks in a
row that is the same one. So it measures turns of the loop and not time alone: a machine that slept,
a process that was stopped and a parent that was late count for one look, however long they took.
Pure: it must not know clocks, and costs a turn one comparison, a slice one entry of a dictionary.
"""

from gpumuxd.domain import Lane, Slice
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_MS, NS_PER_S

LOOK_INTERVAL_NS = 250 * NS_PER_MS
"""How fine it measures; the parent wakes the loop as often."""


class SliceOverdue(Exception):
    """A slice ran for longer than it may."""


class Watchdog:
    """All lanes of one device."""

    def __init__(self, settings: DeviceSettings) -> None:
        self._settings = settings
        self._in_flight: dict[int, Slice] = {}  # in the order of their launches
        self._heads: dict[Lane, tuple[int, int]] = {}  # slice, looks at which it was there
        self.look_ns = 0
        """When it wants to look next, if anything is in flight."""

    @property
    def is_watching(self) -> bool:
        return bool(self._in_flight)

    def launched(self, work: Slice) -> None:
        """It was enqueued on its lane."""
        self._in_flight[work.slice_id] = work

    def passed(self, slice_id: int) -> None:
        """It passed or failed."""
        del self._in_flight[slice_id]

    def look(self, now_ns: int) -> None:
        """Called when `look_ns` has come, before anything else is launched. Raises SliceOverdue."""
        self.look_ns = now_ns + LOOK_INTERVAL_NS
        heads: dict[Lane, Slice] = {}
        for work in self._in_flight.values():
            heads.setdefault(work.lane, work)
        before, self._heads = self._heads, {}
        for lane, work in heads.items():
            last_id, looks = before.get(lane, (0, 0))
            looks = looks + 1 if last_id == work.slice_id else 0
            self._heads[lane] = work.slice_id, looks
            if looks * LOOK_INTERVAL_NS >= self._limit_ns(work):
                raise SliceOverdue(self._words(work, looks))

    def _limit_ns(self, work: Slice) -> int:
        settings = self._settings
        if work.predicted_ns == 0:
            return settings.watchdog_ns_unpredicted
        return max(work.predicted_ns * settings.watchdog_factor, settings.watchdog_ns_min)

    def _words(self, work: Slice, looks: int) -> str:
        ran_s = looks * LOOK_INTERVAL_NS / NS_PER_S
        return (
            f"groups {work.first_group} to {work.end_group - 1} of {work.model} run for over "
            f"{ran_s:.2f} s; predicted were {work.predicted_ns / NS_PER_MS:.3f} ms (0: nobody "
            f"knew), the limit is {self._limit_ns(work) / NS_PER_S:.2f} s"
        )
