"""Traced TorchScript becomes an artifact; what is scripted is refused by name."""

import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gpumuxd.errors import InvalidModel
from gpumuxd.programs import torchscript, torchscript_options
from gpumuxd.programs.export import main
from gpumuxd.programs.exporter import ExportRequest, Traced, trace
from tests.programs.networks import open_artifact
from tests.programs.test_bit_equality import run


class Detector(nn.Module):
    """Sizes as numbers in every way that a trace writes them down, and a dictionary of results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.head.weight
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.offset = nn.Buffer(torch.ones(4))

    def forward(self, image: Tensor, bias: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        z = torch.relu_(self.norm(self.conv(image)))
        area = z.shape[2] * z.shape[3]
        z = z.mean((2, 3)) + self.offset + bias
        z = self.tied(self.head(z.view(z.size(0), 4) * 2.5 / area))
        steps, _ = self.lstm(z.unsqueeze(1).repeat(1, image.shape[2] // 2, 1))
        return z, {"steps": steps, "some": z[:, : image.shape[3] // 4 + 1]}


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            x = -x
        return x


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for i in range(int(x.sum())):
            x = x + i
        return x


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


class Straight(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`traced.pt` and some that are scripted."""
    folder = tmp_path_factory.mktemp("torchscript")
    torch.manual_seed(2)
    example = torch.randn(2, 3, 8, 8), torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Detector().eval(), example, strict=False).save(folder / "traced.pt")
        for module in (Branch(), Loop(), State(), Straight()):
            torch.jit.script(module).save(folder / f"{type(module).__name__.lower()}.pt")
    return folder


INPUTS = ["--input", "image:FP32[2,3,8,8]", "--input", "bias:FP32[2,4]"]


