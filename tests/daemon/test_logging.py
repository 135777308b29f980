"""Log lines: JSON for machines, with the journal's prefix under systemd."""

import io
import json
import os
from collections.abc import Iterator

import pytest
import structlog

from gpumuxd.daemon.logging import CHILD_LEVEL_VARIABLE, configure_logging, switches
from gpumuxd.settings import LogLevels


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CHILD_LEVEL_VARIABLE, "info")
    yield
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_json_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    stream = io.StringIO()
    configure_logging("info", stream)
    log = structlog.get_logger()
    log.debug("hidden")
    log.info("shown", model="m")
    log.error("failed", reason="a\nb")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(x["event"], x["level"]) for x in lines] == [("shown", "info"), ("failed", "error")]
    assert lines[1]["reason"] == "a\nb"


def test_priorities_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    stream = io.StringIO()
    configure_logging("debug", stream)
    log = structlog.get_logger()
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(log, level)("x")
    lines = stream.getvalue().splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<2>"]
    assert json.loads(lines[0][3:])["event"] == "x"


def test_columns_for_a_terminal() -> None:
    stream = Terminal()
    configure_logging("info", stream)
    structlog.get_logger().info("shown", model="m")
    assert "shown" in stream.getvalue()
    assert "{" not in stream.getvalue()


LEVELS = ("debug", "info", "warning", "error", "critical")


@pytest.mark.parametrize(
    ("levels", "written", "of_children"),
    [
        (LogLevels(verbose=3), LEVELS, "debug"),
        (LogLevels(), LEVELS[1:], "info"),
        (LogLevels(info=False), LEVELS[2:], "warning"),
        (LogLevels(warning=False), ("info", "error", "critical"), "info"),
        (LogLevels(error=False), ("info", "warning"), "info"),
        (LogLevels(verbose=1, info=False, warning=False, error=False), ("debug",), "debug"),
        (LogLevels(info=False, warning=False, error=False), (), "critical"),
    ],
)
def test_each_level_has_a_switch(
    monkeypatch: pytest.MonkeyPatch,
    levels: LogLevels,
    written: tuple[str, ...],
    of_children: str,
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    stream = io.StringIO()
    configure_logging("warning", stream)
    log = structlog.get_logger()  # made before the switches are set
    assert switches.levels == switches.levels_at_start == LogLevels(info=False)
    switches.set(levels)
    assert (switches.levels, switches.levels_at_start) == (levels, LogLevels(info=False))
    assert os.environ[CHILD_LEVEL_VARIABLE] == of_children
    for level in LEVELS:
        getattr(log, level)("x")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert tuple(line["level"] for line in lines) == written
