"""The lock of the state directory."""

import os
from pathlib import Path

import pytest

from gpumuxd.daemon.lock import AlreadyRunning, state_lock


def test_one_holder_at_a_time_and_the_refusal_names_it(tmp_path: Path) -> None:
    state_dir = tmp_path / "made" / "when needed"
    with state_lock(state_dir):
        with (
            pytest.raises(AlreadyRunning, match=f"held by the gpumuxd with pid {os.getpid()}$"),
            state_lock(state_dir),
        ):
            pytest.fail("two holders")
        assert (state_dir / "lock").read_text() == f"{os.getpid()}\n"
    with state_lock(state_dir):
        pass


def test_what_a_dead_holder_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789\n")
    with state_lock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_state_directory_that_can_not_be_written_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match=r"\[node\].state_dir must be .*: Not a directory: '.*/lock'"),
        state_lock(tmp_path / "file" / "state"),
    ):
        pass


def test_a_lock_that_is_no_file_is_said_and_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="the lock is not a regular file"), state_lock(tmp_path):
        pytest.fail("a pipe keeps nobody away")
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"), state_lock(tmp_path):
        pytest.fail("whose lock would that be")
    assert not (tmp_path / "elsewhere").exists()
