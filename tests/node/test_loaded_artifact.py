"""What a loaded artifact holds, it lets go of, and nobody waits for that."""

import os
import threading

import pytest

from gpumuxd.models.spec import ModelSpec
from gpumuxd.node.child_process import LOADER_NICE
from gpumuxd.node.loading import CLOSED_AT_ONCE_BYTES_MAX, LoadedArtifact
from gpumuxd.wire.process import sealed_memfd


@pytest.mark.parametrize(
    ("size_bytes", "is_elsewhere"),
    [(0, False), (CLOSED_AT_ONCE_BYTES_MAX - 1, False), (CLOSED_AT_ONCE_BYTES_MAX + 1, True)],
)
def test_closing_large_memory_is_left_to_a_thread(
    size_bytes: int, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_on: list[tuple[str, int]] = []
    close = os.close

    def note(fd: int) -> None:
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        closed_on.append((threading.current_thread().name, nice))
        close(fd)

    plan_fd = sealed_memfd("plan", lambda file: file.write(b"p"))
    weights_fd = sealed_memfd("weights", lambda file: file.truncate(size_bytes))
    artifact = LoadedArtifact("hash", ModelSpec((), ()), plan_fd, weights_fd)
    monkeypatch.setattr("gpumuxd.node.loading.os.close", note)
    artifact.close()
    artifact.close()  # once is enough
    for thread in threading.enumerate():
        if thread.name == "closing":
            thread.join()
    monkeypatch.undo()
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    here = (threading.current_thread().name, nice)
    # A thread that would compete with those that serve is no better than closing here.
    assert closed_on == [("closing", LOADER_NICE) if is_elsewhere else here] * 2
    for fd in (plan_fd, weights_fd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
