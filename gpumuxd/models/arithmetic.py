"""Numbers that depend on sizes: what may be computed of them, and by nobody else's code.

Shape expressions (`spec.evaluate`) and the scalar nodes of a plan (`programs/operators.py`) compute
with the functions here, so a size that the parent reserves memory for is the size that the child
gets. Python's integers have no end, and a string times an integer is a long string: so operands are
numbers, checked each time, and integers have 64 bits.

It must not know text or tensors. Invariant: `apply` returns a bool, an integer of 64 bits or a
float, or raises ArithmeticError, TypeError or ValueError.
"""

import math
import operator
from collections.abc import Callable, Mapping

Number = bool | int | float

_INT64_END = 1 << 63


def _maximum(left: Number, right: Number) -> Number:
    """As torch.sym_max: a float as soon as one operand is."""
    largest = max(left, right)
    return float(largest) if isinstance(left, float) or isinstance(right, float) else largest


def _minimum(left: Number, right: Number) -> Number:
    smallest = min(left, right)
    return float(smallest) if isinstance(left, float) or isinstance(right, float) else smallest


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int):
        # Known before it is computed: 9 ** 99999999 takes minutes and the memory of the machine.
        if exponent > 0 and (abs(base).bit_length() - 1) * exponent >= 64:
            raise OverflowError(f"{base} to the power of {exponent} does not fit 64 bits")
        if exponent < 0:
            raise ValueError(f"{base} to the power of {exponent} is no integer")
    result: Number = base**exponent  # complex for a root of a negative number: `apply` refuses it
    return result


def _shift(shift: Callable[[int, int], int]) -> Callable[[Number, Number], Number]:
    def shifted(value: Number, bits: Number) -> Number:
        if not isinstance(value, int) or not isinstance(bits, int) or not 0 <= bits < 64:
            raise ValueError(f"can't shift {value} by {bits} bits")
        return shift(value, bits)

    return shifted


def _choose(condition: Number, yes: Number, no: Number) -> Number:
    return yes if condition else no


UNARY: Mapping[str, Callable[[Number], Number]] = {
    "neg": operator.neg,
    "pos": operator.pos,
    "not": operator.not_,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "float": float,
    "sqrt": math.sqrt,
}

BINARY: Mapping[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
    "<<": _shift(operator.lshift),
    ">>": _shift(operator.rshift),
    "min": _minimum,
    "max": _maximum,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
}

TERNARY: Mapping[str, Callable[[Number, Number, Number], Number]] = {"if": _choose}

ARITY: Mapping[str, int] = {
    **dict.fromkeys(UNARY, 1),
    **dict.fromkeys(BINARY, 2),
    **dict.fromkeys(TERNARY, 3),
}
"""Every operator, and how many operands it takes."""

_FUNCTIONS: Mapping[str, Callable[..., object]] = {**UNARY, **BINARY, **TERNARY}


def apply(name: str, *operands: Number) -> Number:
    """The result of an operator of `ARITY`."""
    for operand in operands:
        if type(operand) not in (int, float, bool):
            raise TypeError(f"{name} takes numbers, got a {type(operand).__name__}")
    result = _FUNCTIONS[name](*operands)
    if isinstance(result, float):
        return result
    if isinstance(result, int):
        if -_INT64_END <= result < _INT64_END:
            return result
        raise OverflowError(f"an integer of {result.bit_length()} bits does not fit 64 bits")
    raise ValueError(f"{name} of {operands} is no number")
