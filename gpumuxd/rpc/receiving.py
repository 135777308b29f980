"""Messages on their way in: how many of a tenant's are received at the same time.

gRPC receives a message whole before anybody can look at it, and else would receive as many at once
as there are calls: what a client promises to send, and sends slowly, would be memory without a
bound. So a call takes one of its tenant's places when its metadata is there, and gives it back when
its message is. Who finds none waits: its message stays with its sender but for what HTTP/2's flow
control lets in. It must not know what is received. Invariant: a place is held by one task, from
`take_nowait` or `wait` to `received` or the task's end.
"""

import asyncio
from collections import deque

from gpumuxd.errors import QuotaExceeded, limit_facts

WAIT_S_MAX = 10.0
"""A call that waits for longer stands behind senders that stand still."""

WAITING_MAX = 512
"""Calls of a tenant that wait. Each may have `WINDOW_BYTES` (`connections.py`) in gRPC's buffers.
Of 4000 calls at once with a small message each, 74 waited at most (measured, 8 places)."""


class _Line:
    """The places of one tenant, and who waits for one."""

    __slots__ = ("taken", "waiting")

    def __init__(self) -> None:
        self.taken = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class Receiving:
    """The places of every tenant."""

    def __init__(self, bytes_max: int, message_bytes_max: int, wait_s: float = WAIT_S_MAX) -> None:
        """A message counts as the largest there may be: its size is known when it is here."""
        self._bytes_max = bytes_max
        self._places_max = max(1, bytes_max // message_bytes_max)
        self._wait_s = wait_s
        self._lines: dict[str, _Line] = {}
        self._line_of: dict[asyncio.Task[object], _Line] = {}

    def take_nowait(self, tenant: str) -> bool:
        """A place for the current task, if there is one."""
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line()
        if line.taken >= self._places_max or line.waiting:
            return False
        line.taken += 1
        self._hold(line)
        return True

    async def wait(self, tenant: str) -> None:
        """A place for the current task, in the order of those who wait. Raises QuotaExceeded."""
        if self.take_nowait(tenant):
            return
        line = self._lines[tenant]
        if len(line.waiting) >= WAITING_MAX:
            raise self._full(tenant, f"{WAITING_MAX} more calls wait to send theirs")
        turn = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._give_back(line)  # its turn had come
            else:
                line.waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._full(tenant, f"none of them came in {self._wait_s:g} s") from None
            raise
        self._hold(line)

    def received(self, task: asyncio.Task[object]) -> None:
        """The message of this task is here, or will not come. Idempotent."""
        line = self._line_of.pop(task, None)
        if line is not None:
            self._give_back(line)

    def _hold(self, line: _Line) -> None:
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        assert task not in self._line_of, "a call has one message at a time"
        self._line_of[task] = line
        task.add_done_callback(self.received)

    def _give_back(self, line: _Line) -> None:
        """To the next who waits, who then has it."""
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        line.taken -= 1
        assert line.taken >= 0

    def _full(self, tenant: str, why: str) -> QuotaExceeded:
        return QuotaExceeded(
            f"{self._places_max} messages of tenant {tenant!r} are being received, and {why}; "
            f"receiving_mib_max is {self._bytes_max} bytes for them",
            limit_facts("receiving_mib_max", self._bytes_max, "bytes", tenant=tenant),
        )
