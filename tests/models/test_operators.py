"""The allow-list against torch's own schemas: what it says of memory must be true."""

import pytest
import torch

from gpumuxd.models.operators import INTEGER_OPERATORS, Effect, allow_list, is_allowed
from gpumuxd.programs.operators import overload_of, resolve

EFFECTS = sorted(allow_list().effects.items())

WRITES_NO_DATA = {"detach_.default"}
"""Annotated as writing by torch; changes what autograd knows and no byte."""


def alias_of(name: str) -> tuple[bool, bool]:
    """Does torch say that the result may be an argument; does it say that one is written?"""
    schema = overload_of(name)._schema
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    aliased = any(r.alias_info is not None for r in schema.returns)
    return aliased, written


def test_every_operator_exists_in_this_torch() -> None:
    for name, _ in EFFECTS:
        assert isinstance(overload_of(name), torch._ops.OpOverload), name


def test_fresh_results_are_no_alias_in_torchs_schema() -> None:
    wrong = [name for name, effect in EFFECTS if effect is Effect.FRESH and any(alias_of(name))]
    assert not wrong, "these share memory with an argument: list them as view or write"


def test_only_operators_listed_as_write_write() -> None:
    writing = {name for name, _ in EFFECTS if alias_of(name)[1]}
    listed = {name for name, effect in EFFECTS if effect is Effect.WRITE}
    assert writing - WRITES_NO_DATA == listed


def test_writing_operators_write_their_first_argument_and_no_other() -> None:
    for name, effect in EFFECTS:
        if effect is Effect.WRITE:
            arguments = overload_of(name)._schema.arguments
            written = [
                a.alias_info is not None and a.alias_info.is_write and not a.kwarg_only
                for a in arguments
            ]
            assert written == [True] + [False] * (len(arguments) - 1), name


def test_nothing_random_or_uninitialised_is_allowed() -> None:
    tag = torch.Tag.nondeterministic_seeded
    guarded = set(allow_list().required)
    seeded = {name for name, _ in EFFECTS if tag in overload_of(name).tags} - guarded
    assert not seeded, "these draw random numbers"
    empty = [name for name, _ in EFFECTS if "empty" in name or name.startswith("resize")]
    assert not empty, "these show what was in memory before"


def test_nothing_with_a_path_generator_or_storage_is_allowed() -> None:
    for name, _ in EFFECTS:
        for argument in overload_of(name)._schema.arguments:
            assert str(argument.type) not in ("Generator", "Optional[Generator]", "Storage"), name
            assert argument.name not in ("filename", "out"), name


def test_required_arguments_are_where_torch_has_them() -> None:
    for name, required in allow_list().required.items():
        arguments = overload_of(name)._schema.arguments
        argument = arguments[required.position]
        assert argument.name == required.argument, name
        if argument.has_default_value():
            assert argument.default_value == required.value, "absent means the default"


def test_random_operators_need_an_argument_that_stops_them() -> None:
    may_be_random = {
        name
        for name, _ in EFFECTS
        for a in overload_of(name)._schema.arguments
        if a.name in ("train", "training", "dropout_p")
    }
    assert may_be_random == set(allow_list().required) - {"instance_norm.default"}


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("aten.add.Tensor", True),
        ("int.mul", True),
        ("aten.from_file.default", False),
        ("add.Tensor", False),
        ("prims.add.default", False),
        ("int.pow", True),
        ("int.eval", False),
        ("", False),
    ],
)
def test_names_in_plans(name: str, allowed: bool) -> None:
    assert is_allowed(name) is allowed


def test_every_allowed_name_resolves() -> None:
    for name in [f"aten.{name}" for name, _ in EFFECTS] + list(INTEGER_OPERATORS.values()):
        assert callable(resolve(name)), name


