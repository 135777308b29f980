"""The optimised form: equal to the whole session to the bit, and what happens without one."""

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from gpumuxd.errors import InvalidModel
from gpumuxd.models import onnx_reader
from gpumuxd.models.onnx_limits import DEFAULT_ONNX_LIMITS
from gpumuxd.models.onnx_optimiser import NotOptimised, Optimised
from gpumuxd.programs.onnx_cutter import units
from tests.architecture import imports_of, read_sources
from tests.onnx.support import (
    info,
    largest_difference,
    layers,
    model,
    opened,
    read,
    run,
    weight,
    whole,
)

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


def convolutions(count: int = 4) -> object:
    """A chain with residuals, whose channels the runtime lays out in blocks."""
    draw = np.random.default_rng(5)
    nodes, weights, value = [], [], "x"
    for i in range(count):
        kernel = draw.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
        weights.append(weight(f"w{i}", kernel))
        nodes += [
            helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]),
            helper.make_node("Add", [f"c{i}", value], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], ["y" if i == count - 1 else f"r{i}"]),
        ]
        value = f"r{i}"
    shape = ["n", 16, "h", "h"]
    return model(nodes, [info("x", shape)], [info("y", shape)], weights)


X = np.linspace(-1, 1, 2 * 16 * 9 * 9, dtype=np.float32).reshape(2, 16, 9, 9)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_grouping_is_equal_to_the_bit(threads: int) -> None:
    made = convolutions()
    loaded = opened(read(made, is_optimised=True), threads)
    domains = {node.domain for node in loaded.plan.nodes}
    assert "com.microsoft.nchwc" in domains, "laid out in blocks before it is cut"
    count = loaded.node_count
    expected = whole(made.SerializeToString(), loaded.spec, [X])  # type: ignore[attr-defined]
    for cuts in ([count], [1, count], [*range(1, count + 1)]):
        got = run(loaded.grouped_program(cuts), loaded.spec, [X])
        assert largest_difference(got, expected) == 0, cuts


def test_names_ranges_and_parameters_stay_those_of_the_artifact() -> None:
    plain, optimised = (read(convolutions(), is_optimised=each) for each in (False, True))
    assert not plain.plan.is_optimised
    assert optimised.plan.is_optimised
    assert optimised.plan.spec == plain.plan.spec
    assert optimised.parameter_count == plain.parameter_count


def test_weights_that_kernels_read_in_place_count_once() -> None:
    blocked = opened(read(convolutions(), is_optimised=True))
    assert blocked.weights_bytes == blocked.plan.weights_bytes
    products = opened(read(layers(), is_optimised=True))
    assert products.weights_bytes > 1.9 * products.plan.weights_bytes
    assert opened(read(convolutions())).weights_bytes > 1.9 * blocked.plan.weights_bytes


def test_a_residual_is_no_reason_against_a_cut_once_it_is_fused() -> None:
    assert len(units(read(convolutions()).plan)) < len(
        units(read(convolutions(), is_optimised=True).plan)
    )


def test_what_the_runtime_refuses_is_refused_by_the_reader() -> None:
    """ONNX's own inference knows no fault in it; the runtime has no such kernel."""
    nodes = [helper.make_node("LRN", ["x"], ["y"], size=3)]
    shape = ["n", 4, 8, 8]
    made = model(nodes, [info("x", shape, 11)], [info("y", shape, 11)])
    assert read(made).plan.nodes
    with pytest.raises(InvalidModel, match="ONNX Runtime refuses it"):
        read(made, is_optimised=True)


def test_where_nothing_may_be_opened_to_write_it_is_served_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_: object) -> None:
        raise NotOptimised("a memory file can't be opened: Operation not permitted")

    monkeypatch.setattr(onnx_reader, "Optimised", forbidden)
    artifact = read(layers(), is_optimised=True)
    assert not artifact.plan.is_optimised
    assert "can't be opened" in artifact.why_not_optimised
    x = np.ones((1, 32), np.float32)
    loaded = opened(artifact)
    expected = whole(layers().SerializeToString(), loaded.spec, [x])
    assert (
        largest_difference(run(loaded.grouped_program([1, 6]), loaded.spec, [x]), expected) < 1e-6
    )


def test_an_optimised_form_of_foreign_operators_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def evil(*arguments: object) -> Optimised:
        made = Optimised(*arguments)  # type: ignore[arg-type]  # passed on as they came
        made.model.graph.node[0].domain = "evil"
        return made

    monkeypatch.setattr(onnx_reader, "Optimised", evil)
    artifact = read(layers(), is_optimised=True)
    assert not artifact.plan.is_optimised
    assert "domain 'evil'" in artifact.why_not_optimised


def test_a_constant_that_would_be_huge_is_not_folded_into_the_plan() -> None:
    """16 MiB from 8 bytes of shape, in an artifact that may have 1 MiB of weights."""
    nodes = [
        helper.make_node("Expand", ["one", "shape"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
        helper.make_node("Add", ["x", "big"], ["z"]),
    ]
    made = model(
        nodes,
        [info("x", [1 << 22])],
        [info("y", [1 << 22]), info("z", [1 << 22])],
        [weight("one", np.ones(1, np.float32)), weight("shape", np.array([1 << 22]))],
    )
    limits = dataclasses.replace(
        DEFAULT_ONNX_LIMITS, artifact_bytes_max=1 << 20, weights_bytes_max=1 << 20
    )
    artifact = read(made, dataclasses.replace(limits, weights_bytes_max=1 << 25))
    assert artifact.plan.weights_bytes < 1 << 20
    artifact = onnx_reader.OnnxArtifact(
        io.BytesIO(made.SerializeToString()), limits, is_optimised=True
    )
    assert artifact.plan.weights_bytes < 1 << 20


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_loader_without_the_extra_says_what_to_install(missing: str, tmp_path: Path) -> None:
    from gpumuxd.wire.frames import Read, ReadFailed
    from tests.loader.harness import one_loader

    path = tmp_path / "model.onnx"
    path.write_bytes(layers(1).SerializeToString())
    with path.open("rb") as file, one_loader(f"sys.modules[{missing!r}] = None") as loader:
        loader.channel.send(Read(1 << 30, "onnx"), [file.fileno()])
        answer, _ = loader.answer()
    assert isinstance(answer, ReadFailed)
    assert "install gpumuxd[onnx]" in answer.reason


CHILD = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = None
from gpumuxd.errors import InvalidModel
from gpumuxd.programs.served import open_model
from gpumuxd.programs.onnx_runtime import is_installed
assert not is_installed()
try:
    open_model(sys.stdin.buffer.read(), memoryview(bytearray(1 << 16)))
except InvalidModel as error:
    print(error.message)
"""


def test_a_device_without_the_extra_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=onnx_reader.onnx_plan.encode(read(layers(1)).plan),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"install gpumuxd[onnx]" in done.stdout


def test_the_packages_are_only_imported_where_they_are_asked_for() -> None:
    """By name, when the first ONNX model is read, and by the modules that say so."""
    asking = {"gpumuxd.models.onnx_proto", "gpumuxd.models.onnx_optimiser"}
    for source in read_sources(ROOT, "gpumuxd"):
        tops = {item.target.split(".")[0] for item in imports_of(source)}
        assert not tops & {"onnx", "onnxruntime"}, f"{source.path}: use models/onnx_proto.py"
        if source.module not in asking:
            for call in ('import_module("onnx', "import_module('onnx"):
                assert call not in source.text, f"{source.path}: use models/onnx_proto.py"
