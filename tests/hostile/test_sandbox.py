"""What a child can't do any more, tried in a process that has given it up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumuxd.wire.sandbox import Measure, landlock_abi
from gpumuxd.wire.seccomp import FilterPolicy, build_filter

TIMEOUT_S = 60

PROBE = r"""
import ctypes, fcntl, json, os, resource, sys, threading
folder, kind = sys.argv[1:]
os.mkdir(folder + "/cache")
from gpumuxd.wire.sandbox import Policy, confine
policy = Policy() if kind == "loader" else Policy(
    may_read_files=True, writable_folder=folder + "/cache", leaves_root=False, is_dumpable=True)
earlier = threading.Event()
threading.Thread(target=earlier.wait, daemon=True).start()
status_file = open("/proc/self/status")
confinement = confine(policy)
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
machine = os.uname().machine
column = ["x86_64", "aarch64"].index(machine)
def open_to(flags):
    return lambda: os.open(folder + "/new", flags, 0o600)
def thread():
    thread = threading.Thread(target=list)
    thread.start()
    thread.join()
attempts = {
    "fork": os.fork,
    "exec": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "socketpair": lambda: call([53, 199][column], 1, 1, 0, 0),
    "socket": lambda: call([41, 198][column], 2, 1, 0),
    "connect": lambda: call([42, 203][column], 0, 0, 0),
    "bind": lambda: call([49, 200][column], 0, 0, 0),
    "ptrace": lambda: call([101, 117][column], 16, os.getppid(), 0, 0),
    "bpf": lambda: call([321, 280][column], 0, 0, 0),
    "io_uring": lambda: call(425, 1, 0),
    "keyctl": lambda: call([250, 219][column], 0, 0),
    "userfaultfd": lambda: call([323, 282][column], 0),
    "perf_event_open": lambda: call([298, 241][column], 0, 0, 0, 0, 0),
    "mount": lambda: call([165, 40][column], 0, 0, 0, 0, 0),
    "a call of the future": lambda: call(999),
    "kill the parent": lambda: os.kill(os.getppid(), 0),
    "kill the group": lambda: os.kill(0, 0),
    "kill all": lambda: os.kill(-1, 0),
    "limits of the parent": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU),
    "become root": lambda: os.setuid(0),
    "chmod": lambda: os.chmod(folder, 0o777),
    "symlink": lambda: os.symlink("/etc", folder + "/link"),
    "create": open_to(os.O_CREAT | os.O_WRONLY),
    "create by reading": open_to(os.O_CREAT | os.O_RDONLY),
    "unnamed": lambda: os.open(folder, os.O_TMPFILE | os.O_RDWR),
    "write": lambda: os.open("/dev/null", os.O_WRONLY),
    "remove": lambda: os.remove(folder + "/there"),
    "rename": lambda: os.rename(folder + "/there", folder + "/gone"),
    "truncate": lambda: os.truncate(folder + "/there", 0),
    "mkdir": lambda: os.mkdir(folder + "/new"),
    "write into a terminal": lambda: fcntl.ioctl(0, 0x5412, b"x"),
    "read": lambda: open("/etc/passwd"),
    "list": lambda: os.listdir("/"),
    "cache": lambda: open(folder + "/cache/x", "w").close(),
    "replace in cache": lambda: os.replace(folder + "/cache/x", folder + "/cache/y"),
    "memfd": lambda: os.memfd_create("x"),
    "thread": thread,
    "signal to itself": lambda: os.kill(os.getpid(), 0),
    "own limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)),
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "works"
    except OSError as error:
        found[name] = error.strerror
status = dict(line.split(":\t", 1) for line in status_file.read().splitlines())
print(json.dumps([found, list(confinement.applied), confinement.missing, status]))
"""

ALWAYS_ALLOWED = {"memfd", "thread", "signal to itself", "own limits"}
OF_DEVICES = ALWAYS_ALLOWED | {"read", "list", "cache", "replace in cache"}


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        pytest.param("loader", ALWAYS_ALLOWED, id="loader"),
        pytest.param("device", OF_DEVICES, id="device"),
    ],
)
def test_what_is_left(kind: str, allowed: set[str], tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path), kind],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found, applied, missing, status = json.loads(done.stdout)
    assert {name for name, result in found.items() if result == "works"} == allowed
    needed = {Measure.NO_NEW_PRIVILEGES, Measure.UNPRIVILEGED, Measure.SECCOMP}
    if landlock_abi() > 0:
        needed.add(Measure.LANDLOCK)
    assert needed <= set(applied), missing
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert (tmp_path / "there").read_bytes() == b"x"
    assert {path.name for path in tmp_path.iterdir()} == {"there", "cache"}
    if kind == "loader" and os.geteuid() == 0:
        assert status["Uid"].split() == ["65534"] * 4
        assert status["Groups"].strip() == ""


def test_a_machine_without_a_table_is_told() -> None:
    assert build_filter("riscv64", FilterPolicy(), 1) is None


def test_a_driver_can_be_left_what_it_needs() -> None:
    whole = build_filter("x86_64", FilterPolicy(), 1)
    less = build_filter("x86_64", FilterPolicy(allowed=("socket", "connect")), 1)
    assert whole is not None
    assert less is not None
    assert len(whole) - len(less) == 2 * 2 * 8, "two calls, a comparison and a verdict each"


def test_what_a_kernel_lacks_is_told_and_the_rest_applied() -> None:
    """Every measure fails here, in a process that has no such calls any more."""
    program = (
        "import sys\n"
        "from gpumuxd.wire import sandbox\n"
        "def refuse(*_):\n"
        "    raise OSError(38, 'Function not implemented')\n"
        "sandbox._system_call = refuse\n"
        "confinement = sandbox.confine(sandbox.Policy())\n"
        "print(*confinement.applied)\n"
        "print(*[measure for measure, reason in confinement.missing if reason])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.stdout.splitlines() == [
        "no_new_privileges not_dumpable",
        "unprivileged landlock seccomp",
    ], done.stderr
