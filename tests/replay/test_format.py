"""A file that was cut, changed or made up: said how far it is good, and nothing worse happens."""

import contextlib
import random
import struct
import zlib
from typing import Any

import msgspec
import pytest

from gpumuxd.device.recorder import header_of
from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.events import Event, ModelProfile, ModelReady, RequestArrived
from gpumuxd.replay import format as layout
from gpumuxd.replay.format import BadRecording
from gpumuxd.replay.graph import freeze
from gpumuxd.replay.same import replay
from gpumuxd.replay.sources import SCHEDULER, source_modules
from gpumuxd.settings import DeviceSettings, SchedulerSettings
from tests.replay.recorded import parse, record

DeviceScheduler: Any = source_modules()[SCHEDULER].DeviceScheduler

HEADER = layout.block(b"H", layout.encode(header_of(DeviceSettings(), "2", 0)))
STATE = layout.block(b"S", b"")
DEEP = b"\x91" * 100_000


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
    (layout.MAGIC + layout.block(b"H", DEEP), "header is of another version"),
    (layout.MAGIC + HEADER + STATE[:-1], f"byte {len(layout.MAGIC + HEADER)} of .* not whole"),
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
    ([layout.record_block(b"\x93\x02\x01" + DEEP + b"\x01", 1)], 0, "nested too deep"),
    ([records((0, 1, 0)), records((2, 1, msgspec.Raw(DEEP + b"\x01")))], 1, "nested too deep"),
    ([layout.block(b"E", b"\x81\xa1x" + DEEP + b"\x01")], 0, "nested too deep"),
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


def file_of_state(state: bytes) -> bytes:
    return b"".join([layout.MAGIC, HEADER, layout.block(b"S", state)])


def loaded(model: str, groups: int, sizes: int = 0) -> ModelReady:
    group_ns: dict[Bucket, tuple[int, ...]] = {(size,): (1,) for size in range(sizes)}
    return ModelReady(model, ModelProfile(groups, group_ns), PriorityClass.STANDARD)


def asked(model: str, size: int) -> RequestArrived:
    return RequestArrived(1, "t", model, PriorityClass.STANDARD, (size,), 0)


MILLION = 1_000_000

TABLES = [
    # what the scheduler is told, is it too much
    ([loaded("a", MILLION), *[asked("a", size) for size in range(3)]], False),
    ([loaded("a", MILLION), *[asked("a", size) for size in range(4)]], True),
    ([loaded("a", MILLION), *[asked("a", 7)] * 9], False),
    ([loaded("a", MILLION), *[asked("unknown", size) for size in range(9)]], False),
    ([loaded("a", MILLION, sizes=3)], False),
    ([loaded("a", MILLION, sizes=4)], True),
    ([loaded(f"m{number}", MILLION) for number in range(4)], False),
    ([loaded(f"m{number}", MILLION) for number in range(5)], True),
    ([loaded("again", MILLION), asked("again", 1)] * 2, False),
    ([*[loaded("again", MILLION), asked("again", 1)] * 2, loaded("small", 1)], True),
]


@pytest.mark.parametrize(("events", "is_too_much"), TABLES)
def test_small_files_make_no_large_tables(events: list[Event], is_too_much: bool) -> None:
    cells = layout.Cells()
    refusal = pytest.raises(BadRecording, match="over 4000000 groups")
    with refusal if is_too_much else contextlib.nullcontext():
        for event in events:
            cells.count(event)


def test_a_replay_counts_before_it_begins(good: bytes) -> None:
    """What the file's state knows counts, too."""
    contents = parse(good)
    code = layout.CODE_OF_EVENT[ModelReady]
    calls: list[layout.Call] = [(code, 1, loaded(f"new{i}", MILLION)) for i in range(2)]
    assert "over 4000000" not in replay(msgspec.structs.replace(contents, calls=calls)).failure
    scheduler = DeviceScheduler(SchedulerSettings())
    for number in range(3):
        scheduler.handle(loaded(f"known{number}", MILLION), 1)
    knows = msgspec.structs.replace(contents, state=freeze(scheduler), calls=calls)
    with pytest.raises(BadRecording, match="over 4000000 groups"):
        replay(knows)


def test_a_state_with_wrong_types_is_refused() -> None:
    scheduler = DeviceScheduler(SchedulerSettings())
    scheduler.handle(loaded("m", 1), 1)
    scheduler._models["m"].class_max = "x"
    with pytest.raises(BadRecording, match="not what a record of kind"):
        replay(parse(file_of_state(freeze(scheduler))))


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
