"""The board: what a child noted is there after its death, and nothing that it writes hurts."""

import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpumuxd.wire.in_flight_board import (
    BOARD_BYTES,
    KEY_CHARS_MAX,
    MEMBERS_MAX,
    SLICES_MAX,
    InFlight,
    InFlightBoard,
    InFlightNotes,
)
from gpumuxd.wire.process import NotSealed

WAIT_S = 30


@pytest.fixture
def board() -> Iterator[InFlightBoard]:
    board = InFlightBoard()
    yield board
    board.close()


def notes_of(board: InFlightBoard) -> InFlightNotes:
    return InFlightNotes(os.dup(board.fd))


def test_what_was_launched_and_has_not_passed(board: InFlightBoard) -> None:
    notes = notes_of(board)
    assert board.read() == InFlight()
    notes.launched(1, (11,))
    notes.launched(2, (21, 22, 23))
    notes.launched(3, (-1,))
    assert set(board.read().members) == {11, 21, 22, 23, -1}
    notes.passed(1)
    notes.passed(3)
    notes.launched(4, (22, 41))
    assert sorted(board.read().members) == [21, 22, 23, 41], "each once"
    notes.close()
    assert sorted(board.read().members) == [21, 22, 23, 41]


def test_room_for_all_slices_and_all_members(board: InFlightBoard) -> None:
    notes = notes_of(board)
    for slice_id in range(SLICES_MAX):
        notes.launched(slice_id, range(slice_id * MEMBERS_MAX, (slice_id + 1) * MEMBERS_MAX))
    assert sorted(board.read().members) == list(range(SLICES_MAX * MEMBERS_MAX))
    for slice_id in range(SLICES_MAX):
        notes.passed(slice_id)
    assert board.read() == InFlight()
    notes.close()


def test_the_load_under_way(board: InFlightBoard) -> None:
    notes = notes_of(board)
    notes.load("a-long-name/12#3", True)
    assert board.read() == InFlight((), "a-long-name/12#3", True)
    notes.load("a-long-name/12#3", False)
    assert board.read() == InFlight((), "a-long-name/12#3", False)
    notes.load("b/1#4", False)
    assert board.read() == InFlight((), "b/1#4", False)
    notes.load("", False)
    assert board.read() == InFlight()
    notes.load("b/1#4", True)
    assert board.read().load == "b/1#4"
    notes.close()


@pytest.mark.parametrize("word", [0, 1, 2, 34, 35])
@pytest.mark.parametrize("value", [-(1 << 63), -1, MEMBERS_MAX + 1, KEY_CHARS_MAX + 1, 1 << 62])
def test_a_word_that_is_nonsense(board: InFlightBoard, word: int, value: int) -> None:
    notes = notes_of(board)
    notes.load("m/1#1", True)
    notes.launched(1, (7,))
    os.pwrite(board.fd, struct.pack("@q", value), word * 8)
    noted = board.read()
    assert len(noted.members) <= 2  # one word of its slot, and the zeros behind it
    assert len(noted.load) <= KEY_CHARS_MAX
    notes.close()


def test_a_board_full_of_rubbish_is_read_within_its_bounds(board: InFlightBoard) -> None:
    rubbish = random.Random(5)
    for _ in range(20):
        os.pwrite(board.fd, rubbish.randbytes(BOARD_BYTES), 0)
        noted = board.read()
        assert len(noted.members) <= SLICES_MAX * MEMBERS_MAX
        assert len(noted.load) <= KEY_CHARS_MAX


def test_a_child_can_not_cut_the_board_short(board: InFlightBoard) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(board.fd, 0)
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, BOARD_BYTES)
    with pytest.raises(NotSealed):
        InFlightNotes(fd)


WRITER = """
import sys
from gpumuxd.wire.in_flight_board import InFlightNotes

notes = InFlightNotes(int(sys.argv[1]))
notes.load("m/1#1", True)
notes.launched(1, (1000, 1001))  # stays
print("up", flush=True)
number = 2
while True:
    notes.launched(number, (2 * number, 2 * number + 1, 2 * number))
    notes.load("m/1#1" if number % 2 else "other/22#333", False)
    notes.passed(number)
    number += 1
"""


def test_a_writer_that_is_killed_anywhere_leaves_whole_notes(board: InFlightBoard) -> None:
    """Of whatever it was writing there is either all or nothing."""
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(board.fd)],
            pass_fds=[board.fd],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=WAIT_S)
        noted = board.read()
        stay, rest = noted.members[:2], noted.members[2:]
        assert stay == (1000, 1001)
        assert rest == () or (len(rest) == 2 and rest[0] % 2 == 0 and rest[1] == rest[0] + 1)
        assert noted.load in ("", "m/1#1", "other/22#333")
        os.pwrite(board.fd, bytes(BOARD_BYTES), 0)
