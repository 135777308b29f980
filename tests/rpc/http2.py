"""As much of HTTP/2 as it takes to be a client that misbehaves: frames in, frames out."""

import socket
import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
LIMIT_S = 30.0


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """A frame of the connection."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags, 0, 0, 0, 0)) + payload


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LIMIT_S)


def frames(connected: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and payload of what comes, until the other end closes."""
    with connected.makefile("rb") as stream:
        while head := stream.read(9):
            size = int.from_bytes(head[:3], "big")
            yield head[3], head[4], stream.read(size)
