"""The file of a recording: what is in it, byte for byte.

    MAGIC, then blocks: kind (1 byte), length (4), CRC-32 of the content (4), content
    H   a Header: what was recorded where        S   the scheduler at that moment (`graph.py`)
    R   records, a msgpack list of lists         E   an End: counts, hash, why it ended

    [0, now_ns, check]      poll_fates(now_ns) is called
    [1, now_ns, check]      poll_launches(now_ns) is called
    [2 + n, now_ns, event]  handle(event, now_ns) is called; n is the event's place in `Event`

A record is made before the call, so that a call that fails is in it too. `check` is a CRC-32 over
all commands before it, which finds where a replay differs first. Tensors are never in it; names of
models and tenants are.

The child writes all of it; everybody on the way to the file only passes bytes on. It must not know
how to take a recording or what to do with one. Invariant: what was written up to any end of a block
is a recording, only one without an End.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO, get_args

import msgspec

from gpumuxd.commands import Command
from gpumuxd.domain import Bucket
from gpumuxd.events import Event, ModelReady, RequestArrived
from gpumuxd.settings import DeviceSettings

MAGIC = b"gpumuxd recording 1\n"
SUFFIX = ".gpumuxd"

FATES = 0
LAUNCHES = 1
EVENT_TYPES: tuple[type[Event], ...] = get_args(Event)
CODE_OF_EVENT = {kind: code for code, kind in enumerate(EVENT_TYPES, start=2)}

_BLOCK = struct.Struct("<cII")
_LIST = struct.Struct(">BI")
_LIST_32 = 0xDD  # how a msgpack list with a 32-bit length begins

encode = msgspec.msgpack.Encoder().encode


class Header(msgspec.Struct, frozen=True):
    """What was recorded. `began_ns` is monotonic, as all times of records; `began_unix_s` is for
    people."""

    gpumuxd_version: str
    device: str
    settings: DeviceSettings
    python_version: str
    torch_version: str
    machine: str
    began_ns: int
    began_unix_s: int


class End(msgspec.Struct, frozen=True):
    """The last block."""

    reason: str
    ended_ns: int
    records: int
    commands: int
    commands_hash: str


class CommandHash:
    """A hash over all commands in their order, and the short check of it that records carry."""

    __slots__ = ("_hash", "check", "count")

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.check = 0
        self.count = 0

    def update(self, commands: Sequence[Command]) -> None:
        # Each message with the names of its fields, and no two have the same names: that is
        # canonical without naming types.
        data = encode(commands)
        self.check = zlib.crc32(data, self.check)
        self._hash.update(data)
        self.count += len(commands)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def block(kind: bytes, content: bytes | bytearray) -> bytes:
    """A block as it lies in the file."""
    return _BLOCK.pack(kind, len(content), zlib.crc32(content)) + content


def record_block(records: bytes | bytearray, count: int) -> bytes:
    """A block of `count` encoded records."""
    return block(b"R", _LIST.pack(_LIST_32, count) + records)


class BadRecording(Exception):
    """A file that can't be replayed, or no further: the message is for people."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One call of the scheduler: what came in is a `check` or an event, still encoded."""

    code: int
    now_ns: int
    content: msgspec.Raw


_headers = msgspec.msgpack.Decoder(Header)
_ends = msgspec.msgpack.Decoder(End)
_records = msgspec.msgpack.Decoder(list[Record])
_checks = msgspec.msgpack.Decoder(int)
_events: list[msgspec.msgpack.Decoder[Any]] = [msgspec.msgpack.Decoder(t) for t in EVENT_TYPES]

GROUPS_MAX = 1_000_000
"""Groups of a program."""

CELLS_MAX = 4_000_000
"""Groups times sizes, of all programs of a file. For each of them the scheduler makes a table of
that length before it sees a single time, so a few bytes may ask for a lot of memory. A program of
120 groups that was run at 30 sizes has 3,600."""

TOO_DEEP = "it is nested too deep"

Call = tuple[int, int, Event | int]
"""Code, time, and the event or the check."""


