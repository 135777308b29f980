"""What a device child gives up before it hears of a model, and how much memory it may have at most.

A model is a stranger's plan of allow-listed operators. Should one of them, with hostile arguments,
corrupt memory or ask for all of it, the child has no right to start processes, open connections or
write files, and the kernel refuses the memory to that one operator before the machine runs out of
it: the request fails, the child lives. It must not know what is loaded.
"""

import os
import resource
from pathlib import Path

from gpumuxd.device.log import log
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB
from gpumuxd.wire.sandbox import Policy, confine, folder_if_it_can_be_had

MEMORY_RESERVE_BYTES = 512 * MIB
"""Beyond the device's memory, for what the ledger does not count: plans while they become code
(64 MiB of plan took 0.4 GiB), stacks of threads (8 MiB each), what malloc keeps."""

LOOP_RESERVE_BYTES = 16 * MIB
"""Set aside for the loop's own objects, so that an operator which takes the last free page fails
alone."""

_OBJECT_BYTES = 480
"""Python has pools of its own for objects up to 512 bytes,"""
_BLOCK_BYTES = 32 * 1024
"""and asks malloc for larger ones; from 128 KiB on those would be mapped and unmapped singly."""


def import_numpy() -> None:
    """Before torch does, and with one thread: its pool is never used here, and threads that exist
    already can't be confined."""
    variable = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    import numpy as np

    assert np.__version__
    if before is None:
        del os.environ[variable]
    else:
        os.environ[variable] = before


def give_up_rights(settings: DeviceSettings) -> None:
    """Once torch is imported and before any thread is started."""
    cache = settings.profile_cache_dir
    policy = Policy(
        may_read_files=True,  # Python and torch import lazily
        writable_folder=folder_if_it_can_be_had(cache) if cache else None,
        leaves_root=False,
        is_dumpable=True,  # operators look into it: /proc/PID/maps, py-spy
    )
    confinement = confine(policy)
    log(
        "warning" if confinement.missing else "debug",
        "device_confined",
        measures=list(confinement.applied),
        missing=dict(confinement.missing),
    )


def limit_memory(memory_bytes_max: int) -> None:
    """Let the kernel refuse what goes beyond the device's memory. `memory_bytes_max` is for
    weights and frames; what is in use now comes on top."""
    limit = _private_bytes() + memory_bytes_max + MEMORY_RESERVE_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    _set_aside(LOOP_RESERVE_BYTES)


def _private_bytes() -> int:
    """What RLIMIT_DATA counts: private writable memory, touched or not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmData in /proc/self/status")


_pins: list[object] = []


def _set_aside(size_bytes: int) -> None:
    """Leave free memory where only this thread takes from: half of it in Python's pools and half
    in this thread's arena of malloc, each kept from being given back by what still lies in it."""
    small = [bytes(_OBJECT_BYTES) for _ in range(size_bytes // 2 // _OBJECT_BYTES)]
    large = [bytes(_BLOCK_BYTES) for _ in range(size_bytes // 2 // _BLOCK_BYTES)]
    # One object of each arena of Python's (1 MiB) or more often; the block on top of malloc's.
    _pins.extend([small[:: (1 << 18) // _OBJECT_BYTES], large[-1]])
