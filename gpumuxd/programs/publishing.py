"""Puts a whole artifact in its place and says what it takes. It must not know what computes it, nor
import torch."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpumuxd.errors import InvalidModel, InvalidRequest
from gpumuxd.models.checksum import SUFFIX
from gpumuxd.models.names import check_model_name, version_number
from gpumuxd.models.spec import ModelSpec, format_shape, format_size


def output_path(output: Path, artifact_name: str) -> Path:
    """The file that `-o` means: one with the artifact's suffix, or in a version's directory."""
    suffix = Path(artifact_name).suffix
    if output.suffix == suffix:
        return output
    if not output.name.isdecimal():
        hint = "" if output.suffix else f", such as {output / '1'}"
        raise InvalidModel(
            f"-o {output}: expected a {suffix} file or the directory of a version, "
            f"REPOSITORY/NAME/VERSION with a number as VERSION{hint}"
        )
    try:
        version_number(output.name)
        check_model_name(output.resolve().parent.name)
    except InvalidRequest as error:
        raise InvalidModel(f"-o {output}: {error}") from error
    return output / artifact_name


def print_artifact(path: Path, spec: ModelSpec) -> None:
    """What an export prints of what it wrote: the file and its signature."""
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB)")
    for what, tensors in (("in ", spec.inputs), ("out", spec.outputs)):
        for tensor in tensors:
            print(f"  {what} {tensor.name}: {tensor.datatype} {format_shape(tensor.shape)}")
    for symbol in spec.symbols:
        step = f", in multiples of {symbol.multiple}" if symbol.multiple > 1 else ""
        print(f"  {symbol.name}: {symbol.minimum} to {symbol.maximum}{step}")
    for condition in spec.conditions:
        print(f"  only where {format_size(condition)}")


def publish(unfinished: Path, path: Path) -> None:
    """Put a whole artifact in its place, with its checksum beside it.

    The old checksum goes first: a daemon that looks in between finds an artifact without one, which
    it serves, and never one that does not match.
    """
    checksum = path.with_name(path.name + SUFFIX)
    new_checksum = checksum.with_name(f".{checksum.name}")
    with unfinished.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        new_checksum.write_text(f"{digest}  {path.name}\n", encoding="utf-8")
        checksum.unlink(missing_ok=True)
        unfinished.replace(path)
        new_checksum.replace(checksum)
    finally:
        new_checksum.unlink(missing_ok=True)


@contextmanager
def folder_of(path: Path) -> Iterator[None]:
    """Makes the folders above `path`. Those that were made go again when the block fails."""
    missing = [folder for folder in path.parents if not folder.exists()]  # the deepest first
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # somebody else has put something there
            for folder in missing:
                folder.rmdir()
        raise
