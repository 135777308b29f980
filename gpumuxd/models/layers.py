"""Where the layers of a module end in its graph, from the names that exporters leave on nodes.

A *layer* is one call of a leaf module, one without modules inside that do the work: what a hook on
every leaf module sees (PipeSwitch, OSDI 2020). It ends with its last node; what a module computes
between the calls of others belongs to the layer that comes after.

Names come from a stranger and decide nothing but where a baseline of the scheduler puts its sync
points. So nothing is refused for them: what can't be read says nothing, and a graph that says
nothing has no layers here. It must not know graphs or kernel groups.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

STACK_CHARACTERS_MAX = 4096
DEPTH_MAX = 64
"""Modules inside modules; the deepest ones that were looked at have 12."""

MODULES_MAX = 65_536
"""Of all nodes together. More are no model's that may be served: it has fewer nodes."""


class _Metadata(msgspec.Struct):
    """What torch.export notes of a node, but for what is never read."""

    nn_module_stack: str = ""


_decoder = msgspec.json.Decoder(_Metadata)


def torch_stack(metadata: bytes | msgspec.Raw) -> tuple[str, ...]:
    """The calls of modules that a node is in, outermost first; () where that can't be read.

    torch writes `key,path,type` for each and `;` between them. A key is the path with a number
    behind it from the second call of the same module on (`L__self___act@1`).
    """
    try:
        stack = _decoder.decode(metadata).nn_module_stack
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    if not stack or len(stack) > STACK_CHARACTERS_MAX:
        return ()
    return tuple(item.partition(",")[0] for item in stack.split(";"))


def onnx_stack(name: str) -> tuple[str, ...]:
    """The same from the name of an ONNX node, such as `/encoder/layer.0/dense/MatMul`."""
    if len(name) > STACK_CHARACTERS_MAX or name.count("/") > DEPTH_MAX:
        return ()
    return tuple(accumulate(part + "/" for part in name.split("/")[:-1]))


class Layers:
    """Takes the stack of each node, in order, and tells where layers end."""

    def __init__(self) -> None:
        self._innermost: list[str] = []
        self._outer: set[str] = set()
        self._is_garbage = False

    def add(self, stack: Sequence[str]) -> None:
        """The next node. One that says nothing goes with the node before it."""
        if len(stack) > DEPTH_MAX or len(self._outer) > MODULES_MAX:
            self._is_garbage = True
        if self._is_garbage:
            return
        if not stack:
            stack = self._innermost[-1:] or [""]
        self._innermost.append(stack[-1])
        self._outer.update(stack[:-1])

    def ends(self) -> tuple[int, ...]:
        """The ends (exclusive) of the nodes in which layers end, ascending; empty if the nodes do
        not say. The last one is the end of the graph."""
        nodes = self._innermost
        if self._is_garbage or not any(nodes):
            return ()
        following = [*nodes[1:], ""]
        ends = [
            position
            for position, (here, after) in enumerate(zip(nodes, following, strict=True), 1)
            if here and here != after and here not in self._outer
        ]
        return tuple(dict.fromkeys([*ends, len(nodes)]))


def onnx_layer_ends(names: Iterable[str]) -> tuple[int, ...]:
    """Where the layers of an ONNX graph end, by the names of its nodes."""
    layers = Layers()
    for name in names:
        layers.add(onnx_stack(name))
    return layers.ends()
