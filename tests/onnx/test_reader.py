"""What an ONNX artifact may be, and what is refused with which words."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpumuxd.errors import InvalidModel
from gpumuxd.models import onnx_plan, onnx_proto
from gpumuxd.models.onnx_limits import DEFAULT_ONNX_LIMITS
from gpumuxd.models.onnx_operators import onnx_allow_list
from gpumuxd.models.spec import Symbol
from tests.onnx.support import info, layers, model, read, weight

RELU = helper.make_node("Relu", ["x"], ["y"])
ONES = np.ones((4,), np.float32)


def node(operator: str, reads: list[str], writes: list[str], **attributes: Any) -> Any:
    return helper.make_node(operator, reads, writes, **attributes)


def branches(depth: int) -> Any:
    """An If in a branch of an If ... `depth` deep."""
    inner = helper.make_graph(
        [node("Identity", ["x"], [f"b{depth}"])], "b", [], [info(f"b{depth}", ["n", 4])]
    )
    for level in range(depth - 1, -1, -1):
        made = node("If", ["c"], [f"b{level}"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([made], "b", [], [info(f"b{level}", ["n", 4])])
    return model([*inner.node, node("Identity", ["b0"], ["y"])], INPUTS_C)


INPUTS_C = (info("x", ["n", 4]), info("c", [], TensorProto.BOOL))


def test_a_small_model_becomes_a_plan() -> None:
    artifact = read(layers(2))
    plan = artifact.plan
    assert [each.operator for each in plan.nodes] == [*["MatMul", "Relu", "Add"] * 2, "Identity"]
    assert plan.spec.symbols == (Symbol("batch", 1, 64),)
    assert plan.spec.outputs[0].shape == (("batch",), 32)
    assert [each.offset for each in plan.weights] == [0, 4096]
    assert artifact.parameter_count == 2 * 32 * 32
    assert onnx_plan.is_onnx(onnx_plan.encode(plan))


def test_constants_become_weights_and_what_nobody_needs_is_dropped() -> None:
    made = model(
        [
            node("Constant", [], ["k"], value_floats=[1.0, 2.0, 3.0, 4.0]),
            node("Add", ["x", "k"], ["y"]),
            node("Relu", ["y"], ["unused"]),
        ]
    )
    plan = read(made).plan
    assert [each.operator for each in plan.nodes] == ["Add"]
    assert [(each.name, each.shape, each.datatype) for each in plan.weights] == [
        ("k", (4,), "FP32")
    ]


def test_what_a_branch_takes_from_around_it_is_read_by_its_node() -> None:
    plan = read(branches(2)).plan
    assert [each.operator for each in plan.nodes] == ["If", "Identity"]
    assert plan.nodes[0].reads == (1, 0)


def _external(made: Any) -> None:
    tensor = made.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="../../etc/passwd")


def _dims(*dims: int) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        made.graph.initializer.add(name="w", data_type=1, dims=dims, raw_data=bytes(16))

    return edit


def _weights(*names: str) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        made.graph.initializer.extend(weight(name, ONES) for name in names)

    return edit


def _nodes(*nodes: Any) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        made.graph.ClearField("node")
        made.graph.node.extend(nodes)

    return edit


def _set(**fields: Any) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        for name, value in fields.items():
            setattr(made, name, value)

    return edit


def _opset(domain: str, version: int) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        made.ClearField("opset_import")
        made.opset_import.add(domain=domain, version=version)

    return edit


def _output(name: str, shape: Any, kind: int = 1) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        made.graph.ClearField("output")
        made.graph.output.append(info(name, shape, kind))

    return edit


def _notes(text: str) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        made.metadata_props.add(key="gpumuxd", value=text)

    return edit


def _input(name: str, shape: Any, kind: int) -> Callable[[Any], None]:
    def edit(made: Any) -> None:
        made.graph.input.append(info(name, shape, kind))

    return edit


REFUSED: list[tuple[str, Callable[[Any], None], str]] = [
    # what | how | part of the reason
    ("external data", _external, "its data is in another file"),
    ("absurd size", _dims(1 << 62), "weights_bytes_max"),
    ("sizes whose product wraps", _dims(1 << 32, 1 << 32), "weights_bytes_max"),
    ("negative size", _dims(-4), "is no shape"),
    ("too few bytes", _dims(5), "expected 20 bytes"),
    ("too many bytes", _dims(3), "expected 12 bytes"),
    ("rank", _dims(*[1] * 17), "is no shape"),
    ("two weights of one name", _weights("w", "w"), "the name is taken"),
    ("a weight that a node writes", _weights("y"), "the name is taken"),
    ("string", _input("s", ["n"], TensorProto.STRING), "data type 8 is not supported"),
    ("unknown opset", _opset("", 99), "expected 7 to"),
    ("old opset", _opset("", 6), "expected 7 to"),
    ("no opset", _opset("com.example", 1), "expected 7 to"),
    ("unknown format", _set(ir_version=99), "ir_version"),
    ("foreign domain", _nodes(node("Relu", ["x"], ["y"], domain="evil")), "of domain 'evil'"),
    ("random", _nodes(node("RandomNormalLike", ["x"], ["y"])), "random numbers"),
    ("loop", _nodes(node("Loop", ["", "", "x"], ["y"])), "without a bound"),
    ("cycle", _nodes(node("Add", ["x", "z"], ["y"]), node("Relu", ["y"], ["z"])), "a cycle"),
    ("dangling", _nodes(node("Add", ["x", "ghost"], ["y"])), "reads 'ghost'"),
    ("written twice", _nodes(RELU, node("Relu", ["x"], ["y"])), "the name is taken"),
    ("an output nobody writes", _output("ghost", ["n", 4]), "written by no node"),
    (
        "an output of another type",
        _output("y", ["n", 4], TensorProto.INT64),
        "its nodes make ONNX type 1, it is declared as 7",
    ),
    ("an unknown size", _output("y", ["m", 4]), "gpumuxd export --onnx"),
    ("an output's name", _output("y\n", ["n", 4]), "written by no node"),
    ("training", _nodes(node("Dropout", ["x", "r", "t"], ["y"])), "inference mode"),
    ("notes that are no JSON", _notes("{"), "malformed"),
    ("notes of a later time", _notes('{"version":9,"inputs":{},"outputs":{}}'), "got 9"),
    ("notes of another model", _notes('{"version":1,"inputs":{},"outputs":{}}'), "other inputs"),
    (
        "notes that contradict",
        _notes('{"version":1,"inputs":{"x":[1,5]},"outputs":{"y":[1,4]}}'),
        "contradict",
    ),
    (
        "notes with an unknown name",
        _notes('{"version":1,"inputs":{"x":[["q"],4]},"outputs":{"y":[1,4]}}'),
        "no dynamic dimension",
    ),
    (
        "notes whose sizes are negative",
        _notes('{"version":1,"inputs":{"x":[1,4]},"outputs":{"y":[[1,2,"-"],4]}}'),
        "negative",
    ),
]


@pytest.mark.parametrize(
    ("edit", "reason"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused(edit: Callable[[Any], None], reason: str) -> None:
    made = model([RELU])
    assert len(read(made).plan.nodes) == 1, "before it is edited it is fine"
    edit(made)
    with pytest.raises(InvalidModel, match=reason.replace("(", r"\(")):
        read(made)


@pytest.mark.parametrize("depth", [5, 1000])
def test_branches_that_nest_too_deep(depth: int) -> None:
    """5 is more than our limit; 1000 is more than protobuf's own, built by joining messages."""
    if depth == 5:
        with pytest.raises(InvalidModel, match="nest deeper than 4"):
            read(branches(depth))
        return
    inner = b""
    for _ in range(depth):
        attribute = onnx.AttributeProto(name="then_branch", type=5).SerializeToString()
        for tag in (0x32, 0x2A, 0x0A):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            inner = attribute + _field(tag, inner) if tag == 0x32 else _field(tag, inner)
    data = _field(0x3A, inner)
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        read(data)


