"""Shape expressions: from the text in an archive to the postfix tuples of `spec.py`.

torch writes sizes as sympy's `srepr`: `Add(FloorDiv(Symbol('s27', integer=True), Integer(2)),
Integer(1))`. torch itself gives that text to sympy, which evaluates it as Python; here it is parsed
with `ast`, which evaluates nothing, and only the calls listed below mean anything.

Invariant: what comes out holds numbers, symbol names and the operators of `arithmetic.ARITY`.
"""

import ast
import re
from collections.abc import Sequence

from gpumuxd.errors import InvalidModel
from gpumuxd.models.arithmetic import ARITY
from gpumuxd.models.limits import ReadLimits

Tokens = list[int | float | str]

_FOLDED = {"Add": "+", "Mul": "*", "Max": "max", "Min": "min", "And": "and", "Or": "or"}
"""Calls of any number of arguments, folded from the left."""

_CALLS: dict[str, str] = {
    "FloorDiv": "//",
    "CleanDiv": "//",
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
    "Mod": "%",
    "PythonMod": "%",
    "Pow": "**",
    "PowByNatural": "**",
    "FloatPow": "**",
    "ToFloat": "float",
    "TruncToInt": "trunc",
    "FloorToInt": "floor",
    "CeilToInt": "ceil",
    "RoundToInt": "round",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "Not": "not",
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
    "Where": "if",
}
"""Calls with as many arguments as the operator has operands."""

_FLOAT = re.compile(r"-?[0-9]{1,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,3})?", re.ASCII)


def parse(text: str, limits: ReadLimits) -> tuple[int | float | str, ...]:
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
    if isinstance(node, ast.Name) and node.id in ("true", "false"):
        return [int(node.id == "true")]
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise InvalidModel(f"shape expression: expected a call, got {_shortened(ast.dump(node))}")
    name, arguments = node.func.id, node.args
    if not all(isinstance(each.value, ast.Constant) for each in node.keywords):
        raise InvalidModel(f"shape expression: {name} with assumptions that are no literals")
    match name:
        case "Integer":
            return [_integer(arguments)]
        case "Float":
            return [_float(arguments)]
        case "Symbol":
            return [_symbol(arguments)]
        case "Piecewise" if arguments:
            return _piecewise(arguments, tokens_max)
        case _ if name in _FOLDED and arguments:
            return _folded(_FOLDED[name], arguments, tokens_max)
        case _ if name in _CALLS and len(arguments) == ARITY[_CALLS[name]]:
            return _joined(arguments, _CALLS[name], tokens_max)
    known = ", ".join(["Integer", "Float", "Symbol", "Piecewise", *_FOLDED, *_CALLS])
    raise InvalidModel(
        f"shape expression: {name[:40]} with {len(arguments)} arguments is not allowed "
        f"(allowed: {known})"
    )


def _joined(arguments: Sequence[ast.expr], operator: str, tokens_max: int) -> Tokens:
    tokens: Tokens = []
    for argument in arguments:
        tokens += _tokens(argument, tokens_max)
        _check_length(tokens, tokens_max)
    return [*tokens, operator]


def _folded(operator: str, arguments: Sequence[ast.expr], tokens_max: int) -> Tokens:
    tokens = _tokens(arguments[0], tokens_max)
    for argument in arguments[1:]:
        tokens += [*_tokens(argument, tokens_max), operator]
        _check_length(tokens, tokens_max)
    return tokens


def _piecewise(pairs: Sequence[ast.expr], tokens_max: int) -> Tokens:
    """`Piecewise((a, x), (b, y), (c, true))` is: if x then a else (if y then b else c)."""
    *conditional, (otherwise, always) = [_pair(pair) for pair in pairs]
    if not (isinstance(always, ast.Name) and always.id == "true"):
        raise InvalidModel("shape expression: the last case of Piecewise must be true")
    tokens: Tokens = []
    for value, condition in conditional:
        tokens += [*_tokens(condition, tokens_max), *_tokens(value, tokens_max)]
        _check_length(tokens, tokens_max)
    return [*tokens, *_tokens(otherwise, tokens_max), *["if"] * len(conditional)]


def _pair(node: ast.expr) -> tuple[ast.expr, ast.expr]:
    match node:
        case ast.Call(func=ast.Name(id="ExprCondPair"), args=[value, condition]):
            return value, condition
    raise InvalidModel("shape expression: Piecewise takes pairs of a value and a condition")


def _check_length(tokens: Tokens, tokens_max: int) -> None:
    if len(tokens) > tokens_max:
        raise InvalidModel("shape expression has too many terms")


def _integer(arguments: Sequence[ast.expr]) -> int:  # a sign comes as a unary minus
    match arguments:
        case [ast.Constant(value=value)] if type(value) is int and value < 1 << 63:
            return value
        case [ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value))] if (
            type(value) is int and value <= 1 << 63
        ):
            return -value
    raise InvalidModel("shape expression: Integer takes one literal of 64 bits")


def _float(arguments: Sequence[ast.expr]) -> float:
    match arguments:
        case [ast.Constant(value=str() as text)] if _FLOAT.fullmatch(text):
            return float(text)
    raise InvalidModel("shape expression: Float takes the text of one number")


def _symbol(arguments: Sequence[ast.expr]) -> str:
    match arguments:
        case [ast.Constant(value=str() as name)]:
            if not (name.isascii() and name.isidentifier() and len(name) <= 64):
                raise InvalidModel(f"shape expression: {_shortened(name)} is not a symbol's name")
            if name in ARITY:
                raise InvalidModel(f"shape expression: a symbol can't be named {name!r}")
            return name
    raise InvalidModel("shape expression: Symbol takes one name")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