FRESH_THOUGH_MAYBE_IDENTITY = [
    ("upsample_nearest2d.vec", (torch.ones(1, 1, 2, 2), [2, 2], None)),
    ("adaptive_avg_pool2d.default", (torch.ones(1, 1, 1, 1), [1, 1])),
    ("avg_pool2d.default", (torch.ones(1, 1, 2, 2), [1, 1], [1, 1])),
    ("max_pool2d.default", (torch.ones(1, 1, 2, 2), [1, 1], [1, 1])),
    ("constant_pad_nd.default", (torch.ones(3), [0, 0])),
    ("cat.default", ([torch.ones(3)],)),
    ("stack.default", ([torch.ones(3)],)),
    ("repeat.default", (torch.ones(3), [1])),
    ("sum.dim_IntList", (torch.ones(3, 1), [1])),
    ("mean.dim", (torch.ones(3, 1), [1])),
    ("amax.default", (torch.ones(3, 1), [1])),
    ("cumsum.default", (torch.ones(1), 0)),
    ("roll.default", (torch.ones(3), [0])),
    ("flip.default", (torch.ones(3), [])),
    ("clamp.default", (torch.ones(3), None, 9)),
    ("where.self", (torch.tensor(True), torch.ones(3), torch.ones(3))),
    ("index.Tensor", (torch.ones(3), [torch.arange(3)])),
    ("pixel_shuffle.default", (torch.ones(1, 1, 2, 2), 1)),
    ("tril.default", (torch.ones(2, 2),)),
    ("nan_to_num.default", (torch.ones(3),)),
    ("round.default", (torch.ones(3, dtype=torch.int64),)),
    ("floor.default", (torch.ones(3, dtype=torch.int64),)),
    ("ceil.default", (torch.ones(3, dtype=torch.int64),)),
    ("trunc.default", (torch.ones(3, dtype=torch.int64),)),
    ("matmul.default", (torch.ones(1, 1), torch.ones(1, 1))),
    ("softmax.int", (torch.ones(1), 0)),
    ("prod.default", (torch.ones(()),)),
    ("sum.default", (torch.ones(()),)),
    ("sort.default", (torch.ones(1),)),
    ("max.dim", (torch.ones(1), 0)),
    ("_to_copy.default", (torch.ones(3),)),
    ("lift_fresh_copy.default", (torch.ones(3),)),
    ("take.default", (torch.ones(1), torch.zeros(1, dtype=torch.int64))),
    ("index_select.default", (torch.ones(1), 0, torch.zeros(1, dtype=torch.int64))),
    ("one_hot.default", (torch.zeros(1, dtype=torch.int64), 1)),
    ("norm.ScalarOpt_dim", (torch.ones(3, 1), None, [1])),
    ("logsumexp.default", (torch.ones(3, 1), [1])),
    ("scaled_dot_product_attention.default", (torch.ones(1, 1, 1, 1),) * 3),
    ("relu.default", (torch.ones(3),)),
    ("abs.default", (torch.ones(3),)),
    ("elu.default", (torch.ones(3),)),
    ("pow.Tensor_Scalar", (torch.ones(3), 1)),
    ("mul.Scalar", (torch.ones(3), 1)),
    ("masked_fill.Scalar", (torch.ones(3), torch.tensor(False), 0)),
    ("gather.default", (torch.ones(1), 0, torch.zeros(1, dtype=torch.int64))),
    ("glu.default", (torch.ones(2),)),
]
"""Calls that could return their argument untouched, and would break the rule if they did."""


@pytest.mark.parametrize(("name", "arguments"), FRESH_THOUGH_MAYBE_IDENTITY)
def test_fresh_results_are_new_memory_even_when_nothing_changes(
    name: str, arguments: tuple[object, ...]
) -> None:
    assert allow_list().effects[name] is Effect.FRESH
    result = overload_of(name)(*arguments)
    results = result if isinstance(result, tuple | list) else [result]
    pointers = set()
    for argument in arguments:
        for item in argument if isinstance(argument, list) else [argument]:
            if isinstance(item, torch.Tensor):
                pointers.add(item.untyped_storage().data_ptr())
    assert not pointers & {item.untyped_storage().data_ptr() for item in results}
