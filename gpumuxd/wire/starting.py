"""What a daemon says to processes that wait for work, and how an end is put into words.

To its starter of loaders: a request is one datagram with two descriptors, the loader's end of its
channel and one end of a status socket. On that comes one word of how the loader ended. It is hung
up to have it killed.

To a device child that stands by: it says WARM when it has imported all it needs, and serves when it
is told SERVE, with its end of a channel beside it.
"""

import os
import signal

SPARE = "spare"
"""The argument of a device child that stands by."""

WARM = b"warm"

SERVE = b"serve"

WORD_BYTES_MAX = 16

REQUEST = b"load"

REQUEST_BYTES_MAX = 16

STATUS_BYTES_MAX = 100

NO_PROCESS = "no process"
"""Begins what is said of a loader that could not be started."""


def how_ended(code: int) -> str:
    """Of an exit code, negative for a signal, as `subprocess` has it."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def no_process(error: OSError) -> str:
    """Why a loader could not be started."""
    return f"{NO_PROCESS}: {os.strerror(error.errno or 0)}"
