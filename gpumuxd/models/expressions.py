"""Shape expressions: from the text in an archive to the postfix tuples of `spec.py`.

torch writes sizes as sympy's `srepr`: `Add(FloorDiv(Symbol('s27', integer=True), Integer(2)),
Integer(1))`. torch itself gives that text to sympy, which evaluates it as Python; here it is parsed
with `ast`, which evaluates nothing, and only the calls listed below mean anything.

Invariant: what comes out holds integers, symbol names and the operators of `spec.OPERATORS`.
"""

import ast

from gpumuxd.errors import InvalidModel
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.spec import OPERATORS

Tokens = list[int | str]

_FOLDED = {"Add": "+", "Mul": "*", "Max": "max", "Min": "min"}
"""Calls of any number of arguments, folded from the left."""

_BINARY = {"FloorDiv": "//", "CleanDiv": "//", "Mod": "%", "PythonMod": "%"}

_POWER_MAX = 4


def parse(text: str, limits: ReadLimits) -> tuple[int | str, ...]:
    """The postfix form of an expression. Raises InvalidModel for anything not listed."""
    if len(text) > limits.expression_chars_max:
        raise InvalidModel(
            f"shape expression of {len(text)} characters, "
            f"the limit (expression_chars_max) is {limits.expression_chars_max}"
        )
    try:
        tree = ast.parse(text, mode="eval")
        tokens = _tokens(tree.body, limits.expression_tokens_max)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidModel(f"shape expression {_shortened(text)} can't be parsed") from error
    if len(tokens) > limits.expression_tokens_max:
        raise InvalidModel(f"shape expression {_shortened(text)} is too long")
    return tuple(tokens)


def _tokens(node: ast.expr, tokens_max: int) -> Tokens:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise InvalidModel(f"shape expression: expected a call, got {_shortened(ast.dump(node))}")
    name, arguments = node.func.id, node.args
    match name:
        case "Integer":
            return [_literal(arguments, int)]
        case "Symbol":
            return [_symbol(_literal(arguments, str))]
        case "Pow":
            return _power(arguments, tokens_max)
        case _ if name in _FOLDED and arguments:
            return _folded(_FOLDED[name], arguments, tokens_max)
        case _ if name in _BINARY and len(arguments) == 2:
            return _folded(_BINARY[name], arguments, tokens_max)
    known = ", ".join(["Integer", "Symbol", "Pow", *_FOLDED, *_BINARY])
    raise InvalidModel(
        f"shape expression: {name} with {len(arguments)} arguments is not allowed "
        f"(allowed: {known})"
    )


def _folded(operator: str, arguments: list[ast.expr], tokens_max: int) -> Tokens:
    tokens = _tokens(arguments[0], tokens_max)
    for argument in arguments[1:]:
        tokens += [*_tokens(argument, tokens_max), operator]
        if len(tokens) > tokens_max:
            raise InvalidModel("shape expression has too many terms")
    return tokens


def _power(arguments: list[ast.expr], tokens_max: int) -> Tokens:
    """A power is a product: postfix has no operator for it, and exponents are small."""
    if len(arguments) == 2:
        base, exponent = _tokens(arguments[0], tokens_max), _tokens(arguments[1], tokens_max)
        if len(exponent) == 1 and isinstance(exponent[0], int) and 1 <= exponent[0] <= _POWER_MAX:
            if len(base) * exponent[0] > tokens_max:
                raise InvalidModel("shape expression has too many terms")
            tokens = list(base)
            for _ in range(exponent[0] - 1):
                tokens += [*base, "*"]
            return tokens
    raise InvalidModel(f"shape expression: a power must have an exponent of 1 to {_POWER_MAX}")


def _literal(arguments: list[ast.expr], kind: type) -> int | str:  # sign comes as a unary minus
    if len(arguments) == 1:
        argument, sign = arguments[0], 1
        if isinstance(argument, ast.UnaryOp) and isinstance(argument.op, ast.USub):
            argument, sign = argument.operand, -1
        if isinstance(argument, ast.Constant) and type(argument.value) is kind:
            value = argument.value
            if isinstance(value, int) and abs(value) < 1 << 63:
                return sign * value
            if isinstance(value, str) and sign == 1:
                return value
    raise InvalidModel(f"shape expression: expected one literal of type {kind.__name__}")


def _symbol(name: int | str) -> str:
    if not (isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= 64):
        raise InvalidModel(f"shape expression: {_shortened(str(name))} is not a symbol's name")
    if name in OPERATORS:
        raise InvalidModel(f"shape expression: a symbol can't be named {name!r}")
    return name


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
