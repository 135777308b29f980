"""Which operators an artifact may use, and what each does to memory. Data, and how to ask it.

The list is `allowed_operators.toml`, with a reason for every group. Numbers that depend on sizes
(`x.shape[1] // 2`) are computed by our own code (`arithmetic.py`) from the names in
`INTEGER_OPERATORS`, never by a tensor library.

It must not know torch: names are looked up in `programs/`.
"""

import enum
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

ATEN_PREFIX = "torch.ops.aten."


class Effect(enum.StrEnum):
    """What an operator's result shares memory with."""

    FRESH = "fresh"
    VIEW = "view"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class RequiredArgument:
    """An argument that must have this value; absent means torch's default, which is that value."""

    argument: str
    position: int
    value: bool | float | None
    reason: str


@dataclass(frozen=True, slots=True)
class AllowList:
    """The whole list, by aten name (`"add.Tensor"`). `refused` says of some operators that people
    do meet why they can't be allowed, and what to write instead. Of `first_result_only` nobody may
    read the other results."""

    effects: Mapping[str, Effect]
    required: Mapping[str, RequiredArgument]
    refused: Mapping[str, str]
    first_result_only: frozenset[str]


INTEGER_OPERATORS: Mapping[str, str] = {
    "torch.ops.aten.sym_size.int": "int.size",
    "torch.ops.aten.sym_numel.default": "int.numel",
    "_operator.add": "int.add",
    "_operator.sub": "int.sub",
    "_operator.mul": "int.mul",
    "_operator.truediv": "int.truediv",
    "_operator.floordiv": "int.floordiv",
    "_operator.mod": "int.mod",
    "_operator.pow": "int.pow",
    "_operator.lshift": "int.lshift",
    "_operator.rshift": "int.rshift",
    "_operator.neg": "int.neg",
    "_operator.pos": "int.pos",
    "_operator.eq": "int.eq",
    "_operator.ne": "int.ne",
    "_operator.lt": "int.lt",
    "_operator.le": "int.le",
    "_operator.gt": "int.gt",
    "_operator.ge": "int.ge",
    "_operator.and_": "int.and",
    "_operator.or_": "int.or",
    "math.trunc": "int.trunc",
    "torch.sym_float": "int.float",
    "torch.sym_int": "int.trunc",
    "torch.sym_ite": "int.if",
    "torch.sym_max": "int.max",
    "torch.sym_min": "int.min",
    "torch.sym_not": "int.not",
    "torch._sym_sqrt": "int.sqrt",
}
"""Archive name to plan name: all that torch.export writes of numbers (its `_SYM_OPS`)."""

SCALAR_OPERATORS: Mapping[str, str] = {
    "int.add": "+",
    "int.sub": "-",
    "int.mul": "*",
    "int.truediv": "/",
    "int.floordiv": "//",
    "int.mod": "%",
    "int.pow": "**",
    "int.lshift": "<<",
    "int.rshift": ">>",
    "int.neg": "neg",
    "int.pos": "pos",
    "int.eq": "==",
    "int.ne": "!=",
    "int.lt": "<",
    "int.le": "<=",
    "int.gt": ">",
    "int.ge": ">=",
    "int.and": "and",
    "int.or": "or",
    "int.not": "not",
    "int.trunc": "trunc",
    "int.float": "float",
    "int.sqrt": "sqrt",
    "int.if": "if",
    "int.max": "max",
    "int.min": "min",
}
"""Plan name to the operator of `arithmetic.py`: numbers in, a number out."""

SIZE_OPERATORS = frozenset({"int.size", "int.numel"})
"""Plan names of what is asked of a tensor."""

BLANK_OPERATORS: Mapping[str, str] = {
    "torch.ops.aten.empty.memory_format": "torch.ops.aten.zeros.default",
    "torch.ops.aten.empty_like.default": "torch.ops.aten.zeros_like.default",
    "torch.ops.aten.new_empty.default": "torch.ops.aten.new_zeros.default",
}
"""What shows old memory, and what is called in its place: what is in an empty tensor is for whoever
made it to say, and zeros are as good as anything. Models fill such a tensor before they read it."""

DROPPED = frozenset({"torch.ops.aten._assert_tensor_metadata.default"})
"""Checks of types that follow from the checks of the inputs, which the daemon makes itself."""


@cache
def allow_list() -> AllowList:
    """The list, read once."""
    text = resources.files(__package__).joinpath("allowed_operators.toml").read_text("utf-8")
    data = tomllib.loads(text)
    effects: dict[str, Effect] = {}
    for group in data["group"]:
        assert group["reason"], "every group of allowed operators has a reason"
        for name in group["operators"]:
            assert name not in effects, f"{name} is listed twice"
            effects[name] = Effect(group["effect"])
    required = {
        entry["operator"]: RequiredArgument(
            argument=entry["argument"],
            position=entry["position"],
            value=None if entry["value"] == "none" else entry["value"],
            reason=entry["reason"],
        )
        for entry in data["required"]
    }
    refused = {name: group["reason"] for group in data["refused"] for name in group["operators"]}
    assert not refused.keys() & effects.keys(), "an operator is allowed or refused"
    first_result_only = {
        name: group["reason"] for group in data["first_result_only"] for name in group["operators"]
    }
    assert first_result_only.keys() <= effects.keys(), "these are allowed operators"
    return AllowList(effects, required, refused, frozenset(first_result_only))


def is_allowed(plan_name: str) -> bool:
    """May a plan hold this operator? For the device child, which does not trust its loader."""
    if plan_name.startswith("aten."):
        return plan_name.removeprefix("aten.") in allow_list().effects
    return plan_name in SCALAR_OPERATORS or plan_name in SIZE_OPERATORS
