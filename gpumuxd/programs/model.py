"""A served model: a plan whose weights are mapped and whose operators are looked up.

From it come programs: the same nodes with different cuts. Weights are views of the bytes that the
loader wrote, nothing is copied; the mapping is private and nothing in a plan writes to a weight.
"""

import mmap
from collections.abc import Sequence

import torch

from gpumuxd.domain import Bucket
from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models.plan import Constant, Many, Plan, WeightEntry
from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.programs.arguments import check_arguments, operators_of
from gpumuxd.programs.buckets import example, profile_buckets
from gpumuxd.programs.operators import DTYPES, constant_value
from gpumuxd.programs.program import Bindings, Program
from gpumuxd.programs.segmenter import cut_by_time


class ServedModel:
    """One model on one device, in the form that programs are made from."""

    def __init__(self, plan: Plan, weights: Sequence[torch.Tensor], device: torch.device) -> None:
        for node in plan.nodes:
            check_arguments(node)
        self.plan = plan
        self.device = device
        self.bindings = Bindings(
            operators=operators_of(plan.nodes),
            weights=weights,
            constants=_constants(plan, device),
        )

    @classmethod
    def open(
        cls,
        plan: bytes | memoryview,
        weights: memoryview | mmap.mmap,
        device: str = "cpu",
    ) -> "ServedModel":
        """`weights` is a private, writable mapping and must outlive the model.

        Writable because torch has no read-only tensors and warns of buffers that are.
        Raises InvalidModel for a plan that is malformed or names what this torch does not have.
        """
        decoded = plans.decode(plan)
        view = memoryview(weights)
        if view.readonly or view.nbytes < decoded.weights_bytes:
            raise InvalidModel(
                f"expected a writable buffer of {decoded.weights_bytes} bytes of weights, "
                f"got {view.nbytes}{' that are read-only' if view.readonly else ''}"
            )
        return cls(decoded, _map_weights(decoded, view), torch.device(device))

    @property
    def spec(self) -> ModelSpec:
        return self.plan.spec

    @property
    def node_count(self) -> int:
        return len(self.plan.nodes)

    @property
    def weights_bytes(self) -> int:
        return self.plan.weights_bytes

    @property
    def runtime_version(self) -> str:
        """What runs it: part of what a measurement depends on."""
        return f"torch {torch.__version__}"

    def node_program(self) -> Program:
        """One group a node, for measuring."""
        return self.grouped_program(range(1, self.node_count + 1))

    def grouped_program(self, cuts: Sequence[int]) -> Program:
        """`cuts[i]` is the end node (exclusive) of group i; the last one is `node_count`."""
        return Program(self.plan, self.bindings, cuts)

    def operator_ends(self, cuts: Sequence[int]) -> Sequence[int]:
        """A node is an operator."""
        return cuts

    @property
    def layer_ends(self) -> Sequence[int]:
        """Where the module's layers end, in nodes."""
        return self.plan.layer_ends

    def cut_by_time(self, node_ns: Sequence[int], target_ns: int) -> list[int]:
        """Where groups end, given the time of each node."""
        return cut_by_time(node_ns, target_ns)

    def profile_buckets(self, batch_max: int) -> list[Bucket]:
        """Buckets to measure: batches of powers of two, other sizes as in the example inputs.

        The largest batch is `batch_max`, or the model's own maximum where that is smaller.
        """
        return profile_buckets(self.spec, self.plan.size_hints, batch_max)

    def example_inputs(self, bucket: Bucket) -> list[torch.Tensor]:
        """Inputs of a bucket's size: 0 for integers (valid for every table), True for masks."""
        names = [symbol.name for symbol in self.spec.symbols]
        sizes = dict(zip(names, bucket, strict=True))
        return [
            example(
                evaluate_shape(tensor.shape, sizes), DTYPES[tensor.datatype], device=self.device
            )
            for tensor in self.spec.inputs
        ]


def _map_weights(plan: Plan, buffer: memoryview) -> list[torch.Tensor]:
    with torch.inference_mode(False):  # tensors made inside it never take a gradient
        image = torch.frombuffer(buffer, dtype=torch.uint8)
        return [_weight(image, entry) for entry in plan.weights]


def _weight(image: torch.Tensor, entry: WeightEntry) -> torch.Tensor:
    """A view of the image: `plans.check` has proved that it lies inside."""
    dtype = DTYPES[entry.datatype]
    weight = torch.empty(0, dtype=dtype)
    weight.set_(image.untyped_storage(), entry.offset // dtype.itemsize, entry.shape, entry.strides)
    # A compromised loader may say it of integers, which torch refuses.
    return weight.requires_grad_(entry.is_trained and dtype.is_floating_point)


def _constants(plan: Plan, device: torch.device) -> dict[str, object]:
    """The value of every literal that code can't spell, by its repr (see Bindings.name)."""
    values: dict[str, object] = {}
    for node in plan.nodes:
        for argument in (*node.arguments, *(value for _, value in node.keywords)):
            items = argument.items if isinstance(argument, Many) else ()
            for item in items:
                if isinstance(item, Constant | float | str):
                    values[repr(item)] = _value(item, device)
            if isinstance(argument, Many):
                values[repr(argument)] = [_value(item, device) for item in items]
            elif isinstance(argument, Constant | float | str):
                values[repr(argument)] = _value(argument, device)
    return values


def _value(item: object, device: torch.device) -> object:
    return constant_value(item, device) if isinstance(item, Constant) else item
