"""Graphs and tables that are well-formed JSON and make no sense, and JSON that is neither."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models.expressions import parse
from gpumuxd.models.limits import DEFAULT_LIMITS, ReadLimits
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import evaluate
from gpumuxd.units import MIB
from tests.models import archives
from tests.models.archives import argument, meta, node, sym, tensor

Json = Any
HUGE = (1 << 63) - 1


def graph_with(change: Callable[[Json], object]) -> dict[str, bytes]:
    graph = archives.good_graph()
    change(graph["graph_module"]["graph"])
    return archives.members(graph=graph)


def root_with(change: Callable[[Json], object]) -> dict[str, bytes]:
    graph = archives.good_graph()
    change(graph)
    return archives.members(graph=graph)


def weights_with(**changed: Json) -> dict[str, bytes]:
    """The table says something else of the weight of shape [3, 4]."""
    weights = archives.good_weights()
    entry = weights["config"]["lin.weight"]
    entry["path_name"] = changed.pop("path_name", entry["path_name"])
    entry["tensor_meta"] |= changed
    return archives.members(weights=weights)


def raw(text: str) -> dict[str, bytes]:
    return archives.members() | {"models/model.json": text.encode("utf-8", "surrogatepass")}


def relu(source: str, result: str) -> Json:
    return node("relu.default", [argument("self", tensor(source))], result)


def replaced(old: str, new: str) -> dict[str, bytes]:
    """The good graph's text with something in it that json.dumps would not write."""
    text = json.dumps(archives.good_graph())
    assert old in text
    return raw(text.replace(old, new))


def scalar(value: str) -> dict[str, bytes]:
    """An argument's value as JSON text."""
    return replaced('{"as_tensor": {"name": "b"}}, "kind"', f'{value}, "kind"')


