"""What the zoo knows of one architecture: how to make it, and at which sizes to run it.

Models are made from configurations with fixed seeds, or from weights that a package ships. Small
ones keep every layer kind of the real one and few of each, for tests; full ones have the published
size, for `bench/zoo.py`. It must not know how a model is read or served.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.programs.exporter import ExportRequest
from gpumuxd.programs.operators import DTYPES


class Scale(enum.Enum):
    """How large a model to make."""

    SMALL = "small"
    FULL = "published"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One kind of model.

    `make` seeds torch itself, so two calls give the same weights. `sizes` are values of the dynamic
    dimensions to run at, valid at both scales, the smallest allowed ones among them. Random
    integers of input `name` are below `integers_below[name]` (2 where it is not named).
    """

    name: str
    family: str
    make: Callable[[Scale], ExportRequest]
    sizes: Sequence[Mapping[str, int]]
    integers_below: Mapping[str, int] = field(default_factory=dict)

    def inputs(self, spec: ModelSpec, sizes: Mapping[str, int], seed: int) -> list[torch.Tensor]:
        """Random inputs of these sizes, in the order of the spec."""
        generator = torch.Generator().manual_seed(seed)
        made = []
        for tensor in spec.inputs:
            shape, dtype = evaluate_shape(tensor.shape, sizes), DTYPES[tensor.datatype]
            if dtype.is_floating_point:
                made.append(torch.randn(shape, generator=generator).to(dtype))
            else:
                end = self.integers_below.get(tensor.name, 2)
                made.append(torch.randint(0, end, shape, generator=generator).to(dtype))
        return made
