"""What is believed of one program at one shape bucket: the time of each group and of a whole run.

Two estimates, because a sum of percentiles is not a percentile of the sum: slicing asks for a
windowed p90 per group, feasibility for a windowed p95 of whole runs. It must not know other
models; what all models have in common (`Drift`) is applied through `rescale`.

A sample is kept as a ratio to the *base*, the profile. A slice that took 1.2 times its base puts
1.2 on each of its groups, so a sample costs one list assignment however many groups it spans.
Each run writes one of COLUMNS columns; every RUNS_PER_FOLD runs the columns are folded into
prefix sums, and choosing a slice is a bisection of those. Both windows start filled with the
profile, and both percentiles leave out the largest value, so one outlier moves nothing.

Without a profile (`prefix` is empty) each group is launched alone, and the first complete run
becomes the base. A base that was borrowed from another bucket, or that one first run made, is a
*guess*: it cuts slices and refuses nobody (`feasibility.py`). The first whole run puts it out of
both windows, which fill up with real runs from there, and RUNS_TO_REFUSE of them end the guess:
not one, since a first run may be slow, and who is refused by it would teach nothing better.

Who is refused does not run, and so a window that is wrong would stay wrong: two hiccups among 32
runs are a p95. Of those that would be refused on an idle device some are admitted nevertheless, as
*probes* (`is_probe`): every PROBE_EVERY-th that may well be in time, every PROBE_ANYHOW_EVERY-th
else. Who is stopped under way never shows its rest either: every STOP_SPARED_EVERY-th is let go on.

`least_rest` is for who decides whether a run that is under way can still be in time: the least
that remembered runs took from each group on. Their shapes are known, so no pace has to be spread
over groups that need not follow it.

Invariant: `prefix` is empty or has `group_count + 1` strictly increasing entries from 0.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from gpumuxd.core.slice_plan import SlicePlan
from gpumuxd.domain import PriorityClass

SHIFT = 16
ONE = 1 << SHIFT
"""Ratios are integers in units of 1/65536."""

COLUMNS = 16
"""Runs a group's estimate looks back on; the p90 of 16 values is the second largest."""

RUNS = 32
"""Runs the whole-run estimate looks back on; the p95 of 32 values is the second largest."""

DEVIATION_MIN = ONE // 8
"""A slice within this of what is typical is reported as typical: the windows take care of it."""

RUNS_TO_REFUSE = 2
"""Whole runs that make a guess an estimate: the fewest of which one outlier is left out."""

PROBE_EVERY = 4
"""Of so many that a typical run, or the quickest on a quiet lane, would bring in time, one is
admitted: the 31 runs that put two hiccups out of the window come with 93 refusals."""

PROBE_ANYHOW_EVERY = 32
"""Of so many that no run would bring in time that is remembered: most of them will be late."""

STOP_SPARED_EVERY = 8
"""Of so many that would be stopped under way, one goes on till its deadline."""

RUNS_PER_FOLD = 4
"""A fold sorts every group's window, about 1 us each: amortised over this many runs."""