BAD: list[tuple[str, Callable[[], dict[str, bytes]]]] = [
    # The JSON itself
    ("nested a million deep", lambda: raw("[" * 1_000_000 + "]" * 1_000_000)),
    ("objects a million deep", lambda: raw('{"a":' * 1_000_000 + "1" + "}" * 1_000_000)),
    ("a million nodes", lambda: raw('{"graph_module":{"graph":{"nodes":[' + "{}," * 1_000_000)),
    ("not UTF-8", lambda: archives.members() | {"models/model.json": b'{"\xff\xfe": 1}'}),
    ("UTF-16", lambda: archives.members() | {"models/model.json": "{}".encode("utf-16")}),
    ("a lone surrogate", lambda: replaced('"y"', '"\\ud800"')),
    ("a raw surrogate", lambda: replaced('"y"', '"\ud800"')),
    ("1e999", lambda: scalar('{"as_float": 1e999}')),
    ("NaN without quotes", lambda: scalar('{"as_float": NaN}')),
    ("a number of 5000 digits", lambda: scalar('{"as_int": ' + "9" * 5000 + "}")),
    ("2^63", lambda: scalar('{"as_int": 9223372036854775808}')),
    ("a float as an integer", lambda: scalar('{"as_int": 1.5}')),
    ("a string as a float", lambda: scalar('{"as_float": "1; import os"}')),
    ("two kinds at once", lambda: scalar('{"as_int": 1, "as_float": 1.0}')),
    ("no kind", lambda: scalar("{}")),
    ("a kind of the future", lambda: scalar('{"as_code": "1"}')),
    ("schema of the future", lambda: root_with(
        lambda g: g["schema_version"].update(major=HUGE))),
    # References
    ("reads itself", lambda: graph_with(lambda g: g["nodes"].insert(0, relu("z", "z")))),
    ("reads what comes later", lambda: graph_with(lambda g: g["nodes"].insert(0, relu("y", "z")))),
    ("a cycle", lambda: graph_with(lambda g: g.update(nodes=[relu("z", "y"), relu("y", "z")]))),
    ("defined twice", lambda: graph_with(lambda g: g["nodes"].append(relu("x", "y")))),
    ("defines an input", lambda: graph_with(lambda g: g["nodes"].append(relu("y", "x")))),
    ("defines a weight", lambda: graph_with(lambda g: g["nodes"].append(relu("y", "w")))),
    ("twice in one node", lambda: graph_with(
        lambda g: g["nodes"].append(node("aminmax.default", [], "a", "a")))),
    ("output that nobody makes", lambda: root_with(
        lambda g: g["graph_module"]["signature"]["output_specs"][0]["user_output"].update(
            arg=tensor("nobody")))),
    ("normalised to the same name", lambda: graph_with(
        lambda g: g["nodes"].extend([relu("e\u0301", "z")]))),
    ("too many arguments", lambda: graph_with(
        lambda g: g["nodes"][0].update(inputs=[argument("x", tensor("x"))] * 257))),
    ("too long a list", lambda: scalar(json.dumps({"as_ints": [1] * 5000}))),
    # Keywords
    *[
        (f"keyword {name!r}", lambda name=name: graph_with(
            lambda g: g["nodes"][0]["inputs"].__setitem__(
                2, argument(name, tensor("b"), kind=2))))
        for name in ["a b", "1", "", "b=b, c", "b\n", "\uff42", "b" * 65, "*b", "b.c"]
    ],
    ("keyword twice", lambda: graph_with(lambda g: g["nodes"][0].update(
        inputs=[argument("input", tensor("x"), 2), argument("input", tensor("x"), 2)]))),
    ("positional after keyword", lambda: graph_with(lambda g: g["nodes"][0].update(
        inputs=[argument("input", tensor("x"), 2), argument("weight", tensor("w"), 1)]))),
    # The table of weights
    ("shape beyond the file", lambda: weights_with(sizes=[sym(3), sym(5)])),
    ("one row too many by stride", lambda: weights_with(strides=[sym(5), sym(1)])),
    ("offset beyond the file", lambda: weights_with(storage_offset=sym(1))),
    ("offset of 2^63 - 1", lambda: weights_with(storage_offset=sym(HUGE))),
    ("sizes whose product wraps", lambda: weights_with(sizes=[sym(1 << 32), sym(1 << 32)])),
    ("strides whose sum wraps", lambda: weights_with(strides=[sym(HUGE), sym(HUGE)])),
    ("negative size", lambda: weights_with(sizes=[sym(-3), sym(4)])),
    ("negative stride", lambda: weights_with(strides=[sym(-4), sym(1)])),
    ("negative offset", lambda: weights_with(storage_offset=sym(-1))),
    ("size that is a formula", lambda: weights_with(sizes=[sym("Symbol('s0')"), sym(4)])),
    ("a wider type than the bytes", lambda: weights_with(dtype=8)),
    ("a complex type", lambda: weights_with(dtype=10)),
    ("a quantised type", lambda: weights_with(dtype=14)),
    ("no such type", lambda: weights_with(dtype=-1)),
    ("sparse", lambda: weights_with(layout=1)),
    ("more sizes than strides", lambda: weights_with(sizes=[sym(3), sym(4), sym(1)])),
    ("rank of 1000", lambda: weights_with(sizes=[sym(1)] * 1000, strides=[sym(1)] * 1000)),
    ("path escape", lambda: weights_with(path_name="../../../etc/passwd")),
    ("absolute path", lambda: weights_with(path_name="/etc/passwd")),
    ("the graph as a weight", lambda: weights_with(path_name="../../models/model.json")),
    ("no file", lambda: weights_with(path_name="weight_7")),
    ("empty name", lambda: weights_with(path_name="")),
    # Signatures
    ("negative size of an input", lambda: graph_with(
        lambda g: g["tensor_values"]["x"].update(sizes=[sym(-1), sym(4)]))),
    ("rank of 17", lambda: graph_with(
        lambda g: g["tensor_values"].update(x=meta(*[1] * 17)))),
    ("no shape", lambda: graph_with(lambda g: g["tensor_values"].pop("x"))),
    ("a range that is empty", lambda: root_with(
        lambda g: g["range_constraints"].update(s0={"min_val": 5, "max_val": 4}))),
    ("only sizes of 0", lambda: root_with(
        lambda g: g["range_constraints"].update(s0={"min_val": 0, "max_val": 0}))),
    ("symbol of no input", lambda: graph_with(
        lambda g: g["tensor_values"]["y"].update(sizes=[sym("Symbol('s1')"), sym(3)]))),
]  # fmt: skip


@pytest.mark.parametrize("make", [pytest.param(make, id=what) for what, make in BAD])
def test_refused(make: Callable[[], dict[str, bytes]]) -> None:
    archive = archives.archive(make())
    tracemalloc.start()
    try:
        with pytest.raises(InvalidModel) as error:
            Artifact(archive)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = error.value.message
    assert 10 < len(message) < 1000
    message.encode()  # it travels as UTF-8
    assert peak < 160 * MIB


