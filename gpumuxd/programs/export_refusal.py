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
_UNEQUAL = re.compile(
    r"L\['(.+?)'\](.*?)\.size\(\)\[(\d+)\] = (\d+) is not equal to "
    r"L\['(.+?)'\](.*?)\.size\(\)\[(\d+)\] = (\d+)"
)
_STATE = re.compile(r"^The tensor attributes? (.+?) (?:was|were) assigned during export")
_OF_THE_FORM = re.compile(
    r"Expected shape\[(\d+)\] = (\d+) of input Tensor to be of the form (\d+)\*(\w+)_units"
)
_TORCHS_ADVICE = re.compile(r"\n+The error above occurred when calling torch\.export.*", re.DOTALL)


def reason_of(error: Exception) -> str:
    """One line where the cause is known, torch's own text otherwise."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return f"{_line_of(error) or 'something in it'} {_ADVICE}"
    text = str(error)
    if found := _OF_THE_FORM.search(text):
        return f"the example has a {found[4]} of {found[2]}, which is no multiple of {found[3]}"
    if found := _UNEQUAL.match(text):
        one, at, index, size, other, other_at, other_index, other_size = found.groups()
        return (
            f"dimension {index} of {one}{at} is {size} in the example and dimension {other_index} "
            f"of {other}{other_at} is {other_size}, but they have one name (`batch` where "
            "`dynamic` names none): give them one size, or two names with `dynamic`"
        )
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


def state_kept(error: Exception) -> str | None:
    """The names of plain attributes that the module assigned tensors to. None for other errors."""
    found = _STATE.match(str(error))
    if not isinstance(error, UserWarning) or found is None:
        return None
    # The list of its own weights that a GRU or an LSTM assigns is no state.
    return ", ".join(name for name in found[1].split(", ") if "._flat_weights[" not in name)


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
                f"the code fixes {name!r} at {size}: a layer has weights of that size (a Linear "
                f"of {size} features), or the code makes a Python number of it (by int, float, "
                "math.sqrt, a loop) or reshapes to it. Compute with it as it is (//, "
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
    """Keeps what torch logs, and what it prints of a branch on values, off stderr. What else is
    printed is passed on, since it may be the module's own."""
    handlers = list(_torchs_handlers())
    printed = io.StringIO()
    is_told_otherwise = False
    for handler in handlers:
        handler.addFilter(_drops_all)
    try:
        with redirect_stderr(printed):
            yield
    except GuardOnDataDependentSymNode:
        is_told_otherwise = True
        raise
    finally:
        for handler in handlers:
            handler.removeFilter(_drops_all)
        if not is_told_otherwise:
            sys.stderr.write(printed.getvalue())


def _torchs_handlers() -> Iterator[logging.Handler]:
    for name in ("torch", *logging.root.manager.loggerDict):
        if name == "torch" or name.startswith("torch."):
            yield from logging.getLogger(name).handlers


def _drops_all(record: logging.LogRecord) -> bool:
    return False
