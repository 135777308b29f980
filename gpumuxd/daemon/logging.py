"""Logs: one JSON object a line for machines, coloured columns for people at a terminal.

Under systemd each line begins with `<N>`, the syslog priority that the journal takes off and
keeps, so `journalctl -p warning` works without linking to its library.
"""

import logging
import os
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

CHILD_LEVEL_VARIABLE = "GPUMUXD_LOG_LEVEL"
"""Tells device children the level. The rest they see as we do: they inherit standard error."""

_SYSLOG_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Set structlog up for this process. Call once, before anything logs."""
    stream = sys.stderr if stream is None else stream
    processors: list[structlog.typing.Processor] = [
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
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(stream),
        # Loggers are made at import, before this runs.
        cache_logger_on_first_use=False,
    )


_render_json = structlog.processors.JSONRenderer()


def _render_for_journal(logger: WrappedLogger, name: str, event: EventDict) -> str:
    priority = _SYSLOG_PRIORITY.get(str(event.get("level")), 6)
    rendered = _render_json(logger, name, event)
    text = rendered.decode() if isinstance(rendered, bytes) else rendered
    return f"<{priority}>{text}"
