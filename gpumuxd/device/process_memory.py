"""What this process holds, as the kernel counts it, and giving back what nobody uses.

The books (`core/ledger.py`) say what models should take; this says what they do. It counts what is
resident and the process's own, anonymous or shared memory, and leaves out files: the code of
libraries. It must not know models.

Reading it takes some 50 us, so it is done when a model goes and when somebody asks, never for a
request. `smaps_rollup` would be exact to the page where this may be some pages per core behind, but
walks every page of the process for it: milliseconds in which no other thread gets memory.
"""

import ctypes

_COUNTED = (b"RssAnon:", b"RssShmem:")

_libc = ctypes.CDLL(None)


def resident_bytes() -> int:
    """Anonymous and shared memory that this process has touched and not given back."""
    kib = 0
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(_COUNTED):
                kib += int(line.split()[1])
    return kib * 1024


def give_back_unused() -> None:
    """Let malloc return what is free inside its arenas: by itself it returns only what lies at
    their ends, and a model that goes leaves gaps. Nothing where the C library has no such call."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)
