"""A loader that an artifact brings down, or makes large or slow, costs that one load."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpumuxd.errors import GpumuxdError, InvalidModel, ModelNotReady
from gpumuxd.node.child_process import SPAWN_LOADER, Child, ChildProcess
from gpumuxd.node.loading import Loading
from gpumuxd.node.settings import LoaderSettings
from gpumuxd.units import MIB, NS_PER_S
from gpumuxd.wire.frames import ReadFailed
from tests.hostile.zips import Entry, build
from tests.loader.test_loader import TIMEOUT_S, Process
from tests.models import archives


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    path.write_bytes(archives.archive(archives.members()).getvalue())
    return path


class Brought:
    """Spawns loaders that the artifact does something to, the first time; then ordinary ones."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.pids: list[int] = []

    def __call__(self, peer: socket.socket, environment: Mapping[str, str]) -> Child:
        if self.pids:
            return SPAWN_LOADER(peer, environment)
        program = (
            "import os, signal, sys\n"
            "from gpumuxd.loader import main as loader\n"
            "def read(*_):\n"
            f"    {self._what}\n"
            "loader.read = read\n"
            "sys.exit(loader.main(sys.argv[1:]))\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(peer.fileno())],
            pass_fds=(peer.fileno(),),
            env=dict(environment),
            stderr=subprocess.DEVNULL,
        )
        self.pids.append(process.pid)
        return ChildProcess(process)


@pytest.mark.parametrize(
    ("what", "error", "reason"),
    [
        pytest.param(
            "os.kill(os.getpid(), signal.SIGSEGV)", InvalidModel, "SIGSEGV", id="segmentation fault"
        ),
        pytest.param("os.abort()", InvalidModel, "SIGABRT", id="abort"),
        pytest.param("os._exit(7)", InvalidModel, "exit code 7", id="exit"),
        pytest.param("raise KeyError(1)", InvalidModel, "crash", id="a bug of the reader"),
        pytest.param("def f(): f()\n    f()", InvalidModel, "crash", id="endless recursion"),
        pytest.param("bytearray(8 << 30)", InvalidModel, "more than", id="8 GiB"),
        pytest.param("signal.pause()", ModelNotReady, "took over 3 s", id="hangs"),
        pytest.param("os.kill(os.getpid(), 9)", ModelNotReady, "SIGKILL", id="killed"),
    ],
)
async def test_it_is_an_error_of_this_load_alone(
    what: str, error: type[GpumuxdError], reason: str, artifact: Path
) -> None:
    spawn = Brought(what)
    seconds = 3 if "pause" in what else TIMEOUT_S
    loading = Loading(LoaderSettings(read_ns_max=seconds * NS_PER_S), spawn)
    with pytest.raises(error, match=reason):
        await loading.read(artifact)
    with pytest.raises(ProcessLookupError):
        os.kill(spawn.pids[0], 0)
    if "SIGSEGV" in what:  # one is enough: an ordinary loader yields to all else on the machine
        async with asyncio.timeout(TIMEOUT_S):
            (await loading.read(artifact)).close()


LARGE = [
    # what is large                          the archive
    ("nested a million deep", archives.members() | {"models/model.json": b"[" * 60_000_000}),
    ("ten million numbers", archives.members() | {"models/model.json": b"[" + b"1," * 10_000_000}),
    ("a name of 50 MB", archives.members() | {"models/model.json": b'{"' + b"a" * 50_000_000}),
]  # fmt: skip


@pytest.mark.parametrize("files", [pytest.param(files, id=what) for what, files in LARGE])
def test_its_memory_stays_within_the_limit(files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archives.archive(files).getvalue())
    assert peak_bytes(path) < 512 * MIB


def test_a_directory_of_many_members_costs_little(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(build([Entry(f"m/{i}", is_listed_only=True) for i in range(60_000)]))
    assert peak_bytes(path) < 256 * MIB


LOOKS_AT_ITSELF = """
import sys
status = open("/proc/self/status")  # later it may open nothing
from gpumuxd.loader.main import main
code = main(sys.argv[1:])
print(next(line for line in status if line.startswith("VmHWM:")), file=sys.stderr)
sys.exit(code)
"""


def peak_bytes(path: Path) -> int:
    """The most memory a loader had that refuses an artifact. By itself: what the kernel tells of
    a child that has ended counts what the parent had when it forked."""
    process = Process(sys.executable, "-c", LOOKS_AT_ITSELF)
    fd = os.open(path, os.O_RDONLY)
    try:
        answer, _ = process.ask(fd)
        assert isinstance(answer, ReadFailed), answer
        _, errors = process.popen.communicate(timeout=TIMEOUT_S)
        assert process.popen.returncode == 0, errors
        return int(errors.split()[1]) * 1024
    finally:
        os.close(fd)
        process.close()
