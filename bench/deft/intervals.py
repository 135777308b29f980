"""How well a mean is known."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness import percentile

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where it lies, 95 times of 100."""

    mean: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        return Interval(factor * self.mean, factor * self.low, factor * self.high)

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def interval(values: Sequence[float], seed: int = 1) -> Interval:
    """Of the mean, by resampling: nothing is known of how these are distributed."""
    rng = random.Random(seed)
    means = [statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return Interval(statistics.fmean(values), percentile(means, 2.5), percentile(means, 97.5))
