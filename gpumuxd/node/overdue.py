"""Requests whose deadline passed and whose device did not say what became of them.

A device child ends a late request by itself, but one that is stopped, or whose loop a model keeps,
says nothing until its silence is noticed, which takes a second and more. Nobody shall wait that
long beyond a deadline. One timer for all requests of a link, and one look at all of them when it
fires: a timer for each would cost every request more than this costs those that are late.

It must not know what becomes of a request that is overdue.
"""

import asyncio
from collections.abc import Callable

from gpumuxd.clock import Clock
from gpumuxd.units import NS_PER_MS, NS_PER_S
from gpumuxd.wire.frames import Submit

GRACE_NS = 20 * NS_PER_MS
"""After a deadline, until the parent speaks for the child, which can tell more: it knows what it
predicted. A healthy child on a busy machine has told by then."""

LOOK_INTERVAL_NS = 5 * NS_PER_MS
"""At least, between two looks: with a thousand requests one takes some 130 us."""


class Overdue:
    """The deadlines that one device child has to keep. `on_overdue` gets each that it did not."""

    def __init__(self, clock: Clock, on_overdue: Callable[[Submit], None]) -> None:
        self._clock = clock
        self._on_overdue = on_overdue
        self._loop = asyncio.get_running_loop()
        self._requests: dict[int, tuple[int, Submit]] = {}  # each with its deadline
        self._timer: asyncio.TimerHandle | None = None
        self._look_ns = 0

    def add(self, request: Submit) -> None:
        """A request that was sent."""
        if request.deadline_ns is None:
            return
        self._requests[request.request_id] = request.deadline_ns, request
        due_ns = request.deadline_ns + GRACE_NS
        if self._timer is None or due_ns + LOOK_INTERVAL_NS < self._look_ns:
            self._look_at(due_ns)

    def discard(self, request_id: int) -> None:
        """It has ended, or nobody waits for it."""
        self._requests.pop(request_id, None)

    def close(self) -> None:
        """All of them have ended. Idempotent."""
        self._requests.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, due_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_ns = self._clock()
        self._look_ns = max(due_ns, now_ns + LOOK_INTERVAL_NS)
        self._timer = self._loop.call_later((self._look_ns - now_ns) / NS_PER_S, self._look)

    def _look(self) -> None:
        self._timer = None
        passed_ns = self._clock() - GRACE_NS
        overdue = [each for each in self._requests.values() if each[0] <= passed_ns]
        for _, request in overdue:
            del self._requests[request.request_id]
            self._on_overdue(request)
        if self._requests:
            self._look_at(min([deadline for deadline, _ in self._requests.values()]) + GRACE_NS)
