"""The starter as a real process: how loaders begin and end, and what they have of it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumuxd.loader import starter as starters
from gpumuxd.wire.frames import ReadFailed
from tests.loader.harness import TIMEOUT_S, Starter, has_ended

TELLS_OF_ITSELF = """
import json
def look(*arguments):
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if int(fd) > 2 and os.path.lexists(f"/proc/self/fd/{fd}")]
    open_files = [name.split(":")[0] for name in names]
    threads = len(os.listdir("/proc/self/task"))
    # In one write: `print` makes two, and the others say theirs on the same pipe.
    os.write(2, json.dumps([open_files, threads]).encode() + b"\\n")
    return run(*arguments)
loader.run = look
"""


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[int]:
    """A file that is no artifact."""
    (tmp_path / "x").write_bytes(b"x")
    with (tmp_path / "x").open("rb") as file:
        yield file.fileno()


def test_several_loaders_at_once_each_answer_their_own(starter: Starter, foreign: int) -> None:
    loaders = [starter.load() for _ in range(3)]
    for loader in reversed(loaders):
        answer, _ = loader.ask(foreign)
        assert isinstance(answer, ReadFailed)
        assert loader.how_ended() == "exit code 0"
    assert starter.children() == []


def test_a_loader_has_its_channel_and_nothing_of_the_starter_or_of_other_loaders(
    foreign: int,
) -> None:
    starter = Starter(TELLS_OF_ITSELF)
    try:
        for loader in [starter.load() for _ in range(3)]:  # all alive before the first ends
            loader.ask(foreign)
        told = [json.loads(line) for line in starter.finish().splitlines()]
        assert told == [[["socket"], 1]] * 3
    finally:
        starter.close()


def test_one_whose_status_is_hung_up_is_killed_and_others_are_not(
    starter: Starter, foreign: int
) -> None:
    unwanted, other = starter.load(), starter.load()
    unwanted.status.shutdown(socket.SHUT_WR)
    assert unwanted.how_ended() == "signal SIGKILL"
    assert isinstance(other.ask(foreign)[0], ReadFailed)
    forgotten = starter.load()
    forgotten.status.close()
    assert forgotten.channel_is_closed()


def test_it_ends_after_its_last_loader_when_nobody_asks_any_more(
    starter: Starter, foreign: int
) -> None:
    loader = starter.load()
    starter.control.close()
    assert isinstance(loader.ask(foreign)[0], ReadFailed)
    assert loader.how_ended() == "exit code 0"
    assert starter.popen.wait(TIMEOUT_S) == 0


def test_loaders_die_with_it(starter: Starter) -> None:
    loader = starter.load()
    # Started one after the other: when the second was killed, the first had been forked.
    second = starter.load()
    second.status.shutdown(socket.SHUT_WR)
    second.how_ended()
    (pid,) = starter.children()
    pidfd = os.pidfd_open(pid)
    os.kill(starter.popen.pid, signal.SIGKILL)
    assert has_ended(pidfd), "the loader outlived its starter"
    assert loader.how_ended() == ""


def test_it_dies_with_the_daemon() -> None:
    """A daemon that is killed leaves no starter: the middle process here is that daemon."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = (
        "import sys\n"
        "from gpumuxd.loader import starter\n"
        "set_signal = starter.set_parent_death_signal\n"
        "starter.set_parent_death_signal = lambda: (set_signal(), print('set', flush=True))\n"
        "starter.main(sys.argv[1:])\n"
    )
    parent = (
        "import os, signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]],\n"
        "    pass_fds=[int(sys.argv[2])], stdout=subprocess.PIPE)\n"
        "assert child.stdout.readline() == b'set\\n'\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with ours, theirs:  # both ends stay open here, so that the starter sees no end of file
        process = subprocess.Popen(
            [sys.executable, "-c", parent, child, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        process.communicate(timeout=TIMEOUT_S)
        assert has_ended(pidfd), "the starter outlived its parent"


def test_a_fork_that_fails_is_told_and_the_next_one_works(foreign: int) -> None:
    starter = Starter(
        "fork, tries = os.fork, []\n"
        "def refuse_once():\n"
        "    tries.append(1)\n"
        "    if len(tries) == 1:\n"
        "        raise BlockingIOError(11, 'x')\n"
        "    return fork()\n"
        "os.fork = refuse_once\n"
    )
    try:
        assert starter.load().how_ended() == "no process: Resource temporarily unavailable"
        assert isinstance(starter.load().ask(foreign)[0], ReadFailed)
    finally:
        starter.close()


@pytest.mark.parametrize("arguments", [[], ["x"], ["-1"], ["3", "4"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert starters.main(arguments) == 2
    assert "usage:" in capsys.readouterr().err
