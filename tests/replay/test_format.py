"""A file that was cut, changed or made up: said how far it is good, and nothing worse happens."""

import random
import struct
import zlib

import msgspec
import pytest

from gpumuxd.device.recorder import header_of
from gpumuxd.domain import PriorityClass
from gpumuxd.events import ModelProfile, ModelReady
from gpumuxd.replay import format as layout
from gpumuxd.replay.format import BadRecording
from gpumuxd.replay.same import replay
from gpumuxd.settings import DeviceSettings
from tests.replay.recorded import parse, record

HEADER = layout.block(b"H", layout.encode(header_of(DeviceSettings(), "2", 0)))
STATE = layout.block(b"S", b"")


@pytest.fixture(scope="module")
def good() -> bytes:
    return record(1)[0][0].data()


def file_of(*blocks: bytes) -> bytes:
    return b"".join([layout.MAGIC, HEADER, STATE, *blocks])


def records(*content: object) -> bytes:
    return layout.record_block(b"".join(layout.encode(one) for one in content), len(content))


def test_a_file_that_was_cut_anywhere_says_how_far_it_is_good(good: bytes) -> None:
    whole = parse(good)
    assert whole.end is not None
    seen: set[int] = set()
    for cut in [*range(0, len(good), 4999), len(good) - 1]:
        try:
            contents = parse(good[:cut])
        except BadRecording:
            continue  # in its beginning
        assert contents.end is None
        assert contents.calls == whole.calls[: len(contents.calls)]
        if contents.broken:
            assert f"after {len(contents.calls)} good records" in contents.broken
            assert "it ends in the middle of a block" in contents.broken
        seen.add(len(contents.calls))
        assert replay(contents).failure == ""
    assert seen


def test_a_changed_byte_is_found_wherever_it_is(good: bytes) -> None:
    draw = random.Random("changed bytes")
    for _ in range(25):
        place = draw.randrange(len(layout.MAGIC), len(good))
        changed = bytearray(good)
        changed[place] ^= 1 << draw.randrange(8)
        try:
            contents = parse(bytes(changed))
        except BadRecording:
            continue
        assert contents.broken, place
        assert replay(contents).failure == ""


BAD_BEGINNINGS = [
    (b"", "not a recording"),
    (b"PK\x03\x04", "not a recording"),
    (layout.MAGIC, "no block H"),
    (layout.MAGIC + STATE, "no block H"),
    (layout.MAGIC + HEADER, "no block S"),
    (layout.MAGIC + HEADER + HEADER, "no block S"),
    (layout.MAGIC + layout.block(b"H", b"\x80"), "header is of another version"),
    (layout.MAGIC + layout.block(b"H", b"\xc1"), "header is of another version"),
    (layout.MAGIC + struct.pack("<cII", b"H", 2**32 - 1, 0), "in the middle of a block"),
    (layout.MAGIC + HEADER[:-1], "in the middle of a block"),
]


@pytest.mark.parametrize(("data", "says"), BAD_BEGINNINGS)
def test_a_file_without_a_beginning_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(BadRecording, match=says):
        parse(data)


def ready(group_count: int) -> object:
    event = ModelReady("m", ModelProfile(group_count), PriorityClass.STANDARD)
    return (layout.CODE_OF_EVENT[ModelReady], 5, event)


BAD_RECORDS = [
    # blocks, good records, what is wrong with the next
    ([records((0, 1, 0)), records((99, 1, 0))], 1, "no record of kind 99"),
    ([records((0, 1, 0)), records((-1, 1, 0))], 1, "no record of kind -1"),
    ([records((0, 1, 0)), records((0, 1, "x"))], 1, "a record of kind 0 holds"),
    ([records((0, 1, 0)), records((2, 1, {"request_id": "x"}))], 1, "a record of kind 2 holds"),
    ([records((0, 1, 0)), records((2, 1, [1]))], 1, "a record of kind 2 holds"),
    ([records(ready(1)), records(ready(10**12))], 1, "a program of 1000000000000 groups"),
    ([records(ready(1)), records(ready(0))], 1, "a program of 0 groups"),
    ([records((0, 1))], 0, "at least length 3"),
    ([records("x")], 0, "array"),
    ([layout.block(b"R", b"\x91")], 0, "truncated"),
    ([layout.block(b"Z", b"")], 0, "kind b'Z'"),
    ([layout.block(b"H", b"")], 0, "kind b'H'"),
    ([layout.block(b"E", b"\x80")], 0, "missing required field"),
    ([layout.block(b"E", layout.encode(layout.End("", 0, 5, 0, "")))], 0, "tells of 5 records"),
    ([struct.pack("<cII", b"R", 1 << 30, 0)], 0, "in the middle of a block"),
    ([struct.pack("<cII", b"R", 0, 1)], 0, "changed or cut"),
    ([b"R"], 0, "in the middle of a block"),
]


@pytest.mark.parametrize(("blocks", "good_records", "says"), BAD_RECORDS)
def test_bad_records_end_what_is_good(blocks: list[bytes], good_records: int, says: str) -> None:
    contents = parse(file_of(*blocks))
    assert says in contents.broken
    assert len(contents.calls) == good_records


def test_what_comes_after_the_end_is_not_read() -> None:
    end = layout.End("done", 1, 0, 0, "")
    contents = parse(file_of(layout.block(b"E", layout.encode(end)), b"anything"))
    assert (contents.end, contents.broken) == (end, "")


def test_a_state_that_is_none_is_refused() -> None:
    with pytest.raises(BadRecording, match="not the state of a scheduler"):
        replay(parse(file_of()))


def test_states_that_were_made_up_end_in_a_refusal_or_a_failure(good: bytes) -> None:
    """Each scalar of a true state replaced by nonsense, one at a time; checksums are right."""
    contents = parse(good)
    classes, nodes = msgspec.msgpack.decode(contents.state)
    draw = random.Random("nonsense")
    refused = 0
    for _ in range(80):
        changed = msgspec.msgpack.decode(contents.state)[1]
        node = changed[draw.randrange(len(nodes))]
        node[draw.randrange(len(node))] = draw.choice(
            [None, -1, 0, 7, "x", [0], [len(nodes) - 1], [10**9], [], {}, 2**60, True, 1.5]
        )
        state = msgspec.msgpack.encode([classes, changed])
        assert zlib.crc32(state)
        short = msgspec.structs.replace(contents, state=state, calls=contents.calls[:200])
        try:
            refused += replay(short).failure != ""
        except BadRecording:
            refused += 1
    assert refused > 25
