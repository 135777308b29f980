"""Plans that break an invariant are refused, whoever wrote them."""

from typing import Any

import msgspec
import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.plan import Node, Plan, Slot, Weight, WeightEntry, check, decode, encode
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec

SPEC = ModelSpec(
    inputs=(TensorSpec("x", "FP32", (("n",),)),),
    outputs=(TensorSpec("y", "FP32", (("n",),)),),
    symbols=(Symbol("n", 1, 4),),
)


def call(reads: int, writes: int | None, clears: tuple[int, ...] = ()) -> Node:
    return Node("aten.relu.default", (Slot(reads),), (), (writes,), False, clears)


def plan(**changes: Any) -> Plan:
    good = Plan(
        version=1,
        spec=SPEC,
        size_hints=(2,),
        weights_bytes=64,
        weights=(WeightEntry(0, "FP32", (2, 3), (3, 1)),),
        slot_count=3,
        nodes=(call(0, 1, (0,)), call(1, 2, (1,))),
        outputs=(Slot(2),),
    )
    return msgspec.structs.replace(good, **changes)


def test_a_good_plan_survives_the_wire() -> None:
    assert decode(encode(plan())) == plan()
    assert decode(memoryview(encode(plan()))) == plan()
    with_layers = plan(layer_ends=(1, 2))
    assert decode(encode(with_layers)) == with_layers


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "plan version: expected 1, got 2"),
        ({"size_hints": ()}, "size hints and symbols"),
        ({"outputs": ()}, "outputs and spec"),
        ({"layer_ends": (3,)}, "ends of layers"),
        ({"layer_ends": (0, 2)}, "ends of layers"),
        ({"layer_ends": (-1,)}, "ends of layers"),
        ({"layer_ends": (2, 1)}, "ends of layers"),
        ({"layer_ends": (1, 1)}, "ends of layers"),
        ({"outputs": (Slot(1),)}, "the outputs reads slot 1, which holds nothing"),
        ({"outputs": (Slot(-1),)}, "reads slot -1"),
        ({"outputs": (Weight(1),)}, "reads weight 1, which does not exist"),
        ({"outputs": (Weight(-1),)}, "reads weight -1"),
        ({"nodes": (call(1, 2),)}, "node 0 reads slot 1"),
        ({"nodes": (call(0, 1, (0,)), call(0, 2))}, "node 1 reads slot 0"),
        ({"nodes": (call(0, 0), call(0, 2))}, "node 0 writes a slot twice"),
        ({"nodes": (call(0, 3), call(0, 2))}, "node 0 writes a slot twice or outside"),
        ({"nodes": (call(0, 2, (1,)),)}, "node 0 clears a slot that holds nothing"),
        ({"weights": (WeightEntry(0, "FP32", (4, 4), (4, 5)),)}, "ends at byte 112 of 64"),
        ({"weights": (WeightEntry(48, "FP32", (2, 3), (3, 1)),)}, "ends at byte 72 of 64"),
        ({"weights": (WeightEntry(2, "FP32", (1,), (1,)),)}, "weight 0 is malformed"),
        ({"weights": (WeightEntry(0, "BYTES", (1,), (1,)),)}, "weight 0 is malformed"),
        ({"weights": (WeightEntry(0, "FP32", (1,), ()),)}, "weight 0 is malformed"),
        ({"weights": (WeightEntry(0, "FP32", (2,), (-1,)),)}, "negative"),
        ({"weights": (WeightEntry(-64, "FP32", (2,), (1,)),)}, "negative"),
    ],
)
def test_broken_plans(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        check(plan(**changes))
    assert said in caught.value.message


@pytest.mark.parametrize("data", [b"", b"\x00", b"{}", encode(plan())[:-1], encode(plan()) + b"\0"])
def test_bytes_that_are_no_plan(data: bytes) -> None:
    with pytest.raises(InvalidModel, match="not a plan"):
        decode(data)


def test_an_empty_weight_has_no_span() -> None:
    check(plan(weights=(WeightEntry(64, "FP32", (0, 5), (5, 1)),)))
