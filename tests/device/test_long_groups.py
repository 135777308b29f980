"""Which groups of a profile are told as the longest, and that they fit a frame."""

from dataclasses import replace

from gpumuxd.core.statistics import LAXITY_OF, DeviceStatistics
from gpumuxd.device.long_groups import ALL_GROUPS_TOLD_MAX, GROUPS_TOLD_MAX, longest_groups
from gpumuxd.device.translate import statistics_frame
from gpumuxd.domain import Bucket
from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.wire.frames import FRAME_BYTES_MAX, LongGroup, ModelLoaded, encode


def profile_of(group_ns: dict[Bucket, tuple[int, ...]], cuts: tuple[int, ...]) -> StoredProfile:
    return StoredProfile(cuts, group_ns, {bucket: sum(ns) for bucket, ns in group_ns.items()}, 0)


def test_the_longest_first_with_their_nodes_and_buckets_in_order() -> None:
    profile = profile_of({(2,): (5, 7, 7), (1,): (9, 1, 2)}, (4, 5, 12))
    assert longest_groups(profile) == (
        # group, ns, first node, end node
        (LongGroup(0, 9, 0, 4), LongGroup(2, 2, 5, 12), LongGroup(1, 1, 4, 5)),
        (LongGroup(1, 7, 4, 5), LongGroup(2, 7, 5, 12), LongGroup(0, 5, 0, 4)),
    )


def test_of_many_groups_the_longest_are_told() -> None:
    count = 3 * GROUPS_TOLD_MAX
    profile = profile_of({(1,): tuple(range(count))}, tuple(range(1, count + 1)))
    (told,) = longest_groups(profile)
    assert [group.device_ns for group in told] == list(range(count))[: -GROUPS_TOLD_MAX - 1 : -1]


def test_what_is_told_of_very_many_buckets_fits_a_frame() -> None:
    large = 2**40
    group_ns: dict[Bucket, tuple[int, ...]] = {
        (large, large, index): tuple(range(large, large + 64)) for index in range(500)
    }
    profile = profile_of(group_ns, tuple(range(2**20, 2**20 + 64)))
    told = longest_groups(profile)
    assert 0 < sum(map(len, told)) <= ALL_GROUPS_TOLD_MAX
    assert all(told)
    frame = ModelLoaded("m" * 300, 64, large, tuple(profile.run_ns.items()), 1, 1, False, told)
    assert len(encode(frame)) <= FRAME_BYTES_MAX


def statistics(origin: str) -> DeviceStatistics:
    return DeviceStatistics(*range(11), window=2, device_busy_ns=5, bound_origin=origin)


def test_where_a_bound_comes_from_is_told_apart_from_whose_it_is() -> None:
    # a model may have any key, also one that reads like an origin
    told = statistics_frame(statistics(f"{LAXITY_OF}{LAXITY_OF}m/1#7"))
    assert (told.bound_origin, told.bound_model) == ("laxity", f"{LAXITY_OF}m/1#7")
    told = statistics_frame(statistics("slice_ns_max"))
    assert (told.bound_origin, told.bound_model) == ("slice_ns_max", "")


def test_what_best_effort_work_was_granted_is_told() -> None:
    granted = replace(statistics(""), best_effort_grants=3, best_effort_granted_ns=4)
    told = statistics_frame(granted)
    assert (told.best_effort_grants, told.best_effort_granted_ns) == (3, 4)
