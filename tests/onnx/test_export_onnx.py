"""`gpumuxd export --onnx`: what it finds out, what it notes, what it refuses."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpumuxd.errors import InvalidModel
from gpumuxd.models.checksum import read_checksum
from gpumuxd.models.spec import Symbol, format_shape
from gpumuxd.programs import export
from gpumuxd.programs.export_onnx import OnnxExport, _explained_somewhere, export_onnx
from gpumuxd.programs.onnx_probe import Probe, Shapes
from tests.onnx.support import info, layers, model, read, weight


def pooled(output: object = info("y", ["a", "b", "c", "d"])) -> onnx.ModelProto:
    """An image on two ways that meet again: its sides are multiples of 4."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["s"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("AveragePool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxPool", ["x"], ["q"], kernel_shape=[4, 4], strides=[4, 4], ceil_mode=1),
        helper.make_node("Add", ["p", "q"], ["y"]),
    ]
    kernel = weight("w", np.ones((1, 1, 3, 3), np.float32))
    made: onnx.ModelProto = model(nodes, [info("x", ["n", 1, None, None])], [output], [kernel])
    return made


def exported(made: onnx.ModelProto, folder: Path, request: OnnxExport | None = None) -> Path:
    source, path = folder / "source.onnx", folder / "m" / "1" / "model.onnx"
    source.write_bytes(made.SerializeToString())
    export_onnx(source, path, request)
    return path


def test_sizes_ranges_and_names_are_noted_and_read_back(tmp_path: Path) -> None:
    path = exported(pooled(), tmp_path, OnnxExport(dimensions={("x", 2): "h", ("x", 3): "w"}))
    spec = read(path.read_bytes()).plan.spec
    assert format_shape(spec.inputs[0].shape) == "[batch, 1, h, w]"
    assert format_shape(spec.outputs[0].shape) in (
        "[batch, 1, h // 4, w // 4]",
        "[batch, 1, (h + 1) // 4, (w + 1) // 4]",
    )
    assert spec.batch_symbol == "batch"
    assert spec.symbols[0] == Symbol("batch", 1, 64)
    assert read_checksum(path.with_name("model.onnx.sha256"), "model.onnx") is not None
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "model.onnx",
        "model.onnx.sha256",
    ]


def test_a_copy_is_exported_again_with_other_notes(tmp_path: Path) -> None:
    first = exported(layers(1), tmp_path)
    second = exported(
        onnx.load(first), tmp_path, OnnxExport(ranges={"batch": (2, 8, 2)}, sizes={"batch": 4})
    )
    assert read(second.read_bytes()).plan.spec.symbols == (Symbol("batch", 2, 8, 2),)


def test_the_command_prints_the_signature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = tmp_path / "source.onnx", tmp_path / "m" / "3"
    source.write_bytes(pooled().SerializeToString())
    words = ["--dim", "x:2=32", "--dim", "x:3=w", "--range", "w=32..256:4", "--try", "w=64"]
    assert export.main(["--onnx", str(source), "-o", str(folder), *words]) == 0
    printed = capsys.readouterr()
    assert "in  x: FP32 [batch, 1, 32, w]" in printed.out
    assert "w: 32 to 256, in multiples of 4" in printed.out
    assert "it runs at batch=1, w=64" in printed.err
    assert (folder / "model.onnx").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--range", "q=1..2"], "no dynamic dimension is named 'q'"),
        (["--range", "batch=4..2"], "expected NAME=MIN..MAX"),
        (["--range", "batch=1..9:2"], "both ends multiples"),
        (["--dim", "x:0"], "expected NAME=VALUE"),
        (["--dim", "x:9=a"], "no dynamic dimension 9"),
        (["--fill", "q=1"], "no input is named 'q': they are ['x']"),
        (["--dim", "q:0=a"], "no input is named 'q': they are ['x']"),
        (["--fill", "x=one"], "expected a number"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source.onnx"
    source.write_bytes(layers(1).SerializeToString())
    assert export.main(["--onnx", str(source), "-o", str(tmp_path / "m" / "1"), *words]) == 1
    assert reason in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["source.onnx"]


def test_dimensions_that_must_be_equal_are_hinted_at(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["a", "b"], ["y"], axis=1)]
    inputs = [info("a", [None, 4]), info("b", [None, 4])]
    (tmp_path / "m.onnx").write_bytes(
        model(nodes, inputs, [info("y", [None, 8])]).SerializeToString()
    )
    told: list[str] = []
    export_onnx(tmp_path / "m.onnx", tmp_path / "new.onnx", None, told.append)
    assert (
        "a_0 and b_0 ran at 64 only. If they must be equal, give them one name: "
        "--dim a:0=NAME --dim b:0=NAME"
    ) in told
    same = OnnxExport(dimensions={("a", 0): "batch", ("b", 0): "batch"})
    spec = export_onnx(tmp_path / "m.onnx", tmp_path / "new.onnx", same)
    assert spec.symbols == (Symbol("batch", 1, 64),)


def test_which_sizes_are_given_up_is_told() -> None:
    """A model that makes 5 of 1, and of all others what it is given."""
    seen: dict[tuple[int, ...], Shapes | None] = {(n,): ((n,),) for n in (2, 3, 5, 64, 65, 66, 128)}
    probe = Probe(None, [], [], {}, seen={(1,): ((5,),), **seen})
    told: list[str] = []
    shapes, symbols = _explained_somewhere(
        probe, [Symbol("t", 1, 4096)], (64,), ["y"], OnnxExport(), told.append
    )
    assert shapes == [(("t",),)]
    assert symbols == [Symbol("t", 2, 4096)]
    assert told == ["no expression for all of them; without the smallest sizes: t from 2 on"]


def test_the_command_asks_for_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(layers(1).SerializeToString())
    for output in ("models/m", "m.pt2"):
        assert export.main(["--onnx", str(tmp_path / "m.onnx"), "-o", output]) == 1
        assert f"-o {output}: expected a .onnx file or the dir" in capsys.readouterr().err


def test_sizes_that_depend_on_values_are_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["g"]),
        helper.make_node("NonZero", ["g"], ["y"]),
    ]
    made = model(
        nodes,
        outputs=[info("y", [2, "k"], TensorProto.INT64)],
        weights=[weight("zero", np.zeros(1, np.float32))],
    )
    with pytest.raises(InvalidModel, match=r"depend on the values|no expression"):
        exported(made, tmp_path)


def test_a_model_that_runs_nowhere_says_what_can_be_told_it(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    made = model(nodes, weights=[weight("shape", np.array([7, 5]))], outputs=[info("y", [7, 5])])
    with pytest.raises(InvalidModel, match=r"--try NAME=N"):
        exported(made, tmp_path)


def test_an_operator_that_is_not_allowed_is_refused_before_it_runs(tmp_path: Path) -> None:
    made = model([helper.make_node("RandomNormalLike", ["x"], ["y"])])
    with pytest.raises(InvalidModel, match="random numbers"):
        exported(made, tmp_path)
    assert not (tmp_path / "m").exists()
