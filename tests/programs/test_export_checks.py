"""What an owner gets wrong is said in a line, and an artifact answers what the module answers."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpumuxd.errors import InvalidModel
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import Symbol
from gpumuxd.programs.example_inputs import ExampleInputs
from gpumuxd.programs.export import main
from gpumuxd.programs.export_refusal import quiet_refusals
from gpumuxd.programs.export_request import request_of
from gpumuxd.programs.exporter import ExportRequest, export_model, write_artifact
from gpumuxd.programs.publishing import output_path
from gpumuxd.programs.rehearsal import rehearse

X = torch.ones(2, 4)


def module_of(forward: Callable[..., Any]) -> nn.Module:
    class Given(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Any:
            return forward(self, x)

    return Given()


def refusal(module: Any, inputs: Any, folder: Path, **more: Any) -> str:
    """What is said; nothing is written."""
    with pytest.raises(InvalidModel) as caught:
        export_model(module, inputs, folder / "model.pt2", **more)
    assert list(folder.iterdir()) == []
    assert "\n" not in caught.value.message
    return caught.value.message


def count(module: Any, x: Tensor) -> Tensor:
    module.calls += 1
    return x + module.calls


def adds_up(module: Any, x: Tensor) -> Tensor:
    module.last = getattr(module, "last", 0) + x
    return module.last * 1


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (count, "answers the same inputs otherwise the second time: it keeps state or is random"),
        (adds_up, "keeps state"),
        (lambda _, x: nn.functional.linear(x.long(), torch.ones(3, 4)), "the module fails on its"),
    ],
)
def test_what_torch_export_takes_and_nobody_could_serve(
    forward: Callable[..., Any], said: str, tmp_path: Path
) -> None:
    assert said in refusal(module_of(forward), (X,), tmp_path)


def test_types_that_the_module_itself_does_not_take(tmp_path: Path) -> None:
    said = refusal(nn.Linear(4, 3), (X.long(),), tmp_path)
    assert said.startswith("the module fails on its example: RuntimeError: mat1 and mat2 must have")


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda _, x: x * 2, None),
        (lambda _, x: x * (2 + 1e-7), None),  # rounding
        (lambda _, x: x * 2.01, "output 'output_0' of the artifact differs from the module's by"),
        (lambda _, x: x * 2 / (x - 1) * 0, "differs from the module's by nan"),
        (lambda _, x: x.sum(1) * 2, "has shape [2, 4], the module's [2]"),
        (lambda _, x: x.double() * 2, "is torch.float32, the module's torch.float64"),
        (lambda _, x: (x * 2, x), "the module gives 2 results, the artifact 1"),
        (lambda _, x: x * 2 if x.shape[0] > 1 else x, "(at batch 1): say `sizes` for which"),
    ],
)
def test_an_artifact_is_held_to_its_module(
    forward: Callable[..., Any], said: str | None, tmp_path: Path
) -> None:
    """The artifact doubles; the module is said to do what `forward` does."""
    path = tmp_path / "model.pt2"
    export_model(module_of(lambda _, x: x * 2), (X,), path)
    module = module_of(forward)
    inputs = ExampleInputs.of(module, (X,))
    with path.open("rb") as file:
        try:
            rehearse(module, inputs, {"x": {0: "batch"}}, Artifact(file), lambda text: None)
            found = None
        except InvalidModel as error:
            found = error.message
    assert (found is None) is (said is None)
    assert said is None or said in str(found)


def test_a_module_that_fails_when_its_example_is_cut_down_is_told_of_only(tmp_path: Path) -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor, rows: Tensor) -> Tensor:
            return x[rows]

    told: list[str] = []
    request = ExportRequest(
        Picks(),
        {"x": torch.ones(3, 4), "rows": torch.tensor([2, 2])},
        dynamic={"x": {0: "height"}},
        sizes={"height": (1, 9)},
    )
    write_artifact(request, tmp_path / "model.pt2", told.append)
    assert any("cut down to the smallest sizes, at height 1: the module fails" in t for t in told)


def each_pixel(_: Any, x: Tensor) -> Tensor:
    return torch.relu(x)


def through_one_pixel(_: Any, x: Tensor) -> Tensor:
    small = nn.functional.conv2d(x, torch.ones(1, 1, 3, 3), stride=4, padding=1)
    return nn.functional.interpolate(small, size=x.shape[-2:], mode="bilinear")


@pytest.mark.parametrize(("forward", "smallest"), [(each_pixel, 4), (through_one_pixel, 8)])
def test_a_multiple_is_served_from_itself_on_or_it_is_said(
    forward: Callable[..., Any], smallest: int, tmp_path: Path
) -> None:
    told: list[str] = []
    request = ExportRequest(
        module_of(forward),
        {"x": torch.ones(2, 1, 16, 8)},
        dynamic={"x": {0: "batch", 2: "height"}},
        sizes={"height": (4, 64)},
        multiples={"height": 4},
    )
    spec = write_artifact(request, tmp_path / "model.pt2", told.append)
    assert spec.symbols[1] == Symbol("height", smallest, 64, 4)
    assert spec.conditions == ()
    note = "note: height is served from 8 to 64, not 4 to 64"
    assert any(text.startswith(note) for text in told) is (smallest == 8)


class Sums(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) + y.sum(0)


class Options(nn.Module):
    def forward(self, **more: Tensor) -> Tensor:
        return more["a"]


@pytest.mark.parametrize(
    ("module", "inputs", "more", "said"),
    [
        (nn.Linear(4, 3), (X,), {"sizes": {"bacth": (1, 4)}},
         "sizes names 'bacth', dimensions that vary are ['batch']"),
        (nn.Linear(4, 3), (X,), {"multiples": {"height": 4}}, "multiples names 'height'"),
        (nn.Linear(4, 3), (X,), {"sizes": {"batch": (1, 4)}, "dynamic": {}}, "that vary are none"),
        (nn.Linear(4, 3), (X,), {"sizes": {"batch": (8, 2)}}, "'batch' of 8 to 2: a dimension"),
        (nn.Linear(4, 3), (X,), {"batch_max": 1}, "'batch' of 1 to 1: a dimension that varies"),
        (nn.Linear(4, 3), X, {}, "the example inputs are one tensor: give a dict by name"),
        (nn.Linear(4, 3), {"x": X, "y": X}, {}, "['x', 'y'] do not fit forward(input: torch.Tens"),
        (nn.Bilinear(4, 4, 3), (X,), {}, "['input1'] do not fit forward(input1: torch.Tensor, "),
        (Options(), {"a": X, "b": X}, {}, "takes ['a', 'b'] through **kwargs"),
        (nn.Linear(4, 3), {"x": X}, {"dynamic": {"x": {0: "batch", 1: "t"}}},
         "the code fixes 't' at 4: a layer has weights of that size (a Linear of 4 features)"),
        (Sums(), {"x": X, "y": torch.ones(3, 4)}, {},
         "dimension 0 of y is 3 in the example and dimension 0 of x is 2, but they have one name"),
        (nn.Identity(), (torch.ones(2, 5),),
         {"dynamic": {"input": {1: "t"}}, "multiples": {"t": 2}, "sizes": {"t": (2, 8)}},
         "the example has a t of 5, which is no multiple of 2"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    module: nn.Module, inputs: Any, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    message = refusal(module, inputs, tmp_path, **more)
    assert said in message
    assert "export:" not in message  # the command says that


@pytest.mark.parametrize(
    ("made", "batch_max", "said"),
    [
        ((abs, {"x": X}), None, "got a tuple of (builtin_function_or_method, dict)"),
        (nn.Linear(4, 3), None, "got a Linear"),
        (ExportRequest(abs, {"x": X}), None, "the module is a builtin"),  # type: ignore[arg-type]  # what is tested
        (ExportRequest(nn.Linear(4, 3), (X,), dynamic={}), 4, "no dimension is named 'batch'"),
    ],
)
def test_what_a_factory_may_not_return(made: Any, batch_max: int | None, said: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        request_of(made, batch_max)
    assert said in caught.value.message


def test_the_largest_batch_of_the_command_wins_over_sizes() -> None:
    made = ExportRequest(nn.Linear(4, 3), (X,), sizes={"batch": (2, 9)})
    assert request_of(made, 4).sizes == {"batch": (2, 4)}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("models/m/1", "models/m/1/model.pt2"),
        ("m.pt2", "m.pt2"),
        ("models/m", "a number as VERSION, such as models/m/1"),
        ("m.pt", "-o m.pt: expected a .pt2 file or the directory of a version"),
        ("m.onnx", "expected a .pt2 file"),
        ("models/m/0", "expected a positive integer"),
        ("models/m/01", "expected a positive integer"),
        ("models/.m/1", "model name '.m'"),
    ],
)
def test_where_an_artifact_may_be_written(output: str, expected: str) -> None:
    if expected.endswith("pt2") and not expected.startswith("expected"):
        assert output_path(Path(output), "model.pt2") == Path(expected)
    else:
        with pytest.raises(InvalidModel) as caught:
            output_path(Path(output), "model.pt2")
        assert expected in caught.value.message


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "its_models.py").write_text(
        "import torch\n"
        "def pair():\n"
        "    return torch.nn.Linear(4, 3), (torch.ones(2, 4),)\n"
        "def asks(name):\n"
        "    return None\n"
        "def fails():\n"
        "    raise KeyError('weights')\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("its_models", None)


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["its_models:asks", "-o", "m.pt2"], "must take no arguments: missing a required argument"),
        (["its_models:fails", "-o", "m.pt2"], "its_models:fails failed: KeyError: 'weights' ("),
        (["broken:f", "-o", "m.pt2"], "can't import 'broken': ZeroDivisionError: division by zero"),
        (["its_models:pair", "-o", "its_models.py/1/m.pt2"], "can't write: ["),
        (["its_models:pair", "-o", "models/m"], "such as models/m/1"),
    ],
)
def test_the_command_shows_no_traceback(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.usefixtures("factories")
def test_the_owners_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["its_models:fails", "-o", "m.pt2", "--verbose"]) == 1
    assert "    raise KeyError('weights')" in capsys.readouterr().err


def test_help_shows_the_three_forms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for form in ("package.module:function -o", "--torchscript FILE --input", "--onnx FILE -o"):
        assert f"gpumuxd export {form}" in said


def test_what_torch_logs_of_a_refusal_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    """Its loggers have handlers of their own, which print tracebacks."""
    logger = logging.getLogger("torch.of_a_test")
    logger.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        with quiet_refusals():
            logger.error("Traceback of torch")
        logger.error("afterwards")
    finally:
        logger.removeHandler(handler)
    assert capsys.readouterr().err == "afterwards\n"
