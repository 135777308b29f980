"""Cutting by time, in tables."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumuxd.programs.segmenter import cut_by_time, layers_in_groups, operator_counts


@pytest.mark.parametrize(
    ("node_ns", "target_ns", "cuts"),
    [
        # nodes                 target  ends of groups
        ([5],                   10,     [1]),
        ([50],                  10,     [1]),
        ([0, 0, 0],             10,     [3]),
        ([5, 5],                10,     [2]),
        ([5, 5, 1],             10,     [2, 3]),
        ([5, 6],                10,     [1, 2]),
        ([3, 3, 3, 3, 3, 3],    10,     [3, 6]),
        ([1, 50, 1],            10,     [1, 2, 3]),
        ([50, 50],              10,     [1, 2]),
        ([1, 1, 50, 1, 1],      10,     [2, 3, 5]),
        ([50, 0, 0],            10,     [1, 3]),
        ([0, 50, 0],            10,     [1, 2, 3]),
        ([10, 10, 10],          10,     [1, 2, 3]),
        ([1, 2, 3, 4, 5],       1,      [1, 2, 3, 4, 5]),
        ([1, 2, 3, 4, 5],       100,    [5]),
    ],
)  # fmt: skip
def test_where_groups_end(node_ns: list[int], target_ns: int, cuts: list[int]) -> None:
    assert cut_by_time(node_ns, target_ns) == cuts


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 500))
def test_the_rule(node_ns: list[int], target_ns: int) -> None:
    cuts = cut_by_time(node_ns, target_ns)
    starts = [0, *cuts[:-1]]
    groups = [node_ns[start:end] for start, end in zip(starts, cuts, strict=True)]
    assert [duration for group in groups for duration in group] == node_ns
    for group in groups:
        assert group
        assert sum(group) <= target_ns or len(group) == 1
    for left, right in pairwise(groups):
        assert sum(left) + right[0] > target_ns, "these could have been one group"


@pytest.mark.parametrize(("node_ns", "target_ns"), [([], 10), ([1], 0), ([1], -1), ([-1], 10)])
def test_what_callers_must_not_ask(node_ns: list[int], target_ns: int) -> None:
    with pytest.raises(AssertionError):
        cut_by_time(node_ns, target_ns)


@pytest.mark.parametrize(
    ("ends", "layer_ends", "groups"),
    [
        # group ends   layer ends     ends of groups in which one ends
        ([5],          [],            ()),
        ([5],          [5],           (1,)),
        ([5],          [1, 2, 5],     (1,)),
        ([2, 4, 6],    [2, 4, 6],     (1, 2, 3)),
        ([2, 4, 6],    [1, 3, 5],     (1, 2, 3)),
        ([2, 4, 6],    [3, 6],        (2, 3)),
        ([1, 2, 3],    [3],           (3,)),
        ([3, 9],       [1, 2, 4, 9],  (1, 2)),
    ],
)  # fmt: skip
def test_a_layer_ends_with_the_group_it_ends_in(
    ends: list[int], layer_ends: list[int], groups: tuple[int, ...]
) -> None:
    assert layers_in_groups(ends, layer_ends) == groups


def test_operators_are_counted_between_ends() -> None:
    assert operator_counts([1, 4, 9]) == (1, 3, 5)
