"""Cursors in deadline order with the predicted work in front of each, for the arrival test.

It answers one question: if so much work with this deadline were added, what would run before it,
and would some cursor behind it be late? It must not know classes, lanes or clocks.

A list of blocks of at most BLOCK_MAX cursors. A block keeps the sum of its work and its *laxity*:
the smallest `deadline - work up to and including it` of its cursors. A query walks the blocks and
looks into one: O(n / BLOCK_MAX + BLOCK_MAX), some 0.1 ms at 10,000 cursors (bench/decision.py). A
balanced tree would be O(log n), and slower in Python at every size that a device's queue has.

`touch` marks a block whose cursors' remaining work changed; its sums are computed when somebody
asks, so a launch costs a bisection and no arithmetic.

Invariant: keys ascend within a block and from block to block; no block is empty.
"""

from bisect import bisect_left

from gpumuxd.core.cursor import NEVER_NS, Cursor

BLOCK_MAX = 128

_Key = tuple[int, int]  # deadline, arrival


class _Block:
    __slots__ = ("cursors", "is_stale", "keys", "laxity_ns", "work_ns")

    def __init__(self, keys: list[_Key], cursors: list[Cursor]) -> None:
        self.keys = keys
        self.cursors = cursors
        self.is_stale = True
        self.work_ns = 0
        self.laxity_ns = 0

    def refresh(self) -> None:
        work_ns, laxity_ns = 0, NEVER_NS
        for cursor in self.cursors:
            work_ns += cursor.remaining_ns
            if cursor.deadline_ns - work_ns < laxity_ns:
                laxity_ns = cursor.deadline_ns - work_ns
        self.work_ns, self.laxity_ns, self.is_stale = work_ns, laxity_ns, False


class DeadlineBacklog:
    """The unlaunched work of cursors that run earliest deadline first."""

    __slots__ = ("_blocks", "_last")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._last: list[_Key] = []  # of each block's last cursor

    def __len__(self) -> int:
        return sum(len(block.keys) for block in self._blocks)

    def add(self, cursor: Cursor) -> None:
        key = (cursor.deadline_ns, cursor.arrival)
        if not self._blocks:
            self._blocks.append(_Block([key], [cursor]))
            self._last.append(key)
            return
        index = min(bisect_left(self._last, key), len(self._blocks) - 1)
        block = self._blocks[index]
        place = bisect_left(block.keys, key)
        block.keys.insert(place, key)
        block.cursors.insert(place, cursor)
        block.is_stale = True
        self._last[index] = block.keys[-1]
        if len(block.keys) > BLOCK_MAX:
            self._split(index)

    def remove(self, cursor: Cursor) -> None:
        index = self._index(cursor)
        block = self._blocks[index]
        place = bisect_left(block.keys, (cursor.deadline_ns, cursor.arrival))
        assert block.cursors[place] is cursor, "removed a cursor that is not here"
        del block.keys[place], block.cursors[place]
        block.is_stale = True
        if block.keys:
            self._last[index] = block.keys[-1]
        else:
            del self._blocks[index], self._last[index]

    def touch(self, cursor: Cursor) -> None:
        """Its remaining work changed."""
        self._blocks[self._index(cursor)].is_stale = True

    def work_before_ns(self, deadline_ns: int) -> int:
        """The work of all cursors with this deadline or an earlier one."""
        work_ns = 0
        for block, last in zip(self._blocks, self._last, strict=True):
            if last[0] > deadline_ns:
                return work_ns + sum(
                    each.remaining_ns for each in block.cursors if each.deadline_ns <= deadline_ns
                )
            if block.is_stale:
                block.refresh()
            work_ns += block.work_ns
        return work_ns

    def first_late(self, deadline_ns: int, start_ns: int, added_ns: int) -> Cursor | None:
        """The first cursor behind `deadline_ns` that would end late if the lane were free at
        `start_ns` and `added_ns` of work with that deadline were put in."""
        latest_ns = start_ns + added_ns
        for block, last in zip(self._blocks, self._last, strict=True):
            if block.is_stale:
                block.refresh()
            if last[0] > deadline_ns and block.laxity_ns < latest_ns:
                late = _first_late(block, deadline_ns, latest_ns)
                if late is not None:
                    return late
            latest_ns += block.work_ns
        return None

    def _index(self, cursor: Cursor) -> int:
        return bisect_left(self._last, (cursor.deadline_ns, cursor.arrival))

    def _split(self, index: int) -> None:
        keys, cursors = self._blocks[index].keys, self._blocks[index].cursors
        half = len(keys) // 2
        self._blocks[index : index + 1] = [
            _Block(keys[:half], cursors[:half]),
            _Block(keys[half:], cursors[half:]),
        ]
        self._last[index : index + 1] = [keys[half - 1], keys[-1]]


def _first_late(block: _Block, deadline_ns: int, latest_ns: int) -> Cursor | None:
    for cursor in block.cursors:
        latest_ns += cursor.remaining_ns
        if deadline_ns < cursor.deadline_ns < latest_ns:
            return cursor
    return None
