"""Why torch.export refused a module, in the words of who wrote the module.

Of a branch on a tensor's values torch says a dozen lines about its symbols, and prints the graph it
had by then twice over. What its author needs is the line and what to write instead.
"""

import io
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).parent

_ADVICE = (
    "needs a tensor's values, and tracing has none. For a branch use torch.where (torch.cond isn't "
    "supported); loops and sizes can't depend on values"
)


def reason_of(error: Exception) -> str:
    """One line where the cause is known, torch's own text otherwise."""
    if not isinstance(error, GuardOnDataDependentSymNode):
        return str(error)
    return f"{_line_of(error) or 'something in it'} {_ADVICE}"


def _line_of(error: Exception) -> str | None:
    """The innermost line that is neither torch's nor ours. None when there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_code = file.is_file()  # not "<string>", which torch generates
        if is_code and not file.is_relative_to(_TORCH) and file.parent != _OURS:
            return f"{file}:{frame.lineno}: `{frame.line}`"
    return None


@contextmanager
def quiet_refusals() -> Iterator[None]:
    """Keeps what torch prints of a branch on values off stderr. Of anything else all is passed on,
    since then it may be the module's own."""
    logger = logging.getLogger(GuardOnDataDependentSymNode.__module__)
    printed = io.StringIO()
    is_told_otherwise = False
    logger.addFilter(_drops_unfound_code)
    try:
        with redirect_stderr(printed):
            yield
    except GuardOnDataDependentSymNode:
        is_told_otherwise = True
        raise
    finally:
        logger.removeFilter(_drops_unfound_code)
        if not is_told_otherwise:
            sys.stderr.write(printed.getvalue())


def _drops_unfound_code(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Unable to find user code corresponding to")
