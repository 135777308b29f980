"""Programs: slots, last uses, bytes held, and the code of a group."""

from collections.abc import Iterator

import msgspec
import pytest
import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models.plan import Constant, Many, Node, Plan, Slot, Weight, WeightEntry
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.programs import interpreter
from gpumuxd.programs.codegen import GroupWriter
from gpumuxd.programs.model import ServedModel
from tests.programs.conftest import Exported
from tests.programs.networks import open_artifact


def tensor(name: str, *shape: int | tuple[str, ...]) -> TensorSpec:
    return TensorSpec(name, "FP32", shape)


def node(operator: str, *arguments: plans.Argument, results: tuple[int | None, ...],
         clears: tuple[int, ...] = (), returns_list: bool = False, **keywords: plans.Argument,
         ) -> Node:  # fmt: skip
    return Node(operator, arguments, tuple(keywords.items()), results, returns_list, clears)


CHAIN = Plan(
    version=1,
    spec=ModelSpec(
        inputs=(tensor("x", ("n",), 4),), outputs=(tensor("y", ("n",), 4),),
        symbols=(Symbol("n", 1, 8),), batch_symbol="n",
    ),
    size_hints=(2,),
    weights_bytes=64,
    weights=(WeightEntry(0, "FP32", (4,), (1,)),),
    slot_count=5,
    nodes=(
        node("aten.add.Tensor", Slot(0), Weight(0), results=(1,), clears=(0,)),
        node("aten.split.sizes", Slot(1), Many((1, 3)), 1, results=(2, 3), returns_list=True,
             clears=(1,)),
        node("aten.cat.default", Many((Slot(3), Slot(2))), 1, results=(4,), clears=(2, 3)),
    ),
    outputs=(Slot(4),),
)  # fmt: skip
"""y = cat(split(x + w)) in another order; every value has one reader."""


def serve(plan: Plan, weights: bytes = b"") -> ServedModel:
    buffer = bytearray(weights.ljust(max(plan.weights_bytes, 64), b"\0"))
    return ServedModel.open(plans.encode(plan), memoryview(buffer))


@pytest.fixture
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.usefixtures("_inference")
def test_slots_hold_what_later_groups_read_and_nothing_else() -> None:
    program = serve(CHAIN).node_program()
    x = torch.arange(8.0).reshape(2, 4)
    slots = program.start([x])
    held = [[i for i, value in enumerate(slots) if value is not None]]
    for group in program.groups:
        group(slots)
        held.append([i for i, value in enumerate(slots) if value is not None])
    assert held == [[0], [1], [2, 3], [4]]
    assert torch.equal(program.outputs(slots)[0], x[:, [1, 2, 3, 0]])


@pytest.mark.usefixtures("_inference")
def test_inside_a_group_nothing_touches_the_slots() -> None:
    program = serve(CHAIN).grouped_program([3])
    slots = program.start([torch.ones(1, 4)])
    program.groups[0](slots)
    assert [value is None for value in slots] == [True, True, True, True, False]


@pytest.mark.usefixtures("_inference")
def test_bytes_held_counts_each_storage_once_and_no_weights() -> None:
    program = serve(CHAIN).node_program()
    slots = program.start([torch.ones(2, 4)])
    held = [program.bytes_held(slots)]
    for group in program.groups:
        group(slots)
        held.append(program.bytes_held(slots))
    # After the split two slots are views of one storage.
    assert held == [32, 32, 32, 32]
    slots[0] = serve(CHAIN).bindings.weights[0]
    assert program.bytes_held(slots) == 32 + 64, "another model's weight is not this program's"
    slots[0] = program._weights[0]
    assert program.bytes_held(slots) == 32


@pytest.mark.usefixtures("_inference")
def test_two_runs_of_one_program_share_nothing() -> None:
    program = serve(CHAIN).node_program()
    one, two = program.start([torch.zeros(1, 4)]), program.start([torch.ones(3, 4)])
    for group in program.groups:
        group(one)
        group(two)
    assert torch.equal(program.outputs(one)[0], torch.zeros(1, 4))
    assert torch.equal(program.outputs(two)[0], torch.ones(3, 4))


def test_memory_is_given_back_at_the_last_use_within_a_group() -> None:
    """Ten adds in one group must not hold ten results: the last one and its operand at most."""
    count = 10
    nodes = tuple(
        node("aten.add.Tensor", Slot(i), 1, results=(i + 1,), clears=(i,)) for i in range(count)
    )
    plan = msgspec.structs.replace(CHAIN, nodes=nodes, slot_count=count + 1, outputs=(Slot(count),))
    source = GroupWriter(lambda kind, key: "f").write(plan.nodes)
    assert source.count("= None") == count + 1  # the input in its slot as well
    live: set[str] = set()
    most = 0
    for line in source.splitlines()[1:]:
        target, _, value = line.strip().partition(" = ")
        live = live - {target} if value == "None" else live | {target}
        most = max(most, len({name for name in live if name.startswith("v")}))
    assert most == 2


