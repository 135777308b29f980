"""The spin probe: how late does this machine run a thread that is due?

A process of its own (a thread would measure the GIL), started by `bench.harness` beside every
measurement. It asks to be woken at absolute times one millisecond apart and records how late it
was. It does not spin on the clock: on a machine with two cores a spinning probe would take the
core that the measured parent and client share, and so cause the gap it looks for. Sleeping costs
about one percent of a core. What it sees is a core taken by a hypervisor, by another program, or
by more runnable threads than cores; each of them makes a measured tail the machine's, not ours.

Imports the standard library only, so that it starts in a few hundredths of a second. Ends when
its standard input is closed, which the death of the bench does too.
"""

import array
import ctypes
import select
import sys
import time

PERIOD_NS = 1_000_000
POLL_PERIODS = 32
"""Standard input is looked at this often only; a system call each wake would be half the cost."""

PR_SET_TIMERSLACK = 29


def main() -> None:
    """Record overshoots until standard input closes, then write them to standard output."""
    # A normal thread's timers may be 50 us late so that wakes can be merged; here that is noise.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    late_ns = array.array("q")
    sys.stdout.buffer.write(b"\n")  # ready: the bench begins when it has read this
    sys.stdout.buffer.flush()
    due_ns = time.monotonic_ns() + PERIOD_NS
    while True:
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        now_ns = time.monotonic_ns()
        late_ns.append(now_ns - due_ns)
        # One late wake is one sample: the periods slept through are not counted again.
        due_ns = max(due_ns + PERIOD_NS, now_ns)
        if len(late_ns) % POLL_PERIODS == 0 and select.select([sys.stdin], [], [], 0)[0]:
            break
    sys.stdout.buffer.write(late_ns.tobytes())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
