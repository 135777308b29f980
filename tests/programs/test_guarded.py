"""Operators with a check of ours before torch's: legal calls give what torch gives, others an error
where torch would leave the tensor's memory."""

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch

from gpumuxd.programs.guarded import GUARDED
from gpumuxd.programs.operators import overload_of, resolve

BAG = "embedding_bag.padding_idx"
NORM = "_weight_norm.default"
TABLE = torch.arange(40.0).reshape(10, 4)


def bag(indices: Sequence[int], offsets: Sequence[int], *more: object) -> list[torch.Tensor]:
    arguments = (TABLE, torch.tensor(indices), torch.tensor(offsets, dtype=torch.int64), *more)
    return list(resolve(f"aten.{BAG}")(*arguments))


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(
    ("offsets", "include_last"), [([0], False), ([0, 0, 3], False), ([0, 4], True)]
)
def test_bags_are_torchs(mode: int, offsets: list[int], include_last: bool) -> None:
    more = (False, mode, False, None, include_last, None)
    (got, *_) = bag([1, 2, 9, 0], offsets, *more)
    want = overload_of(BAG)(TABLE, torch.tensor([1, 2, 9, 0]), torch.tensor(offsets), *more)[0]
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("indices", "offsets", "said"),
    [
        ([1, 2, 3, 4], [],                 "expected a row of offsets"),
        ([1, 2, 3, 4], [[0, 2]],           "expected a row of offsets"),
        ([1, 2, 3, 4], [0, -400_000, 2],   "offsets of bags fall"),
        ([1, 2, 3, 4], [0, 3, 1],          "offsets of bags fall"),
        ([1, 2, 3, 4], [-4, 2],            "offsets of -4 to 2 for 4"),
        ([1, 2, 3, 4], [0, 5],             "offsets of 0 to 5 for 4"),
    ],
)  # fmt: skip
def test_offsets_that_would_leave_the_table(
    indices: list[int], offsets: list[int], said: str
) -> None:
    with pytest.raises(IndexError, match=said):
        bag(indices, offsets, False, 0, False, None, False, None)


@pytest.mark.parametrize("index", [10, -1, 1 << 40])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_torch_checks_the_indices(index: int, mode: int) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        bag([1, index], [0], False, mode, False, None, False, None)


@pytest.mark.parametrize(("dim", "shape"), [(0, (4, 1, 1)), (2, (1, 1, 5))])
def test_weight_norm_is_torchs(dim: int, shape: tuple[int, ...]) -> None:
    direction, length = torch.randn(4, 3, 5), torch.rand(shape)
    got = resolve(f"aten.{NORM}")(direction, length, dim)
    assert torch.equal(got, overload_of(NORM)(direction, length, dim))


@pytest.mark.parametrize(
    ("length", "dim", "error"),
    [
        (torch.ones(1, 1, 1),                        0,  IndexError),
        (torch.ones(4),                              0,  IndexError),
        (torch.ones(4, 1, 1),                        2,  IndexError),
        (torch.ones(1, 1, 5),                        -1, IndexError),
        (torch.ones(4, 1, 1),                        9,  IndexError),
        (torch.ones(4, 1, 1, dtype=torch.float16),   0,  TypeError),
        (torch.ones(4, 1, 1, dtype=torch.int64),     0,  TypeError),
    ],
)  # fmt: skip
def test_lengths_that_torch_would_read_beyond(
    length: torch.Tensor, dim: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        resolve(f"aten.{NORM}")(torch.randn(4, 3, 5), length, dim)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


BATCH_NORM = "_native_batch_norm_legit_no_training.default"


@pytest.mark.parametrize("has_affine", [True, False])
def test_batch_norm_is_torchs(has_affine: bool) -> None:
    affine = (torch.rand(8), torch.rand(8)) if has_affine else (None, None)
    arguments = (torch.randn(2, 8, 3), *affine, torch.rand(8), torch.rand(8), 0.1, 1e-5)
    got = resolve(f"aten.{BATCH_NORM}")(*arguments)[0]
    assert torch.equal(got, overload_of(BATCH_NORM)(*arguments)[0])


@pytest.mark.parametrize("length", [0, 1, 7, 9])
@pytest.mark.parametrize("wrong", ["weight", "bias", "mean", "variance"])
def test_batch_norm_reads_no_further_than_its_tensors(wrong: str, length: int) -> None:
    names = ("weight", "bias", "mean", "variance")
    arguments = [zeros(length if name == wrong else 8) for name in names]
    with pytest.raises(IndexError, match="one number for each of its channels"):
        resolve(f"aten.{BATCH_NORM}")(zeros(1, 8), *arguments, 0.1, 1e-5)


def test_batch_norm_of_one_dimension() -> None:
    with pytest.raises(IndexError):
        resolve(f"aten.{BATCH_NORM}")(zeros(8), None, None, zeros(8), zeros(8), 0.1, 1e-5)


ATTENTION = "scaled_dot_product_attention.default"
Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("query", "key", "value", "mask", "keywords"),
    [
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), None,         {}),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3), None,         {}),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), (5, 7),       {}),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), (2, 1, 1, 7), {}),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), (2, 4, 5, 7), {"scale": 0.5}),
        ((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), None,         {"is_causal": True}),
        ((2, 4, 5, 8), (2, 1, 7, 8), (1, 4, 7, 8), (5, 7),       {}),
        ((5, 8),       (7, 8),       (7, 8),       (5, 7),       {}),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), (5, 7),       {"enable_gqa": True}),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), (2, 4, 5, 7), {"enable_gqa": True}),
    ],
)  # fmt: skip
def test_attention_is_torchs(
    query: Shape, key: Shape, value: Shape, mask: Shape | None, keywords: dict[str, Any]
) -> None:
    tensors = [torch.randn(shape) for shape in (query, key, value)]
    bias = None if mask is None else torch.randn(mask)
    got = resolve(f"aten.{ATTENTION}")(*tensors, bias, **keywords)
    assert torch.equal(got, overload_of(ATTENTION)(*tensors, bias, **keywords))


