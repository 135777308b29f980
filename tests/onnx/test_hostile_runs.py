"""Models that are read but do harm when they run, and artifacts that are mutated at random: each is
a refusal or a failed request, and the next request works."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from gpumuxd.errors import InvalidModel
from gpumuxd.models import onnx_plan
from gpumuxd.models.onnx_notes import Notes, encode_notes
from gpumuxd.models.spec import Symbol
from tests.onnx.support import Failed, info, layers, model, opened, read, run, weight

TIMEOUT_S = 60

BOMB = """
import resource
import numpy as np
from tests.onnx import support, test_hostile_runs as bombs
from gpumuxd.models.onnx_optimiser import runtime_package
runtime_package()
# What a device child may have, above what it has now.
pages = int(open("/proc/self/statm").read().split()[5])
data_bytes = pages * 4096 + (256 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
small, large = np.array([2], np.int64), np.array([1 << 34], np.int64)
for kind in ("expand", "tile", "constant"):
    loaded = support.opened(support.read(bombs.bomb(kind)))
    program = loaded.grouped_program([loaded.node_count])
    support.run(program, loaded.spec, [small])
    try:
        support.run(program, loaded.spec, [large])
    except support.Failed as error:
        print("failed:", kind)
    support.run(program, loaded.spec, [small])
    print("serves on")
"""


def bomb(kind: str) -> object:
    """A model whose only large thing is what a request's value asks it to make."""
    one = weight("one", np.ones(1, np.float32))
    made = {
        "expand": [helper.make_node("Expand", ["one", "n"], ["big"])],
        "tile": [helper.make_node("Tile", ["one", "n"], ["big"])],
        "constant": [helper.make_node("ConstantOfShape", ["n"], ["big"])],
    }[kind]
    made.append(helper.make_node("ReduceSum", ["big"], ["y"], keepdims=0))
    return model(
        made, [info("n", [1], TensorProto.INT64)], [info("y", [])], [one] * (kind != "constant")
    )


def test_memory_that_is_not_there_is_a_failed_request() -> None:
    """In a process with a limit, as a device child has one: 64 GiB are asked for."""
    done = subprocess.run(
        [sys.executable, "-c", BOMB],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = ["failed: expand", "serves on", "failed: tile", "serves on"]
    assert done.stdout.splitlines() == [*lines, "failed: constant", "serves on"]


def test_a_wrong_expression_fails_its_request_and_nothing_else() -> None:
    """The notes say that an output has the size of the input; above 3 rows it has more."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
        helper.make_node("Slice", ["twice", "zero", "five"], ["y"]),
    ]
    weights = [weight("zero", np.array([0])), weight("five", np.array([5]))]
    made = model(nodes, weights=weights, outputs=[info("y", ["m", 4])])
    notes = Notes(
        1,
        inputs={"x": (("n",), 4)},
        outputs={"y": (("n",), 4)},
        symbols=(Symbol("n", 1, 64),),
        batch="n",
    )
    made.metadata_props.add(key="gpumuxd", value=encode_notes(notes).decode())
    loaded = opened(read(made))
    program = loaded.grouped_program([loaded.node_count])
    five, two = np.ones((5, 4), np.float32), np.ones((2, 4), np.float32)
    assert run(program, loaded.spec, [five])[0].shape == (5, 4)
    with pytest.raises(Failed, match=r"output 0 of shape \[4, 4\] takes 64 bytes, 32 were"):
        run(program, loaded.spec, [two])
    assert run(program, loaded.spec, [five])[0].shape == (5, 4)


def test_a_run_that_the_runtime_refuses_says_why_without_paths() -> None:
    nodes = [helper.make_node("Gather", ["w", "x"], ["y"])]
    made = model(
        nodes,
        [info("x", ["n"], TensorProto.INT64)],
        [info("y", ["n", 4])],
        [weight("w", np.ones((3, 4), np.float32))],
    )
    loaded = opened(read(made))
    program = loaded.grouped_program([1])
    with pytest.raises(Failed, match=r"OnnxFailed: .*indices element out of data bounds") as caught:
        run(program, loaded.spec, [np.array([7])])
    assert "/onnxruntime" not in str(caught.value)
    assert run(program, loaded.spec, [np.array([2])])[0].shape == (1, 4)


GOOD = layers(2, 8).SerializeToString()


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, len(GOOD)),
)
def test_mutated_bytes_are_refused_or_a_plan_that_checks(
    changes: list[tuple[int, int]], end: int
) -> None:
    data = bytearray(GOOD)
    for position, value in changes:
        data[position] = value
    for candidate in (bytes(data), bytes(data[:end])):
        try:
            artifact = read(candidate)
        except InvalidModel:
            continue
        onnx_plan.decode(onnx_plan.encode(artifact.plan))
        loaded = None
        try:
            loaded = opened(artifact)
            program = loaded.grouped_program([loaded.node_count])
            size = tuple(1 if isinstance(s, tuple) else s for s in loaded.spec.inputs[0].shape)
            run(program, loaded.spec, [np.ones(size, np.float32)])
        except (InvalidModel, Failed):
            continue


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=300))
def test_foreign_plans_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidModel):
        onnx_plan.decode(data)
