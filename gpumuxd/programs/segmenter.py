"""Where to cut a program into kernel groups: by measured time, never by the number of nodes.

A group can't be interrupted, so its length bounds how soon a request can go ahead; each group costs
a launch, so there should be few. The rule: walk along the nodes and put each into the current group
while the group stays within the target; otherwise it begins the next one. It follows that

- no group is longer than the target or than its one node, whichever is longer;
- two neighbouring groups together are longer than the target, so none could have been merged;
- a node longer than the target is a group by itself.
"""

from collections.abc import Sequence


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
