"""Graphs inside nodes: whose nodes take their place, and which are refused."""

from typing import Any

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.plan import Slot
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.regions import DEPTH_MAX
from tests.models.archives import archive, argument, good_graph, members, node, tensor

SET_GRAD = "torch.ops.higher_order.wrap_with_set_grad_enabled"
AUTOCAST = "torch.ops.higher_order.wrap_with_autocast"
NO_GRAD = [{"as_bool": False}]


def relu(operand: str, result: str, target: str = "relu.default") -> dict[str, Any]:
    return node(target, [argument("self", tensor(operand))], result)


def graph(inputs: list[str], nodes: list[dict[str, Any]], outputs: list[str]) -> dict[str, Any]:
    return {
        "inputs": [tensor(name) for name in inputs],
        "nodes": nodes,
        "outputs": [tensor(name) for name in outputs],
        "tensor_values": {},
    }


def region(
    inner: dict[str, Any],
    arguments: list[str],
    results: list[str],
    target: str = SET_GRAD,
    settings: list[dict[str, Any]] = NO_GRAD,
) -> dict[str, Any]:
    values = [
        *settings,
        {"as_graph": {"name": "submod_1", "graph": inner}},
        *(tensor(name) for name in arguments),
    ]
    return node(target, [argument("", value) for value in values], *results)


def autocast(enabled: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"as_string": "cpu"}, {"as_scalar_type": 13}, enabled, {"as_bool": True}]


def read(*extra: dict[str, Any]) -> Artifact:
    """The good graph with these nodes in front."""
    made = good_graph()
    made["graph_module"]["graph"]["nodes"][:0] = extra
    return Artifact(archive(members(made)))


def refusal(*extra: dict[str, Any]) -> str:
    with pytest.raises(InvalidModel) as caught:
        read(*extra)
    return caught.value.message


ONE = graph(["a"], [relu("a", "inside"), relu("inside", "c")], ["c"])


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        (SET_GRAD, NO_GRAD),
        (SET_GRAD, [{"as_bool": True}]),
        (AUTOCAST, autocast({"as_bool": False})),
    ],
)
def test_the_nodes_of_a_region_take_its_place(target: str, settings: list[dict[str, Any]]) -> None:
    plan = read(region(ONE, ["x"], ["z"], target, settings), relu("z", "last")).plan
    assert [n.operator for n in plan.nodes] == [
        "aten.relu.default",
        "aten.relu.default",
        "aten.relu.default",
        "aten.linear.default",
    ]
    assert [n.arguments[0] for n in plan.nodes[:3]] == [Slot(0), Slot(1), Slot(2)]


def test_a_region_has_names_of_its_own() -> None:
    # `w` is a weight outside, `c` comes twice, and `y` is what a later node defines.
    inner = graph(["w"], [relu("w", "y"), relu("y", "c")], ["c"])
    plan = read(region(inner, ["x"], ["c"]), region(inner, ["c"], ["d"]), relu("d", "e")).plan
    assert [n.arguments[0] for n in plan.nodes[:5]] == [Slot(i) for i in range(5)]


def test_a_region_may_give_back_what_it_was_given() -> None:
    plan = read(region(graph(["a"], [], ["a"]), ["x"], ["same"]), relu("same", "z")).plan
    assert plan.nodes[0].arguments == (Slot(0),)


def nested(depth: int) -> dict[str, Any]:
    inner = graph(["a"], [relu("a", "b")], ["b"])
    for _ in range(depth - 1):
        inner = graph(["a"], [region(inner, ["a"], ["b"])], ["b"])
    return region(inner, ["x"], ["z"])


def test_regions_inside_regions_up_to_a_limit() -> None:
    assert len(read(nested(DEPTH_MAX)).plan.nodes) == 2
    assert f"more than {DEPTH_MAX} regions inside each other" in refusal(nested(DEPTH_MAX + 1))


