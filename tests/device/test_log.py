"""Log lines of a child look like the parent's, whatever the parent's go to."""

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from gpumuxd.daemon.logging import CHILD_LEVEL_VARIABLE, configure_logging
from gpumuxd.device.log import LEVEL_VARIABLE, log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in (LEVEL_VARIABLE, "JOURNAL_STREAM"):
        monkeypatch.delenv(variable, raising=False)
    yield
    structlog.reset_defaults()


def written(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> tuple[str, str]:
    """A warning as a child writes it, and as the daemon does."""
    monkeypatch.setattr(sys, "stderr", stream)
    log("warning", "map_kept", bytes=7)
    mine = stream.getvalue()
    stream.truncate(0)
    stream.seek(0)
    configure_logging("info", stream)
    structlog.get_logger().warning("map_kept", bytes=7)
    return mine, stream.getvalue()


def test_both_processes_agree_on_the_variable() -> None:
    assert LEVEL_VARIABLE == CHILD_LEVEL_VARIABLE


def test_json_has_the_fields_of_the_daemon_and_the_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, daemons = (json.loads(text) for text in written(monkeypatch, io.StringIO()))
    assert mine.keys() == {*daemons, "pid"}
    assert len(mine.pop("timestamp")) == len(daemons.pop("timestamp"))
    del mine["pid"]
    assert mine == daemons


def test_the_prefix_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    mine, daemons = written(monkeypatch, io.StringIO())
    assert (mine[:4], daemons[:4]) == ("<4>{", "<4>{")


def test_columns_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, daemons = written(monkeypatch, Terminal())
    assert "{" not in mine
    # The same up to the event, but for the digits of the time.
    assert mine.index("map_kept") == daemons.index("map_kept")


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (None, ["info", "warning", "error", "critical"]),
        ("debug", ["debug", "info", "warning", "error", "critical"]),
        ("warning", ["warning", "error", "critical"]),
        ("error", ["error", "critical"]),
        ("nonsense", ["info", "warning", "error", "critical"]),
    ],
)
def test_the_level_of_the_daemon_counts(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, shown: list[str]
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    if wanted is not None:
        monkeypatch.setenv(LEVEL_VARIABLE, wanted)
    for level in ("debug", "info", "warning", "error", "critical"):
        log(level, "x")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == shown
