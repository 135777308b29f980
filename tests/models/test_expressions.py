"""Shape expressions: sympy's text in, postfix out, nothing evaluated."""

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.arithmetic import ARITY, apply
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
        (f"Pow({S}, Integer(2))", ("s0", 2, "**"), 100),
        (f"PowByNatural(Integer(2), {T})", (2, "s1", "**"), 8),
        (f"IntTrueDiv({S}, {T})", ("s0", "s1", "/"), None),
        (f"TruncToInt(IntTrueDiv({S}, {T}))", ("s0", "s1", "/", "trunc"), 3),
        (f"CeilToInt(IntTrueDiv({S}, {T}))", ("s0", "s1", "/", "ceil"), 4),
        (f"FloorToInt(Mul(Integer(-1), IntTrueDiv({S}, {T})))",
         (-1, "s0", "s1", "/", "*", "floor"), -4),
        (f"RoundToInt(IntTrueDiv({S}, Integer(4)))", ("s0", 4, "/", "round"), 2),
        (f"TruncToInt(Mul(Float('0.69999999999999996', precision=53), ToFloat({S})))",
         (0.7, "s0", "float", "*", "trunc"), 7),
        (f"TruncToInt(FloatPow(ToFloat({S}), Float('0.5', precision=53)))",
         ("s0", "float", 0.5, "**", "trunc"), 3),
        (f"TruncToInt(OpaqueUnaryFn_sqrt(ToFloat({S})))", ("s0", "float", "sqrt", "trunc"), 3),
        (f"Where(StrictGreaterThan({S}, {T}), {T}, {S})", ("s0", "s1", ">", "s1", "s0", "if"), 3),
        (f"Where(And(LessThan({S}, {T}), Equality({S}, {T})), Integer(5), Integer(6))",
         ("s0", "s1", "<=", "s0", "s1", "==", "and", 5, 6, "if"), 6),
        (f"Where(Or(Not(GreaterThan({S}, {T})), Unequality({S}, {T})), Integer(5), Integer(6))",
         ("s0", "s1", ">=", "not", "s0", "s1", "!=", "or", 5, 6, "if"), 5),
        (f"Piecewise(ExprCondPair({T}, StrictLessThan({S}, Integer(5))), "
         f"ExprCondPair(Integer(8), StrictLessThan({S}, Integer(11))), "
         f"ExprCondPair({S}, true))",
         ("s0", 5, "<", "s1", "s0", 11, "<", 8, "s0", "if", "if"), 8),
        (f"Piecewise(ExprCondPair({T}, true))", ("s1",), 3),
        (
            f"Add(FloorDiv(Add({S}, Integer(-1)), Integer(2)), Integer(1))",
            ("s0", -1, "+", 2, "//", 1, "+"),
            5,
        ),
    ],
)  # fmt: skip
def test_what_torch_writes(
    text: str, postfix: tuple[int | float | str, ...], value: int | None
) -> None:
    tokens = parse(text, ReadLimits())
    assert tokens == postfix
    if value is None:
        with pytest.raises(InvalidModel, match="expected an integer"):
            evaluate(tokens, {"s0": 10, "s1": 3})
    else:
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
        "Pow(Symbol('s0'))",
        "Float('1e999999999')",
        "Float('nan')",
        "Float('__import__')",
        "Float(0.5)",
        "Integer(9223372036854775808)",
        "Integer(-9223372036854775809)",
        "Symbol('sqrt')",
        "true.__class__",
        "Where(Integer(1), Integer(2))",
        "Piecewise()",
        "Piecewise(ExprCondPair(Integer(1), false))",
        "Piecewise(ExprCondPair(Integer(1)))",
        "Piecewise(Integer(1))",
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


@pytest.mark.parametrize(
    "text",
    [
        "Pow(Integer(9), Integer(99999999999))",
        "Pow(Pow(Integer(9), Integer(9)), Pow(Integer(9), Integer(9)))",
        "Pow(Integer(2), Integer(63))",
        "Pow(Integer(2), Integer(-1))",
        "Pow(Integer(0), Integer(-1))",
        "Mul(Integer(4611686018427387904), Integer(2))",
        "Mul(Integer(-1), Integer(-9223372036854775808))",
        "FloorDiv(Integer(1), Integer(0))",
        "TruncToInt(IntTrueDiv(Integer(1), Integer(0)))",
        "TruncToInt(Float('1e300'))",
        "TruncToInt(FloatPow(Float('1e300'), Float('9.0')))",
        "TruncToInt(FloatPow(Float('-1.0'), Float('0.5')))",
        "TruncToInt(OpaqueUnaryFn_sqrt(Float('-1.0')))",
        "TruncToInt(Mul(Float('1e300'), Float('1e300')))",
        "And(Float('0.5'), Float('0.5'))",
        "Float('1.5')",
    ],
)
def test_what_has_no_value_of_64_bits_is_refused_when_it_is_evaluated(text: str) -> None:
    with pytest.raises(InvalidModel):
        evaluate(parse(text, ReadLimits()), {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Pow(Integer(2), Integer(62))", 1 << 62),
        ("Pow(Integer(-2), Integer(63))", -(1 << 63)),
        ("Pow(Integer(1), Integer(99999999999))", 1),
        ("Pow(Integer(-1), Integer(99999999999))", -1),
        ("Pow(Integer(7), Integer(0))", 1),
        ("Integer(-9223372036854775808)", -(1 << 63)),
    ],
)
def test_what_just_fits_64_bits(text: str, value: int) -> None:
    assert evaluate(parse(text, ReadLimits()), {}) == value


def test_every_operator_is_refused_anything_but_numbers() -> None:
    """Text times a number is as much text, and tensors have operators of their own."""
    for name, arity in ARITY.items():
        with pytest.raises(TypeError, match="takes numbers, got a str"):
            apply(name, *["%99999999d"] * arity)  # type: ignore[list-item]  # hostile on purpose
