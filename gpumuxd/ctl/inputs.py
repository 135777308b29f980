"""What is typed as NAME=VALUE: `--input` to an array of the type that the model takes, `--size`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpumuxd_client.codec import dtype_of
from numpy.typing import NDArray

SIZE_DIGITS_MAX = 18
"""Every such number fits into 64 bits."""


class UsageError(Exception):
    """The command line can't be carried out; the message is for who typed it."""


def read_input(argument: str, datatypes: Mapping[str, str]) -> tuple[str, NDArray[Any]]:
    """The input's name and array. `datatypes` are those of the model, by input name."""
    name, equals, value = argument.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"--input {argument}: expected NAME=FILE.npy, NAME=FILE.json or NAME=JSON")
    if name not in datatypes:
        raise UsageError(
            f"--input {name}: the model has no such input, it takes {', '.join(datatypes)}"
        )
    try:
        if value.endswith(".npy"):
            # A file as it is, with its own type: the daemon says if that is the wrong one.
            array: NDArray[Any] = np.load(value, allow_pickle=False)
            return name, array
        text = Path(value).read_text(encoding="utf-8") if value.endswith(".json") else value
        return name, _exact(json.loads(text), dtype_of(datatypes[name]))
    except (OSError, ValueError, TypeError, OverflowError, ImportError) as error:
        raise UsageError(f"--input {name}: {error}") from None


def read_sizes(arguments: Sequence[str]) -> dict[str, int]:
    """Sizes by the names of dimensions."""
    sizes: dict[str, int] = {}
    for argument in arguments:
        name, _, number = argument.partition("=")
        is_number = number.isascii() and number.isdecimal() and len(number) <= SIZE_DIGITS_MAX
        if not name or not is_number:
            raise UsageError(f"--size {argument}: expected NAME=N, such as batch=4")
        if name in sizes:
            raise UsageError(f"--size {name}: given more than once")
        sizes[name] = int(number)
    return sizes


def _exact(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of a JSON value. Those that the type can't hold are refused, not wrapped."""
    loose = np.asarray(value)
    if loose.dtype.kind not in "biuf":
        raise ValueError(f"expected numbers in equal rows, got {value!r:.80}")
    array = loose.astype(dtype)
    if dtype.kind in "biu" and not np.array_equal(array, loose):
        raise ValueError(f"{value!r:.80} does not fit {dtype}")
    return array
