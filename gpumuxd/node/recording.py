"""A recording of a device's scheduler, on its way from the child to whoever asked for it.

The child writes it into a memory file that both have open, and the parent reads on behind it: so
neither ever waits for the other, and a child that dies leaves behind what it had written. The size
of the file is sealed: a child that went wrong takes no more memory than was asked for. It must not
know what is in it. Invariant: the memory file is closed when the reader leaves, whatever the
reason, and the child has been told to stop.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Callable

from gpumuxd.errors import InvalidRequest, limit_facts
from gpumuxd.node.api import RecordingEnd
from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_S
from gpumuxd.wire.frames import RecordingEnded
from gpumuxd.wire.process import SEALS_SIZE

DURATION_NS_MIN = 10 * NS_PER_MS
DURATION_NS_MAX = 3600 * NS_PER_S

BYTES_MIN = MIB
BYTES_MAX = GIB
"""The memory of a recording is the node's, and held until it is over."""

PART_BYTES = 256 * 1024
"""What one message to the client carries."""

READ_INTERVAL_S = 0.1
"""Time between two looks at how far the child has come."""


def check_limits(duration_ns: int, bytes_max: int) -> None:
    """Raises InvalidRequest."""
    if not DURATION_NS_MIN <= duration_ns <= DURATION_NS_MAX:
        raise InvalidRequest(
            f"a recording takes {DURATION_NS_MIN / NS_PER_S} to {DURATION_NS_MAX // NS_PER_S} s, "
            f"not {duration_ns / NS_PER_S} s",
            limit_facts("duration_ns_max", DURATION_NS_MAX, "ns", asked=duration_ns),
        )
    if not BYTES_MIN <= bytes_max <= BYTES_MAX:
        raise InvalidRequest(
            f"a recording may take {BYTES_MIN} to {BYTES_MAX} bytes, not {bytes_max}",
            limit_facts("bytes_max", BYTES_MAX, "bytes", asked=bytes_max),
        )


class Recording:
    """One recording. Its link tells its end; whoever asked for it reads `parts` to the end."""

    def __init__(self, bytes_max: int, ask_to_stop: Callable[[], None]) -> None:
        self.fd = os.memfd_create("gpumuxd-recording", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, bytes_max)  # takes no memory until it is written
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS_SIZE)
        self._bytes_max = bytes_max
        self._ask_to_stop = ask_to_stop
        self._ended: asyncio.Future[RecordingEnded] = asyncio.get_running_loop().create_future()
        self._is_stopping = False

    def end(self, frame: RecordingEnded) -> None:
        """The child has written the last byte, or died."""
        if not self._ended.done():
            self._ended.set_result(frame)

    def stop(self) -> None:
        """Ask for its end. Idempotent."""
        if not self._is_stopping and not self._ended.done():
            self._is_stopping = True
            self._ask_to_stop()

    def close(self) -> None:
        self.stop()
        os.close(self.fd)

    def _written(self) -> int:
        """How far the child has come: both have the same open file, and so one position in it."""
        return min(os.lseek(self.fd, 0, os.SEEK_CUR), self._bytes_max)

    async def parts(self, duration_ns: int) -> AsyncGenerator[bytes | RecordingEnd, None]:
        """What was recorded in this time, and at last how it ended. Raises InvalidRequest when it
        did not even begin."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + duration_ns / NS_PER_S
        offset = 0
        try:
            while True:
                is_over = self._ended.done()  # asked before the last read, which then finds all
                while (left := self._written() - offset) > 0:
                    data = os.pread(self.fd, min(left, PART_BYTES), offset)
                    yield data
                    offset += len(data)
                if is_over:
                    break
                left_s = end_s - loop.time()
                if left_s <= 0:
                    self.stop()
                    left_s = READ_INTERVAL_S
                await asyncio.wait([self._ended], timeout=min(left_s, READ_INTERVAL_S))
        finally:
            self.close()
        ended = self._ended.result()
        if not ended.has_begun:
            raise InvalidRequest(ended.reason)
        yield RecordingEnd(ended.reason, ended.records, ended.commands, not ended.is_broken)
