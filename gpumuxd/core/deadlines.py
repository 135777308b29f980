"""The one timer: which admitted request's deadline passes next.

A heap with lazy deletion. It must not know what a missed deadline means.
"""

from heapq import heapify, heappop, heappush

from gpumuxd.core.cursor import NEVER_NS, Cursor

STALE_MIN = 64
"""Not rebuilt for fewer ended cursors than this."""


class Deadlines:
    """Cursors by deadline; ended ones (`ending` is set) are dropped at the head."""

    __slots__ = ("_heap", "first_ns")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Cursor]] = []
        self.first_ns = NEVER_NS  # nothing expires before; no promise that something does then

    def add(self, cursor: Cursor) -> None:
        if cursor.deadline_ns != NEVER_NS:
            heappush(self._heap, (cursor.deadline_ns, cursor.arrival, cursor))
            self.first_ns = self._heap[0][0]

    def trim(self, live: int) -> None:
        """Rebuild when most of it is ended cursors; `live` is how many have not ended."""
        if len(self._heap) > STALE_MIN + 2 * live:
            self._heap = [item for item in self._heap if item[2].ending is None]
            heapify(self._heap)

    def next_ns(self) -> int | None:
        self._drop_ended()
        return self._heap[0][0] if self._heap else None

    def pop_expired(self, now_ns: int) -> Cursor | None:
        """The next cursor whose deadline has come; each is returned once."""
        expired = None
        while expired is None and self._heap and self._heap[0][0] <= now_ns:
            cursor = heappop(self._heap)[2]
            expired = cursor if cursor.ending is None else None
        self.first_ns = self._heap[0][0] if self._heap else NEVER_NS
        return expired

    def _drop_ended(self) -> None:
        while self._heap and self._heap[0][2].ending is not None:
            heappop(self._heap)
