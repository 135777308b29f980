"""Zip files byte by byte, so that any field can lie."""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One member; whatever is None is told truthfully."""

    name: str
    data: bytes = b""
    method: int = 0
    flags: int = 0
    crc: int | None = None
    size: int | None = None
    stored_size: int | None = None
    offset: int | None = None
    local_name: str | None = None
    extra: bytes = b""
    attributes: int = 0
    is_listed_only: bool = False
    """In the central directory alone, without a header and data of its own."""


def build(
    entries: Iterable[Entry],
    *,
    count: int | None = None,
    directory_size: int | None = None,
    directory_offset: int | None = None,
    comment: bytes = b"",
    lead: bytes = b"",
) -> bytes:
    """The file. `lead` is put in front, with offsets that count it."""
    out = bytearray(lead)
    directory = bytearray()
    listed = 0
    for entry in entries:
        name = entry.name.encode("utf-8", "surrogateescape")
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        size = len(entry.data) if entry.size is None else entry.size
        stored = len(entry.data) if entry.stored_size is None else entry.stored_size
        offset = len(out) if entry.offset is None else entry.offset
        if not entry.is_listed_only:
            local = name if entry.local_name is None else entry.local_name.encode()
            fields = (20, entry.flags, entry.method, 0, 33, crc, stored, size, len(local), 0)
            out += b"PK\3\4" + struct.pack("<5H3L2H", *fields) + local + entry.data
        directory += (
            b"PK\1\2"
            + struct.pack("<6H3L", 20, 20, entry.flags, entry.method, 0, 33, crc, stored, size)
            + struct.pack("<5H2L", len(name), len(entry.extra), 0, 0, 0, entry.attributes, offset)
            + name
            + entry.extra
        )
        listed += 1
    at = len(out) if directory_offset is None else directory_offset
    length = len(directory) if directory_size is None else directory_size
    told = min(listed if count is None else count, 0xFFFF)
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, told, told, length, at, len(comment))
    return bytes(out + directory + end + comment)


def zip64_sizes(*numbers: int) -> bytes:
    """The extra field that carries sizes beyond 32 bits."""
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers)
