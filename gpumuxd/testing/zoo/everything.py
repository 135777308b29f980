"""All architectures of the zoo, by name."""

from collections.abc import Sequence

from gpumuxd.testing.zoo import audio, plain, text, vision
from gpumuxd.testing.zoo.catalogue import Architecture

ARCHITECTURES: Sequence[Architecture] = (
    *vision.ARCHITECTURES,
    *text.ARCHITECTURES,
    *audio.ARCHITECTURES,
    *plain.ARCHITECTURES,
)


def architecture(name: str) -> Architecture:
    """The architecture of this name. Raises KeyError with the names there are."""
    for candidate in ARCHITECTURES:
        if candidate.name == name:
            return candidate
    raise KeyError(f"no architecture {name!r}; there are {[a.name for a in ARCHITECTURES]}")
