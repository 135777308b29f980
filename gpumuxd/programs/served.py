"""What a device child serves, whatever it was made from: a torch plan or an ONNX one.

A plan says itself which it is. Both kinds of model have one interface, `Served`, and their programs
another, the executor's. It must not know sessions or operators.
"""

import mmap
from collections.abc import Sequence
from typing import Protocol

import torch

from gpumuxd.domain import Bucket
from gpumuxd.models import onnx_plan
from gpumuxd.models.spec import ModelSpec
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.onnx_model import OnnxModel
from gpumuxd.programs.onnx_program import OnnxProgram
from gpumuxd.programs.program import Program

AnyProgram = Program | OnnxProgram


class Served(Protocol):
    """A model on one device, in the form that programs are made from."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def node_count(self) -> int: ...

    @property
    def weights_bytes(self) -> int: ...

    @property
    def runtime_version(self) -> str:
        """What ran it when it was measured."""
        ...

    def node_program(self) -> AnyProgram: ...

    def grouped_program(self, cuts: Sequence[int]) -> AnyProgram: ...

    def operator_ends(self, cuts: Sequence[int]) -> Sequence[int]:
        """Where groups end, counted in operators of the graph that is run."""
        ...

    @property
    def layer_ends(self) -> Sequence[int]:
        """Where the module's layers end, counted as `operator_ends`; empty if nothing says so."""
        ...

    def cut_by_time(self, node_ns: Sequence[int], target_ns: int) -> list[int]: ...

    def profile_buckets(self, batch_max: int) -> list[Bucket]: ...

    def example_inputs(self, bucket: Bucket) -> list[torch.Tensor]: ...


def open_model(
    plan: bytes | memoryview, weights: memoryview | mmap.mmap, threads: int = 1
) -> ServedModel | OnnxModel:
    """A model of a plan. `weights` is a private, writable mapping and must outlive it.

    Raises InvalidModel for a plan that is malformed, or needs what is not installed.
    """
    if onnx_plan.is_onnx(plan):
        return OnnxModel.open(plan, weights, threads)
    return ServedModel.open(plan, weights)
