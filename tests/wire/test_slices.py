"""A thread's slice is asked for softly, and is the only thing that changes."""

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from gpumuxd.wire import slices
from gpumuxd.wire.slices import PATIENT_NS, PROMPT_NS, USUAL_NS, set_slice

_SYS_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}

T = TypeVar("T")


def on_a_thread(call: Callable[[], T]) -> T:
    """What was set is gone with the thread."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


def slice_ns(thread_id: int = 0) -> int:
    asked = slices._Attributes()
    size = ctypes.c_long(ctypes.sizeof(asked))
    number = ctypes.c_long(_SYS_SCHED_GETATTR[platform.machine()])
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(thread_id), ctypes.byref(asked), size, ctypes.c_long(0))
    assert libc.syscall(number, *arguments) == 0, os.strerror(ctypes.get_errno())
    return int(asked.slice_ns)


def kernel_has_slices() -> bool:
    """Older kernels take the wish and tell nothing of it."""
    if platform.machine() not in _SYS_SCHED_GETATTR:
        return False
    return on_a_thread(lambda: (set_slice(PATIENT_NS), slice_ns())) == (True, PATIENT_NS)


needs_slices = pytest.mark.skipif(not kernel_has_slices(), reason="no slices before Linux 6.12")


@needs_slices
def test_threads_and_processes_inherit_a_slice_that_can_be_given_back() -> None:
    asked = (
        "import os, threading\n"
        "from tests.wire.test_slices import on_a_thread, slice_ns\n"
        "print(slice_ns(), on_a_thread(slice_ns))"
    )

    def look() -> tuple[str, bool]:
        usual_ns = slice_ns()
        set_slice(PROMPT_NS)
        told = subprocess.check_output([sys.executable, "-c", asked], text=True)
        set_slice(USUAL_NS)
        return told.strip(), slice_ns() == usual_ns != PROMPT_NS

    assert on_a_thread(look) == (f"{PROMPT_NS} {PROMPT_NS}", True)


def test_niceness_and_policy_stay() -> None:
    def look() -> tuple[int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        set_slice(PROMPT_NS)
        return os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)

    assert on_a_thread(look) == (5, os.SCHED_BATCH)


def test_scheduling_without_such_slices_is_left_alone() -> None:
    def look() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return set_slice(PROMPT_NS), os.sched_getscheduler(0)

    assert on_a_thread(look) == (False, os.SCHED_IDLE)


def test_what_can_not_be_done_is_told_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not set_slice(PROMPT_NS, thread_id=2**22 + 1), "no kernel gives such an id"
    no_such_call = 1 << 20
    for number in (None, no_such_call):
        monkeypatch.setattr(slices, "_number", number)
        assert not set_slice(PROMPT_NS)
