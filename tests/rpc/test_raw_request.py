"""The raw reader gives what protobuf gives, for good messages, strange ones and damaged ones."""

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumuxd.errors import InvalidRequest
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.raw_request import FIELDS_MAX, TENSORS_MAX, read_request
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.requests import GOOD
from tests.rpc.front import good_request

RAW = b"\x3a"


def check_same(data: bytes) -> None:
    """Equal to what protobuf says of it, also of what it keeps without knowing it."""
    try:
        expected = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InvalidRequest, match="not a well-formed ModelInferRequest"):
            read_request(data)
        return
    message, raw = read_request(data)
    assert len(message.raw_input_contents) == 0
    message.raw_input_contents.extend(map(bytes, raw))
    options = {"deterministic": True}
    assert message.SerializeToString(**options) == expected.SerializeToString(**options)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    """One field: mostly one of a request, now and then any other, or one that is cut off."""
    number = draw(st.one_of(st.integers(1, 7), st.integers(0, 2**29)))
    wire_type = draw(st.sampled_from([2, 2, 2, 2, 0, 1, 3, 4, 5, 6]))
    tag = varint(number << 3 | wire_type)
    content = draw(st.one_of(st.binary(max_size=200), parts()))
    if wire_type == 0:
        return tag + varint(draw(st.integers(0, 2**64 - 1)))
    if wire_type in (1, 5):
        return tag + draw(st.binary(min_size=8, max_size=8))[: 8 if wire_type == 1 else 4]
    if wire_type == 3:
        return tag + content + varint(number << 3 | 4)
    size = varint(len(content))
    padded = bytes(byte | 0x80 for byte in size) + b"\x80" * draw(st.integers(0, 9)) + b"\0"
    return tag + draw(st.sampled_from([size, size, padded])) + content


def parts() -> st.SearchStrategy[bytes]:
    return st.sampled_from(
        [
            part
            for make in GOOD
            for message in [make(random.Random(1))[0]]
            for part in (
                message.SerializeToString(),
                *(tensor.SerializeToString() for tensor in message.inputs),
                pb.InferParameter(int64_param=-1).SerializeToString(),
            )
        ]
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(fields(), max_size=8).map(b"".join))
def test_any_fields_are_read_as_protobuf_reads_them(data: bytes) -> None:
    check_same(data)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_requests_are_read_as_protobuf_reads_them(seed: int) -> None:
    draw = random.Random(seed)
    for make in GOOD:
        data = make(draw)[0].SerializeToString()
        check_same(data)
        for _ in range(40):
            check_same(mutate_bytes(data, draw))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21])
def test_tensors_of_any_size_are_where_they_lie(size: int) -> None:
    data = good_request(raw_input_contents=[bytes(size), b"\1"]).SerializeToString()
    raw = read_request(data).raw
    assert [bytes(view) for view in raw] == [bytes(size), b"\1"]
    assert all(view.obj is data for view in raw), "a copy was made"


@pytest.mark.parametrize(
    ("data", "raw"),
    [
        # tensors before, between and after what names them
        (RAW + b"\1a" + b"\x0a\1m" + RAW + b"\1b" + b"\x1a\1i" + RAW + b"\0", [b"a", b"b", b""]),
        # a size in more bytes than it needs
        (RAW + b"\x81\x80\0a", [b"a"]),
        # a field 7 that is no bytes, and one within a group
        (b"\x38\1" + b"\x43" + RAW + b"\1a" + b"\x44", []),
        (b"", []),
    ],
)
def test_strange_order_and_strange_fields(data: bytes, raw: list[bytes]) -> None:
    assert [bytes(view) for view in read_request(data).raw] == raw
    check_same(data)


@pytest.mark.parametrize(
    "data",
    [RAW, RAW + b"\2a", RAW + b"\xff" * 4, RAW + b"\xff\xff\xff\xff\x0f", b"\x0a\1\xff", b"\x0a"],
)
def test_what_is_cut_off_is_refused(data: bytes) -> None:
    check_same(data)
    with pytest.raises(InvalidRequest):
        read_request(data)


def test_more_fields_than_are_looked_at() -> None:
    data = b"\x0a\1m" * FIELDS_MAX
    assert len(read_request(data + RAW + b"\1a").raw) == 1
    check_same(data + RAW + b"\1a")


@pytest.mark.parametrize("count", [TENSORS_MAX + 1, FIELDS_MAX + 1])
def test_more_tensors_than_a_request_may_have(count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"expected at most 1024, got {count}"):
        read_request((RAW + b"\0") * count)
