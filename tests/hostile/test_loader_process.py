"""A loader that an artifact brings down, or makes large or slow, costs that one load."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import GpumuxdError, InvalidModel, ModelNotReady
from gpumuxd.node.child_process import SPAWN_STARTER, Child, ChildProcess
from gpumuxd.node.loader_starter import LoaderStarter
from gpumuxd.node.loading import Loading
from gpumuxd.node.settings import LoaderSettings, RestartSettings
from gpumuxd.units import MIB, NS_PER_S
from gpumuxd.wire.frames import ReadFailed
from tests.hostile.zips import Entry, build
from tests.loader.harness import TIMEOUT_S, Starter, starter_command
from tests.models import archives


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    path.write_bytes(archives.archive(archives.members()).getvalue())
    return path


class Brought:
    """Spawns a starter to whose loaders the artifact does something; then ordinary ones."""

    def __init__(self, what: str, pid_path: Path) -> None:
        self._changes = (
            "def read(*_):\n"
            f"    {what}\n"
            "def note_pid(*arguments):\n"
            f"    open({str(pid_path)!r}, 'w').write(str(os.getpid()))\n"
            "    return run(*arguments)\n"
            "loader.read = read\n"
            "loader.run = note_pid\n"
        )
        self.count = 0

    def __call__(self, peer: socket.socket, environment: Mapping[str, str]) -> Child:
        self.count += 1
        if self.count > 1:
            return SPAWN_STARTER(peer, environment)
        fd = peer.fileno()
        process = subprocess.Popen(
            [*starter_command(self._changes), str(fd)],
            pass_fds=(fd,),
            env=dict(environment),
            stderr=subprocess.DEVNULL,
        )
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
    pid_path = artifact.with_name("pid")
    spawn = Brought(what, pid_path)
    starter = LoaderStarter(RestartSettings(), monotonic_ns, spawn)
    seconds = 3 if "pause" in what else TIMEOUT_S
    loading = Loading(LoaderSettings(read_ns_max=seconds * NS_PER_S), starter.spawn)
    try:
        with pytest.raises(error, match=reason):
            await loading.read(artifact)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_path.read_text()), 0)
        # What crashed knows something of the memory of its starter's other loaders.
        is_orderly = "pause" in what or "bytearray" in what
        assert spawn.count == (1 if is_orderly else 2)
        if "SIGSEGV" in what:  # one is enough: an ordinary loader yields to all else
            async with asyncio.timeout(TIMEOUT_S):
                (await loading.read(artifact)).close()
    finally:
        starter.close()


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
def look(*arguments):
    status = open("/proc/self/status")  # later it may open nothing
    code = run(*arguments)
    print(next(line for line in status if line.startswith("VmHWM:")), file=sys.stderr)
    return code
loader.run = look
"""


def peak_bytes(path: Path) -> int:
    """The most memory a loader had that refuses an artifact. By itself: what the kernel tells of
    a child that has ended counts what its parent had when it forked."""
    starter = Starter(LOOKS_AT_ITSELF)
    fd = os.open(path, os.O_RDONLY)
    try:
        loader = starter.load()
        answer, _ = loader.ask(fd)
        assert isinstance(answer, ReadFailed), answer
        assert loader.how_ended() == "exit code 0", starter.finish()
        return int(starter.finish().split()[1]) * 1024
    finally:
        os.close(fd)
        starter.close()
