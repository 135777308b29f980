"""Regions: parts of a graph that ran under another setting, which torch.export keeps as a call of a
higher-order operator with a graph as its argument.

`with torch.no_grad():` inside a model makes one, and so does `torch.autocast(enabled=False)`, which
transformers wraps around rotary positions. Both change nothing when a model is served: nothing
records gradients and nothing casts by itself. So a region is as good as its nodes, and its nodes
take its place. Everything else that takes a graph (a branch, a loop) is refused.

It must not know values or slots: `lowering.py` puts the nodes in their place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpumuxd.errors import InvalidModel
from gpumuxd.models import schema

HIGHER_ORDER_PREFIX = "torch.ops.higher_order."

_SETTINGS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""Operators whose region may take their place, and how many settings stand before the graph."""

_AUTOCAST_ENABLED = 2
"""The setting of wrap_with_autocast that says whether it casts."""

DEPTH_MAX = 16
"""Regions inside regions; a module inside a module may switch gradients off again."""


@dataclass(frozen=True, slots=True)
class Region:
    """A graph, what its inputs stand for and the names of what it gives."""

    graph: schema.Graph
    arguments: Sequence[schema.NamedArgument]
    results: Sequence[schema.Argument]


def region_of(node: schema.Node, where: str) -> Region | None:
    """The region a node is. None for an ordinary node."""
    if not node.target.startswith(HIGHER_ORDER_PREFIX):
        return None
    name = node.target.removeprefix(HIGHER_ORDER_PREFIX)
    settings = _SETTINGS.get(name)
    if settings is None:
        raise InvalidModel(
            f"{where}: branches and loops on values can't be served (for a branch use torch.where)"
        )
    graph = node.inputs[settings].arg.as_graph if len(node.inputs) > settings else None
    if not isinstance(graph, schema.GraphArgument):
        raise InvalidModel(f"{where}: expected a graph after {settings} settings")
    if name == "wrap_with_autocast" and node.inputs[_AUTOCAST_ENABLED].arg.as_bool is not False:
        raise InvalidModel(
            f"{where}: the model casts by itself (torch.autocast): export it without, after "
            ".half() or .bfloat16() where that is meant"
        )
    region = Region(graph.graph, node.inputs[settings + 1 :], node.outputs)
    for outer, inner, what in (
        (region.arguments, region.graph.inputs, "arguments"),
        (region.results, region.graph.outputs, "results"),
    ):
        if len(outer) != len(inner):
            raise InvalidModel(f"{where}: {len(outer)} {what} for a graph of {len(inner)}")
    return region
