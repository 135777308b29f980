"""Sealed files, and children that die with their parent."""

import mmap
import os
import select
import signal
import subprocess
import sys

import pytest

from gpumuxd.wire.process import (
    NotSealed,
    ParentGone,
    map_sealed,
    sealed_memfd,
    set_parent_death_signal,
)

# The parent starts a child, tells its pid and waits for ever; so does the child.
_CHILD = """
import os, signal
from gpumuxd.wire.process import set_parent_death_signal
set_parent_death_signal(os.getppid())
print(os.getpid(), flush=True)
signal.pause()
"""
_PARENT = f"""
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {_CHILD!r}])
signal.pause()
"""


def test_a_child_dies_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(child_pid)
        assert select.select([pidfd], [], [], 0)[0] == [], "the child lives"
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=10)
        assert select.select([pidfd], [], [], 10)[0] == [pidfd]
        os.close(pidfd)


def test_a_wrong_parent_is_noticed() -> None:
    # In a process of its own: the death signal is never set for the test runner.
    code = "from gpumuxd.wire.process import *; set_parent_death_signal(1)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert result.returncode == 1
    assert ParentGone.__name__ in result.stderr
    assert set_parent_death_signal.__name__ in result.stderr


def test_a_sealed_file_holds_what_was_written_and_can_not_change() -> None:
    fd = sealed_memfd("plan", lambda file: file.write(b"abc"))
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 3)
    mapped = map_sealed(fd)
    assert bytes(mapped[:]) == b"abc"
    mapped[0] = ord("x")  # a private copy of the page
    assert os.pread(fd, 3, 0) == b"abc"
    mapped.close()
    os.close(fd)


def test_a_writer_that_fails_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))

    def fail(_: object) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        sealed_memfd("plan", fail)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unsealed_file_is_not_mapped() -> None:
    fd = os.memfd_create("open", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, b"abc")
    with pytest.raises(NotSealed):
        map_sealed(fd)
    os.close(fd)
