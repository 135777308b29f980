"""Where to cut a program into kernel groups: by measured time, never by the number of nodes.

A group can't be interrupted, so its length bounds how soon a request can go ahead; each group costs
a launch, so there should be few. The rule: walk along the nodes and put each into the current group
while the group stays within the target; otherwise it begins the next one. It follows that

- no group is longer than the target or than its one node, whichever is longer;
- two neighbouring groups together are longer than the target, so none could have been merged;
- a node longer than the target is a group by itself.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise


def operator_counts(ends: Sequence[int]) -> tuple[int, ...]:
    """How many nodes each group has, given where groups end."""
    return tuple(end - start for start, end in pairwise((0, *ends)))


def layers_in_groups(ends: Sequence[int], layer_ends: Iterable[int]) -> tuple[int, ...]:
    """The ends (exclusive) of the groups in which layers end, ascending. Both arguments are nodes.

    A layer that ends inside a group ends with that group: nothing is launched but whole groups.
    """
    return tuple(dict.fromkeys(bisect_left(ends, layer_end) + 1 for layer_end in layer_ends))


def cut_by_time(node_ns: Sequence[int], target_ns: int) -> list[int]:
    """The end (exclusive) of each group. `node_ns[i]` is the measured time of node i."""
    assert node_ns, "a program has nodes"
    assert target_ns > 0, target_ns
    cuts: list[int] = []
    group_ns = 0
    for i, duration_ns in enumerate(node_ns):
        assert duration_ns >= 0, duration_ns
        if i > 0 and group_ns + duration_ns > target_ns:
            cuts.append(i)
            group_ns = 0
        group_ns += duration_ns
    cuts.append(len(node_ns))
    return cuts


def cut_where_narrow(node_ns: Sequence[int], target_ns: int, widths: Sequence[int]) -> list[int]:
    """As `cut_by_time`, for programs in which a cut costs more the more values cross it.

    `widths[i]` is how many cross a cut after node i. A group that would have to end may end
    earlier, where it has at least three quarters of the target: at the narrowest such place, the
    last of several.
    """
    assert len(widths) == len(node_ns), "each cut has a width"
    assert node_ns, "a program has nodes"
    cuts: list[int] = []
    start = 0
    while start < len(node_ns):
        end, group_ns = start + 1, node_ns[start]
        choices = [end]
        while end < len(node_ns) and group_ns + node_ns[end] <= target_ns:
            group_ns += node_ns[end]
            end += 1
            # Until three quarters of the target are there, only the longest group is worth a cut.
            is_long = 4 * (group_ns - node_ns[end - 1]) >= 3 * target_ns
            choices = [*choices, end] if is_long else [end]
        if end < len(node_ns):
            end = min(choices, key=lambda choice: (widths[choice - 1], -choice))
        cuts.append(end)
        start = end
    return cuts
