"""The slices of one lane that were launched and have not passed, and how many there may be.

It knows what is in flight and how long that should take, never what comes next. The lane runs in
order, so only the head can be running and only the head can pass.

The window is as large as hides the round trip, `1 + ceil(round trip / slice)`: while the next
launch is on its way, what is in flight keeps the device busy. Both are measured. The round trip
is the time from the end of a slice to our hearing of it plus the time from a launch on an idle
lane to its start; each is an average that moves 1/8 of the way and at most doubles at a time, so
that one late wake-up does not open the window. Where the plan is silent: the window is never
below 2 (if `window_max` allows), since a window of 1 drains the lane at any jitter at all. A
baseline may state its window; then it stays.

What sync points cost in device time is measured along the way: with one slice in flight it is the
round trip; with more it is the gap that the device leaves before a slice that was queued.

Invariant: `len(flights) <= window_max`, and the sums by class are those of the flights.
"""

from collections import deque

from gpumuxd.core.cursor import Cursor
from gpumuxd.domain import Lane, PriorityClass, Slice

_RANKS_FROM = [tuple(range(rank, len(PriorityClass))) for rank in PriorityClass]

MEASURED_EVERY = 8
"""Slices per measurement while the lane is busy: an average needs no more, and it is not free."""

SAMPLE_FLOOR_NS = 10_000
"""Added to the ceiling of a sample: from nothing, doubling alone would never begin."""


class Flight:
    """A launched slice with what the scheduler needs when it passes."""

    __slots__ = (
        "cursor",
        "is_resumption",
        "launched_ns",
        "predicted_ns",
        "queue",
        "slice",
        "was_idle",
    )

    def __init__(
        self,
        work: Slice,
        cursor: Cursor,
        queue: "LaunchQueue",
        launched_ns: int,
        was_idle: bool,
        is_resumption: bool,
    ) -> None:
        self.slice = work
        self.predicted_ns = work.predicted_ns  # read often, and slower from a named tuple
        self.cursor = cursor
        self.queue = queue
        self.launched_ns = launched_ns
        self.was_idle = was_idle  # nothing was in flight: its start tells the launch latency
        self.is_resumption = is_resumption  # its cursor had been preempted


