"""The loader as a real process on a real socket pair."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpumuxd.models import plan as plans
from gpumuxd.models.spec import ModelSpec
from gpumuxd.wire.frames import Ping, ReadDone, ReadFailed
from gpumuxd.wire.process import SEALS_ALL, map_sealed
from tests.loader.harness import Loader, Starter
from tests.models import archives


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture
def process(starter: Starter) -> Loader:
    return starter.load()


@pytest.fixture
def artifact(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "model.pt2"
    path.write_bytes(archives.archive(archives.members()).getvalue())
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_good_artifact_becomes_two_sealed_files(process: Loader, artifact: int) -> None:
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
    assert process.how_ended() == "exit code 0"
    weights.close()
    os.close(plan_fd)
    os.close(weights_fd)


def failure(process: Loader, fd: int, model_bytes_max: int = 1 << 30) -> str:
    answer, fds = process.ask(fd, model_bytes_max)
    assert fds == []
    assert isinstance(answer, ReadFailed)
    assert process.how_ended() == "exit code 0"
    return answer.reason


def test_a_foreign_file_is_refused_with_a_reason(process: Loader, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"#!/bin/sh\n")
    with (tmp_path / "x").open("rb") as file:
        assert "10 bytes that begin with b'#!/b'" in failure(process, file.fileno())


def test_a_model_over_the_limit_is_refused(process: Loader, artifact: int) -> None:
    assert "the limit (artifact_bytes_max) is 1000" in failure(process, artifact, 1000)


def test_a_directory_is_refused(process: Loader, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    assert failure(process, fd) == "the artifact is no regular file"
    os.close(fd)


def test_a_pipe_is_refused_and_never_read(process: Loader) -> None:
    reader, writer = os.pipe()
    assert failure(process, reader) == "the artifact is no regular file"
    os.close(reader)
    os.close(writer)


def test_more_memory_than_allowed_is_a_reason_and_no_crash(artifact: int) -> None:
    """The limit is lowered to less than the process has already, so any reading is too much."""
    starter = Starter(
        "loader.ADDRESS_SPACE_BYTES_MAX = 16 << 20\n"
        "loader.Artifact = lambda *_: bytearray(64 << 20)\n"
    )
    try:
        assert "takes more than 16777216 bytes of memory" in failure(starter.load(), artifact)
    finally:
        starter.close()


def test_it_ends_when_the_parent_hangs_up(process: Loader) -> None:
    process.channel.close()
    assert process.how_ended() == "exit code 1"


def test_another_frame_is_a_bug_of_the_parent(starter: Starter, process: Loader) -> None:
    process.channel.send(Ping(1))
    assert process.how_ended() == "exit code 1"
    assert "expected Read, got Ping" in starter.finish()


def test_limits_are_set_and_torch_is_never_imported(artifact: int) -> None:
    """The loader's own code, in a process that looks at itself after it answered."""
    starter = Starter(
        "import resource\n"
        "def look(*arguments):\n"
        "    status = run(*arguments)\n"
        "    limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE,\n"
        "        resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)]\n"
        "    assert limits == [(0, 0), (60, 61), (2 << 30,) * 2, (32, 32)], limits\n"
        "    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] < 1 << 31\n"
        "    found = {name.split('.')[0] for name in sys.modules}\n"
        "    assert not found & {'torch', 'numpy', 'sympy', 'grpc'}, found\n"
        "    return status\n"
        "loader.run = look\n"
    )
    try:
        process = starter.load()
        answer, fds = process.ask(artifact)
        assert isinstance(answer, ReadDone)
        for fd in fds:
            os.close(fd)
        how = process.how_ended()
        assert how == "exit code 0", starter.finish()
    finally:
        starter.close()
