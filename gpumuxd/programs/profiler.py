"""From measured times to a profile. Pure: the device loop measures, this says what it means.

A *pass* is one whole run, with the time of every position (node or group). The figure of a position
is its median over passes, because one pass that the machine interrupted must move nothing; the
figure of a run is the median of whole passes, never the sum of medians.
"""

from collections.abc import Mapping, Sequence

from gpumuxd.domain import Bucket
from gpumuxd.events import ModelProfile
from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.programs.segmenter import cut_by_time, layers_in_groups, operator_counts

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


def outstanding_ns(group_ns: Sequence[int], launch_ns: int) -> int:
    """Most work that is ever in flight when groups are launched freely, one by one, by a host that
    needs `launch_ns` for each: Deft's `Q_max * tau`, in time.

    Where the host is faster than the device, nearly all of a run piles up there; where the device
    waits for the host, only what it is about to run.
    """
    free_ns = most_ns = 0
    for position, duration_ns in enumerate(group_ns, 1):
        launched_ns = position * launch_ns
        free_ns = max(free_ns, launched_ns) + duration_ns
        most_ns = max(most_ns, free_ns - launched_ns)
    return most_ns


def profile_from_passes(
    cuts: Sequence[int],
    group_passes: Mapping[Bucket, Sequence[Pass]],
    frame_bytes: Mapping[Bucket, int],
) -> StoredProfile:
    """The profile of a program, from passes over its groups in each bucket, and the most that a
    run held there."""
    profile = StoredProfile(
        cuts=tuple(cuts),
        group_ns={bucket: position_ns(passes) for bucket, passes in group_passes.items()},
        run_ns={bucket: run_ns(passes) for bucket, passes in group_passes.items()},
        frame_bytes=frame_bytes,
    )
    assert profile.is_consistent(), profile
    return profile


def model_profile(
    stored: StoredProfile, operator_ends: Sequence[int], layer_ends: Sequence[int], launch_ns: int
) -> ModelProfile:
    """What the scheduler is told of a program. Ends of groups and of layers are counted in
    operators of its graph; `launch_ns` is what a launch costs the host."""
    return ModelProfile(
        group_count=len(stored.cuts),
        group_ns=stored.group_ns,
        run_ns=stored.run_ns,
        operators=operator_counts(operator_ends),
        layer_ends=layers_in_groups(operator_ends, layer_ends),
        outstanding_ns={
            bucket: outstanding_ns(times, launch_ns) for bucket, times in stored.group_ns.items()
        },
        frame_bytes=stored.frame_bytes,
    )
