"""Small JSON files that are worth keeping and that nobody depends on: read with care or not at all.

Whoever reads gets a value of the right type or nothing; whoever writes replaces the file at once,
so that readers never see half of one. It must not know what is in them.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from gpumuxd.models.files import NotRegular, open_regular

_FILE_BYTES_MAX = 16 * 1024 * 1024

T = TypeVar("T", bound=msgspec.Struct)


def read_stored(path: Path, kind: type[T]) -> T | None:
    """What is in a file; None if there is none, or not of this kind."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return msgspec.json.decode(file.read(_FILE_BYTES_MAX + 1), type=kind)
    except (OSError, NotRegular, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_stored(path: Path, value: msgspec.Struct) -> bool:
    """Replace a file, whose directory may be missing. False if that fails, which is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, msgspec.json.encode(value))
    except OSError:
        return False
    return True


def _replace(path: Path, data: bytes) -> None:
    fd, temporary = tempfile.mkstemp(prefix=".stored-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
