"""What one configuration file says differently from another, and what of it can count at once.

Two files are compared as their author knows them: key by key, as they are written. What lives in
the parent alone is applied while it serves; what a device child, a listener or the start itself was
made with waits for the next start. It must not know what a key means beyond that. Invariant: no
secret gets out of here, only whether it changed.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumuxd.daemon.toml_table import SECRETS

APPLIED = re.compile(
    r"\[node\]\.(drain_timeout_s|read_timeout_s)"
    r"|\[repository\]\.poll_s"
    r"|\[tenants\.[^\]]*\]\.(?!socket$).*"
)
"""Keys that count at once. The socket of a tenant is a listener."""


@dataclass(frozen=True, slots=True)
class _Secret:
    """A value that can be compared and not be read."""

    digest: bytes

    def __repr__(self) -> str:
        return "(secret)"


@dataclass(frozen=True, slots=True)
class Change:
    """One key; None is a key that is not stated."""

    key: str
    old: object
    new: object

    @property
    def is_applied(self) -> bool:
        """Does it count at once."""
        return APPLIED.fullmatch(self.key) is not None

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


def stated_keys(document: Mapping[str, Any]) -> dict[str, object]:
    """Each key of a TOML document with its table, as messages show it, and its value."""
    return dict(_flatten("", document))


def changes(old: Mapping[str, object], new: Mapping[str, object]) -> Sequence[Change]:
    """Every key that is stated differently, by name."""
    keys = sorted(old.keys() | new.keys())
    pairs = ((key, old.get(key), new.get(key)) for key in keys)
    return tuple(Change(*pair) for pair in pairs if pair[1] != pair[2])


def apply(stated: Mapping[str, object], applied: Sequence[Change]) -> dict[str, object]:
    """What is in force when these changes were applied to what was stated."""
    values = dict(stated) | {change.key: change.new for change in applied}
    return {key: value for key, value in values.items() if value is not None}


def _flatten(path: str, table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(f"{path}.{key}" if path else key, value)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for number, item in enumerate(value, start=1):
                for inner, stated in item.items():
                    yield f"[[{key}]].{inner} (table {number})", stated
        elif key in SECRETS:
            yield f"[{path}].{key}", _Secret(hashlib.sha256(repr(value).encode()).digest())
        else:
            yield f"[{path}].{key}", value


def _shown(value: object) -> str:
    return "not set" if value is None else repr(value)
