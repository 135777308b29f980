"""Which kernel groups of a profile are the longest: what the parent is told of how a model yields.

A device is not preempted inside a group, so its longest groups say how long urgent work may wait
for a model. The parent compares them with bounds that change as models come and go, so it gets more
than the one longest. It must not know bounds.
"""

from collections.abc import Sequence
from heapq import nlargest

from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.wire.frames import LongGroup

GROUPS_TOLD_MAX = 16
"""Of one bucket. Whoever has more than that beyond a bound needs no exact number."""

ALL_GROUPS_TOLD_MAX = 1024
"""Of all buckets: 20 KiB of a frame that has room for 64."""


def longest_groups(profile: StoredProfile) -> tuple[tuple[LongGroup, ...], ...]:
    """For each bucket in ascending order, its longest groups, the longest first."""
    told_max = max(min(GROUPS_TOLD_MAX, ALL_GROUPS_TOLD_MAX // len(profile.group_ns)), 1)
    return tuple(
        _longest(times, profile.cuts, told_max) for _, times in sorted(profile.group_ns.items())
    )


def _longest(times: Sequence[int], cuts: Sequence[int], told_max: int) -> tuple[LongGroup, ...]:
    starts = (0, *cuts[:-1])
    # Of equal ones the first, so that the same profile says the same.
    groups = nlargest(told_max, range(len(times)), key=lambda group: (times[group], -group))
    return tuple(LongGroup(group, times[group], starts[group], cuts[group]) for group in groups)
