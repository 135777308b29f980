"""One end of a SOCK_SEQPACKET pair that carries frames, and descriptors beside them.

Nothing here blocks: what the kernel does not take at once waits in a bounded outbox, and a full
outbox is the caller's business (`ChannelFull` is back-pressure, not a loss). It must not know what
a frame means. Invariants: frames leave in the order of `send`; a descriptor is either handed to
the caller or closed, never leaked; every error but back-pressure is final for the frame it names.

One thread uses a channel. A peer is trusted to be ours, not to be whole: it may die in the middle
of anything, so an end of file, a reset and a frame that does not decode are ordinary errors.
"""

import os
import socket
from array import array
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import msgspec

from gpumuxd.wire.frames import FRAME_BYTES_MAX, AnyFrame, Frame, decode, encode

FDS_MAX = 4
"""Most descriptors beside one frame; the protocol needs two (plan and weights)."""

OUTBOX_FRAMES_MAX = 1024
"""Frames that wait for the kernel's buffer, which itself holds a few hundred small ones."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(FDS_MAX * array("i").itemsize)

# As plain integers: arithmetic on the enumeration costs 1 us each time, on every frame.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_WAS_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class ChannelError(Exception):
    """Base of all that can go wrong on a channel."""


class ChannelClosed(ChannelError):
    """The other end is gone. Everything it had sent was received before."""


class ChannelFull(ChannelError):
    """The outbox is full and the frame was not taken."""


class MalformedFrame(ChannelError):
    """A datagram that is no frame: too long, not decodable, or with too many descriptors."""


class Channel:
    """Frames over a connected AF_UNIX SOCK_SEQPACKET socket, which it owns from now on."""

    def __init__(self, sock: socket.socket, outbox_frames_max: int = OUTBOX_FRAMES_MAX) -> None:
        assert sock.family == socket.AF_UNIX, sock
        assert sock.type == socket.SOCK_SEQPACKET, sock
        sock.setblocking(False)
        self._sock = sock
        self._outbox: deque[tuple[bytes, array[int]]] = deque()
        self._outbox_frames_max = outbox_frames_max
        # One byte more than a frame may have: what fills it was cut or is too long.
        self._inbox = memoryview(bytearray(FRAME_BYTES_MAX + 1))
        self._inbox_buffers = [self._inbox]

    @classmethod
    def pair(cls) -> "tuple[Channel, socket.socket]":
        """A channel and the peer's end of it, for `pass_fds` of a new process.

        Neither end is inheritable by itself, so that no other process keeps one open by accident.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    @classmethod
    def from_fd(cls, fd: int) -> "Channel":
        """The channel of an inherited descriptor. Raises OSError or ValueError if it is not one."""
        sock = socket.socket(fileno=fd)
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            sock.detach()
            raise ValueError(f"descriptor {fd} is not a SOCK_SEQPACKET Unix socket")
        os.set_inheritable(fd, False)
        return cls(sock)

    def __enter__(self) -> "Channel":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """True while frames wait for the socket to become writable; then call `flush`."""
        return bool(self._outbox)

    def send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        """Send a frame or put it in the outbox. The caller keeps its descriptors and may close
        them at once. Raises ChannelFull, or ChannelClosed when the peer is gone."""
        assert len(fds) <= FDS_MAX, f"{len(fds)} descriptors beside a frame"
        data = encode(frame)
        if not self._outbox and self._transmit(data, fds):
            return
        if len(self._outbox) >= self._outbox_frames_max:
            raise ChannelFull(f"{len(self._outbox)} frames wait already")
        self._outbox.append((data, array("i", [os.dup(fd) for fd in fds])))

    def flush(self) -> bool:
        """Send what waits, as far as it goes. True when nothing waits any more."""
        while self._outbox:
            data, fds = self._outbox[0]
            if not self._transmit(data, fds):
                return False
            self._outbox.popleft()
            _close_all(fds)
        return True

    def receive(self) -> tuple[AnyFrame, list[int]] | None:
        """The next frame and the descriptors beside it, which the caller now owns.

        None when there is nothing now. Raises ChannelClosed at end of file, MalformedFrame (and
        closes what came with it) for a datagram that is no frame.
        """
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into(
                self._inbox_buffers, _ANCILLARY_BYTES, _CLOSE_ON_EXEC
            )
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionResetError:
            # The peer closed without having read all we sent. The kernel says that first, and
            # once; what the peer had sent us is still in the queue behind it.
            return self.receive()
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        fds = _descriptors(ancillary) if ancillary else []
        if size == 0:
            # A frame is never empty, so this is the end of file.
            _close_all(fds)
            raise ChannelClosed("the other end is closed")
        if flags & _WAS_CUT or size > FRAME_BYTES_MAX:
            _close_all(fds)
            raise MalformedFrame(
                f"a datagram over {FRAME_BYTES_MAX} bytes or {FDS_MAX} descriptors was cut"
            )
        try:
            return decode(self._inbox[:size]), fds
        except msgspec.DecodeError as error:
            _close_all(fds)
            raise MalformedFrame(f"a datagram of {size} bytes is no frame: {error}") from error

    def close(self) -> None:
        """Close the socket and forget what waits. Idempotent."""
        while self._outbox:
            _close_all(self._outbox.popleft()[1])
        self._sock.close()

    def _transmit(self, data: bytes, fds: Sequence[int]) -> bool:
        """Hand one datagram to the kernel; False when its buffer is full."""
        try:
            if fds:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))
                self._sock.sendmsg([data], [rights])
            else:
                self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return True


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array("i")
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
            fds.extend(received)
    return fds


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
