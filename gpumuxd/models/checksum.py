"""The checksum that may lie beside an artifact: `model.pt2.sha256`, as `sha256sum` writes it.

    <64 hexadecimal digits>  model.pt2

It must not read the artifact; whoever does that knows its hash and compares.
"""

import os
import re
from pathlib import Path

from gpumuxd.errors import InvalidModel
from gpumuxd.models.files import NotRegular, open_regular

SUFFIX = ".sha256"
_BYTES_MAX = 1024

# sha256sum marks with a star what it read in binary mode.
_LINE = re.compile(rb"([0-9a-fA-F]{64}) [ *]([^\r\n]+)\r?\n?")


def read_checksum(path: Path, artifact_name: str) -> str | None:
    """The hash in the file at `path`, a real path; None where there is no such file.

    Raises InvalidModel for one that can't be read or says nothing of this artifact: who publishes a
    checksum wants it to be checked.
    """
    name = artifact_name + SUFFIX
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except NotRegular as error:
        raise InvalidModel(f"{name} {error}") from None
    except OSError as error:
        raise InvalidModel(f"{name} can't be read: {error.strerror}") from error
    found = _LINE.fullmatch(data)
    if found is None or os.path.basename(found[2]) != artifact_name.encode():
        raise InvalidModel(
            f"{name}: expected one line of 64 hexadecimal digits, two spaces and {artifact_name!r}"
        )
    return found[1].decode().lower()


def check_hash(expected: str | None, actual: str, artifact_name: str) -> None:
    """Raise InvalidModel unless the artifact is what its checksum says."""
    if expected is not None and expected != actual:
        raise InvalidModel(
            f"{artifact_name} is not what {artifact_name}{SUFFIX} says: expected {expected}, "
            f"got {actual}"
        )