@pytest.mark.parametrize(
    ("query", "key", "value", "mask", "is_grouped"),
    [
        ((1, 1, 16, 16), (1, 1, 16, 16), (1, 1, 4096, 16), None,           False),
        ((1, 1, 16, 16), (1, 1, 4096, 16), (1, 1, 16, 16), None,           False),
        ((1, 1, 16, 16), (1, 1, 16, 8),  (1, 1, 16, 16), None,             False),
        ((3, 1, 16, 16), (2, 1, 16, 16), (3, 1, 16, 16), None,             False),
        ((3, 1, 16, 16), (3, 1, 16, 16), (2, 1, 16, 16), None,             False),
        ((1, 4, 16, 16), (1, 3, 16, 16), (1, 4, 16, 16), None,             False),
        ((1, 1, 16, 16), (1, 1, 16, 16), (1, 1, 16, 16), (16, 8),          False),
        ((1, 1, 16, 16), (1, 1, 16, 16), (1, 1, 16, 16), (8, 16),          False),
        ((1, 1, 16, 16), (1, 1, 16, 16), (1, 1, 16, 16), (2, 1, 16, 16),   False),
        ((1, 1, 16, 16), (1, 1, 16, 16), (1, 1, 16, 16), (1, 1, 1, 16, 16), False),
        ((1, 4, 16, 16), (1, 3, 16, 16), (1, 3, 16, 16), None,             True),
        ((1, 4, 16, 16), (1, 2, 16, 16), (1, 3, 16, 16), None,             True),
        ((1, 4, 16, 16), (1, 0, 16, 16), (1, 0, 16, 16), None,             True),
        ((2, 4, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16), None,             True),
        ((16,),          (16, 16),       (16, 16),       None,             False),
    ],
)  # fmt: skip
def test_attention_reads_no_further_than_its_tensors(
    query: Shape, key: Shape, value: Shape, mask: Shape | None, is_grouped: bool
) -> None:
    bias = None if mask is None else zeros(*mask)
    with pytest.raises(IndexError, match="attention of queries"):
        resolve(f"aten.{ATTENTION}")(
            zeros(*query), zeros(*key), zeros(*value), bias, enable_gqa=is_grouped
        )


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def recurrent(
    kind: str,
    wrong: Mapping[str, Shape] = MappingProxyType({}),
    directions: int = 2,
    layers: int = 2,
) -> Any:
    """The served layer of 3 inputs and 5 cells on 2 rows of 4 steps, with some shapes replaced."""
    gates = GATES[kind]
    shapes: dict[str, Shape] = {"input": (4, 2, 3), "hidden": (layers * directions, 2, 5)}
    shapes["cell"] = shapes["hidden"]
    for layer in range(layers):
        size = 3 if layer == 0 else 5 * directions
        for way in range(directions):
            shapes |= {
                f"w_ih{layer}{way}": (gates * 5, size), f"w_hh{layer}{way}": (gates * 5, 5),
                f"b_ih{layer}{way}": (gates * 5,), f"b_hh{layer}{way}": (gates * 5,),
            }  # fmt: skip
    assert wrong.keys() <= shapes.keys()
    given = {name: zeros(*shape) for name, shape in {**shapes, **wrong}.items()}
    weights = [tensor for name, tensor in given.items() if name[1:2] == "_"]
    state = [given["hidden"], given["cell"]] if kind == "lstm" else given["hidden"]
    return resolve(f"aten.{kind}.input")(
        given["input"], state, weights, True, layers, 0.0, False, directions == 2, False
    )


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("directions", "layers"), [(1, 1), (2, 1), (2, 2)])
def test_recurrent_layers_whose_sizes_fit(kind: str, directions: int, layers: int) -> None:
    output = recurrent(kind, directions=directions, layers=layers)[0]
    assert output.shape == (4, 2, 5 * directions)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(
    "wrong",
    [
        {"input": (4, 9, 3)},
        {"input": (4, 2, 64)},
        {"input": (4, 2)},
        {"hidden": (4, 0, 5), "cell": (4, 0, 5)},
        {"hidden": (4, 2, 64), "cell": (4, 2, 64)},
        {"hidden": (1, 2, 5), "cell": (1, 2, 5)},
        {"w_ih00": (0, 3)},
        {"w_ih01": (5, 1)},
        {"w_hh10": (4, 5)},
        {"w_hh00": (100,)},
        {"b_ih00": (1,)},
        {"b_hh11": (4,)},
        {"w_ih10": (20, 3)},
    ],
)
def test_recurrent_layers_whose_sizes_differ(kind: str, wrong: dict[str, Shape]) -> None:
    with pytest.raises(IndexError, match="recurrent"):
        recurrent(kind, wrong)


