"""Where the layers of an ONNX graph end, and how many operators its groups have."""

import numpy as np
import pytest
from onnx import helper

from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.programs.profiler import model_profile
from tests.onnx.support import info, model, opened, read, weight

WIDTH = 8


def scoped(names: list[str]) -> object:
    """A chain of products of matrices, each followed by a tanh; the names of the nodes in order."""
    nodes, weights, value = [], [], "x"
    for index, name in enumerate(names):
        made = "y" if index == len(names) - 1 else f"v{index}"
        if index % 2 == 0:
            weights.append(weight(f"w{index}", np.eye(WIDTH, dtype=np.float32)))
            nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [made], name=name))
        else:
            nodes.append(helper.make_node("Tanh", [value], [made], name=name))
        value = made
    shape = ["n", WIDTH]
    return model(nodes, [info("x", shape)], [info("y", shape)], weights)


@pytest.mark.parametrize(
    ("names", "layer_ends"),
    [
        (["/a/MatMul", "/a/Tanh", "/b/MatMul", "/b/Tanh"], (2, 4)),
        (["/a/MatMul", "/Tanh", "/b/MatMul", "/Tanh_1"], (1, 3, 4)),
        (["MatMul_0", "Tanh_1", "MatMul_2", "Tanh_3"], ()),
        (["", "", "", ""], ()),
    ],
)
def test_layers_are_scopes_in_the_names_of_nodes(
    names: list[str], layer_ends: tuple[int, ...]
) -> None:
    artifact = read(scoped(names))
    assert artifact.plan.layer_ends == layer_ends
    assert opened(artifact).layer_ends == layer_ends


def test_operators_are_nodes_and_not_the_units_that_are_cut() -> None:
    served = opened(read(scoped(["/a/MatMul", "/a/Tanh", "/b/MatMul", "/b/Tanh"])))
    assert served.node_count == 2
    stored = StoredProfile((1, 2), {(1,): (5, 5)}, {(1,): 10}, 0)
    told = model_profile(stored, served.operator_ends(stored.cuts), served.layer_ends, 0)
    assert told.operators == (2, 2)
    assert told.layer_ends == (1, 2)
