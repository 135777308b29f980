"""Which ONNX operators an artifact may use. Data, and how to ask it.

The list is `allowed_onnx_operators.toml`, with a reason for every group. It must not know graphs.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gpumuxd.errors import InvalidModel


@dataclass(frozen=True, slots=True)
class Required:
    """An attribute that must have its default value."""

    attribute: str
    value: int
    reason: str


@dataclass(frozen=True, slots=True)
class OperandsMax:
    """How many operands an operator may have."""

    maximum: int
    reason: str


@dataclass(frozen=True, slots=True)
class OnnxAllowList:
    """The whole list. `refused` says of some operators why they can't be allowed."""

    allowed: frozenset[str]
    required: Mapping[str, Required]
    operands: Mapping[str, OperandsMax]
    refused: Mapping[str, str]
    domains: tuple[str, ...] = ("", "ai.onnx")
    allows_all: bool = False
    """For what ONNX Runtime made of a graph that was checked before: only domains are looked at."""

    def check(self, domain: str, operator: str) -> None:
        """Raise InvalidModel unless a node may use this operator."""
        if domain not in self.domains:
            raise InvalidModel(
                f"operator {operator[:80]!r} of domain {domain[:80]!r} is not allowed: expected "
                "operators of ONNX's own domain"
            )
        if operator not in self.allowed and not self.allows_all:
            reason = self.refused.get(operator, "it is not in the list of allowed operators")
            raise InvalidModel(f"operator {operator[:80]!r} is not allowed: {reason}")


@cache
def onnx_allow_list() -> OnnxAllowList:
    """The list as the package ships it."""
    text = resources.files(__package__).joinpath("allowed_onnx_operators.toml").read_text()
    data = tomllib.loads(text)
    return OnnxAllowList(
        allowed=frozenset(name for group in data["group"] for name in group["operators"]),
        required={
            entry["operator"]: Required(entry["attribute"], entry["value"], entry["reason"])
            for entry in data["required"]
        },
        operands={
            entry["operator"]: OperandsMax(entry["maximum"], entry["reason"])
            for entry in data["operands"]
        },
        refused={name: group["reason"] for group in data["refused"] for name in group["operators"]},
    )
