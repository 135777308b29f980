"""How a child begins and ends: in order, by signals, and when its parent goes in any way."""

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from gpumuxd.domain import OutcomeKind
from gpumuxd.wire.channel import ChannelClosed
from gpumuxd.wire.frames import (
    Accepted,
    Finished,
    ModelFailed,
    ModelReleased,
    Ping,
    Pong,
    Started,
    Stop,
)
from tests.device.support import SETTINGS, WAIT_S, DeviceChild, LoadedArtifact, released

EXIT_PARENT_GONE = 3
EXIT_USAGE = 64
EXIT_BUG = 70


def read_to_the_end(child: DeviceChild) -> None:
    """Collect frames until the child has closed its end."""
    try:
        while True:
            child.frames.append(child.receive())
    except ChannelClosed:
        return


def finished(child: DeviceChild) -> dict[int, OutcomeKind]:
    return {f.request_id: f.outcome.kind for f in child.frames if isinstance(f, Finished)}


def test_started_says_what_the_device_is_and_stop_ends_an_idle_child() -> None:
    with DeviceChild() as child:
        started = child.wait_started()
        assert started == Started(
            "cpu:0", started.description, str(torch.__version__), started.memory_bytes
        )
        assert "1 thread" in started.description
        assert started.memory_bytes > 0
        code, errors = child.stop()
        assert code == 0
        # What is as it should be is said by the parent, but for what only a child can measure.
        (line,) = map(json.loads, errors.splitlines())
        assert (line["event"], line["device"]) == ("device_measured", "cpu:0")


@pytest.mark.parametrize("how", ["Stop", "SIGTERM twice"])
def test_stopping_finishes_what_was_admitted_and_takes_nothing_new(
    slow: LoadedArtifact, mlp: LoadedArtifact, how: str
) -> None:
    with DeviceChild() as child:
        child.wait_started()
        child.load(slow, "slow/1")
        admitted = [child.submit("slow/1", {"x": torch.randn(2, 256, 512)}) for _ in range(3)]
        for _ in admitted:
            child.expect(Accepted)
        # Ctrl-C in a terminal reaches the child too, and is the parent's business.
        child.signal(signal.SIGINT)
        if how == "Stop":
            child.send(Stop())
        else:
            child.signal(signal.SIGTERM)
        child.expect(Finished)  # at least now the signal was seen
        if how == "SIGTERM twice":  # a second one is no reason to hurry: the parent can kill
            child.signal(signal.SIGTERM)
        late = child.submit("slow/1", {"x": torch.randn(2, 256, 512)})
        child.send_load(mlp, "mlp/1")
        read_to_the_end(child)
        code, _ = child.wait_exit()
        assert code == 0
        outcomes = finished(child)
        assert outcomes.pop(late.request_id) is OutcomeKind.DRAINING
        assert set(outcomes.values()) == {OutcomeKind.COMPLETED}
        assert len(outcomes) == 2, "the first of the three was taken above"
        assert released(f for f in child.frames if isinstance(f, ModelReleased)) == ["slow/1"]
        assert [f.model for f in child.frames if isinstance(f, ModelFailed)] == ["mlp/1"]


def test_stopping_cancels_a_load(slow: LoadedArtifact) -> None:
    with DeviceChild() as child:
        child.wait_started()
        child.send_load(slow, "slow/1")
        child.send(Ping(1))
        child.expect(Pong)
        child.send(Stop())
        read_to_the_end(child)
        assert released(child.frames) == ["slow/1"]
        assert child.wait_exit()[0] == 0


def test_the_child_ends_at_once_when_the_parent_closes(slow: LoadedArtifact) -> None:
    with DeviceChild(replace(SETTINGS, profile_passes=1)) as child:
        child.wait_started()
        child.load(slow, "slow/1")
        for _ in range(8):
            child.submit("slow/1", {"x": torch.randn(2, 256, 512)})
        child.expect(Accepted)
        child.channel.close()
        code, errors = child.wait_exit()
        assert code == EXIT_PARENT_GONE
        assert "parent_gone" in errors


def test_a_child_with_another_parent_than_it_was_told_ends() -> None:
    with DeviceChild(parent_pid=1) as child:
        code, errors = child.wait_exit()
        assert code == EXIT_PARENT_GONE
        assert "expected parent 1" in errors


def test_a_frame_that_is_not_the_parents_to_send_ends_the_child() -> None:
    with DeviceChild() as child:
        child.wait_started()
        child.send(Pong(1, 1))
        read_to_the_end(child)
        code, errors = child.wait_exit()
        assert code == EXIT_BUG
        assert "Pong is not the parent's to send" in errors


@pytest.mark.parametrize("argument", [[], ["x"], ["0"], ["999"], ["1", "2"]])
def test_an_argument_that_is_no_socket_is_a_usage_error(argument: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gpumuxd.device", *argument],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.returncode == EXIT_USAGE
    assert "expected the number of an inherited socket" in result.stderr


# A parent that starts a child with a model's worth of arena, tells its pid and waits for ever.
_PARENT = """
import signal
from tests.device.support import DeviceChild
child = DeviceChild()
child.wait_started()
print(child.process.pid, flush=True)
signal.pause()
"""


def test_a_killed_parent_leaves_no_child_and_no_memory() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(child_pid)
        assert select.select([pidfd], [], [], 0)[0] == [], "the child lives"
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=WAIT_S)
        # Its memfds have no name in any file system: with both processes gone they are gone.
        assert select.select([pidfd], [], [], WAIT_S)[0] == [pidfd]
        os.close(pidfd)
