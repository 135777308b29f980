"""The reference: runs a plan's nodes one by one, as directly as it can be written.

Tests compare generated code with it, bit for bit; nothing in the daemon calls it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from gpumuxd.models.plan import Argument, Constant, Many, Slot, Weight
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.operators import constant_value


def run(model: ServedModel, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of one inference, dense, in the order of the spec."""
    slots: list[Any] = [*inputs, *([None] * (model.plan.slot_count - len(inputs)))]

    def value(argument: Argument) -> Any:
        match argument:
            case Slot(index=index):
                return slots[index]
            case Weight(index=index):
                return model.bindings.weights[index]
            case Constant():
                return constant_value(argument, model.device)
            case Many(items=items):
                return [value(item) for item in items]
            case _:
                return argument

    for node in model.plan.nodes:
        result = model.bindings.operators[node.operator](
            *(value(argument) for argument in node.arguments),
            **{name: value(argument) for name, argument in node.keywords},
        )
        for slot, item in zip(
            node.results, result if node.returns_list else [result], strict=False
        ):
            if slot is not None:
                slots[slot] = item
        for slot in node.clears:
            slots[slot] = None
    return [value(item).contiguous() for item in model.plan.outputs]
