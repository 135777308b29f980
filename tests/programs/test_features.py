"""What a module may take, give and do: each form exported, read, cut everywhere and compared.

The reference is the module that torch itself loads from the same archive.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.programs import interpreter
from gpumuxd.programs.exporter import export_model
from tests.programs.networks import open_artifact
from tests.programs.test_bit_equality import assert_same, cuts_to_try, run

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch"
)

Given = Callable[..., dict[str, Any]]


def tensors(value: Any) -> list[Tensor]:
    """The leaves that are served: tensors, and numbers as tensors without dimensions."""
    types: dict[type, torch.dtype] = {
        bool: torch.bool,
        int: torch.int64,
        float: torch.float64,
    }
    leaves = [leaf for leaf in pytree.tree_leaves(value) if leaf is not None]
    return [
        leaf if isinstance(leaf, Tensor) else torch.tensor(leaf, dtype=types[type(leaf)])
        for leaf in leaves
    ]


@torch.inference_mode()
def check(
    module: nn.Module,
    given: Given,
    path: Path,
    at: Sequence[Mapping[str, int]],
    **export: Any,
) -> ModelSpec:
    """Export with the inputs of the first of `at`, then compare at all of them."""
    torch.manual_seed(5)
    with torch.inference_mode(False):
        spec = export_model(module, given(**at[0]), path, **export)
    reference = torch.export.load(path).module()
    model = open_artifact(path)
    assert model.spec == spec
    programs = [model.grouped_program(cuts) for cuts in cuts_to_try(model.node_count)]
    for size in at:
        inputs = given(**size)
        expected = [each.contiguous() for each in tensors(reference(**inputs))]
        flat = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        shapes = {t.name: list(leaf.shape) for t, leaf in zip(spec.inputs, flat, strict=True)}
        bindings = spec.bind(shapes)
        for declared, tensor in zip(spec.outputs, expected, strict=True):
            assert evaluate_shape(declared.shape, bindings) == tuple(tensor.shape), declared.name
        before = [leaf.clone() for leaf in flat]
        for program in programs:
            assert_same(expected, run(program, flat))
        assert_same(expected, interpreter.run(model, flat))
        assert_same(before, flat)
    return spec


class Nested(nn.Module):
    """Arguments of every kind, results of every kind."""

    def forward(
        self,
        feats: dict[str, Any],
        /,
        pair: tuple[Tensor, list[Tensor]],
        scale: float,
        *,
        mode: str,
        repeats: int = 1,
        bias: Tensor | None = None,
        flag: bool = False,
    ) -> dict[str, Any]:
        y = feats["image"] * scale + pair[1][0]
        if bias is not None or mode != "plain":
            raise AssertionError("literals are what the example says")
        for _ in range(repeats):
            y = y + pair[0]
        if flag:
            y = y * feats["more"]["mask"]
        return {"scores": (y, [pair[0], None, y.sum()]), "none": None, "count": {"rows": 3}}


def test_nested_inputs_and_outputs_have_names(tmp_path: Path) -> None:
    def given(n: int) -> dict[str, Any]:
        return {
            "mode": "plain",
            "pair": (torch.randn(n, 4), [torch.randn(n, 4)]),
            "flag": True,
            "bias": None,
            "scale": 0.5,
            "repeats": 2,
            "feats": {"image": torch.randn(n, 4), "more": {"mask": torch.rand(n, 4) > 0.5}},
        }

    torch.manual_seed(5)
    path = tmp_path / "model.pt2"
    spec = export_model(Nested(), given(3), path)
    assert [(t.name, t.datatype) for t in spec.inputs] == [
        ("feats.image", "FP32"), ("feats.more.mask", "BOOL"), ("pair.0", "FP32"),
        ("pair.1.0", "FP32"),
    ]  # fmt: skip
    assert {tensor.shape for tensor in spec.inputs} == {(("batch",), 4)}
    assert [(t.name, t.datatype, len(t.shape)) for t in spec.outputs] == [
        ("scores.0", "FP32", 2), ("scores.1.0", "FP32", 2), ("scores.1.2", "FP32", 0),
        ("count.rows", "INT64", 0),
    ]  # fmt: skip
    model = open_artifact(path)
    inputs = given(5)
    feats = inputs.pop("feats")
    flat = [feats["image"], feats["more"]["mask"], inputs["pair"][0], inputs["pair"][1][0]]
    with torch.inference_mode():
        expected = tensors(Nested()(feats, **inputs))
        for cuts in cuts_to_try(model.node_count):
            assert_same(expected, run(model.grouped_program(cuts), flat))


def test_dimensions_of_nested_inputs_are_named_by_their_flat_names(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], table: Tensor) -> Tensor:
            return pair[0].sum(1) + pair[1].sum(1) + table.sum()

    def given(batch: int, left: int) -> dict[str, Any]:
        return {
            "pair": (torch.randn(batch, left), torch.randn(batch, 3)),
            "table": torch.randn(2, 2),
        }

    spec = check(
        Sum(),
        given,
        tmp_path / "model.pt2",
        [{"batch": 2, "left": 5}, {"batch": 1, "left": 2}, {"batch": 64, "left": 9}],
        dynamic={"pair.0": {0: "batch", 1: "left"}, "pair.1": {0: "batch"}},
        sizes={"left": (2, 9)},
    )
    assert [tensor.shape for tensor in spec.inputs] == [
        (("batch",), ("left",)), (("batch",), 3), (2, 2),
    ]  # fmt: skip
    assert spec.outputs[0].shape == (("batch",),)


class Weights(nn.Module):
    """Weights, buffers and constants in every form that torch stores them in."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.randn(6, 8)
        self.linear = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.linear.weight
        self.transposed = nn.Parameter(torch.randn(3, 4).t())
        self.part = nn.Parameter(base[1:5, ::2])
        self.other_part = nn.Parameter(base[2:6, 1::2])
        self.expanded = nn.Buffer(torch.randn(1, 4).expand(4, 4))
        self.empty = nn.Parameter(torch.randn(0, 4))
        self.scalar = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.passing = nn.Buffer(torch.arange(4, dtype=torch.uint8), persistent=False)
        self.truth = nn.Buffer(torch.tensor([True, False, True, True]))
        self.literal = torch.tensor([3, 1, 2, 0], dtype=torch.int16)
        self.brain = nn.Parameter(torch.randn(4).bfloat16())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.tied(self.linear(x)) @ self.part + (x @ self.expanded) * self.other_part.sum()
        z = torch.cat([y, self.empty]) @ self.transposed
        return {
            "z": z * self.scalar,
            "picked": torch.where(self.truth, y, y[:, self.literal.long()]),
            "bytes": self.passing + (x > 0).to(torch.uint8),
            "brain": y.bfloat16() * self.brain,
            "literal": self.literal,
            "empty": self.empty,
            "lifted": y + torch.tensor([0.25, -0.0, 1e-3, 4.0], dtype=torch.float64),
            "scalar": self.scalar,
        }


