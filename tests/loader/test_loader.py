"""The loader as a real process on a real socket pair."""

import fcntl
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpumuxd.loader import main as loader
from gpumuxd.models import plan as plans
from gpumuxd.models.spec import ModelSpec
from gpumuxd.wire.channel import Channel
from gpumuxd.wire.frames import AnyFrame, Ping, Read, ReadDone, ReadFailed
from gpumuxd.wire.process import SEALS_ALL, map_sealed
from tests.models import archives

TIMEOUT_S = 60


class Process:
    """A loader and our end of its channel."""

    def __init__(self, *prefix: str) -> None:
        self.channel, theirs = Channel.pair()
        with theirs:
            command = [*(prefix or (sys.executable, "-m", "gpumuxd.loader")), str(theirs.fileno())]
            self.popen = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE
            )

    def ask(self, artifact: int, model_bytes_max: int = 1 << 30) -> tuple[AnyFrame, list[int]]:
        self.channel.send(Read(model_bytes_max), [artifact])
        return self.answer()

    def answer(self) -> tuple[AnyFrame, list[int]]:
        while (received := self.channel.receive()) is None:
            ready, _, _ = select.select([self.channel], [], [], TIMEOUT_S)
            assert ready, "the loader says nothing"
        return received

    def close(self) -> None:
        self.channel.close()
        self.popen.kill()
        self.popen.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


@pytest.fixture
def artifact(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "model.pt2"
    path.write_bytes(archives.archive(archives.members()).getvalue())
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_good_artifact_becomes_two_sealed_files(process: Process, artifact: int) -> None:
    answer, (plan_fd, weights_fd) = process.ask(artifact)
    assert isinstance(answer, ReadDone)
    for fd in (plan_fd, weights_fd):
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS_ALL == SEALS_ALL
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
    plan = plans.decode(bytes(map_sealed(plan_fd)))
    weights = map_sealed(weights_fd)
    assert weights[0:48] == archives.WEIGHT_BYTES
    assert weights[64:76] == archives.BIAS_BYTES
    assert (answer.plan_bytes, answer.weights_bytes, answer.node_count) == (
        os.fstat(plan_fd).st_size,
        len(weights),
        1,
    )
    assert msgspec.msgpack.decode(answer.spec, type=ModelSpec) == plan.spec
    assert len(answer.artifact_hash) == 64
    assert process.popen.wait(TIMEOUT_S) == 0
    weights.close()
    os.close(plan_fd)
    os.close(weights_fd)


def failure(process: Process, fd: int, model_bytes_max: int = 1 << 30) -> str:
    answer, fds = process.ask(fd, model_bytes_max)
    assert fds == []
    assert isinstance(answer, ReadFailed)
    assert process.popen.wait(TIMEOUT_S) == 0
    return answer.reason


def test_a_foreign_file_is_refused_with_a_reason(process: Process, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"#!/bin/sh\n")
    with (tmp_path / "x").open("rb") as file:
        assert "10 bytes that begin with b'#!/b'" in failure(process, file.fileno())


def test_a_model_over_the_limit_is_refused(process: Process, artifact: int) -> None:
    assert "the limit (artifact_bytes_max) is 1000" in failure(process, artifact, 1000)


def test_a_directory_is_refused(process: Process, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    assert failure(process, fd) == "the artifact is no regular file"
    os.close(fd)


def test_a_pipe_is_refused_and_never_read(process: Process) -> None:
    reader, writer = os.pipe()
    assert failure(process, reader) == "the artifact is no regular file"
    os.close(reader)
    os.close(writer)


def test_more_memory_than_allowed_is_a_reason_and_no_crash(artifact: int) -> None:
    """The limit is lowered to less than the process has already, so any reading is too much."""
    program = (
        "import sys\n"
        "from gpumuxd.loader import main as loader\n"
        "loader.ADDRESS_SPACE_BYTES_MAX = 16 << 20\n"
        "loader.Artifact = lambda *_: bytearray(64 << 20)\n"
        "sys.exit(loader.main(sys.argv[1:]))\n"
    )
    process = Process(sys.executable, "-c", program)
    try:
        assert "takes more than 16777216 bytes of memory" in failure(process, artifact)
    finally:
        process.close()


def test_it_ends_when_the_parent_hangs_up(process: Process) -> None:
    process.channel.close()
    assert process.popen.wait(TIMEOUT_S) == 1


def test_another_frame_is_a_bug_of_the_parent(process: Process) -> None:
    process.channel.send(Ping(1))
    assert process.popen.wait(TIMEOUT_S) == 1
    assert process.popen.stderr is not None
    assert b"expected Read, got Ping" in process.popen.stderr.read()


@pytest.mark.parametrize("arguments", [[], ["x"], ["-1"], ["3", "4"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert loader.main(arguments) == 2
    assert "usage:" in capsys.readouterr().err


def test_limits_are_set_and_torch_is_never_imported(artifact: int) -> None:
    """The loader's own code, in a process that looks at itself after it answered."""
    program = (
        "import resource, sys\n"
        "from gpumuxd.loader.main import main\n"
        "status = main(sys.argv[1:])\n"
        "limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE,\n"
        "    resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)]\n"
        "assert limits == [(0, 0), (60, 61), (2 << 30,) * 2, (32, 32)], limits\n"
        "assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] < 1 << 31\n"
        "found = {name.split('.')[0] for name in sys.modules}\n"
        "assert not found & {'torch', 'numpy', 'sympy', 'grpc'}, found\n"
        "sys.exit(status)\n"
    )
    process = Process(sys.executable, "-c", program)
    try:
        answer, fds = process.ask(artifact)
        assert isinstance(answer, ReadDone)
        for fd in fds:
            os.close(fd)
        _, errors = process.popen.communicate(timeout=TIMEOUT_S)
        assert process.popen.returncode == 0, errors
    finally:
        process.close()


def test_it_dies_with_its_parent() -> None:
    """A parent that is killed leaves no loader: the middle process here is that parent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = (
        "import sys\n"
        "from gpumuxd.loader import main as loader\n"
        "set_signal = loader.set_parent_death_signal\n"
        "loader.set_parent_death_signal = lambda: (set_signal(), print('set', flush=True))\n"
        "loader.main(sys.argv[1:])\n"
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
    with ours, theirs:  # both ends stay open here, so that the loader sees no end of file
        process = subprocess.Popen(
            [sys.executable, "-c", parent, child, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        loader_fd = os.pidfd_open(int(process.stdout.readline()))
        process.communicate(timeout=TIMEOUT_S)
        ready, _, _ = select.select([loader_fd], [], [], TIMEOUT_S)
        os.close(loader_fd)
    assert ready, "the loader outlived its parent"