def test_the_code_of_a_group() -> None:
    short = {
        "aten.split.sizes": "split",
        "aten.cat.default": "cat",
        "aten.sum.default": "total",
        repr(Many((1, 3))): "sizes",
        repr(Constant("dtype", "FP64")): "double",
    }
    nodes = (
        *CHAIN.nodes[1:],
        node("aten.sum.default", Slot(4), results=(None,), dtype=Constant("dtype", "FP64")),
    )
    writer = GroupWriter(lambda kind, key: short[key if kind == "operator" else repr(key)])
    assert writer.write(nodes) == (
        "def group(s):\n"
        "    v1 = s[1]\n"
        "    r = split(v1, sizes, 1)\n"
        "    v2 = r[0]\n"
        "    v3 = r[1]\n"
        "    r = None\n"
        "    s[1] = None\n"
        "    v1 = None\n"
        "    v4 = s[4] = cat([v3, v2], 1)\n"
        "    v2 = None\n"
        "    v3 = None\n"
        "    total(v4, dtype=double)\n"
    )


@pytest.mark.parametrize("keyword", ["a=1, b", "class", "1a", "", "a b", "\u00e9", "None"])
def test_a_keyword_can_not_carry_code(keyword: str) -> None:
    call = Node("aten.relu.default", (), ((keyword, Slot(0)),), (1,), False, ())
    plan = msgspec.structs.replace(CHAIN, nodes=(call,), outputs=(Slot(1),))
    with pytest.raises(InvalidModel, match="can't be the keyword"):
        serve(plan).node_program()


@pytest.mark.usefixtures("_inference")
def test_literals_that_are_equal_but_not_the_same_are_kept_apart() -> None:
    nodes = (
        node("aten.full.default", Many((1,)), 0.0, results=(1,)),
        node("aten.full.default", Many((1,)), -0.0, results=(2,)),
        node("aten.full.default", Many((1,)), 1, results=(3,)),
        node("aten.full.default", Many((1,)), True, results=(4,)),
        node("aten.full.default", Many((1,)), 1.0, results=(5,)),
        node("aten.full.default", Many((1,)), float("nan"), results=(6,)),
        node("aten.full.default", Many((1,)), float("-inf"), results=(7,)),
    )
    outputs = tuple(Slot(i) for i in range(1, 8))
    spec = ModelSpec(CHAIN.spec.inputs, tuple(tensor(f"y{i}", 1) for i in range(7)),
                     CHAIN.spec.symbols, "n")  # fmt: skip
    model = serve(
        msgspec.structs.replace(CHAIN, spec=spec, nodes=nodes, outputs=outputs, slot_count=8)
    )
    program = model.grouped_program([7])
    slots = program.start([torch.ones(1, 4)])
    program.groups[0](slots)
    results = program.outputs(slots)
    assert [str(r.item()) for r in results] == ["0.0", "-0.0", "1", "True", "1.0", "nan", "-inf"]
    for ours, theirs in zip(results, interpreter.run(model, [torch.ones(1, 4)]), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs) or ours.isnan().all()


@pytest.mark.parametrize("cuts", [[], [1, 2], [0, 3], [2, 1, 3], [3, 3], [4], [-1, 3]])
def test_cuts_that_are_none(cuts: list[int]) -> None:
    with pytest.raises(AssertionError):
        serve(CHAIN).grouped_program(cuts)


def test_a_plan_that_names_another_operator_is_refused() -> None:
    plan = msgspec.structs.replace(
        CHAIN, nodes=(node("aten.from_file.default", Slot(0), results=(4,)),)
    )
    with pytest.raises(InvalidModel, match=r"'aten\.from_file\.default' is not allowed"):
        serve(plan)


def test_sizes_can_not_grow_without_end() -> None:
    nodes = [node("int.size", Slot(0), 1, results=(1,))]
    nodes += [node("int.mul", Slot(i), Slot(i), results=(i + 1,)) for i in range(1, 40)]
    plan = msgspec.structs.replace(CHAIN, nodes=tuple(nodes), slot_count=41, outputs=(Slot(40),))
    program = serve(plan).grouped_program([40])
    with pytest.raises(OverflowError, match="does not fit 64 bits"):
        program.groups[0](program.start([torch.ones(1, 4)]))


def test_a_group_that_raises_leaves_the_program_usable(exported: Exported) -> None:
    program = open_artifact(exported("mlp")[1]).grouped_program([4])
    with torch.inference_mode():
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            program.groups[0](program.start([torch.ones(2, 5)]))
        slots = program.start([torch.ones(2, 4)])
        program.groups[0](slots)
    assert program.outputs(slots)[0].shape == (2, 3)
