"""How large an artifact may be, in every direction that a hostile one could grow.

Each limit has a name and a unit, and each refusal says the name, the limit and what came. The
figures are about ten times what the largest model measured needed (BERT-base: 321 nodes, 3 MB of
graph, 439 MB of weights), so an honest edge model never meets them.
"""

from dataclasses import dataclass

from gpumuxd.models.spec import CONDITION_TOKENS_MAX
from gpumuxd.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of one artifact."""

    artifact_bytes_max: int = 8 * GIB
    """The archive file."""

    entries_max: int = 20_000
    """Files in the archive; a weight is one."""

    graph_bytes_max: int = 64 * MIB
    """The graph's JSON. Decoding it takes about seven times that in memory (measured)."""

    config_bytes_max: int = 16 * MIB
    """Each table of weights or constants."""

    names_bytes_max: int = MIB
    """Our own file with the names of inputs and outputs."""

    weights_bytes_max: int = 8 * GIB
    """All weights as they will lie in memory."""

    nodes_max: int = 50_000
    weights_max: int = 20_000
    tensors_max: int = 256
    """Inputs, and outputs."""

    rank_max: int = 16
    arguments_max: int = 256
    """Arguments of one node."""

    list_items_max: int = 4096
    """Items of one list argument, results of one node."""

    expression_chars_max: int = 4096
    expression_tokens_max: int = 256
    condition_tokens_max: int = CONDITION_TOKENS_MAX
    """Terms of all conditions on sizes: they are evaluated for requests."""

    symbols_max: int = 16

    dynamic_size_max: int = 1 << 20
    """Upper end for a dynamic dimension that was exported without one."""


DEFAULT_LIMITS = ReadLimits()
