"""The one clock: monotonic, integer nanoseconds, common to all processes of the node.

Only `node/`, `device/`, `rpc/`, the executors and the top layers read it; everything below gets
`now_ns` as an argument. CLOCK_MONOTONIC is shared by every process since boot, so a time stamped
in the parent means the same in a device child. Wall clock never enters a deadline.
"""

import time
from collections.abc import Callable

Clock = Callable[[], int]

monotonic_ns: Clock = time.monotonic_ns
