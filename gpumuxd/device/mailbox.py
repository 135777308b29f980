"""The device loop's mail: frames from the parent and to it, never blocking, never dropping.

Back-pressure is simple: while the parent does not take what the loop has to say, the loop does not
take more from the parent. What it has to say is bounded by what it has accepted, so nothing needs
to be dropped. It must not know what a frame means.

`fileno` is one descriptor that is readable when there is something to do in either direction: an
epoll set, so that an executor can wait for it among its own with a plain select.
"""

import os
import select
from collections import deque

from gpumuxd.wire.channel import Channel, ChannelFull
from gpumuxd.wire.frames import AnyFrame, Frame

MAIL_PER_TURN_MAX = 64
"""Frames taken before the scheduler decides again, so that a flood can't delay a sync point."""

Mail = tuple[AnyFrame, list[int]]


class Mailbox:
    """A channel as the device loop uses it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._unsent: deque[Frame] = deque()
        self._interest = select.EPOLLIN
        self._epoll = select.epoll()
        self._epoll.register(channel.fileno(), self._interest)

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def is_flushed(self) -> bool:
        """True when all that was posted has been handed to the kernel."""
        return not self._unsent and not self._channel.wants_write

    def post(self, frame: Frame) -> None:
        """Send a frame, now or as soon as the parent takes it. Raises ChannelClosed."""
        if not self._unsent:
            try:
                self._channel.send(frame)
            except ChannelFull:
                self._unsent.append(frame)
        else:
            self._unsent.append(frame)
        if self._channel.wants_write:
            self._watch_for(select.EPOLLOUT)

    def collect(self) -> list[Mail]:
        """What has come, at most MAIL_PER_TURN_MAX; nothing while the parent is behind.

        Raises ChannelClosed when the parent is gone, MalformedFrame for rubbish.
        """
        if (self._unsent or self._channel.wants_write) and not self._flush():
            return []
        mail: list[Mail] = []
        # Asking first costs 1 us; a receive that finds nothing 4, for the exception it raises.
        while len(mail) < MAIL_PER_TURN_MAX and self._epoll.poll(0):
            received = self._channel.receive()
            if received is None:
                break
            mail.append(received)
        return mail

    def close(self) -> None:
        self._epoll.close()
        self._channel.close()

    def _flush(self) -> bool:
        while self._channel.flush():
            if not self._unsent:
                self._watch_for(select.EPOLLIN)
                return True
            self._channel.send(self._unsent.popleft())
        return False

    def _watch_for(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self._epoll.modify(self._channel.fileno(), interest)


def close_all(fds: list[int]) -> None:
    """Descriptors that came with a frame and are not needed."""
    for fd in fds:
        os.close(fd)
