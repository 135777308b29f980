"""Why torch.export refused a module, in the words of who wrote the module.

Of a branch on a tensor's values torch says a dozen lines about its symbols, and prints the graph it
had by then twice over. What its author needs is the line and what to write instead.
"""

import io
import logging
import re
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


_SPECIALIZED = re.compile(r"You marked (\w+) as dynamic but .* to be a constant \((\d+)\)")
_FIXED = re.compile(r"^  (\w+) = (\d+)$", re.MULTILINE)
_MULTIPLE = re.compile(r"^  (\w+) = (\d+)\*\w+$", re.MULTILINE)
_RANGE = re.compile(r"^  ([^_\W]\w*) = Dim\('\w+', min=(\d+)(?:, max=(\d+))?\)$", re.MULTILINE)
_EQUAL = re.compile(r"The values of (\w+) = .* and (\w+) = .* must always be equal")
_GUARD = re.compile(
    r"Not all values of (\w+) = (.+?) in the specified range .* guard (.+?)\.?$", re.M
)
_OUT_OF_RANGE = re.compile(r"(\d+) not in range \[(\d+), (\d+)\]")
_OUTPUT_TYPE = re.compile(
    r"one of the outputs with type `<class '(.+?)'>` is not supported"
    r"|Found <class '(.+?)'> in output"
)
_UNNAMED_TYPE = re.compile(r"No registered serialization name for <class '(.+?)'>")
_UNSAVED_FUNCTION = re.compile(r"op <(?:built-in )?function (\w+).*> is not in _SYM_OPS")
_TORCHS_ADVICE = re.compile(r"\n+The error above occurred when calling torch\.export.*", re.DOTALL)


def reason_of(error: Exception) -> str:
    """One line where the cause is known, torch's own text otherwise."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return f"{_line_of(error) or 'something in it'} {_ADVICE}"
    text = str(error)
    if "Constraints violated" in text:
        return "; ".join(_constraints(text)) or text
    if found := _OUT_OF_RANGE.fullmatch(_TORCHS_ADVICE.sub("", text)):
        size, minimum, maximum = found.groups()
        return (
            f"an example has a size of {size}, its dimension is said to be {minimum} to {maximum}"
        )
    if found := _OUTPUT_TYPE.search(text):
        return _output_type(found[1] or found[2])
    return _TORCHS_ADVICE.sub("", text)


def reason_of_save(error: Exception) -> str:
    """The same for what torch.export traced and can't write."""
    text = str(error)
    if found := _UNNAMED_TYPE.search(text):
        return _output_type(found[1])
    if found := _UNSAVED_FUNCTION.search(text):
        return (
            f"torch has no form for `{found[1]}` of a size: use //, torch.sym_int, torch.sym_max "
            "or torch.sym_min"
        )
    if text == "TODO":  # all that torch says of it
        return "an output is a truth value that depends on sizes: return a tensor of it"
    return text.splitlines()[0] if text else type(error).__name__


def _output_type(name: str) -> str:
    return f"the output is a {name}: return a tensor, or a tuple, list or dict of tensors"


def _constraints(text: str) -> Iterator[str]:
    """What to write instead, for each dimension that torch names."""
    told: set[str] = set()
    for left, right in _EQUAL.findall(text):
        told |= {left, right}
        yield f"{left!r} and {right!r} must be equal: give both dimensions one name"
    for name, multiple in _MULTIPLE.findall(text):
        told.add(name)
        yield f"{name!r} must be a multiple of {multiple}: say multiples={{{name!r}: {multiple}}}"
    for name, minimum, maximum in _RANGE.findall(text):
        if name not in told:
            told.add(name)
            yield (
                f"the module does not work for every {name!r} of its range: say "
                f"sizes={{{name!r}: ({minimum}, {maximum or '...'})}}"
            )
    for name, size in (*_SPECIALIZED.findall(text), *_FIXED.findall(text)):
        if name not in told:
            told.add(name)
            yield (
                f"the code fixes {name!r} at {size}: it makes a Python number of the size (by int, "
                "float, math.sqrt, a loop) or reshapes to it. Compute with it as it is (//, "
                "torch.sym_float, -1 in a shape) or leave it out of `dynamic`"
            )
    for name, source, guard in _GUARD.findall(text):
        if name not in told:
            told.add(name)
            yield (
                f"the module does not work for every {name!r} of its range, only where "
                f"{guard.replace(source, name)}: say `sizes` for which that holds"
            )


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