def read_call(record: Record) -> Call:
    """What a record says. Raises BadRecording."""
    try:
        if record.code in (FATES, LAUNCHES):
            return record.code, record.now_ns, _checks.decode(record.content)
        if not 2 <= record.code < 2 + len(EVENT_TYPES):
            raise BadRecording(f"there is no record of kind {record.code}")
        event: Event = _events[record.code - 2].decode(record.content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecording(
            f"not what a record of kind {record.code} holds: {_why(error)}"
        ) from error
    profile = getattr(event, "profile", None)
    if profile is not None and not 1 <= profile.group_count <= GROUPS_MAX:
        raise BadRecording(f"a program of {profile.group_count} groups")
    return record.code, record.now_ns, event


def _why(error: Exception) -> str:
    return TOO_DEEP if isinstance(error, RecursionError) else str(error)


class Cells:
    """Counts the tables that a scheduler may make of what it is told. See `CELLS_MAX`."""

    def __init__(self) -> None:
        self._groups: dict[str, int] = {}
        self._sizes: set[tuple[str, Bucket]] = set()
        self._count = 0

    def count(self, event: Event) -> None:
        """Raises BadRecording."""
        match event:
            case ModelReady(model=model, profile=profile):
                self._groups[model] = profile.group_count
                self._sizes = {one for one in self._sizes if one[0] != model}
                self._count += profile.group_count
                for bucket in profile.group_ns:
                    self._add(model, bucket)
            case RequestArrived(model=model, bucket=bucket):
                self._add(model, bucket)
            case _:
                return
        if self._count > CELLS_MAX:
            raise BadRecording(
                f"its programs have over {CELLS_MAX} groups, each counted once for each size"
            )

    def _add(self, model: str, bucket: Bucket) -> None:
        if model in self._groups and (model, bucket) not in self._sizes:
            self._sizes.add((model, bucket))
            self._count += self._groups[model]


def checked(events: Sequence[Event]) -> list[Event]:
    """Events that were made of a file's state, as a file could tell them itself: what their fields
    hold is of their types then. Raises BadRecording."""
    told = []
    try:
        for event in events:
            code = CODE_OF_EVENT[type(event)]
            told.append(read_call(Record(code, 0, msgspec.Raw(encode(event))))[2])
    except (TypeError, ValueError, OverflowError, RecursionError, KeyError) as error:
        raise BadRecording(f"its state can't be used: {_why(error)}") from error
    return [event for event in told if not isinstance(event, int)]


class Contents(msgspec.Struct, frozen=True):
    """A file that was read as far as it goes. `broken` says why it goes no further, if it does
    not: the blocks before are good. Without an `end` it was broken off between two blocks."""

    header: Header
    state: bytes
    calls: list[Call]
    end: End | None
    broken: str


def read(file: BinaryIO, size_bytes: int) -> Contents:
    """Read a recording. Raises BadRecording when it has not even a beginning."""
    if file.read(len(MAGIC)) != MAGIC:
        raise BadRecording(
            "not a recording of this version's format (`gpumuxctl record` makes one)"
        )
    reader = _Reader(file, size_bytes)
    try:
        header, state = reader.read_header(), reader.read_one(b"S")
    except BadRecording as error:
        raise BadRecording(
            f"{error} (byte {reader.offset} of {size_bytes}, in its beginning: the state of the "
            "scheduler is not whole, and without it nothing in the file can be used)"
        ) from error
    calls: list[Call] = []
    end: End | None = None
    broken = ""
    try:
        while end is None and (found := reader.next_block()) is not None:
            kind, content = found
            if kind == b"E":
                end = _ends.decode(content)
            elif kind == b"R":
                calls += [read_call(record) for record in _records.decode(content)]
            else:
                raise BadRecording(f"a block of kind {kind!r} has no place there")
        if end is not None and end.records != len(calls):
            raise BadRecording(f"its end tells of {end.records} records")
    except (BadRecording, msgspec.DecodeError, RecursionError) as error:
        broken = f"{_why(error)} (byte {reader.offset}, after {len(calls)} good records)"
    return Contents(header, state, calls, end, broken)


class _Reader:
    """Blocks one by one; `offset` is where the last good one ended."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self.offset = len(MAGIC)

    def next_block(self) -> tuple[bytes, bytes] | None:
        left_bytes = self._size_bytes - self.offset
        if left_bytes == 0:
            return None
        head = self._file.read(_BLOCK.size)
        if len(head) < _BLOCK.size:
            raise BadRecording("it ends in the middle of a block")
        kind, length, check = _BLOCK.unpack(head)
        if length > left_bytes - _BLOCK.size:
            raise BadRecording("it ends in the middle of a block")
        content = self._file.read(length)
        if len(content) < length or zlib.crc32(content) != check:
            raise BadRecording("a block was changed or cut")
        self.offset += _BLOCK.size + length
        return kind, content

    def read_one(self, kind: bytes) -> bytes:
        found = self.next_block()
        if found is None or found[0] != kind:
            raise BadRecording(f"it has no block {kind.decode()} where one has to be")
        return found[1]

    def read_header(self) -> Header:
        try:
            return _headers.decode(self.read_one(b"H"))
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRecording(f"its header is of another version: {_why(error)}") from error
