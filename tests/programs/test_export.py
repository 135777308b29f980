"""Exporting: what an owner gets, and what they are told when it can't be done."""

import hashlib
import inspect
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpumuxd.errors import InvalidModel
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import Symbol, TensorSpec
from gpumuxd.programs import export
from gpumuxd.programs.export import main
from gpumuxd.programs.exporter import ExportRequest, export_model
from tests.programs.networks import Mlp, open_artifact

X = torch.ones(2, 4)


def test_the_default_is_a_dynamic_batch_on_every_input(tmp_path: Path) -> None:
    spec = export_model(Mlp(), (X,), tmp_path / "new" / "model.pt2", batch_max=16)
    assert spec.inputs == (TensorSpec("x", "FP32", (("batch",), 4)),)
    assert spec.outputs == (TensorSpec("output_0", "FP32", (("batch",), 3)),)
    assert spec.symbols == (Symbol("batch", 1, 16),)
    assert spec.batch_max == 16
    with (tmp_path / "new" / "model.pt2").open("rb") as file:
        assert Artifact(file).plan.spec == spec


class Difference(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"difference": left - right, "left": left * 1}


def test_inputs_are_matched_by_name_whatever_their_order(tmp_path: Path) -> None:
    """Also when one tensor is the example of both, which torch would trace as one input."""
    path = tmp_path / "model.pt2"
    spec = export_model(Difference(), {"right": X, "left": X}, path)
    assert {tensor.name for tensor in spec.inputs} == {"left", "right"}
    assert [tensor.name for tensor in spec.outputs] == ["difference", "left"]
    program = open_artifact(path).node_program()
    given = {"left": torch.full((1, 4), 5.0), "right": torch.full((1, 4), 3.0)}
    slots = program.start([given[tensor.name] for tensor in spec.inputs])
    for group in program.groups:
        group(slots)
    assert program.outputs(slots)[0].unique().item() == 2.0


def test_names_of_ones_own_are_taken_in_order(tmp_path: Path) -> None:
    spec = export_model(
        Difference(), {"a": X, "b": X}, tmp_path / "model.pt2", output_names=["d", "l"]
    )
    assert [tensor.name for tensor in spec.inputs] == ["a", "b"]
    assert [tensor.name for tensor in spec.outputs] == ["d", "l"]


def test_other_dimensions_vary_on_request(tmp_path: Path) -> None:
    spec = export_model(
        Difference(),
        {"left": torch.ones(3, 6), "right": torch.ones(3, 6)},
        tmp_path / "model.pt2",
        dynamic={"left": {0: "batch", 1: "time"}, "right": {0: "batch", 1: "time"}},
        sizes={"time": (2, 40)},
    )
    assert spec.inputs[0].shape == (("batch",), ("time",))
    assert spec.symbols == (Symbol("batch", 1, 64), Symbol("time", 2, 40))


