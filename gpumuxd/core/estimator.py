"""Predictions for all models, and what their samples have in common.

    Estimator    all models, and how lanes disturb each other
    Estimates    the bucket tables of one model; an unseen bucket borrows a guess from the others
    Drift        a steady ratio over all models (a clock or power change) rescales all at once

It must not know queues or deadlines. Integers only. A sample taken while another lane was active
says how lanes disturb each other, not how long the program takes: it updates `interference`
alone.
"""

from operator import sub

from gpumuxd.core.bucket_table import ONE, SHIFT, BucketTable
from gpumuxd.core.interpolation import Times, times_at
from gpumuxd.domain import Bucket
from gpumuxd.events import ModelProfile

BUCKETS_MAX = 64
"""Tables kept per model. Further buckets are guessed from these."""

PASSING_MAX = 64
"""Tables of further buckets, kept while they are among the last so many that were asked for: to
guess takes a while, and somebody waits. They promise nothing, lend nothing and are forgotten."""

DRIFT_SAMPLES = 16
"""Slices in a row that must deviate to one side. Fewer than a table's median needs to follow, or
a change would be counted twice: once by each table and once by the common ratio."""

DRIFT_SAMPLES_PER_MODEL = 3
"""A model with fewer samples among them has no say."""

DRIFT_SPREAD_SHIFT = 3
"""A ratio is common when the medians of all models lie within 1/8 of the middle one."""


class Estimates:
    """What is believed of one model, bucket by bucket."""

    __slots__ = ("_passing", "_tables", "group_count")

    def __init__(self, profile: ModelProfile) -> None:
        assert profile.group_count >= 1, "a program has at least one group"
        self.group_count = profile.group_count
        self._tables: dict[Bucket, BucketTable] = {}
        self._passing: dict[Bucket, BucketTable] = {}  # the one last asked for is last
        for bucket, group_ns in profile.group_ns.items():
            table = BucketTable(self.group_count)
            table.set_base(group_ns, profile.run_ns.get(bucket, sum(group_ns)))
            table.outstanding_ns = profile.outstanding_ns.get(bucket, 0)
            self._tables[bucket] = table

    def table(self, bucket: Bucket, may_borrow: bool = True) -> BucketTable:
        """The table of a bucket, borrowed from the others or unknown if it was never seen.

        Who measures a bucket must not borrow: a guess would be held against others meanwhile.
        """
        table = self._tables.get(bucket)
        if table is not None and table.is_known:
            return table
        if table is None:
            table = self._passing.pop(bucket, None) or BucketTable(self.group_count)
            if len(self._tables) < BUCKETS_MAX:
                self._tables[bucket] = table
            else:
                self._passing[bucket] = table
                if len(self._passing) > PASSING_MAX:
                    del self._passing[next(iter(self._passing))]
        if may_borrow and not table.is_known:
            known = self._known()
            if known:
                *group_ns, run_ns = times_at(bucket, known, lambda near: _times(known[near]))
                table.set_base(group_ns, run_ns, is_guess=True)
        return table

    def seen(self, bucket: Bucket) -> BucketTable | None:
        """The table of a bucket if there is one now."""
        return self._tables.get(bucket) or self._passing.get(bucket)

    def rescale(self, ratio: int, since_slice_no: int) -> None:
        """All that is believed was wrong by this ratio."""
        for table in (*self._tables.values(), *self._passing.values()):
            table.rescale(ratio, since_slice_no)

    def tables(self) -> list[tuple[Bucket, BucketTable]]:
        """Every table, in the order in which the buckets were seen."""
        return list(self._tables.items())

    def _known(self) -> dict[Bucket, BucketTable]:
        """From whom may be borrowed. What was borrowed itself says nothing that its lenders
        don't."""
        known = {bucket: table for bucket, table in self._tables.items() if table.is_known}
        own = {b: table for b, table in known.items() if table.is_measured or not table.is_guess}
        return own or known


def _times(table: BucketTable) -> Times:
    """What is borrowed: the times of groups, and of a run."""
    prefix = table.prefix
    return (*map(sub, prefix[1:], prefix), table.run_ns)


class Drift:
    """Watches the ratio of actual to typical time over all models, slice by slice."""

    __slots__ = ("samples",)

    def __init__(self) -> None:
        # (model number, ratio, slice) of slices in a row that all deviate to one side
        self.samples: list[tuple[int, int, int]] = []

    def record(self, model_no: int, ratio: int, slice_no: int) -> tuple[int, int]:
        """A slice that deviates. Returns the common ratio and the first slice that showed it once
        DRIFT_SAMPLES in a row to the same side show a steady one; before that ONE."""
        samples = self.samples
        if samples and (samples[0][1] > ONE) != (ratio > ONE):
            samples.clear()
        samples.append((model_no, ratio, slice_no))
        if len(samples) < DRIFT_SAMPLES:
            return ONE, 0
        common, since_slice_no = _common_ratio(samples), samples[0][2]
        samples.clear()
        return common, since_slice_no


def _common_ratio(samples: list[tuple[int, int, int]]) -> int:
    """The ratio that several models agree on, ONE if they don't or there is only one.

    What only one model shows is its own change and is left to its table.
    """
    per_model: dict[int, list[int]] = {}
    for model_no, ratio, _ in samples:
        per_model.setdefault(model_no, []).append(ratio)
    medians = [
        sorted(ratios)[len(ratios) // 2]
        for ratios in per_model.values()
        if len(ratios) >= DRIFT_SAMPLES_PER_MODEL
    ]
    if len(medians) < 2:
        return ONE
    common = sorted(medians)[len(medians) // 2]
    spread = common >> DRIFT_SPREAD_SHIFT
    is_steady = all(abs(median - common) <= spread for median in medians)
    return common if is_steady else ONE


class Estimator:
    """All models' estimates, and what their samples have in common."""

    __slots__ = ("_drift", "_models", "interference", "is_watching", "rescales")

    def __init__(self) -> None:
        self._drift = Drift()
        self._models: dict[int, Estimates] = {}
        self.interference = ONE  # how much longer a slice takes beside an active lane
        self.rescales = 0
        self.is_watching = False  # the last slice deviated

    def add(self, model_no: int, profile: ModelProfile) -> Estimates:
        estimates = Estimates(profile)
        self._models[model_no] = estimates
        return estimates

    def remove(self, model_no: int) -> None:
        del self._models[model_no]

    def record_deviation(self, model_no: int, ratio: int, slice_no: int) -> bool:
        """A slice that ran alone took `ratio` of what is typical of its program.

        Needs no call while `is_watching` is False and the ratio is ONE. True if all estimates
        were rescaled.
        """
        if ratio == ONE:
            self._drift.samples.clear()
            self.is_watching = False
            return False
        self.is_watching = True
        common, since_slice_no = self._drift.record(model_no, ratio, slice_no)
        if common == ONE:
            return False
        self.rescales += 1
        for estimates in self._models.values():
            estimates.rescale(common, since_slice_no)
        return True

    def record_interference(self, predicted_ns: int, device_ns: int) -> None:
        """A slice that ran beside another lane. The average moves 1/8 of the way, and at most
        by 1/8 of itself, so that one outlier hardly shows."""
        if predicted_ns <= 0:
            return
        ratio = (device_ns << SHIFT) // predicted_ns
        step = self.interference >> 3
        change = (ratio - self.interference) >> 3
        self.interference = max(ONE, self.interference + max(-step, min(step, change)))
