"""TOML that somebody else wrote: read, and shown in messages, whatever is in it."""

import tomllib
from typing import Any


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Raises ValueError saying why it is no TOML.

    That is the base of what tomllib says, and what Python says of an integer of over 4300 digits.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def shown(value: object) -> str:
    """A value as a message repeats it."""
    try:
        return repr(value)
    except ValueError:  # tomllib takes integers of over 4300 digits in hexadecimal
        return "an integer of thousands of digits"
