"""An ONNX model cut into kernel groups, in the form that an executor launches.

Each group is one session of ONNX Runtime over one sub-model. A frame's content is a list with a
place per value of the graph: a group feeds from it by name, puts its results there, and drops what
nobody reads after it. Values are numpy arrays, which the runtime reads in place and hands out
without a copy; torch tensors come in at the start and go out at the end. A program holds no state
of a run. It must not know time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpumuxd.models.onnx_optimiser import first_line
from gpumuxd.models.onnx_plan import OnnxPlan
from gpumuxd.programs.onnx_cutter import Cutter, SubModel
from gpumuxd.programs.onnx_runtime import make_session

Group = Callable[[list[Any]], None]


class OnnxFailed(RuntimeError):
    """A run that ONNX Runtime ended with an error."""


class OnnxProgram:
    """The launchable form of an ONNX model for one choice of cuts. `cuts` are in units, as the
    scheduler counts nodes; `ends` are the nodes that they stand for."""

    def __init__(
        self,
        plan: OnnxPlan,
        weights: Mapping[int, Any],
        cuts: Sequence[int],
        ends: Sequence[int],
        threads: int,
    ) -> None:
        self._plan = plan
        self.cuts = tuple(cuts)
        self.groups: tuple[Group, ...] = tuple(
            _group(plan, part, weights, threads) for part in Cutter(plan).cut(ends)
        )

    @property
    def group_count(self) -> int:
        return len(self.groups)

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """The content of a new frame. `inputs` are in the order of the spec, validated before."""
        assert len(inputs) == len(self._plan.spec.inputs), "inputs are validated at the edge"
        slots: list[Any] = [None] * len(self._plan.values)
        slots[: len(inputs)] = [tensor.numpy() for tensor in inputs]
        return slots

    def outputs(self, slots: Sequence[Any]) -> list[torch.Tensor]:
        """The results, dense, in the order of the spec. Only after the last group."""
        return [torch.from_numpy(slots[value]).contiguous() for value in self._plan.outputs]

    def bytes_held(self, slots: Sequence[Any]) -> int:
        """Bytes that a frame keeps alive now, weights not counted."""
        held = {
            value.__array_interface__["data"][0]: value.nbytes
            for value in slots
            if value is not None
        }
        return sum(held.values())


def _group(plan: OnnxPlan, part: SubModel, weights: Mapping[int, Any], threads: int) -> Group:
    given = {plan.weights[i].name: weights[i] for i in part.weights if i in weights}
    session = make_session(part.model, threads, given, is_optimised=plan.is_optimised)
    feeds = [(plan.values[value].name, value) for value in part.reads]
    names = [plan.values[value].name for value in part.writes]
    writes, clears = part.writes, part.clears

    def group(slots: list[Any]) -> None:
        try:
            results = session.run(names, {name: slots[value] for name, value in feeds})
        except Exception as error:
            # The runtime's own error types say the same, with its source files' names.
            raise OnnxFailed(first_line(error)) from error
        for value in clears:
            slots[value] = None
        for value, result in zip(writes, results, strict=True):
            slots[value] = result

    return group