class LaunchQueue:
    """One lane's slices in flight, its window and its measured round trip."""

    __slots__ = (
        "_heard_ns",
        "_is_measured",
        "_launch_ns",
        "_passed",
        "_round_trip_guess_ns",
        "_slice_ns",
        "busy_ns",
        "covered_ns",
        "flights",
        "gap_ns",
        "head_since_ns",
        "lane",
        "last_cursor",
        "last_end_ns",
        "window",
        "window_fixed",
        "window_max",
    )

    def __init__(
        self, lane: Lane, window_max: int, round_trip_ns: int, window_fixed: int = 0
    ) -> None:
        assert window_max >= 1, "a window of 0 launches nothing"
        self.lane = lane
        self.window_max = window_max
        self.window_fixed = window_fixed  # stated by a baseline; 0: it is measured
        self.window = min(window_fixed or 2, window_max)
        self.flights: deque[Flight] = deque()
        self.covered_ns = [0] * len(PriorityClass)  # predicted in flight, of each class and below
        self.head_since_ns = 0  # when the head began, as far as is known
        self.last_end_ns = 0
        self.last_cursor: Cursor | None = None  # of the slice launched last
        self.busy_ns = 0
        self._round_trip_guess_ns = round_trip_ns
        self._heard_ns = 0
        self._launch_ns = 0
        self._is_measured = False
        self._slice_ns = 0
        self._passed = 0
        self.gap_ns = 0  # of the device between two slices, the second of which was queued

    @property
    def is_full(self) -> bool:
        return len(self.flights) >= self.window

    @property
    def has_unknown(self) -> bool:
        """Is work without a prediction in flight? That is alone in its lane, so it is the head."""
        return bool(self.flights) and self.flights[0].predicted_ns == 0

    @property
    def round_trip_ns(self) -> int:
        return self._heard_ns + self._launch_ns if self._is_measured else self._round_trip_guess_ns

    @property
    def sync_ns_measured(self) -> tuple[int, int]:
        """What sync points cost here in device time: with one slice in flight, and with more; 0
        where nothing was measured."""
        return self.round_trip_ns if self._is_measured else 0, self.gap_ns

    def launch(
        self, work: Slice, cursor: Cursor, now_ns: int, is_resumption: bool = False
    ) -> Flight:
        flights, covered_ns = self.flights, self.covered_ns
        was_idle = not flights
        if was_idle:
            self.head_since_ns = now_ns
        flight = Flight(work, cursor, self, now_ns, was_idle, is_resumption)
        flights.append(flight)
        predicted_ns = flight.predicted_ns
        for rank in _RANKS_FROM[cursor.rank]:
            covered_ns[rank] += predicted_ns
        self.last_cursor = cursor
        return flight

    def passed(self, flight: Flight, started_ns: int, device_ns: int, now_ns: int) -> None:
        """The head has passed."""
        head = self.flights.popleft()
        assert head is flight, f"slice {flight.slice.slice_id} passed before the head of its lane"
        predicted_ns, covered_ns = flight.predicted_ns, self.covered_ns
        for rank in _RANKS_FROM[flight.cursor.rank]:
            covered_ns[rank] -= predicted_ns
        before_ns = self.last_end_ns
        self.last_end_ns = self.head_since_ns = end_ns = started_ns + device_ns
        self.busy_ns += device_ns
        self._passed = passed = self._passed + 1
        if flight.was_idle or passed % MEASURED_EVERY == 0:
            self._measure(flight, started_ns, device_ns, now_ns - end_ns)
            # One that came too late shows how short the slices before it were, not what a sync
            # point costs: `delay_predictor.bared_ns` knows the former.
            if not flight.was_idle and flight.launched_ns <= before_ns:
                self.gap_ns = _follow(self.gap_ns, started_ns - before_ns)

    def _measure(self, flight: Flight, started_ns: int, device_ns: int, heard_ns: int) -> None:
        self._heard_ns = _follow(self._heard_ns, heard_ns)
        if flight.was_idle:
            self._launch_ns = _follow(self._launch_ns, started_ns - flight.launched_ns)
            self._is_measured = True
        slice_ns = self._slice_ns
        slice_ns = slice_ns + ((device_ns - slice_ns) >> 3) if slice_ns else device_ns
        self._slice_ns = slice_ns
        if self.window_fixed:
            return
        window = 1 - (-self.round_trip_ns // (slice_ns or 1))
        if window < 2:
            window = 2
        self.window = window if window < self.window_max else self.window_max

    def failed(self, flight: Flight, now_ns: int) -> None:
        """The head ended without its result; it tells nothing about times."""
        head = self.flights.popleft()
        assert head is flight, f"slice {flight.slice.slice_id} failed before the head of its lane"
        for rank in _RANKS_FROM[flight.cursor.rank]:
            self.covered_ns[rank] -= flight.predicted_ns
        self.last_end_ns = now_ns
        self.head_since_ns = now_ns

    def residual_ns(self, now_ns: int) -> int:
        """Predicted time until all that is in flight has passed; guesses count as nothing."""
        rest_ns, since_ns = 0, max(0, now_ns - self.head_since_ns)
        for flight in self.flights:
            if not flight.cursor.table.is_guess:
                rest_ns += max(0, flight.predicted_ns - since_ns)
            since_ns = 0  # only the head runs
        return rest_ns

    def clear(self) -> None:
        """The device is lost: nothing of this will pass."""
        self.flights.clear()
        self.covered_ns = [0] * len(PriorityClass)


def _follow(average_ns: int, sample_ns: int) -> int:
    """Move an average towards a sample: 1/8 of the way, the sample cut at twice the average."""
    ceiling_ns = 2 * average_ns + SAMPLE_FLOOR_NS
    if sample_ns > ceiling_ns:
        sample_ns = ceiling_ns
    elif sample_ns < 0:
        sample_ns = 0
    return average_ns + ((sample_ns - average_ns) >> 3)
