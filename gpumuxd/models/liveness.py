"""Which results of a graph's calls are read, and by whom last.

It must not know what a call does. Invariant: a slot is cleared by the call that reads it last, and
one that nobody reads is never written.
"""

from collections.abc import Iterable, Sequence

from gpumuxd.models.plan import Node, Slot, Weight, operands


def with_last_uses(nodes: Sequence[Node], outputs: Iterable[Slot | Weight]) -> tuple[Node, ...]:
    """The nodes, with the results that nobody reads dropped and last uses marked."""
    seen = {item.index for item in outputs if isinstance(item, Slot)}
    marked: list[Node] = []
    for node in reversed(nodes):
        results = tuple(slot if slot in seen else None for slot in node.results)
        reads = {item.index for item in operands(node) if isinstance(item, Slot)}
        clears = tuple(sorted(reads - seen))
        seen |= reads
        marked.append(
            Node(node.operator, node.arguments, node.keywords, results, node.returns_list, clears)
        )
    return tuple(reversed(marked))
