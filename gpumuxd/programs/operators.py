"""From names in a plan to callables: the only place where torch's operators are looked up.

An operator is looked up only after the allow-list said yes, so a plan that a compromised loader
wrote can name nothing else. Numbers that depend on sizes are computed by `models/arithmetic.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models import arithmetic
from gpumuxd.models.operators import SCALAR_OPERATORS, SIZE_OPERATORS, is_allowed
from gpumuxd.models.plan import Constant
from gpumuxd.programs.guarded import GUARDED

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
"""Open Inference Protocol datatype to torch's."""

_MEMORY_FORMATS: dict[str, torch.memory_format] = {
    "contiguous_format": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "preserve_format": torch.preserve_format,
}


_OF_TENSORS: dict[str, Callable[..., Any]] = {
    "int.size": lambda tensor, dim: tensor.shape[dim],
    "int.numel": lambda tensor: tensor.numel(),
}


def resolve(name: str) -> Callable[..., Any]:
    """The callable behind a plan's operator name. Raises InvalidModel if it is not allowed."""
    if not is_allowed(name):
        raise InvalidModel(f"operator {name!r} is not allowed")
    if name in SCALAR_OPERATORS:
        return partial(arithmetic.apply, SCALAR_OPERATORS[name])
    if name in SIZE_OPERATORS:
        return _OF_TENSORS[name]
    if name in GUARDED:
        return GUARDED[name]
    overload = overload_of(name.removeprefix("aten."))
    # The bound builtin behind an OpOverload: the same dispatch without a Python frame around it,
    # about 0.3 us a node.
    function: Callable[..., Any] = getattr(overload, "_op", overload)
    return function


def overload_of(name: str) -> torch._ops.OpOverload:
    """torch's object for an aten name such as `add.Tensor`."""
    packet, _, overload = name.partition(".")
    try:
        found = getattr(getattr(torch.ops.aten, packet), overload)
    except AttributeError as error:
        raise InvalidModel(f"this torch ({torch.__version__}) has no operator {name!r}") from error
    assert isinstance(found, torch._ops.OpOverload)
    return found


def constant_value(constant: Constant, device: torch.device) -> Any:
    """The torch object that a constant of a plan names."""
    match constant.kind:
        case "dtype" if constant.name in DTYPES:
            return DTYPES[constant.name]
        case "memory_format" if constant.name in _MEMORY_FORMATS:
            return _MEMORY_FORMATS[constant.name]
        case "layout" if constant.name == "strided":
            return torch.strided
        case "device":
            return device
    raise InvalidModel(f"plan: unknown constant {constant.kind} {constant.name!r}")
