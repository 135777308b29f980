"""Where the daemon can be reached: addresses, and the claim on each that keeps others off.

gRPC alone lets two daemons start on one address: TCP through SO_REUSEPORT, a Unix socket by
replacing its file. So an address is claimed before gRPC binds it. A Unix socket is guarded by a
lock file beside it, `<socket>.lock`, which the kernel lets go of when its holder dies; a socket
file without a living listener is removed.

Invariant: who holds a `UnixClaim` is the only one to create, replace or remove that socket.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from gpumuxd.errors import ConfigError
from gpumuxd.models.files import open_lock
from gpumuxd.node.api import Tenant
from gpumuxd.rpc.holder import describe_process, tcp_holder

SOCKET_MODE = 0o660
"""Connecting needs write permission: the daemon's user and group may."""

_UNIX_PREFIX = "unix:"
_PORT_DIGITS_MAX = 5
_UNIX_PATH_BYTES_MAX = 107  # sizeof(sockaddr_un.sun_path) - 1


class AddressInUse(Exception):
    """Another process holds an address; the message says which one where that can be known."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An address: `host:port`, `[ipv6]:port` or `unix:/path`.

    With a `tenant` every call on it is that tenant's; without, a call needs a bearer token or,
    where it is encrypted and clients show certificates, one of those.
    """

    address: str
    tenant: Tenant | None = None
    is_encrypted: bool = False


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file."""

    path: Path

    def __str__(self) -> str:
        return f"{_UNIX_PREFIX}{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> UnixAddress | TcpAddress:
    """Raises ConfigError that shows the address and what was expected."""
    if text.startswith(_UNIX_PREFIX):
        path = text.removeprefix(_UNIX_PREFIX)
        path = path.removeprefix("//")  # unix:///path is as common as unix:/path
        if not path.startswith("/") or "\0" in path:
            raise ConfigError(f"listener {text!r}: expected unix:/absolute/path")
        if len(os.fsencode(path)) > _UNIX_PATH_BYTES_MAX:
            raise ConfigError(
                f"listener {text!r}: a socket's path has at most {_UNIX_PATH_BYTES_MAX} bytes"
            )
        return UnixAddress(Path(path))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS_MAX
    if not colon or not host or not is_number or int(port) > 65535:
        raise ConfigError(f"listener {text!r}: expected host:port or unix:/absolute/path")
    return TcpAddress(host, int(port))


def check_tcp_free(address: TcpAddress) -> None:
    """Raise AddressInUse or ConfigError if it can't be bound.

    gRPC's own error names neither the reason nor the holder. A process that takes the port
    between this check and gRPC's bind still makes the latter fail.
    """
    if address.port == 0:
        return
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"listener {address}: {error.strerror or error}") from None
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(target)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise AddressInUse(tcp_in_use(address)) from None
                raise ConfigError(f"listener {address}: {error.strerror}") from None


def tcp_in_use(address: TcpAddress) -> str:
    """The message for a port that another process holds."""
    holder = tcp_holder(address.port)
    if holder is None:
        return f"{address} is in use by a process of another user or network namespace"
    return f"{address} is in use by {describe_process(holder)}"


class UnixClaim:
    """The right to listen on a socket file, from `acquire` to `release`."""

    def __init__(self, address: UnixAddress, lock_fd: int) -> None:
        self._address = address
        self._lock_fd = lock_fd

    @classmethod
    def acquire(cls, address: UnixAddress) -> "UnixClaim":
        """Raise AddressInUse while another process listens there, ConfigError if nobody can."""
        try:
            claim = cls(address, _lock(address))
        except OSError as error:
            raise ConfigError(f"listener {address}: {error.strerror}") from None
        try:
            _remove_stale_socket(address)
        except OSError as error:
            claim.release()
            raise ConfigError(f"listener {address}: {error.strerror}") from None
        except BaseException:
            claim.release()
            raise
        return claim

    def release(self) -> None:
        """Remove the lock file. Idempotent. The socket file must be gone or without a listener."""
        if self._lock_fd < 0:
            return
        # Unlinked while locked, so that nobody's new lock file is removed by mistake.
        _lock_path(self._address).unlink(missing_ok=True)
        os.close(self._lock_fd)
        self._lock_fd = -1


def _lock_path(address: UnixAddress) -> Path:
    return address.path.with_name(address.path.name + ".lock")


def _lock(address: UnixAddress) -> int:
    """A descriptor that holds the lock file, with our pid in it."""
    path = _lock_path(address)
    while True:
        fd = open_lock(path, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(fd, 32).decode("ascii", "replace").strip()
            os.close(fd)
            holder = describe_process(int(text)) if text.isdigit() else "another process"
            raise AddressInUse(f"{address} is in use by {holder}") from None
        except BaseException:
            os.close(fd)
            raise
        if _is_same_file(fd, path):
            break
        os.close(fd)  # its holder removed it between our open and our lock
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _remove_stale_socket(address: UnixAddress) -> None:
    try:
        mode = address.path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"listener {address}: a file that is not a socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(address.path))
        except (ConnectionRefusedError, FileNotFoundError):
            address.path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            # Its backlog is full, so someone listens, and we can't ask who.
            raise AddressInUse(f"{address} is in use by another process") from None
        # A listener that took no lock: some other program.
        holder = describe_process(_peer_pid(probe))
    raise AddressInUse(f"{address} is in use by {holder}")


def _peer_pid(connected: socket.socket) -> int:
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return int(pid)
