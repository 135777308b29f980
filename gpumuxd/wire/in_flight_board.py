"""The board: what a device child had in flight, readable after its death.

A small sealed memfd. The parent makes one for each life and passes it beside Start; the child's
loop notes there what it launches and takes it off when it has passed; the parent reads it once
the child was reaped, and learns whom to suspect (`node/blame.py`). It must not know what a request
or a model is.

A child may be killed between any two instructions, so a note becomes valid by one aligned store of
a word, its count, after all else of it is there; stores are seen in the order they were executed.
A child is not trusted: whatever the memory holds, the parent reads at most what there is room for.

    word 0      what the load under way does: 0 there is none, 1 it waits, 2 it works
    word 1      characters of its model key, which follow, 256 at most
    slots       one for each slice in flight: how many members, 0 if free; then their ids
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

from gpumuxd.wire.process import SEALS_SIZE, NotSealed

SLICES_MAX = 128
"""Slices in flight on all lanes of a device: two lanes with the largest window."""

MEMBERS_MAX = 1024
"""Requests that ride on one cursor: the most rows that a manifest lets share a run. The board takes
a megabyte of addresses, and memory only where something was noted."""

KEY_CHARS_MAX = 256
"""A model key: a name of up to 128 characters, a version, a number."""

_WORD_BYTES = 8
_KEY_WORD = 2
_SLOTS_WORD = _KEY_WORD + KEY_CHARS_MAX // _WORD_BYTES
_SLOT_WORDS = 1 + MEMBERS_MAX
BOARD_BYTES = (_SLOTS_WORD + SLICES_MAX * _SLOT_WORDS) * _WORD_BYTES

_NO_LOAD, _LOAD_WAITS, _LOAD_WORKS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class InFlight:
    """What was on a board. Ids below 1 are the device's own: they belong to the load under way."""

    members: tuple[int, ...] = ()
    load: str = ""
    is_load_at_work: bool = False


class InFlightBoard:
    """The parent's side."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("gpumuxd-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, BOARD_BYTES)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS_SIZE)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def fd(self) -> int:
        """To be passed beside Start; stays ours."""
        assert self._fd >= 0, "the board is closed"
        return self._fd

    def read(self) -> InFlight:
        """What is noted. Of a child that was reaped: nobody writes there any more."""
        data = os.pread(self._fd, BOARD_BYTES, 0)
        words = memoryview(data).cast("q")
        members: dict[int, None] = {}
        for slot in range(_SLOTS_WORD, len(words), _SLOT_WORDS):
            if 0 < words[slot] <= MEMBERS_MAX:
                members.update(dict.fromkeys(words[slot + 1 : slot + 1 + words[slot]]))
        return InFlight(tuple(members), _load(data, words), words[0] == _LOAD_WORKS)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _load(data: bytes, words: "memoryview[int]") -> str:
    if words[0] not in (_LOAD_WAITS, _LOAD_WORKS) or not 0 < words[1] <= KEY_CHARS_MAX:
        return ""
    begin = _KEY_WORD * _WORD_BYTES
    # A key that is not one is nobody's, and found nowhere.
    return data[begin : begin + words[1]].decode("ascii", "replace")


class InFlightNotes:
    """The child's side. Takes the descriptor and closes it. The loop's thread alone."""

    def __init__(self, fd: int) -> None:
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if seals & SEALS_SIZE != SEALS_SIZE:
                raise NotSealed(f"board seals {seals:#x}, expected {SEALS_SIZE:#x}")
            self._map = mmap.mmap(fd, BOARD_BYTES)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("q")
        self._free = list(range(_SLOTS_WORD, len(self._words), _SLOT_WORDS))[::-1]
        self._slots: dict[int, int] = {}  # by slice
        self._load = ""

    def launched(self, slice_id: int, members: Sequence[int]) -> None:
        """Called before the device gets the slice."""
        slot = self._free.pop()
        self._slots[slice_id] = slot
        words = self._words
        index = slot
        for member in members:
            index += 1
            words[index] = member
        assert index - slot <= MEMBERS_MAX, f"{index - slot} members of slice {slice_id}"
        words[slot] = index - slot  # last: this makes it valid

    def passed(self, slice_id: int) -> None:
        slot = self._slots.pop(slice_id)
        self._words[slot] = 0
        self._free.append(slot)

    def load(self, key: str, is_working: bool) -> None:
        """What the load under way does; "" for no load. `is_working`: something that no slice
        stands for."""
        words = self._words
        if key != self._load:
            name = key.encode("ascii")
            assert len(name) <= KEY_CHARS_MAX, key
            words[0] = _NO_LOAD
            begin = _KEY_WORD * _WORD_BYTES
            self._map[begin : begin + len(name)] = name
            words[1] = len(name)
            self._load = key
        if key:
            words[0] = _LOAD_WORKS if is_working else _LOAD_WAITS

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self._words.release()
            self._map.close()
