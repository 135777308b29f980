"""Where layers end, by the names that exporters leave on nodes."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gpumuxd.models.layers import (
    DEPTH_MAX,
    MODULES_MAX,
    STACK_CHARACTERS_MAX,
    Layers,
    onnx_layer_ends,
    onnx_stack,
    torch_stack,
)
from gpumuxd.models.pt2 import Artifact
from tests.models.archives import archive, good_graph, members

ARCHIVES = Path(__file__).parent / "archives_of_torch"


def ends(stacks: Sequence[Sequence[str]]) -> tuple[int, ...]:
    layers = Layers()
    for stack in stacks:
        layers.add(stack)
    return layers.ends()


@pytest.mark.parametrize(
    ("stacks", "layer_ends"),
    [
        # stacks of the nodes, a space between calls       ends
        (["m a", "m b"],                                   (1, 2)),
        (["m a", "m a", "m b"],                            (2, 3)),
        (["m a", "m a@1"],                                 (1, 2)),
        # what a container computes itself comes with the layer after it, or with the end
        (["m a", "m", "m b"],                              (1, 3)),
        (["m", "m a", "m"],                                (2, 3)),
        (["m s a", "m s", "m t a", "m"],                   (1, 3, 4)),
        # a container is one also before its first module is called
        (["m s", "m s a", "m s"],                          (2, 3)),
        # a module without others is a layer, the model itself too
        (["m", "m"],                                       (2,)),
        # who says nothing goes with the node before, or with the first that says something
        (["m a", "", "m a", "m b", ""],                    (3, 5)),
        (["", "m a"],                                      (2,)),
        (["", ""],                                         ()),
        ([],                                               ()),
    ],
)  # fmt: skip
def test_a_layer_is_one_call_of_a_leaf_module(
    stacks: list[str], layer_ends: tuple[int, ...]
) -> None:
    assert ends([stack.split() for stack in stacks]) == layer_ends


@pytest.mark.parametrize("stack", ["m " * (DEPTH_MAX + 1), "m " * 1000])
def test_modules_that_nest_too_deeply_say_nothing_of_the_whole_graph(stack: str) -> None:
    assert ends([["m", "a"], stack.split(), ["m", "b"]]) == ()


def test_more_modules_than_there_can_be_say_nothing() -> None:
    layers = Layers()
    for number in range(MODULES_MAX + 2):
        layers.add((f"m{number}", "a"))
    assert layers.ends() == ()


def test_the_stack_that_torch_writes() -> None:
    stack = "L__self__,,__main__.B;L__self__seq.0@1,seq.0,torch.nn.Linear"
    assert torch_stack(_metadata(stack)) == ("L__self__", "L__self__seq.0@1")


@pytest.mark.parametrize(
    "metadata",
    [
        b"{}",
        b"null",
        b"7",
        b"[]",
        b'"L__self__,,B"',
        b'{"nn_module_stack": 7}',
        b'{"nn_module_stack": null}',
        b'{"nn_module_stack": ["a"]}',
        b'{"nn_module_stack": ""}',
        b'{"nn_module_stack": "\xff"}',
        b'{"nn_module_stack": "a',
        b"",
        b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_metadata_that_cannot_be_read_says_nothing(metadata: bytes) -> None:
    assert torch_stack(msgspec.Raw(metadata)) == ()


def test_a_stack_that_is_too_long_says_nothing() -> None:
    assert torch_stack(_metadata("a" * STACK_CHARACTERS_MAX)) != ()
    assert torch_stack(_metadata("a" * (STACK_CHARACTERS_MAX + 1))) == ()


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("/encoder/layer.0/MatMul", ("/", "/encoder/", "/encoder/layer.0/")),
        ("/MatMul", ("/",)),
        ("model/conv2d/Conv2D", ("model/", "model/conv2d/")),
        ("MatMul_7", ()),
        ("", ()),
        ("/a" * (DEPTH_MAX + 1), ()),
        ("a/" + "b" * STACK_CHARACTERS_MAX, ()),
    ],
)
def test_the_scopes_of_an_onnx_node(name: str, stack: tuple[str, ...]) -> None:
    assert onnx_stack(name) == stack


def test_layers_of_an_onnx_graph() -> None:
    names = ["/a/Conv", "/a/Relu", "/Add", "", "/b/c/Conv", "/b/Mul", "/d/Gemm"]
    assert onnx_layer_ends(names) == (2, 5, 7)
    assert onnx_layer_ends(["Conv_0", "Relu_1"]) == ()


@pytest.mark.parametrize(
    ("metadata", "layer_ends"),
    [
        ({"nn_module_stack": "L__self__,,M;L__self__fc,fc,Linear"}, (1,)),
        ({"nn_module_stack": ["L__self__,,M"]}, ()),
        ({"nn_module_stack": "a,b,c;" * 100_000}, ()),
        ([{"deep": [[[[]]]]}], ()),
        (7, ()),
    ],
)
def test_no_archive_is_refused_for_its_names(metadata: object, layer_ends: tuple[int, ...]) -> None:
    graph = good_graph()
    graph["graph_module"]["graph"]["nodes"][0]["metadata"] = metadata
    assert Artifact(archive(members(graph))).plan.layer_ends == layer_ends


@pytest.mark.parametrize("version", ["2.9.1", "2.10.0", "2.13.0", "2.14.1"])
def test_archives_of_every_torch_say_where_layers_end(version: str) -> None:
    with (ARCHIVES / version / "mlp.pt2").open("rb") as file:
        plan = Artifact(file).plan
    # linear | relu of the model itself, linear | softmax of the model itself
    assert [node.operator.split(".")[1] for node in plan.nodes] == [
        "linear",
        "relu",
        "linear",
        "softmax",
    ]
    assert plan.layer_ends == (1, 3, 4)


def _metadata(stack: str) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"stack_trace": "x", "nn_module_stack": stack}).encode())
