"""As much of HTTP/2 as it takes to be a client that misbehaves: frames in, frames out."""

import socket
import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
LIMIT_S = 30.0


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """A frame of a stream, or of the connection."""
    head = struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream)
    return head + payload


def headers(path: str) -> bytes:
    """What a gRPC call begins with, in HPACK's longest form."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    texts = [text.encode() for field in fields.items() for text in field]
    literals = [bytes((len(text),)) + text for text in texts]
    return b"".join(
        b"\0" + name + value for name, value in zip(literals[::2], literals[1::2], strict=True)
    )


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LIMIT_S)


def frames(connected: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and payload of what comes, until the other end closes."""
    for kind, flags, payload, _ in frames_of_streams(connected):
        yield kind, flags, payload


def frames_of_streams(connected: socket.socket) -> Iterator[tuple[int, int, bytes, int]]:
    """The same with the number of the stream, 0 for the connection."""
    with connected.makefile("rb") as came:
        while head := came.read(9):
            payload = came.read(int.from_bytes(head[:3], "big"))
            yield head[3], head[4], payload, int.from_bytes(head[5:], "big")


class Sender:
    """A client that sends as much of its messages as it may, and tells how much that was."""

    CHUNK_BYTES = 16_384

    def __init__(self, connected: socket.socket, path: str) -> None:
        self._connected = connected
        self._path = path
        self._came = frames_of_streams(connected)
        self._window = {0: 65_535}
        self._left: dict[int, bytes] = {}
        self.sent: dict[int, int] = {}
        connected.sendall(PREFACE + frame(SETTINGS))
        self._window_first = 65_535
        while self._hear() != SETTINGS:
            pass

    def close(self) -> None:
        self._connected.close()

    def begin(self, stream: int, message: bytes) -> None:
        self._connected.sendall(frame(HEADERS, headers(self._path), END_HEADERS, stream))
        self._window[stream] = self._window_first
        self._left[stream] = b"\0" + struct.pack(">I", len(message)) + message
        self.sent[stream] = 0

    def send_until_left(self, stream: int, left_bytes: int) -> None:
        """All streams go on until this one has at most so many bytes left; at most that many of
        them are kept back."""
        while len(self._left[stream]) > left_bytes:
            self._go_on({stream: left_bytes})

    def wait_answer(self, stream: int) -> None:
        """Until a stream has ended with its trailers. The others go on."""
        while stream in self._window:
            self._go_on({})

    def _go_on(self, kept_bytes: dict[int, int]) -> None:
        """Send of every stream what may be sent now; hear the other end where that is nothing."""
        if not sum(self._push(each, kept_bytes.get(each, 0)) for each in self._left):
            self._hear()

    def _push(self, stream: int, keep_bytes: int) -> bool:
        left = self._left[stream]
        size = min(self._window[0], self._window.get(stream, 0), self.CHUNK_BYTES)
        size = min(size, len(left) - keep_bytes)
        if size <= 0:
            return False
        flags = END_STREAM if size == len(left) else 0
        self._connected.sendall(frame(DATA, left[:size], flags, stream))
        self._left[stream] = left[size:]
        self.sent[stream] += size
        self._window[0] -= size
        self._window[stream] -= size
        return True

    def _hear(self) -> int:
        kind, flags, payload, stream = next(self._came)
        if kind == WINDOW_UPDATE and stream in self._window:
            self._window[stream] += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            settings = dict(struct.iter_unpack(">HI", payload))
            first = settings.get(4, self._window_first)
            for each in self.sent:
                self._window[each] += first - self._window_first
            self._window_first = first
            self._connected.sendall(frame(SETTINGS, flags=ACK))
        elif kind == HEADERS and flags & END_STREAM:
            del self._window[stream]
        return kind
