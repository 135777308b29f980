"""Log lines: JSON for machines, with the journal's prefix under systemd."""

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from gpumuxd.daemon.logging import configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
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
