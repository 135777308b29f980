"""A served ONNX model: a plan whose weights are mapped, and the programs made of it.

The same interface as `ServedModel`. What the scheduler calls a node is a *unit* here
(`onnx_cutter.py`): the shortest run of nodes that is worth a session. Sessions are made on the
thread that asks for a program, one after the other.

Equality: groups of an optimised plan give what the whole model in one session gives, bit for bit;
others do to within 1e-6, because fusion ends at cuts.
"""

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gpumuxd.domain import Bucket
from gpumuxd.errors import InvalidModel
from gpumuxd.models import onnx_plan
from gpumuxd.models.onnx_optimiser import BLOCKED_DOMAIN, runtime_package
from gpumuxd.models.onnx_plan import OnnxPlan
from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.programs.buckets import example, profile_buckets
from gpumuxd.programs.onnx_cutter import cut_costs, units
from gpumuxd.programs.onnx_program import OnnxProgram
from gpumuxd.programs.onnx_runtime import runtime_version
from gpumuxd.programs.operators import DTYPES
from gpumuxd.programs.segmenter import cut_where_narrow
from gpumuxd.units import NS_PER_MS

GROUP_TARGET_NS_MIN = 8 * NS_PER_MS
"""Entering a session takes 0.15 to 0.2 ms after other work has had the caches (0.02 ms in a loop
that does nothing else), which must stay a small part of a group: `docs/onnx.md` has figures."""

ENTERING_NS = 150_000
"""So much of a unit's time is that of entering its session, which a longer group does only once.
The cheapest unit may take less: it finds in the caches what the one before it left."""


class OnnxModel:
    """One ONNX model on one device, in the form that programs are made from."""

    group_target_ns_min = GROUP_TARGET_NS_MIN

    def __init__(self, plan: OnnxPlan, weights: dict[int, Any], threads: int) -> None:
        self.plan = plan
        self._weights = weights
        self._threads = threads
        self._ends = units(plan)
        self._costs = cut_costs(plan)
        self._packed_bytes = _packed_bytes(plan)

    @classmethod
    def open(
        cls, plan: bytes | memoryview, weights: memoryview | mmap.mmap, threads: int = 1
    ) -> "OnnxModel":
        """`weights` must outlive the model. Raises InvalidModel for a plan that is malformed, and
        where ONNX Runtime is not installed."""
        decoded = onnx_plan.decode(plan)
        view = memoryview(weights)
        if view.nbytes < decoded.weights_bytes:
            raise InvalidModel(
                f"expected {decoded.weights_bytes} bytes of weights, got {view.nbytes}"
            )
        return cls(decoded, _map_weights(decoded, view), threads)

    @property
    def spec(self) -> ModelSpec:
        return self.plan.spec

    @property
    def runtime_version(self) -> str:
        return runtime_version()

    @property
    def node_count(self) -> int:
        """Units, which is what cuts count."""
        return len(self._ends)

    @property
    def weights_bytes(self) -> int:
        """What the loader wrote, and what ONNX Runtime has once more: every weight, or of an
        optimised plan those that are not in the form that kernels read."""
        return self.plan.weights_bytes + self._packed_bytes

    def node_program(self) -> OnnxProgram:
        """One group a unit, for measuring."""
        return self.grouped_program(range(1, self.node_count + 1))

    def grouped_program(self, cuts: Sequence[int]) -> OnnxProgram:
        """`cuts[i]` is the end unit (exclusive) of group i; the last one is `node_count`."""
        return OnnxProgram(self.plan, self._weights, cuts, self.operator_ends(cuts), self._threads)

    def operator_ends(self, cuts: Sequence[int]) -> Sequence[int]:
        """The nodes that cuts between units stand for."""
        return [self._ends[cut - 1] for cut in cuts]

    @property
    def layer_ends(self) -> Sequence[int]:
        """Where the module's layers end, in nodes."""
        return self.plan.layer_ends

    def cut_by_time(self, unit_ns: Sequence[int], target_ns: int) -> list[int]:
        """Where groups end: no longer than the target, and where few values are alive."""
        widths = [self._costs[end] for end in self._ends]
        inside_ns = [max(0, each - ENTERING_NS) for each in unit_ns]
        return cut_where_narrow(inside_ns, max(target_ns, GROUP_TARGET_NS_MIN), widths)

    def profile_buckets(self, batch_max: int) -> list[Bucket]:
        """As `ServedModel.profile_buckets`."""
        return profile_buckets(self.spec, self.plan.size_hints, batch_max)

    def example_inputs(self, bucket: Bucket) -> list[torch.Tensor]:
        """Inputs of a bucket's size, filled as the model's export noted."""
        names = [symbol.name for symbol in self.spec.symbols]
        sizes = dict(zip(names, bucket, strict=True))
        return [
            example(evaluate_shape(tensor.shape, sizes), DTYPES[tensor.datatype], fill)
            for tensor, fill in zip(self.spec.inputs, self.plan.fills, strict=True)
        ]


def _packed_bytes(plan: OnnxPlan) -> int:
    """Bytes of weights that the runtime keeps a copy of, at most: convolutions in blocks read
    theirs in place, products of matrices and recurrent layers do not."""
    packed = {
        index
        for node in plan.nodes
        if not plan.is_optimised or node.domain != BLOCKED_DOMAIN
        for index in node.weights
    }
    return sum(plan.weights[index].size_bytes for index in packed)


def _map_weights(plan: OnnxPlan, view: memoryview) -> dict[int, Any]:
    """The weights that are not in the graph, as the runtime takes them: over the very bytes."""
    value_of = runtime_package().OrtValue.ortvalue_from_numpy
    image = np.frombuffer(view, dtype=np.uint8)
    return {
        index: value_of(
            image[weight.offset : weight.offset + weight.size_bytes]
            .view(NUMPY_TYPES[weight.datatype])
            .reshape(weight.shape)
        )
        for index, weight in enumerate(plan.weights)
        if weight.offset is not None
    }


NUMPY_TYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
