"""The least integer by -1 ends a process that runs ONNX Runtime's Div: which graphs show that it
can't happen are read, others are refused."""

import io
from typing import Any

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_reader import OnnxArtifact

onnx = pytest.importorskip("onnx")
INT32, INT64, FLOAT = 6, 7, 1


def n(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(operator, inputs.split(), [output], **attributes)


def read(nodes: list[Any], constants: dict[str, list[int]], datatype: int) -> OnnxArtifact:
    """`a` and `b` [4] in, `y` out."""
    helper = onnx.helper
    values = [helper.make_tensor_value_info(name, datatype, [4]) for name in ("a", "b", "y")]
    weights = [helper.make_tensor(k, datatype, [len(v)], v) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return OnnxArtifact(io.BytesIO(model.SerializeToString()))


def by_constant(value: int) -> Any:
    return n("Constant", "", "k", value=onnx.helper.make_tensor("k", INT64, [1], [value]))


USED = n("Add", "q b", "y")
"""Both inputs are read."""

SAFE: list[tuple[str, int, list[Any], dict[str, list[int]]]] = [
    ("floats", FLOAT, [n("Div", "a b", "y")], {}),
    ("by a constant", INT64, [n("Div", "a c", "q"), USED], {"c": [2, 3, -2, 0]}),
    ("int32 by a constant", INT32, [n("Div", "a c", "q"), USED], {"c": [2]}),
    ("by a Constant", INT64, [by_constant(2), n("Div", "a k", "q"), USED], {}),
    ("a constant", INT64, [n("Div", "c b", "q"), n("Add", "q a", "y")], {"c": [1]}),
    ("by a size", INT64, [n("Shape", "a", "s"), n("Div", "a s", "q"), USED], {}),
    ("by a part of a size", INT64, [
        n("Shape", "a", "s"), n("Gather", "s c", "g"), n("Div", "a g", "q"), USED], {"c": [0]}),
    ("a size", INT64, [
        n("Shape", "a", "s"), n("Div", "s b", "q"), n("Add", "q a", "y")], {}),
]  # fmt: skip

DANGEROUS: list[tuple[str, int, list[Any], dict[str, list[int]]]] = [
    ("by an input", INT64, [n("Div", "a b", "y")], {}),
    ("int32 by an input", INT32, [n("Div", "a b", "y")], {}),
    ("by -1", INT64, [n("Div", "a c", "q"), USED], {"c": [2, -1, 2, 2]}),
    ("int32 by -1", INT32, [n("Div", "a c", "q"), USED], {"c": [-1]}),
    ("by a Constant", INT64, [by_constant(-1), n("Div", "a k", "q"), USED], {}),
    ("by what is computed", INT64, [
        n("Sub", "c b", "d"), n("Div", "a d", "y")], {"c": [1]}),
    ("by a size less 9", INT64, [
        n("Shape", "a", "s"), n("Sub", "s c", "d"), n("Div", "a d", "q"), USED], {"c": [9]}),
    ("by one of both", INT64, [
        n("Concat", "c b", "d", axis=0), n("Slice", "d z f", "e"), n("Div", "a e", "y")],
        {"c": [2], "z": [1], "f": [5]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("datatype", "nodes", "constants"), [pytest.param(*c[1:], id=c[0]) for c in SAFE]
)
def test_divisions_that_are_read(
    datatype: int, nodes: list[Any], constants: dict[str, list[int]]
) -> None:
    assert read(nodes, constants, datatype).plan.nodes


@pytest.mark.parametrize(
    ("datatype", "nodes", "constants"), [pytest.param(*c[1:], id=c[0]) for c in DANGEROUS]
)
def test_divisions_that_could_end_the_process(
    datatype: int, nodes: list[Any], constants: dict[str, list[int]]
) -> None:
    with pytest.raises(InvalidModel, match="its divisor could be -1"):
        read(nodes, constants, datatype)


def test_a_branch_can_not_lend_the_name_of_a_safe_divisor() -> None:
    """`d` is 2 in one branch, and an input's value in the other."""
    helper = onnx.helper
    out = helper.make_tensor_value_info("r", INT64, [4])
    safe = helper.make_graph(
        [n("Div", "a d", "r")], "s", [], [out], [helper.make_tensor("d", INT64, [1], [2])]
    )
    harmful = helper.make_graph([n("Identity", "b", "d"), n("Div", "a d", "r")], "h", [], [out])
    for second, is_safe in ((safe, True), (harmful, False)):
        nodes = [
            n("ReduceSum", "a", "t", keepdims=0),
            n("Cast", "t", "p", to=9),
            n("If", "p", "q", then_branch=safe, else_branch=second),
            USED,
        ]
        if is_safe:
            assert read(nodes, {}, INT64).plan.nodes
        else:
            with pytest.raises(InvalidModel, match="its divisor could be -1"):
                read(nodes, {}, INT64)
