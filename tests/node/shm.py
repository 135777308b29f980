"""Shared memory objects of a test, as files: gone when it ends."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

DIRECTORY = Path("/dev/shm")


class Objects:
    """Objects with names of their own."""

    def __init__(self) -> None:
        self.made: list[Path] = []

    def path(self) -> Path:
        """Of an object that is not there yet."""
        path = DIRECTORY / f"gpumuxd-test-{os.getpid()}-{len(self.made)}"
        self.made.append(path)
        return path

    def make(self, data: bytes) -> Path:
        path = self.path()
        path.write_bytes(data)
        return path


@contextlib.contextmanager
def objects() -> Iterator[Objects]:
    made = Objects()
    try:
        yield made
    finally:
        for path in made.made:
            with contextlib.suppress(IsADirectoryError):
                path.unlink(missing_ok=True)


def open_objects(pid: int | str = "self") -> list[str]:
    """What a process has open in shared memory."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            if target.startswith(f"{DIRECTORY}/gpumuxd-test-"):
                found.append(target)
    return found
