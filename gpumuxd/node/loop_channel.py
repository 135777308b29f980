"""A channel on the event loop: frames are handed on as they come, and sending never blocks.

Two ways to send. `send` is for what may be refused: it raises when the channel is full. `owe` is
for what must be said (a cancel, an unload): it waits its turn in a list that is bounded by what is
in flight and loaded. It must not know what a frame means.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from gpumuxd.wire.channel import Channel, ChannelClosed, ChannelError, ChannelFull
from gpumuxd.wire.frames import AnyFrame, Frame

FRAMES_PER_TURN_MAX = 64
"""Frames read before other work of the event loop gets its turn."""


class LoopChannel:
    """Takes a channel over. `on_frame` gets each frame and its descriptors, `on_broken` hears
    once when nothing more will come, and why."""

    def __init__(
        self,
        channel: Channel,
        on_frame: Callable[[AnyFrame, Sequence[int]], None],
        on_broken: Callable[[ChannelError], None],
    ) -> None:
        self._channel = channel
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._is_readable = True
        self._owed: deque[Frame] = deque()
        self._loop = asyncio.get_running_loop()
        # One frame each time it is readable: mostly there is one, and asking for a second that is
        # not there takes as long as reading the first (20 us with cold caches), before whoever
        # waits for it is woken. The loop asks again by itself when there are more.
        self._loop.add_reader(channel.fileno(), self._read_one)

    def send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        """Send now or not at all. Raises ChannelFull or ChannelClosed."""
        self._channel.send(frame, fds)
        if self._channel.wants_write:
            self._loop.add_writer(self._channel.fileno(), self._handle_writable)

    def owe(self, frame: Frame) -> None:
        """Send as soon as there is room; to a peer that is gone there is nothing to say."""
        self._owed.append(frame)
        self._pay()

    def read(self) -> None:
        """Hand on what has come, but leave some for later when it is much."""
        for _ in range(FRAMES_PER_TURN_MAX):
            if not self._read_one():
                return

    def read_all(self) -> None:
        """Hand on everything that has come."""
        while self._read_one():
            pass

    def close(self) -> None:
        """Off the loop and closed. Idempotent."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel.fileno())
            self._loop.remove_writer(self._channel.fileno())
            self._channel.close()
        self._is_readable = False
        self._owed.clear()

    def _read_one(self) -> bool:
        if not self._is_readable:
            return False
        try:
            received = self._channel.receive()
        except ChannelError as error:
            self._is_readable = False
            self._loop.remove_reader(self._channel.fileno())
            self._on_broken(error)
            return False
        if received is None:
            return False
        self._on_frame(*received)
        return True

    def _pay(self) -> None:
        while self._owed:
            try:
                self.send(self._owed[0])
            except (ChannelFull, ChannelClosed):
                return
            self._owed.popleft()

    def _handle_writable(self) -> None:
        try:
            is_empty = self._channel.flush()
        except ChannelClosed:
            is_empty = True
        if is_empty:
            self._loop.remove_writer(self._channel.fileno())
            self._pay()
