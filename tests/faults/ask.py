"""How a client asks for a fault: the words that tests and the children that break have in common.

A request of a model whose name begins with `faulty` asks by the first row of its input: a number
that says which fault, and whether the run waits at the gate first. The gate is a FIFO: the run
opens it for reading and so stands in the kernel, inside its first kernel group, until the test
opens it for writing. That it can be opened tells the test that the run has got there.
"""

import enum

import numpy as np
from numpy.typing import NDArray

MODEL_PREFIX = "faulty"

FOLDER_VARIABLE = "GPUMUXD_TEST_FAULTS"
"""The environment variable that tells the children the folder of these files:"""
GATE = "gate"
STOP_LOADERS = "stop-loaders"
"""while this one is there, a loader stops itself (SIGSTOP) before it does anything."""

_MAGIC = 0xFA0170
"""Exact as a float32, and nothing that examples for measuring are made of."""


class Fault(enum.IntEnum):
    """What happens inside the first kernel group of the run, unless said otherwise."""

    NOTHING = enum.auto()
    # The process ends
    ABORT = enum.auto()
    SEGFAULT = enum.auto()
    EXIT = enum.auto()
    # The operator fails and the process lives
    HUGE_ALLOCATION = enum.auto()
    ALL_MEMORY = enum.auto()
    ERROR = enum.auto()
    # The device stands still
    ENDLESS_KERNEL = enum.auto()  # the GIL is free: the loop turns, nothing comes to an end
    ENDLESS_PYTHON = enum.auto()  # the GIL is shared
    ENDLESS_WITH_GIL = enum.auto()  # the loop stands still
    THREAD_ENDS = enum.auto()
    # After the last group
    WRONG_SHAPE = enum.auto()
    WRONG_TYPE = enum.auto()
    LARGER_THAN_RESERVED = enum.auto()
    # The channel
    GARBAGE = enum.auto()
    CUT_FRAME = enum.auto()
    LONG_FRAME = enum.auto()
    FRAME_OF_PARENT = enum.auto()
    FINISH_OF_STRANGER = enum.auto()
    CLOSED_CHANNEL = enum.auto()


def rows(fault: Fault, at_gate: bool = False) -> NDArray[np.float32]:
    """The input that asks for a fault."""
    return np.array([[_MAGIC + fault, at_gate, 0, 0]], dtype=np.float32)


def asked(first: float, second: float) -> tuple[Fault, bool] | None:
    """What the first two values of an input ask for; None is an honest request."""
    number = int(first) - _MAGIC
    return (Fault(number), bool(second)) if number in list(Fault) else None
