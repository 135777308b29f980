"""From measured times to a profile. Pure: the device loop measures, this says what it means.

A *pass* is one whole run, with the time of every position (node or group). The figure of a position
is its median over passes, because one pass that the machine interrupted must move nothing; the
figure of a run is the median of whole passes, never the sum of medians.
"""

from collections.abc import Mapping, Sequence

from gpumuxd.domain import Bucket
from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.programs.segmenter import cut_by_time

Pass = Sequence[int]
"""Nanoseconds of each position of a program, in one run."""


def median_ns(samples: Sequence[int]) -> int:
    """The middle sample; of an even number the lower of the two, so that it was measured."""
    assert samples, "there is no median of nothing"
    return sorted(samples)[(len(samples) - 1) // 2]


def position_ns(passes: Sequence[Pass]) -> tuple[int, ...]:
    """The median of each position."""
    assert passes, "at least one pass is measured"
    return tuple(median_ns(samples) for samples in zip(*passes, strict=True))


def run_ns(passes: Sequence[Pass]) -> int:
    """The median of whole passes."""
    return median_ns([sum(one) for one in passes])


def cuts_from_passes(node_passes: Sequence[Pass], target_ns: int) -> list[int]:
    """Where to cut, from passes over single nodes."""
    return cut_by_time(position_ns(node_passes), target_ns)


def profile_from_passes(
    cuts: Sequence[int], group_passes: Mapping[Bucket, Sequence[Pass]], frame_bytes: int
) -> StoredProfile:
    """The profile of a program, from passes over its groups in each bucket."""
    profile = StoredProfile(
        cuts=tuple(cuts),
        group_ns={bucket: position_ns(passes) for bucket, passes in group_passes.items()},
        run_ns={bucket: run_ns(passes) for bucket, passes in group_passes.items()},
        frame_bytes=frame_bytes,
    )
    assert profile.is_consistent(), profile
    return profile
