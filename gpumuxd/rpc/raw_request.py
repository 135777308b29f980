"""A ModelInferRequest as it lies on the wire: everything but its raw tensors as a message, and
those as views of the bytes that came.

Protobuf copies a bytes field when it parses it and again each time it is read. Here the fields at
the top level are looked at once: raw tensors are cut out where they lie, the rest is parsed by
protobuf. Whatever is not plain (a field that is not known, a group, a length that does not fit)
goes to protobuf as a whole, so that what a message means is protobuf's to say alone.

Invariant: `read_request` gives what `ModelInferRequest.FromString` gives, and refuses what that
refuses, and too many tensors.
"""

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from gpumuxd.errors import InvalidRequest, limit_facts
from gpumuxd.rpc.generated import inference_pb2 as pb

TENSORS_MAX = 1024
"""Most inputs, outputs or parameters of one request: each costs time on the event loop."""

FIELDS_MAX = 8 * TENSORS_MAX
"""Fields that are looked at, each about 200 ns. A message of more is parsed whole, at protobuf's
speed."""

_TAGS = frozenset(field << 3 | 2 for field in range(1, 8))
"""All fields that a request has are of the wire type of strings, and their tags are one byte."""

_RAW_TAG = 7 << 3 | 2


class InferRequest(NamedTuple):
    """A request that was parsed: `message` is without `raw_input_contents`, which is `raw`."""

    message: pb.ModelInferRequest
    raw: Sequence[memoryview]


def read_request(data: bytes) -> InferRequest:
    """Parse a request; its tensors are views of `data`. Raises InvalidRequest."""
    split = _split(data)
    header, raw = split or (data, [])
    try:
        message = pb.ModelInferRequest.FromString(header)
    except DecodeError:
        raise InvalidRequest("the message is not a well-formed ModelInferRequest") from None
    count = len(raw) or len(message.raw_input_contents)
    if count > TENSORS_MAX:
        raise InvalidRequest(
            f"raw_input_contents: expected at most {TENSORS_MAX}, got {count}",
            limit_facts("tensors_max", TENSORS_MAX, "tensors", asked=count),
        )
    if split is None:
        raw = [memoryview(each) for each in message.raw_input_contents]
        message.ClearField("raw_input_contents")
    return InferRequest(message, raw)


def encoded_size(size: int) -> bytes:
    """A size as it stands before bytes on the wire."""
    out = bytearray()
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _split(data: bytes) -> tuple[bytes, list[memoryview]] | None:
    """What protobuf is to parse, and the raw tensors; None where protobuf is to parse it all."""
    view, end = memoryview(data), len(data)
    parts: list[memoryview] = []
    raw: list[memoryview] = []
    start = kept_from = fields = 0
    while start < end:
        tag = data[start]
        fields += 1
        if tag not in _TAGS or start + 1 == end or fields > FIELDS_MAX:
            return None
        size, content = data[start + 1], start + 2
        if size >= 0x80:
            size, content = _long_size(data, start + 1)
        stop = content + size
        if stop > end:
            return None
        if tag == _RAW_TAG:
            if kept_from < start:
                parts.append(view[kept_from:start])
            raw.append(view[content:stop])
            kept_from = stop
        start = stop
    if not raw:
        return data, raw
    if kept_from < end:
        parts.append(view[kept_from:])
    return b"".join(parts), raw


def _long_size(data: bytes, start: int) -> tuple[int, int]:
    """A size of several bytes, and where it ends. What is no size in the four bytes that a message
    of 256 MiB needs is told as one that does not fit."""
    size = shift = 0
    for place in range(start, min(start + 4, len(data))):
        byte = data[place]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, place + 1
        shift += 7
    return len(data) + 1, start
