"""Declared sizes as people read them."""

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.spec import Size, evaluate, format_shape, format_size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        # postfix                              as people write it
        (7, "7"),
        (("batch",), "batch"),
        (("batch", 2, "*"), "batch * 2"),
        (("time", 1, "-", 2, "*"), "(time - 1) * 2"),
        ((2, "time", 1, "-", "*"), "2 * (time - 1)"),
        (("time", 3, "*", 1, "-"), "time * 3 - 1"),
        (("a", "b", "c", "-", "-"), "a - (b - c)"),
        (("a", "b", "-", "c", "-"), "a - b - c"),
        (("a", 2, 3, "*", "//"), "a // (2 * 3)"),
        (("a", 2, "//", 3, "//"), "a // 2 // 3"),
        (("a", 1, "+", "b", "max", 4, "*"), "max(a + 1, b) * 4"),
        ((2, "maximum", 1, "+", "*"), "2 * (maximum + 1)"),
        (("a", -1, "+"), "a + -1"),
    ],
)
def test_sizes_read_as_they_are_meant(size: Size, text: str) -> None:
    assert format_size(size) == text
    if isinstance(size, tuple):  # Python reads it so too
        sizes = {"a": 37, "b": 5, "c": 3, "batch": 4, "time": 9, "maximum": 6}
        assert eval(text, {"max": max}, sizes) == evaluate(size, sizes)


@pytest.mark.parametrize("size", [(), ("a", "b"), ("+",), ("a", "+")])
def test_what_is_no_expression_is_refused(size: Size) -> None:
    with pytest.raises(InvalidModel, match="makes no sense"):
        format_size(size)


def test_a_shape() -> None:
    assert format_shape((("batch",), 3, ("time", 2, "//"))) == "[batch, 3, time // 2]"
