"""The zip around an artifact, with every field that can lie lying."""

import io
import struct
import tracemalloc
import zipfile

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.pt2 import Artifact
from gpumuxd.units import MIB
from tests.hostile.zips import Entry, build, zip64_sizes
from tests.models import archives

GOOD = archives.members()
LINK = 0o120777 << 16


def entries(**changed: Entry) -> list[Entry]:
    """The good archive's members, some replaced. Keys are names with `_` for what is no letter."""
    result = []
    for name, data in GOOD.items():
        key = "".join(c if c.isalnum() else "_" for c in name)
        result.append(changed.pop(key, None) or Entry(f"m/{name}", data))
    assert not changed, changed
    return result


def read(data: bytes) -> Artifact:
    artifact = Artifact(io.BytesIO(data))
    artifact.write_weights(lambda piece: None)
    return artifact


def test_the_builder_tells_the_truth_when_nothing_is_changed() -> None:
    assert len(read(build(entries())).plan.nodes) == 1


WEIGHT = "m/data/weights/weight_0"
W = archives.WEIGHT_BYTES


def one_wrong(entry: Entry) -> bytes:
    return build(entries(data_weights_weight_0=entry))


def nested(count: int, size: int) -> bytes:
    """Members that each contain the headers and data of all that follow."""
    names = [f"m/data/weights/n{i}" for i in range(count)]
    body = b"\0" * size
    for name in reversed(names):
        body = build([Entry(name, body)]).partition(b"PK\1\2")[0]
    lead = body
    at, listed = 0, []
    for name in names:
        length = len(lead) - at - 30 - len(name)
        listed.append(Entry(name, size=length, stored_size=length, offset=at, is_listed_only=True))
        at += 30 + len(name)
    return build([*listed, *entries()], lead=lead)


BAD = [
    # what is wrong                                 the archive
    ("empty file", b""),
    ("only an end record", b"PK\5\6" + b"\0" * 18),
    ("compressed", one_wrong(Entry(WEIGHT, W, method=8))),
    ("method that nobody has", one_wrong(Entry(WEIGHT, W, method=99))),
    ("encrypted", one_wrong(Entry(WEIGHT, W, flags=1))),
    ("wrong checksum", one_wrong(Entry(WEIGHT, W, crc=1))),
    ("size of 4 GiB", one_wrong(Entry(WEIGHT, W, size=0xFFFFFFFE, stored_size=0xFFFFFFFE))),
    ("sizes that differ", one_wrong(Entry(WEIGHT, W, size=len(W), stored_size=4))),
    ("size beyond its data", one_wrong(Entry(WEIGHT, W, size=200, stored_size=200))),
    ("zip64 size of 2^63", one_wrong(
        Entry(WEIGHT, W, size=0xFFFFFFFF, stored_size=0xFFFFFFFF, extra=zip64_sizes(1 << 63, 8))
    )),
    ("zip64 size of 2^64 - 1", one_wrong(
        Entry(WEIGHT, W, size=0xFFFFFFFF, stored_size=0xFFFFFFFF,
              extra=zip64_sizes((1 << 64) - 1, (1 << 64) - 1))
    )),
    ("zip64 field cut off", one_wrong(
        Entry(WEIGHT, W, size=0xFFFFFFFF, stored_size=0xFFFFFFFF, extra=b"\1\0\1\0x")
    )),
    ("header elsewhere", one_wrong(Entry(WEIGHT, W, offset=7))),
    ("header behind the file", one_wrong(Entry(WEIGHT, W, offset=1 << 30))),
    ("two names for one member", one_wrong(Entry(WEIGHT, W, local_name="m/data/weights/weight_9"))),
    ("a name that is two", one_wrong(Entry(f"{WEIGHT}\0.txt", W))),
    ("symbolic link", one_wrong(Entry(WEIGHT, b"/etc/passwd", attributes=LINK))),
    ("a directory", one_wrong(Entry(f"{WEIGHT}/", b""))),
    ("the same name twice", build([*entries(), Entry(WEIGHT, b"0" * 48)])),
    ("same path in two roots", build([*entries(), Entry("other/byteorder", b"little")])),
    ("no root", build([Entry(e.name[2:], e.data) for e in entries()])),
    ("root in root", build([Entry(f"x/{e.name}", e.data) for e in entries()])),
    ("absolute names", build([Entry(f"/{e.name}", e.data) for e in entries()])),
    ("backslashes", build([Entry(e.name.replace("/", "\\"), e.data) for e in entries()])),
    ("surrogates as names", build([Entry("\udcff\udcfe", b"", flags=0x800), *entries()])),
    ("four billion members told", build(entries(), count=0xFFFF, directory_size=0xFFFFFFF0)),
    ("a directory outside", build(entries(), directory_offset=0xFFFFFFF0)),
    ("a directory at 0", build(entries(), directory_offset=0)),
    ("one region quoted 1000 times", build(
        [*entries(), *(Entry(f"m/data/weights/c{i}", size=48, stored_size=48, offset=0,
                             is_listed_only=True) for i in range(1000))]
    )),
    ("members inside members", nested(100, 100_000)),
    ("too many members", build([Entry(f"m/{i}") for i in range(20_001)])),
]  # fmt: skip


