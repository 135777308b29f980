"""All architectures of the zoo, by name."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from gpumuxd.testing.zoo.catalogue import Architecture

_MODULES = ("vision", "text", "audio", "plain", "packaged")


def _gather() -> tuple[Architecture, ...]:
    found: list[Architecture] = []
    for name in (f"{__package__}.{module}" for module in _MODULES):
        if find_spec(name) is not None:
            found += import_module(name).ARCHITECTURES
    return tuple(found)


ARCHITECTURES: Sequence[Architecture] = _gather()


def architecture(name: str) -> Architecture:
    """The architecture of this name. Raises KeyError with the names there are."""
    for candidate in ARCHITECTURES:
        if candidate.name == name:
            return candidate
    raise KeyError(f"no architecture {name!r}; there are {[a.name for a in ARCHITECTURES]}")