def test_a_traced_file_becomes_an_artifact_of_dynamic_sizes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--dynamic", "image:0=batch,2=height", "--dynamic", "bias:0=batch",
               "--size", "height=4:20:2", "--batch-max", "6",
               "-o", str(tmp_path / "model.pt2")]  # fmt: skip
    assert main(["--torchscript", str(folder / "traced.pt"), *INPUTS, *options]) == 0
    said = capsys.readouterr()
    assert "bit-equal to the TorchScript file at batch=2 height=8 and batch=3 height=10" in said.err
    assert said.out.splitlines()[1:] == [
        "  in  image: FP32 [batch, 3, height, 8]",
        "  in  bias: FP32 [batch, 4]",
        "  out output_0: FP32 [batch, 4]",
        "  out output_1.steps: FP32 [batch, height // 2, 5]",
        "  out output_1.some: FP32 [batch, 3]",
        "  batch: 1 to 6",
        "  height: 4 to 20, in multiples of 2",
    ]
    model = open_artifact(tmp_path / "model.pt2")
    square = {entry.offset for entry in model.plan.weights if entry.shape == (4, 4)}
    assert len(square) == 1, "the tied weight is there once"
    script = torchscript.load(folder / "traced.pt")
    with torch.inference_mode():
        for batch, height in ((1, 4), (5, 20)):
            given = [torch.randn(batch, 3, height, 8), torch.randn(batch, 4)]
            scores, more = script(*[each.clone() for each in given])
            ours = run(model.node_program(), given)
            for want, got in zip([scores, *more.values()], ours, strict=True):
                assert torch.equal(want, got)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("branch", "holds prim::If (a branch): only traced TorchScript"),
        ("loop", "holds prim::Loop (a loop): only traced TorchScript"),
        ("state", "holds prim::SetAttr (state that a call changes): only traced TorchScript"),
    ],
)
def test_scripted_modules_are_refused_by_the_name_of_what_they_hold(
    folder: Path, tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--torchscript", str(folder / f"{name}.pt"), "--input", "x:FP32[2,3]"]
    assert main([*arguments, "-o", str(tmp_path / "out" / "1")]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "gpumuxd export package.module:factory" in error
    assert not (tmp_path / "out").exists()


def test_a_scripted_module_without_control_flow_is_as_good_as_a_traced_one(
    folder: Path, tmp_path: Path
) -> None:
    arguments = ["--torchscript", str(folder / "straight.pt"), "--input", "x:FP32[2,3]"]
    assert main([*arguments, "--dynamic", "none", "-o", str(tmp_path / "model.pt2")]) == 0


def test_what_is_no_torchscript_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_text("text")
    for path in (tmp_path / "x.pt", tmp_path / "nothing.pt"):
        with pytest.raises(InvalidModel, match="is no TorchScript file"):
            torchscript.load(path)


def test_what_a_file_is_instead_is_said(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "state.pt")
    with zipfile.ZipFile(tmp_path / "own.pt2", "w") as archive:
        archive.writestr("own/archive_format", "pt2")
    (tmp_path / "x.pt").write_text("text")
    for name, said in (("state.pt", "torch.save wrote it, so it holds weights"),
                       ("own.pt2", "an archive of torch.export; it is served as it is"),
                       ("x.pt", "it is no zip archive"),
                       ("nothing.pt", "there is no such file")):  # fmt: skip
        with pytest.raises(InvalidModel) as caught:
            torchscript.load(tmp_path / name)
        assert said in caught.value.message
        assert "\n" not in caught.value.message


def test_a_torch_without_torchscript_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "load")
    with pytest.raises(InvalidModel, match=r"torch 2\..* has no TorchScript any more"):
        torchscript.load(Path("x.pt"))


def test_inputs_are_counted(folder: Path) -> None:
    described = torchscript_options.read(["image:FP32[2,3,8,8]"], [], [])
    with pytest.raises(InvalidModel, match="takes 2 inputs, 1 are described"):
        torchscript.request_of(torchscript.load(folder / "traced.pt"), described, 8)


class Half(nn.Module):
    def forward(self, *given: Tensor) -> Tensor:
        return given[0] / 2


def half_traced() -> tuple[ExportRequest, Traced]:
    request = ExportRequest(Half(), {"x": torch.zeros(2, 3)}, batch_max=2)
    return request, trace(request)


def test_a_conversion_that_differs_is_refused() -> None:
    request, traced = half_traced()
    found = torchscript.compare(lambda x: x / 2, traced, request)
    assert found == "bit-equal to the TorchScript file at batch=2 and batch=1"
    found = torchscript.compare(lambda x: x / 2 + 2**-23, traced, request)
    assert found.startswith("within 1e-06 of the TorchScript file")
    for wrong in (lambda x: x / 2 + 0.01, lambda x: x[:, 1:] / 2, lambda x: x.double() / 2,
                  lambda x: x / 0 * 0):  # fmt: skip
        with pytest.raises(InvalidModel, match="differs from the TorchScript file by"):
            torchscript.compare(wrong, traced, request)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_what_fails_and_what_is_random_is_named() -> None:
    request, traced = half_traced()

    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("Traceback of TorchScript\n\nRuntimeError: no such type\n")

    with pytest.raises(
        InvalidModel, match=r"file fails on inputs of float32\[2, 3\]: RuntimeErr.*pe$"
    ):
        torchscript.compare(fails, traced, request)
    noisy = ExportRequest(Noise(), {"own": torch.zeros(2, 3)})
    with pytest.raises(
        InvalidModel, match=r"calls aten\.randn_like\.default, which is random: take"
    ):
        torchscript.compare(lambda x: x, trace(noisy), noisy)


@pytest.mark.parametrize(
    ("inputs", "dynamic", "sizes", "said"),
    [
        ([], [], [], "needs an --input for each input"),
        (["x"], [], [], "--input 'x': expected a form like image:FP32"),
        (["x:FP32"], [], [], "expected a form like"),
        (["x:FP32[a]"], [], [], "expected a form like"),
        (["x:FP31[2]"], [], [], "FP31 is none of BOOL, UINT8"),
        (["x:FP32[2]", "x:FP32[2]"], [], [], "two inputs have the same name"),
        (["x:FP32[2]"], ["x:batch"], [], "--dynamic 'x:batch': expected a form like"),
        (["x:FP32[2]"], ["x:0=batch"], ["batch=2"], "--size 'batch=2': expected a form like"),
    ],
)
def test_options_of_another_form(
    inputs: list[str], dynamic: list[str], sizes: list[str], said: str
) -> None:
    with pytest.raises(InvalidModel) as caught:
        torchscript_options.read(inputs, dynamic, sizes)
    assert said in caught.value.message


def test_options() -> None:
    read = torchscript_options.read
    described = read(["a.b:INT64[2, 5]", "s:BF16[]"], ["a.b:0=n,1=t"], ["n=1:9", "t=4:16:4"])
    tensors = described.inputs
    assert [(name, each.dtype, each.shape) for name, each in tensors.items()] == [
        ("a.b", torch.int64, (2, 5)), ("s", torch.bfloat16, ()),
    ]  # fmt: skip
    assert described.dynamic == {"a.b": {0: "n", 1: "t"}}
    assert described.sizes == {"n": (1, 9), "t": (4, 16)}
    assert described.multiples == {"t": 4}
    assert read(["x:FP32[2]"], [], []).dynamic is None
    assert read(["x:FP32[2]"], ["none"], []).dynamic == {}


@pytest.mark.parametrize(
    "arguments",
    [[], ["a:b", "--torchscript", "x.pt"], ["a:b", "--input", "x:FP32[2]"]],
)
def test_a_factory_or_a_file_and_not_both(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main([*arguments, "-o", "out"])