@pytest.mark.parametrize("data", [pytest.param(data, id=what) for what, data in BAD])
def test_refused(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidModel) as error:
            read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 10 < len(error.value.message) < 1000
    assert peak < 16 * MIB + 8 * len(data), "what is refused must not have cost much"


HARMLESS = [
    ("junk in front", b"#!/bin/sh\nexit 1\n" + build(entries())),
    ("junk in front, counted", build(entries(), lead=b"\0" * 1000)),
    ("a comment", build(entries(), comment=b"c" * 60_000)),
    ("a path escape nobody asks for", build([*entries(), Entry("m/../../../tmp/escape", b"x")])),
    ("an absolute name nobody asks for", build([*entries(), Entry("/etc/cron.d/x", b"x")])),
    ("a link nobody asks for", build([*entries(), Entry("m/l", b"/etc/passwd", attributes=LINK)])),
]


@pytest.mark.parametrize("data", [pytest.param(data, id=what) for what, data in HARMLESS])
def test_what_is_never_looked_at_does_no_harm(data: bytes) -> None:
    assert len(read(data).plan.nodes) == 1


def test_cut_off_anywhere_it_is_refused() -> None:
    """At each boundary of the format, and one byte to either side."""
    whole = build(entries())
    cuts = {0, len(whole)}
    for mark in (b"PK\1\2", b"PK\3\4", b"PK\5\6"):
        at = -1
        while (at := whole.find(mark, at + 1)) >= 0:
            cuts |= {at, at + 4, at + 22, at + 30, at + 46}
    for info in zipfile.ZipFile(io.BytesIO(whole)).infolist():
        start = info.header_offset + 30 + len(info.filename)
        cuts |= {start, start + info.file_size}
    places = sorted({cut + by for cut in cuts for by in (-1, 0, 1)} & set(range(len(whole))))
    assert len(places) > 100
    for place in places:
        with pytest.raises(InvalidModel):
            read(whole[:place])


def test_every_flipped_byte_is_refused_or_harmless() -> None:
    """Checksums cover what members hold; the rest is the zip's own."""
    whole = build(entries())
    refused = 0
    for place in range(0, len(whole), 3):
        spoilt = bytearray(whole)
        spoilt[place] ^= 0xFF
        try:
            read(bytes(spoilt))
        except InvalidModel:
            refused += 1
    assert refused > len(whole) // 3 * 0.7


def test_a_directory_of_zip64_with_absurd_numbers() -> None:
    """The locator and record of zip64, which say where the directory is with 64 bits."""
    whole = build(entries(), count=0xFFFF, directory_size=0xFFFFFFFF, directory_offset=0xFFFFFFFF)
    body, end = whole[:-22], whole[-22:]
    for count, size, offset in [(1 << 32, 100, 0), (1, 1 << 63, 0), (1, 100, (1 << 64) - 1)]:
        record = b"PK\6\6" + struct.pack("<QHHLLQQQQ", 44, 45, 45, 0, 0, count, count, size, offset)
        locator = b"PK\6\7" + struct.pack("<LQL", 0, len(body), 1)
        with pytest.raises(InvalidModel):
            read(body + record + locator + end)
