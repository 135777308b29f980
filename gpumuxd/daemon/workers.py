"""The event loop's worker threads: they look at disks, which may hang, and must not keep the
daemon from ending.

Python waits for such threads twice, when the loop is closed and when the interpreter ends, both
times for ever. Invariant: after `shutdown` each thread has ended or is counted in `hanging`.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

THREADS_MAX = 16
JOIN_S_MAX = 2.0


class Workers(ThreadPoolExecutor):
    """A loop's default executor."""

    def __init__(self, join_s_max: float = JOIN_S_MAX) -> None:
        super().__init__(THREADS_MAX, thread_name_prefix="worker")
        self._join_s_max = join_s_max

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing more, and wait for what goes on, but not for what hangs."""
        super().shutdown(wait=False, cancel_futures=True)
        until_s = time.monotonic() + (self._join_s_max if wait else 0)
        for thread in list(self._threads):
            thread.join(max(until_s - time.monotonic(), 0))

    @property
    def hanging(self) -> int:
        """Threads that have not ended."""
        return sum(thread.is_alive() for thread in self._threads)


def end_process(code: int) -> None:
    """End at once, past the interpreter's own wait for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