class BucketTable:
    """Estimates of one program at one bucket, in integer nanoseconds."""

    __slots__ = (
        "_base_ns",
        "_base_prefix",
        "_column_no",
        "_column_run",
        "_column_scale",
        "_columns",
        "_first_run",
        "_is_fold_due",
        "_is_least_due",
        "_is_stale",
        "_least_ends",
        "_least_rest",
        "_prefix",
        "_run_no",
        "_runs",
        "_runs_folded",
        "_runs_seen",
        "_typical_max",
        "_typical_min",
        "group_count",
        "is_guess",
        "longest_group_ns",
        "outstanding_ns",
        "plans",
        "refusals",
        "run_ns",
        "stops",
        "typical",
        "typical_run_ns",
    )

    def __init__(self, group_count: int) -> None:
        self.group_count = group_count
        self._prefix: list[int] = []
        self._is_stale = False  # `prefix` and the longest group are from before a `rescale`
        self.run_ns = 0  # p95 of a whole run, 0 while unknown
        self.is_guess = True  # neither profiled nor run RUNS_TO_REFUSE times
        self.longest_group_ns = 0
        self.outstanding_ns = 0  # most ever in flight when launched freely, 0 while unknown
        self.plans: list[SlicePlan | None] = [None] * len(PriorityClass)  # by class of the work
        self.typical = ONE  # median run as a ratio to the base: what `Drift` compares with
        self.typical_run_ns = 0  # the same as a time
        self._is_least_due = False  # the two below are from before the last fold
        self._least_rest: list[int] = []
        self._least_ends: list[int] = []
        self._is_fold_due = False  # the next run may be one that was admitted to learn from it
        self.refusals = 0  # since the last probe, of those that would be refused on an idle device
        self.stops = 0  # since one was spared
        self._typical_min = self._typical_max = ONE
        self._base_ns: list[int] = []
        self._base_prefix: list[int] = []
        self._first_run: list[int] = [0] * group_count
        self._columns: list[list[int]] = []
        self._column_scale: list[int] = []
        self._column_run: list[int] = []
        self._column_no = 0
        self._runs: list[int] = []
        self._run_no: list[int] = []
        self._runs_seen = 0
        self._runs_folded = 0

    @property
    def is_measured(self) -> bool:
        """Has it whole runs of its own, not only a profile or a neighbour's figures?"""
        return self._runs_seen > 0

    @property
    def is_known(self) -> bool:
        return bool(self._prefix)

    @property
    def prefix(self) -> list[int]:
        """When each group ends in a run, from 0; another list when that changes. Brought up to date
        by whoever asks first after a `rescale`, so that a change of the clock does not stop
        everything while hundreds of tables are folded that nobody uses now."""
        if self._is_stale:
            self._fold()
        return self._prefix

    @property
    def least_rest(self) -> list[int]:
        """The least time from each group to the end of the run."""
        self._look_for_least()
        return self._least_rest

    @property
    def least_ends(self) -> list[int]:
        """Like `prefix`, of the least time of each group."""
        self._look_for_least()
        return self._least_ends

    def set_base(self, group_ns: Sequence[int], run_ns: int, is_guess: bool = False) -> None:
        """Start from a profile, or a guess: a scaled neighbour or the first run. Before any run."""
        assert len(group_ns) == self.group_count, "a profile has one time per group"
        # A group of 0 ns would make a ratio to it undefined.
        self.is_guess = is_guess
        self._base_ns = [max(1, ns) for ns in group_ns]
        self._base_prefix = [0, *accumulate(self._base_ns)]
        total_ns = self._base_prefix[-1]
        run_ratio = (max(1, run_ns) << SHIFT) // total_ns
        self._columns = [[ONE] * self.group_count for _ in range(COLUMNS)]
        self._column_scale = [ONE] * COLUMNS
        self._column_run = [-1] * COLUMNS  # older than any slice
        self._runs = [run_ratio] * RUNS
        self._run_no = [-1] * RUNS
        self._fold()

    def typical_ns(self, first: int, end: int) -> int:
        """What these groups take of a typical run."""
        prefix = self.prefix
        return self.typical_run_ns * (prefix[end] - prefix[first]) // prefix[-1]

    def is_probe(self, may_be_in_time: bool) -> bool:
        """One more would be refused on an idle device. Is it admitted, to learn from it?"""
        self.refusals += 1
        if self.refusals < (PROBE_EVERY if may_be_in_time else PROBE_ANYHOW_EVERY):
            return False
        self.refusals = 0
        self._is_fold_due = True
        return True

    def is_spared(self) -> bool:
        """One more would be stopped under way. Does it go on, to learn from it?"""
        self.stops = (self.stops + 1) % STOP_SPARED_EVERY
        self._is_fold_due |= self.stops == 0
        return self.stops == 0

    def new_column(self, slice_no: int) -> int:
        """Where the samples of a run that starts now go. `slice_no` dates them for `rescale`."""
        if not self._columns:
            return 0
        self._column_no = (self._column_no + 1) % COLUMNS
        self._column_run[self._column_no] = slice_no
        return self._column_no

    def record_slice(self, column: int, first: int, end: int, device_ns: int) -> int:
        """Spread a slice's time over its groups.

        Returns its ratio to what this program typically takes; ONE if that is within
        DEVIATION_MIN, or only guessed or unknown.
        """
        base_prefix = self._base_prefix
        if not base_prefix:
            assert end == first + 1, "unknown groups are launched one at a time"
            self._first_run[first] = max(1, device_ns)
            if all(self._first_run):
                self.set_base(self._first_run, sum(self._first_run), is_guess=True)
            return ONE
        ratio = (device_ns << SHIFT) // (base_prefix[end] - base_prefix[first])
        self._columns[column][first:end] = [ratio] * (end - first)
        if self._column_scale[column] != ONE:  # the column was rescaled before this sample
            self._materialise(column, keep=(first, end))
        if self.is_guess or self._typical_min <= ratio <= self._typical_max:
            return ONE
        return (ratio << SHIFT) // self.typical

    def record_run(self, column: int, device_ns: int, slice_no: int) -> bool:
        """Add a whole run: the device time of all its slices. True if estimates moved."""
        if not self._base_prefix:
            return False
        if self.is_guess:
            self._put_guess_out(column)
        if len(self._runs) < RUNS:
            self._runs.append(0)
            self._run_no.append(0)
        place = self._runs_seen % RUNS
        self._runs[place] = (device_ns << SHIFT) // self._base_prefix[-1]
        self._run_no[place] = slice_no
        self._runs_seen += 1
        # Each of the first real runs counts at once, and what is run to learn from it.
        is_early = len(self._runs) <= RUNS_PER_FOLD or self._is_fold_due
        if self._runs_seen - self._runs_folded < RUNS_PER_FOLD and not is_early:
            return False
        self._is_fold_due = False
        self._runs_folded = self._runs_seen
        self._fold()
        return True

    def _put_guess_out(self, column: int) -> None:
        """A whole run of its own is there: nothing that was guessed counts from now on."""
        self.is_guess = self._runs_seen + 1 < RUNS_TO_REFUSE
        if self._runs_seen == 0:
            self._runs, self._run_no = [], []
            self._columns = [list(self._columns[column]) for _ in range(COLUMNS)]
            self._column_scale = [self._column_scale[column]] * COLUMNS
            self._column_run = [self._column_run[column]] * COLUMNS

    def rescale(self, ratio: int, since_slice_no: int) -> None:
        """All programs got slower or faster by `ratio`: correct what was measured before that.

        A run that was under way at the change is corrected whole; its error fades with its window.
        """
        if not self._base_prefix:
            return
        for column, slice_no in enumerate(self._column_run):
            if slice_no < since_slice_no:
                self._column_scale[column] = (self._column_scale[column] * ratio) >> SHIFT
        for place, slice_no in enumerate(self._run_no):
            if slice_no < since_slice_no:
                self._runs[place] = (self._runs[place] * ratio) >> SHIFT
        if self._column_run[self._column_no] < since_slice_no:  # as all others then
            self.longest_group_ns = max(1, (self.longest_group_ns * ratio) >> SHIFT)
        self._fold_runs()
        self._is_stale = True

    def _materialise(self, column: int, keep: tuple[int, int]) -> None:
        scale, values = self._column_scale[column], self._columns[column]
        first, end = keep
        fresh = values[first:end]
        values[:] = [(value * scale) >> SHIFT for value in values]
        values[first:end] = fresh
        self._column_scale[column] = ONE

    def _fold(self) -> None:
        self._is_stale = False
        for column, scale in enumerate(self._column_scale):
            if scale != ONE:
                self._materialise(column, keep=(0, 0))
        ratios: list[int] = []
        previous, ratio = None, ONE
        for window in zip(*self._columns, strict=True):
            if window != previous:  # groups that were always in one slice have the same ratios
                previous, ratio = window, sorted(window)[-2]
            ratios.append(ratio)
        group_ns = [
            base_ns * ratio >> SHIFT or 1
            for base_ns, ratio in zip(self._base_ns, ratios, strict=True)
        ]
        self._prefix = [0, *accumulate(group_ns)]
        self.longest_group_ns = max(group_ns)
        self._is_least_due = True
        self._fold_runs()

    def _fold_runs(self) -> None:
        runs = sorted(self._runs)
        self.run_ns = max(1, (self._base_prefix[-1] * runs[-2 if len(runs) > 1 else 0]) >> SHIFT)
        self.typical = typical = max(1, runs[len(runs) // 2])
        self.typical_run_ns = max(1, self._base_prefix[-1] * typical >> SHIFT)
        deviation = typical * DEVIATION_MIN >> SHIFT
        self._typical_min, self._typical_max = typical - deviation, typical + deviation

    def _look_for_least(self) -> None:
        """For those who ask only, when a deadline is near: it takes as long as five folds."""
        if self._is_stale:
            self._fold()
        if not self._is_least_due:
            return
        self._is_least_due = False
        least = map(min, zip(*self._columns, strict=True))
        ends = accumulate(map(mul, self._base_ns, least))
        self._least_ends = [0, *(end >> SHIFT for end in ends)]
        self._least_rest = self._least_rests()

    def _least_rests(self) -> list[int]:
        """From each group on: the least that one of the remembered runs took to its end."""
        base_ns = self._base_ns[::-1]
        least: list[int] = []
        previous: list[int] = []
        for column in self._columns:
            if column != previous:  # at first they are all alike
                rests = list(accumulate(map(mul, base_ns, reversed(column))))
                least = list(map(min, least, rests)) if previous else rests
                previous = column
        return [*(rest >> SHIFT for rest in reversed(least)), 0]
