"""Models that people ship: exported, read by a loader process, cut in many ways and compared."""

import os
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from gpumuxd.models.spec import ModelSpec, format_shape
from gpumuxd.programs.export_onnx import export_onnx
from gpumuxd.programs.onnx_model import OnnxModel
from gpumuxd.programs.served import open_model
from gpumuxd.testing.zoo.onnx_models import REAL, example
from gpumuxd.wire.frames import Read, ReadDone
from gpumuxd.wire.process import map_sealed
from tests.loader.harness import one_loader
from tests.onnx.support import largest_difference, run, whole

OUTPUTS = {
    "det": ["[batch, 1, h, w]"],
    "rec": ["[batch, (w + 3) // 8, 18710]"],
    "cls": ["[batch, 2]"],
    "magika": ["[batch, 214]"],
    "silero_ifless": ["[batch, 1]", "[2, batch, 128]"],
    "silero_op15": ["[batch, 1]", "[2, batch, 128]"],
    "nudenet": ["[batch, 22, height * 21 // 16 * (width * 21 // 16) // 84]"],
    "basic_pitch": ["[batch, 172, 88]", "[batch, 172, 88]", "[batch, 172, 264]"],
}


@dataclass
class Loaded:
    """What a device child would have."""

    data: bytes
    done: ReadDone
    model: OnnxModel

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec


@pytest.fixture(scope="module", params=REAL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(name: str, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = tmp_path_factory.mktemp(name) / "1" / "model.onnx"
    export_onnx(REAL[name].path(), path, REAL[name].request)
    with path.open("rb") as file, one_loader() as loader:
        loader.channel.send(Read(1 << 30, "onnx"), [file.fileno()])
        answer, fds = loader.answer()
    assert isinstance(answer, ReadDone), answer
    plan, weights = (map_sealed(each) for each in fds)
    for each in fds:
        os.close(each)
    model = open_model(bytes(plan), memoryview(weights))
    assert isinstance(model, OnnxModel)
    assert model.plan.is_optimised
    return Loaded(path.read_bytes(), answer, model)


def test_its_signature_is_found_out(name: str, loaded: Loaded) -> None:
    assert [format_shape(tensor.shape) for tensor in loaded.spec.outputs] == OUTPUTS[name]
    assert loaded.done.platform == "onnxruntime_onnx"
    assert loaded.done.parameter_count > 30_000
    assert msgspec.msgpack.decode(loaded.done.spec, type=ModelSpec) == loaded.spec


def test_groups_give_what_the_whole_model_gives(name: str, loaded: Loaded) -> None:
    """To the bit: for one group, a few, every unit by itself, and what the rule for cuts makes."""
    model, count = loaded.model, loaded.model.node_count
    draw = np.random.default_rng(3)
    by_time = model.cut_by_time([int(t) for t in draw.integers(300_000, 2_700_000, count)], 1)
    groupings = [[count], [*range(1, count + 1)], by_time]
    if count > 2:
        groupings.append([count // 3, 2 * count // 3 + 1, count])
    programs = [model.grouped_program(cuts) for cuts in groupings]
    for sizes in REAL[name].sizes:
        inputs = example(loaded.spec, model.plan.fills, sizes)
        expected = whole(loaded.data, loaded.spec, inputs)
        for cuts, program in zip(groupings, programs, strict=True):
            apart = largest_difference(run(program, loaded.spec, inputs), expected)
            assert apart == 0, f"{len(cuts)} groups at {sizes}"


def test_example_inputs_run(loaded: Loaded) -> None:
    """A load measures with them: those of silero need a sampling rate, which the export noted."""
    model = loaded.model
    bucket = model.profile_buckets(1)[0]
    inputs = [tensor.numpy() for tensor in model.example_inputs(bucket)]
    results = run(model.grouped_program([model.node_count]), loaded.spec, inputs)
    assert all(np.isfinite(each).all() for each in results)
