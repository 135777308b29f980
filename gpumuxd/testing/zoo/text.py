"""Models of text, and a recommender."""

from collections.abc import Sequence

from gpumuxd.testing.zoo.catalogue import Architecture

ARCHITECTURES: Sequence[Architecture] = ()
