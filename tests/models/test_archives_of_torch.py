"""Archives that each supported version of torch wrote, with nothing of this project (`make.py`).

Kernels differ between versions, so results are compared to one part in a million and not bit by
bit. Names are those of the arguments and of the keys in the result.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import ModelSpec, Symbol
from tests.programs.networks import open_artifact

FOLDER = Path(__file__).parent / "archives_of_torch"
ARCHIVES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.pt2"))
VERSIONS = sorted({name.partition("/")[0] for name in ARCHIVES})


def spec_of(version: str, case: str) -> ModelSpec:
    with (FOLDER / version / f"{case}.pt2").open("rb") as file:
        return Artifact(file).plan.spec


def test_every_version_from_the_oldest_to_the_newest_is_among_them() -> None:
    assert VERSIONS == ["2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.1", "2.9.1"]
    assert all(f"{version}/features.pt2" in ARCHIVES for version in VERSIONS)


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_gives_what_its_torch_gave(name: str) -> None:
    path = FOLDER / name
    model = open_artifact(path)
    with np.load(path.with_suffix(".npz")) as stored:
        arrays = dict(stored)
    given = [torch.from_numpy(arrays[f"in_{i}"]) for i in range(len(model.spec.inputs))]
    model.spec.bind({t.name: x.shape for t, x in zip(model.spec.inputs, given, strict=True)})
    program = model.node_program()
    with torch.inference_mode():
        slots = program.start(given)
        for group in program.groups:
            group(slots)
    results = program.outputs(slots)
    assert len(results) == len(arrays) - len(given)
    for i, result in enumerate(results):
        expected = torch.from_numpy(arrays[f"out_{i}"])
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("version", VERSIONS)
def test_nested_inputs_and_outputs_are_named_after_their_places(version: str) -> None:
    spec = spec_of(version, "features")
    assert [(tensor.name, tensor.datatype) for tensor in spec.inputs] == [
        ("feats.image", "FP32"), ("feats.ids", "INT64"), ("pair.0", "FP16"), ("pair.1", "BOOL"),
    ]  # fmt: skip
    assert [tensor.name for tensor in spec.outputs] == [
        "scores.0", "scores.1.0", "scores.1.1", "ids", "half", "mask", "mean", "padded", "table",
    ]  # fmt: skip
    batch, length = spec.symbols
    assert batch == Symbol("batch", 1, 64)
    assert (length.minimum, length.maximum) == (8, 64)
    assert spec.batch_symbol == "batch"


@pytest.mark.parametrize("version", VERSIONS)
def test_archives_are_small_and_name_no_folder(version: str) -> None:
    for path in (FOLDER / version).iterdir():
        data = path.read_bytes()
        assert len(data) < 40 * 1024
        assert b"make.py" not in data