@pytest.mark.parametrize("cell", [(4, 1, 5), (4, 2, 4), (4, 2, 6), (4, 2)])
def test_a_state_of_cells_that_does_not_fit(cell: Shape) -> None:
    with pytest.raises(IndexError):
        recurrent("lstm", {"cell": cell})


@pytest.mark.parametrize("layers", [-1, 0, 3, 1 << 40])
def test_a_number_of_layers_that_the_weights_do_not_have(layers: int) -> None:
    arguments = [zeros(4, 2, 3), zeros(1, 2, 5), [zeros(5, 3), zeros(5, 5)], False, layers]
    with pytest.raises(IndexError):
        resolve("aten.rnn_tanh.input")(*arguments, 0.0, False, False, False)


def test_weights_of_another_type_than_the_input() -> None:
    weights = [zeros(5, 3), zeros(5, 5, dtype=torch.float64)]
    arguments = [zeros(4, 2, 3), zeros(1, 2, 5), weights, False, 1, 0.0, False, False, False]
    with pytest.raises(TypeError, match="float64"):
        resolve("aten.rnn_tanh.input")(*arguments)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"w_ih": (4, 3)}, {"w_ih": (20, 9)}, {"w_hh": (20, 1)}, {"w_hh": (1, 5)},
        {"b_ih": (4,)}, {"b_hh": (1,)}, {"hx": (9, 5)}, {"hx": (2, 64)}, {"input": (3,)},
    ],
)  # fmt: skip
def test_cells_compare_all_sizes(kind: str, wrong: dict[str, Shape]) -> None:
    rows = GATES[kind] * 5
    shapes = {"input": (2, 3), "hx": (2, 5), "w_ih": (rows, 3), "w_hh": (rows, 5),
              "b_ih": (rows,), "b_hh": (rows,)} | wrong  # fmt: skip
    given = {name: zeros(*shape) for name, shape in shapes.items()}
    state = given.pop("hx")
    given["hx"] = [state, zeros(2, 5)] if kind == "lstm" else state  # type: ignore[assignment]  # a list of states
    call = resolve(f"aten.{kind}_cell.default")
    if wrong:
        with pytest.raises(IndexError, match="recurrent"):
            call(**given)
    else:
        result = call(**given)
        assert (result[0] if kind == "lstm" else result).shape == (2, 5)


DIVISION = "div.Tensor_mode"
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("is_tensor", [True, False])
def test_the_least_integer_by_minus_one_wraps(
    mode: str, dtype: torch.dtype, is_tensor: bool
) -> None:
    least = torch.iinfo(dtype).min
    numbers = torch.tensor([least, 7, -7, 0], dtype=dtype)
    other = torch.full((4,), -1, dtype=dtype) if is_tensor else -1
    got = resolve(f"aten.{DIVISION}")(numbers, other, rounding_mode=mode)
    assert got.dtype == dtype
    assert got.tolist() == [least, -7, 7, 0]


@pytest.mark.parametrize("mode", ["trunc", "floor", None])
@pytest.mark.parametrize("left", [torch.int32, torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("right", [torch.int32, torch.int64, torch.int8, torch.float64])
def test_other_quotients_are_torchs(
    mode: str | None, left: torch.dtype, right: torch.dtype
) -> None:
    numbers = torch.tensor([[100], [7], [9]]).to(left)
    others = torch.tensor([-3, -1, 1, 2]).to(right)
    got = resolve(f"aten.{DIVISION}")(numbers, others, rounding_mode=mode)
    want = overload_of(DIVISION)(numbers, others, rounding_mode=mode)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_division_by_zero_is_torchs_error() -> None:
    numbers = torch.tensor([1, 2])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        resolve(f"aten.{DIVISION}")(numbers, torch.tensor([-1, 0]), rounding_mode="trunc")


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_a_check_takes_what_torch_takes(name: str) -> None:
    """Plans give arguments by torch's names: a check with others refuses what is right."""
    schema = overload_of(name.removeprefix("aten."))._schema
    parameters = inspect.signature(GUARDED[name]).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        pytest.skip("passes the rest on")
    named = [(p.name, p.kind is p.KEYWORD_ONLY) for p in parameters]
    assert named == [(a.name, a.kwarg_only) for a in schema.arguments]
