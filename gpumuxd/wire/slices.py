"""How soon a thread that wakes gets a core: its slice, as Linux's EEVDF scheduler understands it.

Since Linux 6.12 a thread can ask for a slice of its own, without any right: one that wakes takes
the core from a thread with a longer slice, where it would else wait for that one's turn to end, up
to a tick of the kernel (4 ms at 250 Hz). A slice is no share: whoever has a short one gets no more
time, only sooner. Older kernels ignore the wish, others refuse it, and nothing depends on it.

Slices are inherited by threads and processes that are started later, like everything else of their
scheduling. It must not know what a thread does.
"""

import ctypes
import os
import platform

PROMPT_NS = 100_000
"""The least that the kernel takes: for threads that do little and are waited for."""

PATIENT_NS = 10_000_000
"""For threads that compute. Clients, with slices of the kernel's choice (1 to 3 ms), take the core
from these too."""

USUAL_NS = 0
"""The kernel's choice."""

_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_number = _SYS_SCHED_SETATTR.get(platform.machine())
_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of the kernel in its first form."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def set_slice(slice_ns: int, thread_id: int = 0) -> bool:
    """Of this thread, or one with this native id; what else there is to its scheduling stays.

    False if nothing was done: an unknown machine, a refusal, a thread that has ended or that has
    real-time scheduling, which knows no such slices. True is no promise.
    """
    if _number is None:
        return False
    try:
        policy = os.sched_getscheduler(thread_id)
        nice = os.getpriority(os.PRIO_PROCESS, thread_id)
    except OSError:
        return False
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    size = ctypes.sizeof(_Attributes)
    asked = _Attributes(size=size, policy=policy, nice=nice, slice_ns=slice_ns)
    number, thread, no_flags = (ctypes.c_long(each) for each in (_number, thread_id, 0))
    return bool(_libc.syscall(number, thread, ctypes.byref(asked), no_flags) == 0)
