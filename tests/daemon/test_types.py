"""Every type and form of tensor through the whole path: exported, loaded, sent, computed, answered.

Values are those of the module, bit for bit, with the stock client of Triton and with our own.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpumuxd_client
import ml_dtypes
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from gpumuxd_client.errors import InvalidRequest
from numpy.typing import NDArray
from torch import Tensor, nn
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gpumuxd.programs.exporter import export_model
from tests.daemon.harness import Daemon, Site

Arrays = dict[str, NDArray[Any]]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DATATYPES = {
    "feats.image": "FP32", "feats.ids": "INT8", "half": "FP16", "brain": "BF16", "double": "FP64",
    "mask": "BOOL", "octets": "UINT8", "scale": "FP32",
}  # fmt: skip


class EveryType(nn.Module):
    def forward(
        self,
        feats: dict[str, Tensor],
        half: Tensor,
        brain: Tensor,
        double: Tensor,
        mask: Tensor,
        octets: Tensor,
        scale: Tensor,
        times: int = 3,
        bias: Tensor | None = None,
    ) -> dict[str, Any]:
        assert bias is None
        return {
            "image": feats["image"] * scale * times,
            "small": (feats["ids"] + 1, feats["ids"].to(torch.int64).sum(dim=1)),
            "half": half * half,
            "brain": brain + brain.square(),
            "double": double.cumsum(dim=1),
            "mask": ~mask,
            "octets": octets * 3,
            "scale": scale + 0.5,
            "any": mask.any(),
            "rows": half.shape[0],
            "nothing": bias,
        }


class Pair(nn.Module):
    """Takes another way for five rows, which torch.export notes down as a guard."""

    def forward(self, left: Tensor, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if left.shape[0] == 5:
            return left, left
        return left + pair[0], left * pair[1]


def examples(rows: int) -> Arrays:
    draw = np.random.default_rng(rows)
    return {
        "feats.image": draw.standard_normal((rows, 3), np.float32),
        "feats.ids": draw.integers(-128, 128, (rows, 2)).astype(np.int8),
        "half": draw.standard_normal((rows, 2)).astype(np.float16),
        "brain": draw.standard_normal((rows, 5)).astype(BFLOAT16),
        "double": draw.standard_normal((rows, 4)),
        "mask": draw.integers(0, 2, (rows, 3)).astype(bool),
        "octets": draw.integers(0, 256, (rows, 3)).astype(np.uint8),
        "scale": np.array(1.25, np.float32),
    }


def tensor(array: NDArray[Any]) -> Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def arguments(arrays: Arrays) -> dict[str, Any]:
    given = {name: tensor(array) for name, array in arrays.items()}
    feats = {"image": given.pop("feats.image"), "ids": given.pop("feats.ids")}
    return {"feats": feats, **given}


def expected(arrays: Arrays) -> dict[str, Tensor]:
    """What the module computes, by the names on the wire."""
    result = EveryType()(**arguments(arrays))
    first, second = result.pop("small")
    del result["nothing"]
    result["rows"] = torch.tensor(result["rows"])
    return {**result, "small.0": first, "small.1": second}


def publish(repository: Path) -> None:
    every = repository / "every" / "1" / "model.pt2"
    dynamic = {name: {0: "batch"} for name in DATATYPES if name != "scale"}
    export_model(
        EveryType(), {**arguments(examples(2)), "times": 3, "bias": None}, every, dynamic=dynamic
    )
    pair = repository / "pair" / "1" / "model.pt2"
    pair.parent.mkdir(parents=True)
    batch = {0: torch.export.Dim.DYNAMIC}
    x = torch.ones(3, 2)
    program = torch.export.export(
        Pair(), (x, (x * 2, x * 3)), dynamic_shapes=(batch, (batch, batch))
    )
    torch.export.save(program, pair)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    publish(directory / "repository")
    site = Site(directory, directory / "repository", startup_models=("every", "pair"))
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        yield site.target
    shutil.rmtree(directory)


def ask_with_triton(target: str, model: str, arrays: Arrays) -> Arrays:
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(target) as client:
        answer = client.infer(model, inputs)
    return {out.name: answer.as_numpy(out.name) for out in answer.get_response().outputs}


def ask_with_ours(target: str, model: str, arrays: Arrays) -> Arrays:
    with gpumuxd_client.Client(target) as client:
        return dict(client.infer(model, arrays).items())


Ask = Callable[[str, str, Arrays], Arrays]
CLIENTS = [pytest.param(ask_with_triton, id="triton"), pytest.param(ask_with_ours, id="ours")]


def assert_same(answer: Arrays, want: dict[str, Tensor]) -> None:
    assert answer.keys() == want.keys()
    for name, array in answer.items():
        got = tensor(np.array(array))
        assert (name, got.dtype, got.shape) == (name, want[name].dtype, want[name].shape)
        assert torch.equal(got, want[name]), name


@pytest.mark.parametrize("ask", CLIENTS)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_every_type_comes_back_as_the_module_computes_it(target: str, ask: Ask, rows: int) -> None:
    given = examples(rows)
    assert_same(ask(target, "every", given), expected(given))


@pytest.mark.parametrize("ask", CLIENTS)
def test_an_archive_of_torchs_own_has_names_too(target: str, ask: Ask) -> None:
    left = np.arange(8, dtype=np.float32).reshape(4, 2)
    answer = ask(target, "pair", {"left": left, "pair.0": left * 2, "pair.1": left * 3})
    assert_same(
        answer, {"output_0": tensor(left + left * 2), "output_1": tensor(left * (left * 3))}
    )


def test_metadata_tells_types_and_shapes(target: str) -> None:
    with gpumuxd_client.Client(target) as client:
        metadata = client.model_metadata("every")
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    assert {name: tensor.datatype for name, tensor in inputs.items()} == DATATYPES
    assert list(inputs["scale"].shape) == []
    assert list(inputs["feats.image"].shape) == [-1, 3]
    outputs = {tensor.name: tensor.datatype for tensor in metadata.outputs}
    assert outputs == {
        "image": "FP32", "small.0": "INT8", "small.1": "INT64", "half": "FP16", "brain": "BF16",
        "double": "FP64", "mask": "BOOL", "octets": "UINT8", "scale": "FP32", "any": "BOOL",
        "rows": "INT64",
    }  # fmt: skip


OTHERS: dict[str, NDArray[Any]] = {
    "FP16": np.ones((2, 2), np.float16), "FP32": np.ones((2, 2), np.float32),
    "BF16": np.ones((2, 5), BFLOAT16), "INT8": np.ones((2, 3), np.int8),
}  # fmt: skip


@pytest.mark.parametrize("ask", CLIENTS)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"half": OTHERS["FP32"]},                 "input 'half': expected datatype FP16"),
        ({"half": OTHERS["BF16"][:, :2]},          "input 'half': expected datatype FP16"),
        ({"brain": OTHERS["FP16"]},                "input 'brain': expected datatype BF16"),
        ({"double": OTHERS["FP32"]},               "input 'double': expected datatype FP64"),
        ({"mask": OTHERS["INT8"]},                 "input 'mask': expected datatype BOOL"),
        ({"octets": OTHERS["INT8"]},               "input 'octets': expected datatype UINT8"),
        ({"feats.ids": OTHERS["FP32"]},            "input 'feats.ids': expected datatype INT8"),
        ({"half": np.ones((2, 3), np.float16)},    "input 'half': expected shape [2, 2]"),
        ({"half": np.ones((3, 2), np.float16)},    "input 'half': expected shape [2, 2]"),
        ({"half": np.ones((2,), np.float16)},      "input 'half': expected 2 dimensions"),
        ({"scale": np.ones((1,), np.float32)},     "input 'scale': expected 0 dimensions"),
        ({"brain": None},                          "missing input ['brain']"),
        ({"feats.image": None},                    "missing input ['feats.image']"),
        ({"bias": OTHERS["FP32"]},                 "unknown input 'bias'"),
        ({"times": np.array(3)},                   "unknown input 'times'"),
        ({name: array[:0] for name, array in examples(2).items() if array.ndim},
                                                   "expected batch of 1 to 64, got 0"),
        ({name: array for name, array in examples(65).items() if array.ndim},
                                                   "expected batch of 1 to 64, got 65"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    target: str, ask: Ask, changed: dict[str, NDArray[Any] | None], said: str
) -> None:
    given = {**examples(2), **changed}
    arrays = {name: array for name, array in given.items() if array is not None}
    with pytest.raises((InvalidRequest, InferenceServerException)) as caught:
        ask(target, "every", arrays)
    assert said in str(caught.value)
    if isinstance(caught.value, InferenceServerException):
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("ask", CLIENTS)
def test_sizes_that_a_guard_excludes_are_refused(target: str, ask: Ask) -> None:
    """The graph of `Pair` is another one for five rows, and would answer wrongly."""
    x = np.ones((5, 2), np.float32)
    with pytest.raises((InvalidRequest, InferenceServerException)) as caught:
        ask(target, "pair", {"left": x, "pair.0": x, "pair.1": x})
    assert "input 'left': the model takes no batch of 5" in str(caught.value)


def test_bytes_that_are_no_booleans_are_refused(target: str) -> None:
    given = examples(2)
    given["mask"] = np.full((2, 3), 2, np.uint8).view(bool)
    with pytest.raises((InvalidRequest, InferenceServerException), match="BOOL bytes of 0 or 1"):
        ask_with_ours(target, "every", given)
