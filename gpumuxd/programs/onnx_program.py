"""An ONNX model cut into kernel groups, in the form that an executor launches.

Each group is one session of ONNX Runtime over one sub-model. A frame's content is a list with a
slot per value of the graph, and the inputs after them: a group takes from it, puts its results
there, and drops what nobody reads after it. Values stay the runtime's own from group to group, and
a slot holds the whole vector that the value is in, because it costs as much as entering a session
to make more of them. So the results of one group are held until the last of them is dropped. Torch
tensors come in at the start and go out at the end, without a copy. A program holds no state of a
run. It must not know time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpumuxd.models.onnx_optimiser import first_line
from gpumuxd.models.onnx_plan import OnnxPlan
from gpumuxd.programs.onnx_cutter import Cutter, SubModel
from gpumuxd.programs.onnx_runtime import Feed, make_session, runner, vector_of

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
        parts = Cutter(plan).cut(ends)
        inputs = len(plan.spec.inputs)
        self._homes = {value: (~value, 0, 1) for value in range(inputs)} | {
            value: (group, index, len(part.writes))
            for group, part in enumerate(parts)
            for index, value in enumerate(part.writes)
        }
        self.groups: tuple[Group, ...] = tuple(
            self._group(part, weights, threads) for part in parts
        )

    @property
    def group_count(self) -> int:
        return len(self.groups)

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """The content of a new frame. `inputs` are in the order of the spec, validated before."""
        assert len(inputs) == len(self._plan.spec.inputs), "inputs are validated at the edge"
        rest = len(self._plan.values) - len(inputs)
        # The runtime's values do not keep the memory of these tensors; the frame does.
        return [*(vector_of(each.numpy()) for each in inputs), *([None] * rest), tuple(inputs)]

    def outputs(self, slots: Sequence[Any]) -> list[torch.Tensor]:
        """The results, dense, in the order of the spec. Only after the last group."""
        return [self._output(slots, value).contiguous() for value in self._plan.outputs]

    def _output(self, slots: Sequence[Any], value: int) -> torch.Tensor:
        if value < len(self._plan.spec.inputs):
            tensor: torch.Tensor = slots[-1][value]
            return tensor
        return torch.from_numpy(slots[value][self._homes[value][1]].numpy())

    def bytes_held(self, slots: Sequence[Any]) -> int:
        """Bytes that a frame keeps alive now, weights not counted."""
        vectors = {id(vector): vector for vector in slots[:-1] if vector is not None}
        held = {
            value.data_ptr(): value.numpy().nbytes
            for vector in vectors.values()
            for value in vector
        }
        return sum(held.values())

    def _group(self, part: SubModel, weights: Mapping[int, Any], threads: int) -> Group:
        plan = self._plan
        given = {plan.weights[i].name: weights[i] for i in part.weights if i in weights}
        run = runner(
            make_session(part.model, threads, given, is_optimised=plan.is_optimised),
            [Feed(plan.values[value].name, value, *self._homes[value]) for value in part.reads],
            {plan.values[value].name: value for value in part.writes},
            part.clears,
        )

        def group(slots: list[Any]) -> None:
            try:
                run(slots)
            except Exception as error:
                # The runtime's own error types say the same, with its source files' names.
                raise OnnxFailed(first_line(error)) from error

        return group
