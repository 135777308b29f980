"""A table of a TOML file that is read key by key, and knows at the end what nobody read.

Each error names the key with its table, what was expected and what is there. It must not know
what the keys mean.
"""

import difflib
import enum
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from gpumuxd.errors import ConfigError
from gpumuxd.models.toml_text import shown

SECRETS = frozenset({"token", "token_sha256"})
"""Keys whose values no message repeats, whatever they are."""

_E = TypeVar("_E", bound=enum.Enum)


class TomlTable:
    """One table. Every `take_x` removes its key; `finish` refuses what is left."""

    def __init__(self, path: str, values: dict[str, Any], where: str = "") -> None:
        """`where` tells this table from others with the same path."""
        self.path = path
        self._where = where
        self._values = dict(values)
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        self._known.append(key)
        return key in self._values

    def peek(self, key: str) -> object:
        """The value as it is in the file, left where it is."""
        return self._values[key]

    def name(self, key: str) -> str:
        """A key as messages show it: `[scheduler].window_max`."""
        return f"{self.path}.{key}{self._where}" if self.path else key

    def fail(self, key: str, expected: str, got: object) -> NoReturn:
        told = f"a value of type {type(got).__name__}" if key in SECRETS else shown(got)
        raise ConfigError(f"{self.name(key)}: expected {expected}, got {told}")

    def take_text(self, key: str, default: str) -> str:
        value = self._take(key, default)
        if not isinstance(value, str) or "\0" in value:
            self.fail(key, "a string", value)
        return value

    def take_flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.fail(key, "true or false", value)
        return value

    def take_int(self, key: str, default: int, minimum: int, maximum: int) -> int:
        value = self._take(key, default)
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if not is_int or not minimum <= value <= maximum:
            self.fail(key, f"a whole number from {minimum} to {maximum}", value)
        assert isinstance(value, int)
        return value

    def take_scaled(self, key: str, default: int, scale: int, minimum: int, maximum: int) -> int:
        """A number in a unit of `scale`, returned in the base unit. All bounds are in the latter:
        `take_scaled("slice_ms_max", ..., NS_PER_MS, ...)` returns nanoseconds."""
        if key not in self._values:
            self._known.append(key)
            return default
        value = self._take(key, None)
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            self.fail(key, "a number", value)
        if not minimum <= value * scale <= maximum:
            # All digits: a rounded bound would seem to allow what it refuses.
            bounds = f"{minimum / scale:.15g} to {maximum / scale:.15g}"
            self.fail(key, f"a number from {bounds}", value)
        if value and not round(value * scale):  # where 0 means something, it is not that
            self.fail(key, f"0 or at least {1 / scale:.15g}", value)
        return round(value * scale)

    def take_texts(self, key: str, default: Sequence[str]) -> tuple[str, ...]:
        value = self._take(key, list(default))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "a list of strings", value)
        if len(set(value)) != len(value):
            self.fail(key, "a list without repeats", value)
        return tuple(value)

    def take_ints(self, key: str, minimum: int, maximum: int) -> tuple[int, ...] | None:
        """None where it is not stated."""
        value = self._take(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) and minimum <= item <= maximum
            for item in value
        ):
            self.fail(key, f"a list of whole numbers from {minimum} to {maximum}", value)
        return tuple(value)

    def take_enum(self, key: str, default: _E, kind: type[_E]) -> _E:
        """A member by its value where those are strings, else by its name."""
        names = {str(m.value) if isinstance(m.value, str) else m.name: m for m in kind}
        if key not in self._values:
            self._known.append(key)
            return default
        value = self._take(key, None)
        if not isinstance(value, str) or value not in names:
            self.fail(key, " or ".join(repr(name) for name in names), value)
        return names[value]

    def take_table(self, key: str) -> "TomlTable":
        """A sub-table; an empty one where there is none."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            self.fail(key, "a table", value)
        return TomlTable(f"{self.path}.{key}" if self.path else f"[{key}]", value)

    def take_tables(self, key: str) -> "list[TomlTable]":
        """An array of tables, `[[key]]`."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail(key, f"tables written [[{key}]]", value)
        if len(value) == 1:
            return [TomlTable(f"[[{key}]]", value[0])]
        return [
            TomlTable(f"[[{key}]]", item, f" (table {number})")
            for number, item in enumerate(value, start=1)
        ]

    def take_named_tables(self) -> "list[tuple[str, TomlTable]]":
        """All keys that are left, each a table of its own: `[tenants.NAME]`."""
        named = []
        for key in list(self._values):
            inner = self.path.removeprefix("[").removesuffix("]")
            value = self._take(key, None)
            if not isinstance(value, dict):
                # Who forgot the table may have written a secret in its place.
                kind = type(value).__name__
                raise ConfigError(f"{self.name(key)}: expected a table [{inner}.{key}], got {kind}")
            named.append((key, TomlTable(f"[{inner}.{key}]", value)))
        return named

    def finish(self) -> None:
        """Raises ConfigError when a key is left that nobody asked for."""
        known = sorted(set(self._known))
        for key in self._values:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}" if close else f"known are {known}"
            raise ConfigError(f"{self.name(key)}: unknown key; {hint}")

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        return self._values.pop(key, default)