def test_weights_in_every_form(tmp_path: Path) -> None:
    spec = check(
        Weights(), lambda n: {"x": torch.randn(n, 4)}, tmp_path / "model.pt2", [{"n": 2}, {"n": 1}]
    )
    assert [tensor.datatype for tensor in spec.outputs] == [
        "FP32", "FP32", "UINT8", "BF16", "INT16", "FP32", "FP64", "FP64",
    ]  # fmt: skip
    assert [tensor.shape for tensor in spec.outputs[4:6]] == [(4,), (0, 4)]


TYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}


class Types(nn.Module):
    """Every data type in and out, with and without dimensions, and Python's numbers."""

    def forward(self, many: dict[str, Tensor], scalars: dict[str, Tensor]) -> dict[str, Any]:
        sums = {name: many[name] + scalars[name] for name in many}
        sizes = many["BOOL"].shape
        return {
            **sums,
            "same": scalars["BF16"],
            "total": many["FP16"].sum(),
            "rows": sizes[0],
            "half": sizes[0] / 2,
            "five": 5,
            "quarter": 0.25,
            "yes": True,
            "nothing": None,
        }


def test_every_data_type_and_numbers(tmp_path: Path) -> None:
    def given(n: int) -> dict[str, Any]:
        many = {name: torch.randint(0, 2, (n, 3)).to(dtype) for name, dtype in TYPES.items()}
        scalars = {name: torch.tensor(1).to(dtype) for name, dtype in TYPES.items()}
        return {"many": many, "scalars": scalars}

    spec = check(
        Types(),
        given,
        tmp_path / "model.pt2",
        [{"n": 2}, {"n": 1}, {"n": 5}],
        dynamic={f"many.{name}": {0: "batch"} for name in TYPES},
    )
    assert [(t.name, t.datatype, t.shape) for t in spec.outputs[10:]] == [
        ("same", "BF16", ()), ("total", "FP16", ()), ("rows", "INT64", ()),
        ("half", "FP64", ()), ("five", "INT64", ()),
        ("quarter", "FP64", ()), ("yes", "BOOL", ()),
    ]  # fmt: skip