class DownAndUp(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        small = x.unflatten(2, (-1, 4)).amax(3)
        again = small.unsqueeze(3).expand(-1, -1, -1, 4).flatten(2)
        return {"small": small, "same": x + again}


def export_down_and_up(path: Path, smallest: int, largest: int, multiple: int) -> Any:
    return export_model(
        DownAndUp(),
        {"x": torch.ones(2, 1, 24)},
        path,
        dynamic={"x": {0: "batch", 2: "time"}},
        sizes={"time": (smallest, largest)},
        multiples={"time": multiple} if multiple else {},
    )


def test_dimensions_can_be_multiples(tmp_path: Path) -> None:
    spec = export_down_and_up(tmp_path / "model.pt2", 8, 64, 4)
    assert spec.symbols[1] == Symbol("time", 8, 64, 4)
    assert spec.inputs[0].shape == (("batch",), 1, ("time",))
    assert spec.outputs[0].shape == (("batch",), 1, ("time", 4, "//"))
    assert spec.outputs[1].shape == (("batch",), 1, ("time",))
    model = open_artifact(tmp_path / "model.pt2")
    assert model.profile_buckets(1) == [(1, 32)], "24 of the example, rounded up"


@pytest.mark.parametrize(
    ("smallest", "largest", "multiple", "said"),
    [
        (8, 64, 0, "'time' must be a multiple of 4: say multiples="),
        (8, 63, 4, "'time' of 8 to 63 must be a multiple of 4: so must both ends"),
        (6, 64, 4, "must be a multiple of 4"),
        (8, 64, -4, "must be a multiple of -4"),
    ],
)
def test_dimensions_that_are_no_multiples(
    smallest: int, largest: int, multiple: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidModel, match=said):
        export_down_and_up(tmp_path / "model.pt2", smallest, largest, multiple)


def test_a_model_may_have_no_dynamic_dimension(tmp_path: Path) -> None:
    spec = export_model(Mlp(), {"x": X}, tmp_path / "model.pt2", dynamic={})
    assert spec.inputs == (TensorSpec("x", "FP32", (2, 4)),)
    assert spec.symbols == ()
    assert spec.batch_max == 0


def test_modules_are_exported_in_eval_mode(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    export_model(module, (X,), tmp_path / "model.pt2")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Buffer(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class NamedTuple(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.max(dim=1)


class FixesBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, 4) + 0


@pytest.mark.parametrize(
    ("module", "inputs", "more", "said"),
    [
        (Mlp(), (torch.ones(1, 4),), {}, "has a batch of 1. torch.export would fix the batch at 1"),
        (Mlp(), (), {}, "at least one example input must be a tensor"),
        (Mlp(), {"x": [1.0]}, {}, "at least one example input must be a tensor"),
        (Mlp(), {"x": [X, b"1"]}, {}, "example input 'x.1' is a bytes, expected a tensor, or a"),
        (Mlp(), (torch.tensor(1.0),), {}, "'x' has no dimensions and so no batch"),
        (Mlp(), (X,), {"dynamic": {"y": {0: "batch"}}}, "`dynamic` names 'y', inputs are ['x']"),
        (Mlp(), (X,), {"dynamic": {"x": {2: "batch"}}}, "input 'x' has no dimension 2"),
        (Mlp(), (torch.ones(2, 5),), {}, "the module fails on its example: RuntimeError: mat1"),
        (Mlp(), (X,), {"output_names": ["a", "b"]}, "names 2 outputs, the graph has 1"),
        (Mlp(), (X,), {"output_names": ["../a"]}, "can't name an output"),
        (NamedTuple(), (X,), {}, "can't save the module: the output is a torch.return_types.max"),
        (FixesBatch(), (X,), {}, "torch.export refused the module"),
        (Noise(), (X,), {}, "'torch.ops.aten.randn_like.default' is not allowed"),
        (Counting(), (X,), {}, "(torch.ops.aten.add_.Tensor) writes in place to a weight, buffer"),
    ],
)
def test_what_can_not_be_served_is_said_at_export(
    tmp_path: Path, module: nn.Module, inputs: Any, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidModel) as caught:
        export_model(module, inputs, tmp_path / "model.pt2", **more)
    assert said in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_refused_export_leaves_the_older_artifact(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    export_model(Mlp(), (X,), path)
    before = path.read_bytes()
    with pytest.raises(InvalidModel):
        export_model(Noise(), (X,), path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "model.pt2.sha256"]


def test_a_checksum_lies_beside_the_artifact(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    checksum = tmp_path / "model.pt2.sha256"
    said = []
    for offset in (0.0, 1.0):
        module = Mlp()
        module.layers[0].bias.data += offset
        export_model(module, (X,), path)
        said.append(checksum.read_text())
        assert said[-1] == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  model.pt2\n"
    assert said[0] != said[1]
    assert sorted(tmp_path.iterdir()) == [path, checksum]


def test_an_artifact_is_never_beside_the_checksum_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step that others can see, what lies there fits together."""
    path, checksum = tmp_path / "model.pt2", tmp_path / "model.pt2.sha256"
    seen = []

    def look(self: Path, target: Path) -> Path:
        result = replace(self, target)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        seen.append(checksum.read_text()[:64] == digest if checksum.exists() else None)
        return result

    export_model(Mlp(), (X,), path)
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", look)
    export_model(Mlp(), (X,), path)
    assert seen == [None, True]


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        # a dynamic `t` of 2 to 40, 6 in the example
        (lambda x: x * math.sqrt(x.shape[1]), "the code fixes 't' at 6: a layer has weights of"),
        (lambda x: x if x.shape[1] > 4 else -x, "of its range: say sizes={'t': (5, 40)}"),
        (lambda x: x.reshape(x.shape[0], -1, 2).sum(1), "'t' must be a multiple of 2: say multipl"),
        (lambda x: x[:, ::2] + 0, "only where ((1 + t) // 2) != 1: say `sizes` for which"),
        (lambda x: torch.zeros(math.floor(x.shape[1] * 1.5)) + x.sum(), "no form for `floor` of a"),
        (lambda x: Path(), "the output is a pathlib"),
        (lambda x: x.to(torch.complex64), "complex64 (torch.view_as_real makes floats of it)"),
        (lambda x: x[x > 0], "the size of an output depends on values in the data"),
        (lambda x: x.nonzero(), "nonzero.default' is not allowed: how large its result is"),
        (lambda x: (x + 1, "text"), "an output must be a tensor or a number, got as_string"),
        (lambda x: (x + 1, x.shape[1] > 3), "truth value that depends on sizes: return a tensor"),
        (lambda x: x.add_(1), "writes in place to a weight, buffer or input"),
        (lambda x: x.t()[0].zero_(), "(clone it first, or pass state in and out)"),
    ],
)
def test_refusals_say_what_to_write_instead(
    forward: Callable[[Tensor], Any], said: str, tmp_path: Path
) -> None:
    class Refused(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return forward(x)

    with pytest.raises(InvalidModel) as caught:
        export_model(
            Refused(),
            (torch.ones(3, 6),),
            tmp_path / "model.pt2",
            dynamic={"x": {0: "batch", 1: "t"}},
            sizes={"t": (2, 40)},
        )
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_dimensions_that_must_agree_and_examples_out_of_range(tmp_path: Path) -> None:
    dynamic = {"left": {0: "batch", 1: "t"}, "right": {0: "batch", 1: "u"}}
    with pytest.raises(InvalidModel, match="must be equal: give both dimensions one name"):
        export_model(Difference(), (X, X), tmp_path / "model.pt2", dynamic=dynamic)
    with pytest.raises(InvalidModel, match="has a size of 4, its dimension is said to be 8 to 40"):
        export_model(Difference(), (X, X), tmp_path / "model.pt2", sizes={"t": (8, 40)},
                     dynamic={"left": {1: "t"}, "right": {1: "t"}})  # fmt: skip


def test_arguments_that_torch_can_not_vary_or_name_are_refused(tmp_path: Path) -> None:
    class Options(nn.Module):
        def forward(self, x: Tensor, **more: Tensor) -> Tensor:
            return x + more["m"]

    with pytest.raises(InvalidModel, match=r"takes \['m'\] through \*\*kwargs"):
        export_model(Options(), {"x": X, "m": X}, tmp_path / "model.pt2")


@pytest.mark.usefixtures("factories")
def test_the_command_says_what_is_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["my_models:scaled", "-o", "out.pt2"]) == 0
    said = capsys.readouterr().err
    assert (
        "fixed in the artifact, since their examples are no tensors: scale=0.5, bias=None" in said
    )


class Star(nn.Module):
    def forward(self, first: Tensor, *more: Tensor) -> Tensor:
        return first + more[0] * more[1]


def test_modules_that_take_any_number_of_inputs(tmp_path: Path) -> None:
    spec = export_model(Star(), (X, X, X), tmp_path / "model.pt2")
    assert [tensor.name for tensor in spec.inputs] == ["first", "input_1", "input_2"]
    assert {tensor.shape for tensor in spec.inputs} == {(("batch",), 4)}


def test_an_archive_that_torch_alone_wrote_is_read(tmp_path: Path) -> None:
    """No names beside the graph: those of the call are taken, and the batch is recognised."""
    batch = torch.export.Dim("rows", min=1, max=9)
    program = torch.export.export(
        Difference().eval(),
        (X.clone(), X.clone()),
        dynamic_shapes=({0: batch}, {0: batch}),
        strict=False,
    )
    torch.export.save(program, tmp_path / "model.pt2")
    with (tmp_path / "model.pt2").open("rb") as file:
        spec = Artifact(file).plan.spec
    assert spec.inputs[1] == TensorSpec("right", "FP32", (("batch",), 4))
    assert [tensor.name for tensor in spec.outputs] == ["difference", "left"]
    assert spec.symbols == (Symbol("batch", 1, 9),)
    assert spec.batch_max == 9


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with factories in the current directory."""
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "from gpumuxd.programs.export import ExportRequest\n"
        "def pair():\n"
        "    return torch.nn.Linear(4, 3), (torch.ones(2, 4),)\n"
        "def request():\n"
        "    return ExportRequest(torch.nn.Linear(4, 3), {'input': torch.ones(2, 4)},\n"
        "                         output_names=['score'])\n"
        "class Branch(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x if x.sum() > 0 else -x\n"
        "def branch():\n"
        "    return Branch(), (torch.ones(2, 4),)\n"
        "class Noise(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + torch.randn_like(x)\n"
        "def noise():\n"
        "    return Noise(), (torch.ones(2, 4),)\n"
        "class Scaled(torch.nn.Module):\n"
        "    def forward(self, x, scale, bias=None):\n"
        "        return x * scale\n"
        "def scaled():\n"
        "    return Scaled(), (torch.ones(2, 4), 0.5, None)\n"
        "def nothing():\n"
        "    return None\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_models", None)


@pytest.mark.usefixtures("factories")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["my_models:request", "-o", "repo/scorer/1", "--batch-max", "4"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "gpumuxd export: importing torch",
        "gpumuxd export: calling my_models:request",
        "gpumuxd export: tracing the module",
        "gpumuxd export: writing repo/scorer/1/model.pt2",
        "gpumuxd export: reading it back as the daemon will",
        "gpumuxd export: comparing its answers with the module's",
    ]
    assert captured.out.splitlines()[1:] == [
        "  in  input: FP32 [batch, 4]",
        "  out score: FP32 [batch, 3]",
        "  batch: 1 to 4",
    ]
    assert (tmp_path / "repo" / "scorer" / "1" / "model.pt2").is_file()
    assert main(["my_models:pair", "-o", "direct.pt2"]) == 0
    assert (tmp_path / "direct.pt2").is_file()


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("my_models", "expected package.module:function"),
        ("my_models:", "expected package.module:function"),
        ("no_such_module_here:f", "can't import 'no_such_module_here'"),
        ("my_models:missing", "has no function 'missing'"),
        ("my_models:number", "has no function 'number'"),
        ("my_models:nothing", "must return an ExportRequest or a tuple"),
    ],
)
def test_the_command_says_what_is_wrong(
    factory: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([factory, "-o", "out.pt2"]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize("factory", ["branch", "noise"])  # refused before and after writing
def test_a_refused_export_leaves_no_directories(tmp_path: Path, factory: str) -> None:
    (tmp_path / "repo").mkdir()
    assert main([f"my_models:{factory}", "-o", "repo/scorer/1"]) == 1
    assert list((tmp_path / "repo").iterdir()) == []


@pytest.mark.usefixtures("factories")
def test_torchs_own_text_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["my_models:branch", "-o", "out.pt2"]) == 1
    said = capsys.readouterr().err
    assert "my_models.py:10: `return x if x.sum() > 0 else -x` needs" in said
    assert "--verbose shows" in said
    assert "data-dependent" not in said
    assert main(["my_models:branch", "-o", "out.pt2", "--verbose"]) == 1
    said = capsys.readouterr().err
    assert "my_models.py:10" in said
    assert "data-dependent expression" in said
    assert main(["my_models:noise", "-o", "out.pt2"]) == 1
    assert "--verbose" not in capsys.readouterr().err  # torch has nothing to add


def test_the_command_can_speak_before_torch_is_imported() -> None:
    code = "import sys, gpumuxd.programs.export; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_what_factories_import_is_found_beside_the_command() -> None:
    assert export.ExportRequest is ExportRequest
    assert export.export_model is export_model
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = export.nothing


def test_a_request_is_what_a_factory_returns() -> None:
    request = ExportRequest(Mlp(), (X,))
    assert (request.dynamic, request.batch_max) == (None, 64)


def test_a_weight_that_is_a_view_is_exported_without_a_warning(tmp_path: Path) -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4).t())

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    make: Callable[[], nn.Module] = Transposed
    export_model(make(), (X,), tmp_path / "model.pt2")


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_recurrent_layers_are_exported_without_a_warning(
    tmp_path: Path, kind: type[nn.RNNBase]
) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(4, 5, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            return self.layer(x)[0]

    export_model(Recurrent(), (torch.ones(2, 3, 4),), tmp_path / "model.pt2")


def test_state_in_a_plain_attribute_is_refused(tmp_path: Path) -> None:
    """Also beside the list of weights that a GRU assigns, which is none."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 5, batch_first=True)
            self.last = torch.zeros(2, 3, 5)

        def forward(self, x: Tensor) -> Any:
            self.last = self.layer(x)[0]
            return self.last * 1

    with pytest.raises(InvalidModel, match=r"the module keeps state in self\.last: pass state in"):
        export_model(Keeping(), (torch.ones(2, 3, 4),), tmp_path / "model.pt2")


class Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, : int(x.sum().item())]


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (Branch(), "return x if x.sum() > 0 else -x"),
        (Item(), "return x[:, : int(x.sum().item())]"),
    ],
)
def test_code_that_depends_on_values_is_named_in_one_line(
    tmp_path: Path, module: nn.Module, code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, first = inspect.getsourcelines(type(module))
    line = first + next(i for i, text in enumerate(lines) if code in text)
    with pytest.raises(InvalidModel) as caught:
        export_model(module, (X,), tmp_path / "model.pt2")
    said = caught.value.message
    assert f"{__file__}:{line}: `{code}` needs a tensor's values" in said
    assert "torch.where" in said
    assert "\n" not in said
    assert capfd.readouterr() == ("", "")


def test_what_a_module_prints_itself_is_passed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Talking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            print("traced", file=sys.stderr)
            return x + 1

    export_model(Talking(), (X,), tmp_path / "model.pt2")
    assert "traced" in capsys.readouterr().err
