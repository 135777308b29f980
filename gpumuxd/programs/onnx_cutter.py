"""Cuts an ONNX graph into sub-models, by joining the pieces of its plan.

Pieces are encoded messages, and a protobuf message is the concatenation of its fields, so a
sub-model is written without decoding or knowing any of them. It must not know time or sessions.

A cut costs more here than between torch kernels: a session is entered, and each live value is
handed over. So cuts are only considered between *units*: runs of nodes that begin with heavy work.
In a graph that is not optimised yet, fusion ends at a cut too and convolutions go back to the plain
layout: there a residual is kept with its convolution.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpumuxd.models.onnx_plan import OnnxPlan

ANCHORS = frozenset(
    {"Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "GRU", "Gemm", "If", "LSTM"}
    | {"MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "Resize", "Upsample"}
    | {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "STFT", "DFT"}
    | {"GridSample", "NonMaxSuppression", "TopK"}
    | {"FusedConv", "FusedGemm", "FusedMatMul", "MultiHeadAttention", "QAttention", "QGemm"}
    | {"DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "NhwcMaxPool"}
)
"""Operators worth a unit of their own. What follows up to the next one is cheap, or is fused."""

UNIT_NODES_MAX = 24
"""A longer run of nodes without an anchor is a unit too: it may be all that there is to a model."""

UNITS_MAX = 192
"""Each unit is a session while a model is measured, of about 2 ms and 100 KiB besides weights."""


@dataclass(frozen=True, slots=True)
class SubModel:
    """The nodes `first <= i < end` as a model of its own, and the values it takes and gives.

    `clears` are values that nobody reads after it.
    """

    model: bytes
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    clears: tuple[int, ...]
    weights: tuple[int, ...]


def live_counts(plan: OnnxPlan) -> list[int]:
    """How many results of nodes are alive before each node, and at the end."""
    last_read = _last_reads(plan)
    changes = [0] * (len(plan.nodes) + 2)
    for position, node in enumerate(plan.nodes):
        for value in node.writes:
            if last_read.get(value, -1) > position:
                changes[position + 1] += 1
                changes[last_read[value] + 1] -= 1
    counts, alive = [], 0
    for change in changes[: len(plan.nodes) + 1]:
        alive += change
        counts.append(alive)
    return counts


def cut_costs(plan: OnnxPlan) -> list[int]:
    """What a cut before each node, and at the end, costs: in values that are handed over.

    In a graph that is not optimised, a residual that is added to a convolution's result beyond the
    cut counts for more: the runtime adds it inside the convolution where both have its blocked
    layout, which nothing has that comes across a cut. It is also the one cut that changes results,
    by a rounding.
    """
    live = live_counts(plan)
    if plan.is_optimised:
        return live
    changes = [0] * (len(plan.nodes) + 2)
    origin = _origins(plan)
    writer = {value: i for i, node in enumerate(plan.nodes) for value in node.writes}
    for node in plan.nodes:
        if node.operator != "Add" or len(node.reads) != 2:
            continue
        sources = sorted(writer.get(origin[value], -1) for value in node.reads)
        residual, convolution = sources
        if convolution < 0 or plan.nodes[convolution].operator != "Conv":
            continue
        changes[residual + 1] += _RESIDUAL_COST
        changes[convolution + 1] -= _RESIDUAL_COST
    return [count + more for count, more in zip(live, accumulate(changes), strict=False)]


_RESIDUAL_COST = 8


def _origins(plan: OnnxPlan) -> dict[int, int]:
    """Where each value comes from, looked at through Identity and through adding a bias."""
    origin = {value: value for value in range(len(plan.values))}
    for node in plan.nodes:
        if node.operator in ("Identity", "Add") and len(node.reads) == 1:
            for value in node.writes:
                origin[value] = origin[node.reads[0]]
    return origin


def units(plan: OnnxPlan) -> list[int]:
    """The end node (exclusive) of each unit, the only places where cuts are considered."""
    costs = cut_costs(plan)
    ends: list[int] = []
    start = 0
    has_anchor = False
    for position, node in enumerate(plan.nodes):
        is_anchor = node.operator in ANCHORS
        if is_anchor and has_anchor and costs[position] < _RESIDUAL_COST:
            ends.append(position)
        elif position - start >= UNIT_NODES_MAX:
            ends.append(_cheapest(costs, start, position))
        if ends and ends[-1] != start:
            start = ends[-1]
            has_anchor = any(node.operator in ANCHORS for node in plan.nodes[start:position])
        has_anchor = has_anchor or is_anchor
    ends.append(len(plan.nodes))
    return _thinned(ends, costs)


def _cheapest(costs: Sequence[int], start: int, end: int) -> int:
    """The position in the second half of a run where a cut costs least, the last of those."""
    return min(range(start + (end - start + 1) // 2, end + 1), key=lambda i: (costs[i], -i))


def _thinned(ends: list[int], costs: Sequence[int]) -> list[int]:
    """At most UNITS_MAX of them: those where a cut costs most are given up first."""
    spare = len(ends) - UNITS_MAX
    if spare <= 0:
        return ends
    given_up = dict.fromkeys(sorted(ends[:-1], key=lambda end: (-costs[end], end))[:spare])
    return [end for end in ends if end not in given_up]


class Cutter:
    """Makes sub-models of one plan."""

    def __init__(self, plan: OnnxPlan) -> None:
        self._plan = plan
        self._last_read = _last_reads(plan)
        # Before format 4 each weight had to be an input too.
        self._head = _field(1, max(plan.ir_version, 4)) + b"".join(
            _field(8, _field(1, domain.encode()) + _field(2, version))
            for domain, version in plan.opsets
        )

    def cut(self, cuts: Sequence[int]) -> list[SubModel]:
        """`cuts[i]` is the end node (exclusive) of sub-model i; the last one is the last node."""
        starts = [0, *cuts[:-1]]
        assert [*cuts[-1:]] == [len(self._plan.nodes)], "the last cut is the end of the model"
        assert all(a < b for a, b in zip(starts, cuts, strict=True)), "a group has a node at least"
        return [self._sub_model(start, end) for start, end in zip(starts, cuts, strict=True)]

    def _sub_model(self, start: int, end: int) -> SubModel:
        nodes = self._plan.nodes[start:end]
        made = [value for node in nodes for value in node.writes]
        inside = set(made)
        reads = _unique(v for node in nodes for v in node.reads if v not in inside)
        weights = _unique(weight for node in nodes for weight in node.weights)
        writes = tuple(value for value in made if self._last_read.get(value, -1) >= end)
        # An output of the model is "read" after the last node, so it is never cleared.
        clears = tuple(value for value in reads if self._last_read[value] < end)
        return SubModel(
            self._encode(start, end, reads, writes, weights), reads, writes, clears, weights
        )

    def _encode(
        self,
        start: int,
        end: int,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        weights: tuple[int, ...],
    ) -> bytes:
        plan = self._plan
        inside = [
            value
            for node in plan.nodes[start:end]
            for value in node.writes
            if plan.values[value].is_declared and value not in writes
        ]
        graph = [
            *(_field(1, node.node) for node in plan.nodes[start:end]),
            _field(2, b"group"),
            *(_field(5, plan.weights[index].tensor) for index in weights),
            *(_field(11, plan.values[value].info) for value in reads),
            *(_field(12, plan.values[value].info) for value in writes),
            *(_field(13, plan.values[value].info) for value in inside),
        ]
        return self._head + _field(7, b"".join(graph))


def _last_reads(plan: OnnxPlan) -> dict[int, int]:
    """The last node that reads each value; the number of nodes for an output of the model."""
    last: dict[int, int] = {}
    for position, node in enumerate(plan.nodes):
        for value in node.reads:
            last[value] = position
    for value in plan.outputs:
        last[value] = len(plan.nodes)
    return last


def _unique(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))


def _field(number: int, value: int | bytes) -> bytes:
    """One field of a protobuf message: a varint, or bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    assert value >= 0, value
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