class Writes(nn.Module):
    """Views that are written to, and outputs that are views of one thing, an input or a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        y = x * 2
        before = y.sum()
        column = y[:, 0]
        column.add_(1)
        y[:, 1:].mul_(3)
        flat = y.view(-1)
        flat[1:3] = 7
        y[y > 6] = -1
        first, second = y.split(2, dim=1)
        second.copy_(first)
        z = self.weight.clone()
        z.t()[0].zero_()
        y += z.sum()
        column.relu_()
        return y, column, y, flat, first, x, x.t()[1:], self.weight, self.weight[0], z, before


def test_writes_go_through_views_wherever_the_program_is_cut(tmp_path: Path) -> None:
    check(
        Writes(), lambda n: {"x": torch.randn(n, 4)}, tmp_path / "model.pt2", [{"n": 3}, {"n": 1}]
    )


class Sizes(nn.Module):
    """Everything that torch.export writes of sizes."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        b, t = x.shape
        u = y.shape[0]

        def length(n: Any) -> Tensor:
            return torch.zeros(n, dtype=torch.int8)

        return {
            "floordiv": length((t - 3) // 2 + 1),
            "ceildiv": length(-(-t // 3)),
            "mod": length(t % 5 + 2),
            "padded": nn.functional.pad(x, (0, (8 - t % 8) % 8)),
            "min_max": length(torch.sym_min(torch.sym_max(t, 11), 17)),
            "power": length(t**2 - 2 * t),
            "nested": length(torch.sym_max(t // 2, u * 2 - 1) * b + 1),
            "choice": length(torch.sym_ite(t > 11, t * 2, t + 3)),
            "truncated": length(torch.sym_int(t * 0.7)),
            "divided": length(torch.sym_int(t / 3)),
            "shifted": length((t << 1) + (t >> 1)),
            "resized": nn.functional.interpolate(x[None], scale_factor=1.5),
            "value": x * b + t,
            "negative": x * (-t),
            "true_division": x * (t / 7),
            "root": x * torch.sym_float(t) ** 0.5,
            "root_too": x * torch.sym_sqrt(t),
            "mean": x.sum(1) / t,
            "compared": x.sum() + (t == 11) + ((t > 9) & (b < 4)),
            "tensor": torch.tensor(t) + y.sum(),
            "counted": x / x.numel(),
        }


def test_arithmetic_on_sizes_at_both_ends_of_the_ranges_and_between(tmp_path: Path) -> None:
    def given(b: int, t: int, u: int) -> dict[str, Any]:
        return {"x": torch.randn(b, t), "y": torch.randn(u)}

    spec = check(
        Sizes(),
        given,
        tmp_path / "model.pt2",
        [
            {"b": 3, "t": 12, "u": 4},
            {"b": 1, "t": 8, "u": 2},
            {"b": 6, "t": 41, "u": 9},
            {"b": 5, "t": 11, "u": 7},
            {"b": 2, "t": 33, "u": 3},
        ],
        dynamic={"x": {0: "batch", 1: "time"}, "y": {0: "u"}},
        sizes={"batch": (1, 6), "time": (8, 41), "u": (2, 9)},
    )
    shapes = {tensor.name: tensor.shape for tensor in spec.outputs}
    assert shapes["choice"] == (("time", 11, ">", 2, "time", "*", "time", 3, "+", "if"),)
    assert shapes["resized"] == (1, ("batch",), (1.5, "time", "float", "*", "trunc"))
