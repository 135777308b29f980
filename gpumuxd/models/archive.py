"""The zip around an artifact: named members of bounded size, read without trusting the archive.

It must not know what the members mean. torch writes every member uncompressed, so a compressed one
is refused: what the file holds is what memory will hold, and there is no bomb to defuse.
"""

import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, Self

from gpumuxd.errors import InvalidModel
from gpumuxd.models.limits import ReadLimits

GRAPH_MEMBER = "models/model.json"

_OLD_GRAPH_MEMBER = "serialized_exported_program.json"
_COPY_BYTES = 1 << 20
_HEADER_BYTES = 30
"""In front of each member's name and data."""

_FLAGS = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
"""Members whose content says which kind of archive this is."""

Sink = Callable[[bytes], object]


class Archive:
    """An opened artifact. `file` stays the caller's."""

    def __init__(self, file: BinaryIO, limits: ReadLimits) -> None:
        size_bytes = file.seek(0, 2)
        if size_bytes > limits.artifact_bytes_max:
            raise InvalidModel(
                f"artifact of {size_bytes} bytes, "
                f"the limit (artifact_bytes_max) is {limits.artifact_bytes_max}"
            )
        with _damage_as_invalid_model("the archive"):
            try:
                self._zip = zipfile.ZipFile(file)
            except zipfile.BadZipFile as error:
                file.seek(0)
                start = file.read(4)
                raise InvalidModel(
                    "expected a .pt2 archive written by torch.export.save (a zip file), "
                    f"got {size_bytes} bytes that begin with {start!r}: {error}"
                ) from error
        self._members = self._index(limits, size_bytes)
        self._check_kind()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._zip.close()

    def _index(self, limits: ReadLimits, size_bytes: int) -> dict[str, zipfile.ZipInfo]:
        """Members by their path below the archive's one root directory."""
        infos = self._zip.infolist()
        if len(infos) > limits.entries_max:
            raise InvalidModel(
                f"archive of {len(infos)} files, the limit (entries_max) is {limits.entries_max}"
            )
        members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            _, _, path = info.filename.partition("/")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise InvalidModel(
                    f"{info.filename!r} is compressed or encrypted: expected neither"
                )
            if info.file_size > size_bytes:
                raise InvalidModel(f"{info.filename!r} claims more bytes than the archive has")
            if path in members:
                raise InvalidModel(f"{path!r} is in the archive twice")
            if info.filename != info.orig_filename:
                raise InvalidModel(f"{info.orig_filename[:80]!r} is no plain name")
            members[path] = info
        _check_apart(infos)
        if not members or _OLD_GRAPH_MEMBER in {info.filename for info in infos}:
            raise InvalidModel("archive of an older torch or an empty one: export it again")
        return members

    def _check_kind(self) -> None:
        for member, expected in _FLAGS.items():
            if member not in self._members:
                raise InvalidModel(
                    f"expected a .pt2 archive written by torch.export.save, got a zip file "
                    f"without {member!r}"
                )
            actual = self.read(member, 64).strip()
            if actual != expected:
                raise InvalidModel(f"{member}: expected {expected.decode()!r}, got {actual!r}")

    def __contains__(self, member: str) -> bool:
        return member in self._members

    def size_bytes(self, member: str) -> int:
        """Size of a member. Raises InvalidModel if there is none."""
        return self._info(member).file_size

    def _info(self, member: str) -> zipfile.ZipInfo:
        if member not in self._members:
            raise InvalidModel(f"{member!r} is missing from the archive")
        return self._members[member]

    def read(self, member: str, bytes_max: int) -> bytes:
        """A small member, whole."""
        info = self._info(member)
        if info.file_size > bytes_max:
            raise InvalidModel(
                f"{member!r} of {info.file_size} bytes: expected at most {bytes_max}"
            )
        with _damage_as_invalid_model(member):
            data = self._zip.read(info)
        if len(data) != info.file_size:
            raise InvalidModel(f"{member!r} is cut off")
        return data

    def copy(self, member: str, sink: Sink) -> None:
        """Give a large member to `sink`, piece by piece; its checksum is verified on the way."""
        info = self._info(member)
        copied = 0
        with _damage_as_invalid_model(member), self._zip.open(info) as source:
            while piece := source.read(_COPY_BYTES):
                sink(piece)
                copied += len(piece)
        if copied != info.file_size:
            raise InvalidModel(f"{member!r} is cut off after {copied} of {info.file_size} bytes")


def _check_apart(infos: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse members that share bytes: a small file could hold any number of large ones."""
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise InvalidModel(f"{info.filename[:80]!r} overlaps another file in the archive")
        end = info.header_offset + _HEADER_BYTES + info.file_size


@contextmanager
def _damage_as_invalid_model(what: str) -> Iterator[None]:
    """zipfile reports a damaged file in many ways; all mean the same to a tenant."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InvalidModel(f"{what} is damaged: {error}") from error
    except (ValueError, OverflowError, UnicodeDecodeError, IndexError) as error:
        raise InvalidModel(f"{what} is damaged: {error}") from error