def _field(tag: int, payload: bytes) -> bytes:
    length, size = bytearray(), len(payload)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([tag, *length, size]) + payload


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x08\x08", bytes(1000), b"\xff" * 64])
def test_what_is_no_model(data: bytes) -> None:
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        read(data)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("artifact_bytes_max", 100),
        ("nodes_max", 3),
        ("weights_max", 1),
        ("weights_bytes_max", 5000),
        ("graph_bytes_max", 20),
        ("name_bytes_max", 1),
        ("operands_max", 1),
    ],
)
def test_every_limit_is_named_when_it_is_reached(limit: str, value: int) -> None:
    limits = dataclasses.replace(DEFAULT_ONNX_LIMITS, **{limit: value})
    with pytest.raises(InvalidModel, match=limit):
        read(layers(2), limits)


def test_weights_in_typed_fields_are_checked_item_by_item() -> None:
    made = model([node("Add", ["x", "w"], ["y"])], weights=[weight("w", ONES)])
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1, 2, 3, 4])
    assert read(made).plan.weights[0].size_bytes == 16
    tensor.float_data.append(5)
    with pytest.raises(InvalidModel, match="expected 4 items in float_data"):
        read(made)
    tensor.ClearField("float_data")
    tensor.data_type = TensorProto.UINT8
    tensor.int32_data.extend([1, 2, 3, 256])
    with pytest.raises(InvalidModel, match="out of its type's range"):
        read(made)


def test_without_the_extra_an_artifact_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for missing in ("onnx", "onnxruntime"):
        onnx_proto.onnx_package.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(
                onnx_proto.importlib.util, "find_spec", lambda name, m=missing: name != m or None
            )
            if missing == "onnx":
                patch.setitem(__import__("sys").modules, "onnx", None)
            with pytest.raises(InvalidModel, match=r"install gpumuxd\[onnx\]"):
                read(layers(1))
    onnx_proto.onnx_package.cache_clear()


def test_every_allowed_operator_exists_and_no_list_overlaps() -> None:
    allowed = onnx_allow_list()
    known = {each.name for each in onnx.defs.get_all_schemas() if each.domain == ""}
    assert allowed.allowed | set(allowed.refused) <= known
    assert not allowed.allowed & set(allowed.refused)
    assert set(allowed.required) | set(allowed.operands) <= allowed.allowed
    assert not [name for name in allowed.allowed if "Random" in name or "String" in name]
