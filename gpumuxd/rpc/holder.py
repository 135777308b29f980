"""Which process listens on a TCP port, from /proc: for error messages only.

Knows what the kernel shows this user: sockets of another user's processes have a number but no
process. Every read may race with processes that end, which is no error.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def tcp_holder(port: int) -> int | None:
    """The pid of a process that listens on this port, None if that can't be seen."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and any(link in inodes for link in _open_files(process)):
            return int(process.name)
    return None


def describe_process(pid: int) -> str:
    """A process for people: `process 4711 (gpumuxd)`."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name})"


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            local_port = int(columns[1].rpartition(":")[2], 16)
            if columns[3] == _LISTEN and local_port == port:
                yield columns[9]


def _open_files(process: Path) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            yield os.readlink(descriptor)
        except OSError:
            continue
