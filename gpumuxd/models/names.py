"""Names of models and versions as they come from outside; each becomes a path component.

The rule is an allow-list of characters, so that no name can leave its repository, hide, or break a
log line.
"""

import re

from gpumuxd.errors import InvalidRequest

NAME_CHARS_MAX = 128
VERSION_DIGITS_MAX = 9

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]*", re.ASCII)


def check_model_name(name: str) -> None:
    """Raise InvalidRequest unless this may be a model's name."""
    if len(name) > NAME_CHARS_MAX:
        raise InvalidRequest(
            f"model name of {len(name)} characters: expected at most {NAME_CHARS_MAX}"
        )
    if not is_model_name(name):
        raise InvalidRequest(
            f"model name {name!r}: expected letters, digits, '_', '-' and single '.', "
            "beginning with a letter, digit or '_'"
        )


def is_model_name(name: str) -> bool:
    """May this be a model's name? A repository can hold other directories, such as lost+found."""
    return len(name) <= NAME_CHARS_MAX and bool(_NAME.fullmatch(name)) and ".." not in name


def version_number(text: str) -> int:
    """The number of a version. Raises InvalidRequest for anything but a positive integer."""
    if len(text) > VERSION_DIGITS_MAX:
        raise InvalidRequest(
            f"model version of {len(text)} characters: "
            f"expected a positive integer of at most {VERSION_DIGITS_MAX} digits"
        )
    if not _VERSION.fullmatch(text):
        raise InvalidRequest(f"model version {text!r}: expected a positive integer")
    return int(text)
