"""Shape expressions: sympy's text in, postfix out, nothing evaluated."""

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.expressions import parse
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.spec import evaluate

S = "Symbol('s0', positive=True, integer=True)"
T = "Symbol('s1', integer=True)"


@pytest.mark.parametrize(
    ("text", "postfix", "value"),  # with s0 = 10, s1 = 3
    [
        (S, ("s0",), 10),
        ("Integer(7)", (7,), 7),
        ("Integer(-7)", (-7,), -7),
        (f"Add({S}, Integer(1))", ("s0", 1, "+"), 11),
        (f"Add({S}, {T}, Integer(-1))", ("s0", "s1", "+", -1, "+"), 12),
        (f"Mul(Integer(3), {S})", (3, "s0", "*"), 30),
        (f"Mul({S}, {T})", ("s0", "s1", "*"), 30),
        (f"Mul(Integer(-1), {S})", (-1, "s0", "*"), -10),
        (f"FloorDiv({S}, Integer(4))", ("s0", 4, "//"), 2),
        (f"CleanDiv({S}, Integer(5))", ("s0", 5, "//"), 2),
        (f"Mod({S}, {T})", ("s0", "s1", "%"), 1),
        (f"PythonMod({S}, Integer(4))", ("s0", 4, "%"), 2),
        (f"Max({S}, {T})", ("s0", "s1", "max"), 10),
        (f"Min({S}, {T}, Integer(1))", ("s0", "s1", "min", 1, "min"), 1),
        (f"Pow({S}, Integer(2))", ("s0", "s0", "*"), 100),
        (
            f"Add(FloorDiv(Add({S}, Integer(-1)), Integer(2)), Integer(1))",
            ("s0", -1, "+", 2, "//", 1, "+"),
            5,
        ),
    ],
)
def test_what_torch_writes(text: str, postfix: tuple[int | str, ...], value: int) -> None:
    tokens = parse(text, ReadLimits())
    assert tokens == postfix
    assert evaluate(tokens, {"s0": 10, "s1": 3}) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s0",
        "1",
        "'s0'",
        "Symbol(s0)",
        "Symbol()",
        "Symbol('a b')",
        "Symbol('min')",
        "Symbol('')",
        "Symbol('x' * 9)",
        "Symbol(f'{1}')",
        "Symbol('\u00e9')",
        "Integer('1')",
        "Integer(1.5)",
        "Integer(True)",
        "Integer(--1)",
        "Integer(99999999999999999999)",
        "Add()",
        "FloorDiv(Integer(1))",
        "FloorDiv(Integer(1), Integer(1), Integer(1))",
        "Pow(Symbol('s0'), Symbol('s0'))",
        "Pow(Symbol('s0'), Integer(99))",
        "Pow(Symbol('s0'), Integer(-1))",
        "Rational(1, 2)",
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "Add(*[Integer(1)])",
        "Integer(1) if 1 else Integer(2)",
        "Add(Integer(1), [Integer(2)])",
        "Integer(1); Integer(2)",
        "Integer(1\0)",
        "(" * 300 + ")" * 300,
        "-" * 3000 + "1",
        "Add(" * 400 + "Integer(1)" + ")" * 400,
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidModel):
        parse(text, ReadLimits())


def test_length_is_limited_in_characters_and_in_tokens() -> None:
    limits = ReadLimits(expression_chars_max=60, expression_tokens_max=3)
    assert len(parse("Add(Integer(1), Integer(2))", limits)) == 3
    with pytest.raises(InvalidModel, match="too many terms"):
        parse("Add(Integer(1), Integer(2), Integer(3))", limits)
    with pytest.raises(InvalidModel, match="expression_chars_max"):
        parse("Add(Integer(1), Integer(2))" + " " * 40, limits)


def test_powers_of_powers_stay_small() -> None:
    text = "Symbol('s0')"
    for _ in range(12):
        text = f"Pow({text}, Integer(4))"
    with pytest.raises(InvalidModel, match="too many terms"):
        parse(text, ReadLimits())
