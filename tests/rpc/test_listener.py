"""Addresses, and that nobody else gets one that is held."""

import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpumuxd.errors import ConfigError
from gpumuxd.rpc.holder import describe_process, tcp_holder
from gpumuxd.rpc.listener import (
    AddressInUse,
    TcpAddress,
    UnixAddress,
    UnixClaim,
    check_tcp_free,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8001", TcpAddress("127.0.0.1", 8001)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:8001", TcpAddress("::1", 8001)),
        ("unix:/run/a.sock", UnixAddress(Path("/run/a.sock"))),
        ("unix:///run/a.sock", UnixAddress(Path("/run/a.sock"))),
    ],
)
def test_addresses(text: str, address: TcpAddress | UnixAddress) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8001",
        ":8001",
        "host:",
        "host:port",
        "host:65536",
        "host:-1",
        "host:\u0661",
        "unix:",
        "unix:relative.sock",
        "unix:/a\0b",
        "unix-abstract:a",
        "unix:/" + "x" * 107,
    ],
)
def test_what_is_no_address_is_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        parse_address(text)


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(tmp_path / "door.sock")


def test_a_claim_is_exclusive_names_its_holder_and_leaves_nothing(address: UnixAddress) -> None:
    claim = UnixClaim.acquire(address)
    with pytest.raises(AddressInUse, match=f"process {os.getpid()} "):
        UnixClaim.acquire(address)
    claim.release()
    claim.release()
    assert list(address.path.parent.iterdir()) == []
    UnixClaim.acquire(address).release()


def test_a_claim_of_a_dead_process_is_taken_over(address: UnixAddress) -> None:
    # A process that claims, binds, and dies with no chance to clean up.
    script = (
        "import os, signal, socket\n"
        "from pathlib import Path\n"
        "from gpumuxd.rpc.listener import UnixAddress, UnixClaim\n"
        f"address = UnixAddress(Path({str(address.path)!r}))\n"
        "claim = UnixClaim.acquire(address)\n"
        "bound = socket.socket(socket.AF_UNIX)\n"
        "bound.bind(str(address.path))\n"
        "bound.listen()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert killed.returncode == -9
    assert address.path.is_socket()
    claim = UnixClaim.acquire(address)
    assert not address.path.exists()
    claim.release()


def test_a_listener_that_took_no_lock_is_left_alone(address: UnixAddress) -> None:
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(address.path))
        foreign.listen()
        with pytest.raises(AddressInUse, match=f"process {os.getpid()} "):
            UnixClaim.acquire(address)
        assert [path.name for path in address.path.parent.iterdir()] == ["door.sock"]


def test_a_listener_with_a_full_backlog_is_left_alone(address: UnixAddress) -> None:
    with socket.socket(socket.AF_UNIX) as foreign, socket.socket(socket.AF_UNIX) as waiting:
        foreign.bind(str(address.path))
        foreign.listen(0)
        waiting.connect(str(address.path))
        with pytest.raises(AddressInUse, match="in use"):
            UnixClaim.acquire(address)
        assert address.path.is_socket()


def test_a_file_that_is_no_socket_is_never_removed(address: UnixAddress) -> None:
    address.path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        UnixClaim.acquire(address)
    assert address.path.read_text() == "precious"


def test_a_lock_that_is_a_link_is_not_followed(address: UnixAddress) -> None:
    target = address.path.with_name("target")
    address.path.with_name("door.sock.lock").symlink_to(target)
    with pytest.raises(ConfigError, match="symbolic link"):
        UnixClaim.acquire(address)
    assert not target.exists()


def test_a_lock_that_is_a_pipe_is_waited_for_by_nobody(address: UnixAddress) -> None:
    pipe = address.path.with_name("door.sock.lock")
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="not a regular file"):
            UnixClaim.acquire(address)
    finally:
        os.close(held)


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        UnixClaim.acquire(UnixAddress(tmp_path / "absent" / "door.sock"))


def test_a_lock_without_a_pid_still_counts(address: UnixAddress) -> None:
    lock = address.path.with_name("door.sock.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(AddressInUse, match="another process"):
            UnixClaim.acquire(address)
    assert stat.S_ISREG(lock.stat().st_mode)


def test_a_tcp_port_in_use_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = TcpAddress("127.0.0.1", server.getsockname()[1])
        assert tcp_holder(held.port) == os.getpid()
        with pytest.raises(AddressInUse, match=f"{held} is in use by process {os.getpid()} "):
            check_tcp_free(held)
    check_tcp_free(held)
    assert tcp_holder(held.port) is None


def test_a_host_that_is_not_ours_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=re.escape("192.0.2.1:8001")):
        check_tcp_free(TcpAddress("192.0.2.1", 8001))


def test_a_process_that_is_gone_has_a_number_only() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=60)
    assert describe_process(gone.pid) == f"process {gone.pid}"
    assert describe_process(os.getpid()).startswith(f"process {os.getpid()} (")