WRITES = graph(["a"], [relu("a", "b", "relu_.default")], ["b"])


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (region(ONE, ["x"], ["z"], AUTOCAST, autocast({"as_bool": True})), "casts by itself"),
        (region(ONE, ["x"], ["z"], AUTOCAST, autocast({"as_int": 0})), "casts by itself"),
        (region(ONE, ["x"], ["z"], AUTOCAST, NO_GRAD), "expected a graph after 4 settings"),
        (region(ONE, ["x"], ["z"], SET_GRAD, []), "expected a graph after 1 settings"),
        (node(SET_GRAD, [], "z"), "expected a graph after 1 settings"),
        (region(ONE, ["x"], ["z"], "torch.ops.higher_order.cond"), "for a branch use torch.where"),
        (region(ONE, [], ["z"]), "0 arguments for a graph of 1"),
        (region(ONE, ["x"], ["z", "z2"]), "2 results for a graph of 1"),
        (region(ONE, ["nowhere"], ["z"]), "reads 'nowhere', which nothing before it defines"),
        (region(ONE, ["x"], ["x"]), "defines 'x' twice"),
        (region(graph(["a"], [relu("x", "b")], ["b"]), ["x"], ["z"]), "reads 'x', which nothing"),
        (region(graph(["a"], [relu("w", "b")], ["b"]), ["x"], ["z"]), "reads 'w', which nothing"),
        (region(graph(["a"], [relu("a", "a")], ["a"]), ["x"], ["z"]), "defines 'a' twice"),
        (region(WRITES, ["x"], ["z"]), "writes in place to a weight, buffer or input"),
        (region(WRITES, ["w"], ["z"]), "writes in place to a weight, buffer or input"),
        (region({**ONE, "inputs": [{"as_int": 3}]}, ["x"], ["z"]), "value of kind as_int"),
        (node("relu.default", [argument("self", {"as_graph": {"name": "g", "graph": ONE}})], "z"),
         "this operator takes no graph"),
    ],
)  # fmt: skip
def test_regions_that_are_refused(extra: dict[str, Any], said: str) -> None:
    assert said in refusal(extra)


def test_what_a_region_hides_from_the_rest_of_the_graph() -> None:
    said = refusal(region(ONE, ["x"], ["z"]), relu("inside", "last"))
    assert "reads 'inside', which nothing before it defines" in said


SIZE = argument("size", {"as_ints": [2]})


@pytest.mark.parametrize(
    ("blank", "operator"),
    [
        (node("empty_like.default", [argument("self", tensor("x"))], "z"), "zeros_like.default"),
        (node("new_empty.default", [argument("self", tensor("x")), SIZE], "z"),
         "new_zeros.default"),
        (node("empty.memory_format", [SIZE, argument("memory_format", {"as_none": True}, 2)], "z"),
         "zeros.default"),
        (node("empty.memory_format",
              [SIZE, argument("memory_format", {"as_memory_format": 1}, 2)], "z"), "zeros.default"),
    ],
)  # fmt: skip
def test_memory_that_nobody_wrote_is_zeros(blank: dict[str, Any], operator: str) -> None:
    first = read(blank).plan.nodes[0]
    assert first.operator == f"aten.{operator}"
    assert not first.keywords


def test_zeros_have_no_layout_to_choose() -> None:
    layout = argument("memory_format", {"as_memory_format": 2}, 2)
    assert "must be contiguous" in refusal(node("empty.memory_format", [SIZE, layout], "z"))


def test_results_for_training_can_not_be_read() -> None:
    operands = [argument(name, tensor("x")) for name in ("weight", "indices", "offsets")]
    bag = node("embedding_bag.padding_idx", operands, "z", "bags", "sizes", "largest")
    assert read(bag, relu("z", "last")).plan.nodes[0].results == (1, None, None, None)
    said = refusal(bag, relu("sizes", "last"))
    assert "reads 'sizes', which nothing before it defines" in said