def test_more_nodes_than_the_limit_are_refused() -> None:
    nodes = [relu("x", f"r{i}") for i in range(11)]
    files = graph_with(lambda g: g.update(nodes=nodes))
    with pytest.raises(InvalidModel, match=r"more than 10 nodes \(nodes_max\)"):
        Artifact(archives.archive(files), ReadLimits(nodes_max=10))


EXPRESSIONS = [
    "",
    "0",
    "s0",
    "Symbol('s0').foo",
    "Symbol('s0') + 1",
    "Add(*[Integer(1)])",
    "Add(Symbol('s0'), **{})",
    "Integer(10 ** 10 ** 10)",
    "Integer(True)",
    "Integer(1.0)",
    "Integer(0x" + "f" * 4000 + ")",
    "Symbol('+')",
    "Symbol('min')",
    "Symbol('a b')",
    "Symbol(f'{1}')",
    "Pow(Symbol('s0'), Integer(5), Integer(5))",
    "Add(" * 150 + "Symbol('s0')" + ", Symbol('s0'))" * 150,
    "(" * 4000,
    "Add(" * 1000 + ")" * 1000,
    "-" * 4000 + "1",
    "Symbol('s0')\n\nSymbol('s0')",
    "Symbol('s0'); Symbol('s1')",
    "Symbol('s0', positive=__import__('os'))",
    "(x := Symbol('s0'))",
    "[Symbol('s0') for _ in iter(int, 1)]",
    "Function('f')(Symbol('s0'))",
    "\0",
    "Symbol('\\ud800')",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_expressions_are_refused(text: str) -> None:
    with pytest.raises(InvalidModel) as error:
        parse(text, DEFAULT_LIMITS)
    error.value.message.encode()


UNWISE = [
    "FloorDiv(Symbol('s0'), Integer(0))",
    "Mod(Symbol('s0'), Integer(0))",
    "Pow(" * 60 + "Symbol('s0')" + ", Integer(4))" * 60,
    "Pow(Integer(2), Pow(Integer(2), Integer(62)))",
    "Pow(Symbol('s0'), Integer(-1))",
    "Pow(Integer(-1), Integer(9223372036854775807))",
    "Mul(" + ", ".join(["Integer(9223372036854775807)"] * 120) + ")",
]


@pytest.mark.parametrize("text", UNWISE)
def test_shapes_that_are_no_sizes_are_refused_or_stay_small(text: str) -> None:
    """Division by nothing, towers of powers, products of any length."""
    try:
        size = evaluate(parse(text, DEFAULT_LIMITS), {"s0": 1 << 20})
    except InvalidModel:
        return
    assert size.bit_length() <= 64 * DEFAULT_LIMITS.expression_tokens_max


def node_plan(**changed: Json) -> bytes:
    plan = Artifact(archives.archive(archives.members())).plan
    values = {name: getattr(plan, name) for name in plan.__struct_fields__} | changed
    return plans.encode(plans.Plan(**values))


def test_plans_of_a_loader_that_was_taken_over_are_checked_again() -> None:
    entry = plans.WeightEntry
    linear = Artifact(archives.archive(archives.members())).plan.nodes[0]
    plans.decode(node_plan())
    bad = [
        {"version": 9},
        {"slot_count": -1},
        {"slot_count": 1},
        {"outputs": ()},
        {"size_hints": ()},
        {"weights_bytes": 0},
        {"weights": ()},
        {"weights": (entry(-4, "FP32", (1,), (1,)),) * 2},
        {"weights": (entry(0, "FP32", (1 << 62, 4), (1, 1)),) * 2},
        {"weights": (entry(1, "FP32", (1,), (1,)),) * 2},
        {"weights": (entry(0, "BYTES", (1,), (1,)),) * 2},
        {"nodes": (linear, linear)},
        {"nodes": ()},
    ]
    for change in bad:
        with pytest.raises(InvalidModel):
            plans.decode(node_plan(**change))
    for cut in (b"", node_plan()[:-1], b"\xdf\xff\xff\xff\xff", b"\x91" * 100_000):
        with pytest.raises(InvalidModel):
            plans.decode(cut)
