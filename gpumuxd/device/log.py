"""Log lines of a device child, as the daemon's own look: on standard error, which is the parent's.

The parent is not asked to write them, since what a child has to say may be that the parent is
stuck. Both follow the same rule instead (`daemon/logging.py`): columns at a terminal, else JSON,
with the journal's prefix under systemd. The level comes in GPUMUXD_LOG_LEVEL. Nothing on the path
of a request logs.
"""

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any

LEVEL_VARIABLE = "GPUMUXD_LOG_LEVEL"

_SYSLOG_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def log(level: str, event: str, **fields: Any) -> None:
    """Write one line if its level is wanted."""
    wanted = os.environ.get(LEVEL_VARIABLE, "")
    if _SYSLOG_PRIORITY[level] > _SYSLOG_PRIORITY.get(wanted, _SYSLOG_PRIORITY["info"]):
        return
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    line = {"event": event, "pid": os.getpid(), **fields, "level": level, "timestamp": now}
    sys.stderr.write(_render(line) + "\n")
    sys.stderr.flush()


def _render(line: dict[str, Any]) -> str:
    if sys.stderr.isatty():
        # Imported for people alone: it takes a while.
        from structlog.dev import ConsoleRenderer

        return ConsoleRenderer()(None, line["level"], line)
    rendered = json.dumps(line, default=str)
    if "JOURNAL_STREAM" in os.environ:
        return f"<{_SYSLOG_PRIORITY[line['level']]}>{rendered}"
    return rendered
