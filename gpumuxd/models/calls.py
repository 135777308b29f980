"""May this operator be called, and so? What the allow-list says of one call.

It must not know an archive's forms: names and arguments are those of a plan. Invariant: a call that
passes changes no weight and no input.
"""

from gpumuxd.errors import InvalidModel
from gpumuxd.models.arithmetic import ARITY
from gpumuxd.models.call_arguments import Keywords, Positional
from gpumuxd.models.operators import (
    ATEN_PREFIX,
    BLANK_OPERATORS,
    INTEGER_OPERATORS,
    SCALAR_OPERATORS,
    Effect,
    RequiredArgument,
    allow_list,
)
from gpumuxd.models.plan import Constant, Node, Slot, Weight, operands
from gpumuxd.models.values import Values


def allowed(target: str) -> tuple[str, Effect]:
    """A plan's name of an archive's operator, and what it does to memory."""
    if target in INTEGER_OPERATORS:
        return INTEGER_OPERATORS[target], Effect.FRESH
    target = BLANK_OPERATORS.get(target, target)
    name = target.removeprefix(ATEN_PREFIX)
    effect = allow_list().effects.get(name) if target.startswith(ATEN_PREFIX) else None
    if effect is None:
        reason = allow_list().refused.get(name)
        if reason is not None:
            raise InvalidModel(f"operator {target[:120]!r} is not allowed: {reason}")
        raise InvalidModel(
            f"operator {target[:120]!r} is not allowed (see gpumuxd/models/allowed_operators.toml)"
        )
    return f"aten.{name}", effect


def check_arguments(
    operator: str, arguments: Positional, keywords: Keywords, values: Values, where: str
) -> None:
    """Refuse arguments that the operator is not allowed with."""
    if operator in SCALAR_OPERATORS:
        _check_numbers(SCALAR_OPERATORS[operator], arguments, keywords, values, where)
    required = allow_list().required.get(operator.removeprefix("aten."))
    if required is not None:
        _check_required(required, arguments, keywords, where)


def check_effect(
    effect: Effect, arguments: Positional, keywords: Keywords, values: Values, where: str
) -> bool:
    """Refuse writes to what is shared; tell whether the results are shared."""
    if effect is Effect.WRITE:
        if not arguments or not isinstance(arguments[0], Slot | Weight):
            raise InvalidModel(f"{where} writes in place to something that is no result")
        if values.is_shared(arguments[0]):
            raise InvalidModel(
                f"{where} writes in place to a weight, buffer or input: a request would "
                "change what the next one sees (clone it first, or pass state in and out)"
            )
        return False
    if effect is not Effect.VIEW:
        return False
    node = Node("", arguments, keywords, (), False, ())
    return any(values.is_shared(item) for item in operands(node))


def without_layout(keywords: Keywords, where: str) -> Keywords:
    """`zeros` has no layout in memory to choose, as `empty` has; without one it is contiguous."""
    formats = [value for name, value in keywords if name == "memory_format"]
    if formats not in ([], [None], [Constant("memory_format", "contiguous_format")]):
        raise InvalidModel(f"{where}: memory_format must be contiguous (use torch.zeros)")
    return tuple(item for item in keywords if item[0] != "memory_format")


def _check_numbers(
    operator: str, arguments: Positional, keywords: Keywords, values: Values, where: str
) -> None:
    """Arithmetic on numbers takes numbers: a list times an integer is a long list."""
    is_number = [
        isinstance(argument, Slot | bool | int | float) and values.number_type(argument) is not None
        for argument in arguments
    ]
    if keywords or not all(is_number) or len(arguments) != ARITY[operator]:
        raise InvalidModel(f"{where}: expected {ARITY[operator]} numbers")


def _check_required(
    required: RequiredArgument, arguments: Positional, keywords: Keywords, where: str
) -> None:
    given = [*arguments[required.position : required.position + 1]]
    given += [value for name, value in keywords if name == required.argument]
    for value in given:
        if value != required.value or isinstance(value, bool) is not isinstance(
            required.value, bool
        ):
            raise InvalidModel(
                f"{where}: {required.argument} must be {required.value}, got {value}. "
                f"{required.reason}"
            )
