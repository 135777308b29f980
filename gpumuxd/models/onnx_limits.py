"""How large an ONNX artifact may be, in every direction that a hostile one could grow.

As `limits.py`: each limit has a name and a unit, and each refusal says the name, the limit and what
came. The largest real model measured has 566 nodes, 341 constants and branches two deep.
"""

from dataclasses import dataclass

from gpumuxd.units import KIB, MIB


@dataclass(frozen=True, slots=True)
class OnnxLimits:
    """Limits of one `model.onnx`."""

    artifact_bytes_max: int = 512 * MIB
    """The file. Its message is decoded whole, beside the file's bytes: at most 1.2 GiB for this
    size, of the 2 GiB that a loader may use. A message of protobuf ends at 2 GiB anyway."""

    graph_bytes_max: int = 32 * MIB
    """All that is not the bytes of weights."""

    nodes_max: int = 20_000
    """Nodes, those of branches among them."""

    weights_max: int = 20_000
    weights_bytes_max: int = 512 * MIB
    depth_max: int = 4
    """Branches within branches."""

    tensors_max: int = 256
    """Inputs, and outputs."""

    operands_max: int = 1024
    """What one node reads or writes. A Concat may join many."""

    attributes_max: int = 64
    attribute_items_max: int = 4096
    attribute_bytes_max: int = 4096
    """A string among the attributes."""

    rank_max: int = 16
    name_bytes_max: int = 1024
    """A name inside the graph; those of inputs and outputs are held to the protocol's rule."""

    symbols_max: int = 16
    notes_bytes_max: int = 64 * KIB
    """What `gpumuxd export --onnx` noted in the file."""

    expression_tokens_max: int = 256
    inline_bytes_max: int = KIB
    """A weight up to this size stays in the graph: shapes and axes, which are looked at when a
    graph is optimised, and whose bytes would not be worth a page."""


DEFAULT_ONNX_LIMITS = OnnxLimits()
