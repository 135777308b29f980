"""Logs: one JSON object a line for machines, coloured columns for people at a terminal.

The levels can be switched while the daemon runs. Device children keep to the lowest that was
switched on when they were started.

Under systemd each line begins with `<N>`, the syslog priority that the journal takes off and
keeps, so `journalctl -p warning` works without linking to its library.
"""

import logging
import os
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from gpumuxd.settings import LogLevels

CHILD_LEVEL_VARIABLE = "GPUMUXD_LOG_LEVEL"
"""Tells device children the level. The rest they see as we do: they inherit standard error."""

_SYSLOG_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


_NOTHING = "critical"
"""The level where all is switched off. Critical lines go with those of errors."""


class Switches:
    """Which lines are written. There is one for the process, as there is one structlog."""

    def __init__(self) -> None:
        self.levels = self.levels_at_start = LogLevels()

    def begin(self, level: str) -> None:
        """With this level and all above it."""
        rank = _SYSLOG_PRIORITY[level]
        self.levels_at_start = LogLevels(
            verbose=int(level == "debug"),
            **{name: _SYSLOG_PRIORITY[name] <= rank for name in ("info", "warning", "error")},
        )
        self.set(self.levels_at_start)

    def set(self, levels: LogLevels) -> None:
        """From now on."""
        self.levels = levels
        lowest = next((name for name in _SYSLOG_PRIORITY if self._is_on(name)), _NOTHING)
        os.environ[CHILD_LEVEL_VARIABLE] = lowest
        wrapper = structlog.make_filtering_bound_logger(getattr(logging, lowest.upper()))
        structlog.configure(wrapper_class=wrapper)

    def drop(self, logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        """A processor: lets through what is switched on."""
        if self._is_on(name):
            return event
        raise structlog.DropEvent

    def _is_on(self, name: str) -> bool:
        if name == "debug":
            return self.levels.verbose > 0
        return bool(getattr(self.levels, "error" if name == "critical" else name))


switches = Switches()


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Set structlog up for this process. Call once, before anything logs."""
    stream = sys.stderr if stream is None else stream
    processors: list[structlog.typing.Processor] = [
        switches.drop,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if stream.isatty():
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if "JOURNAL_STREAM" in os.environ:
            # The level is read before it is rendered, the prefix put on after.
            processors[-1:] = [_render_for_journal]
    structlog.configure(
        processors=processors,
        logger_factory=structlog.PrintLoggerFactory(stream),
        # Loggers are made at import, before this runs.
        cache_logger_on_first_use=False,
    )
    switches.begin(level)


_render_json = structlog.processors.JSONRenderer()


def _render_for_journal(logger: WrappedLogger, name: str, event: EventDict) -> str:
    priority = _SYSLOG_PRIORITY.get(str(event.get("level")), 6)
    rendered = _render_json(logger, name, event)
    text = rendered.decode() if isinstance(rendered, bytes) else rendered
    return f"<{priority}>{text}"
