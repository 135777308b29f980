"""Every way in which loading a file was shown to run code, tried on our reader and both children.

The payload makes a marker file, by Python and by a process. Each archive is read three times: in
this process, which nothing confines, by a real loader, and, where it loads, it is run by a real
device child.
"""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models.pt2 import Artifact
from gpumuxd.wire.frames import ModelFailed, ModelReleased, ReadDone, ReadFailed
from tests.device.support import DeviceChild, read_artifact
from tests.loader.harness import one_loader
from tests.models import archives


class Payload:
    """What an attacker pickles."""

    def __init__(self, marker: Path) -> None:
        self.code = python_code(marker)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (self.code,)


def python_code(marker: Path) -> str:
    return f"import os; open({str(marker)!r}, 'w').close(); os.system({'touch ' + str(marker)!r})"


def expression(marker: Path) -> str:
    return f"__import__('os').system('touch {marker}')"


@pytest.fixture(scope="module")
def child() -> Iterator[DeviceChild]:
    with DeviceChild() as child:
        child.wait_started()
        yield child
        assert child.stop()[0] == 0


Files = dict[str, bytes]


def sample_inputs(marker: Path) -> Files:
    files = archives.members()
    files["data/sample_inputs/model.pt"] = pickle.dumps(Payload(marker))
    return files


def pickled_weight(marker: Path) -> Files:
    weights = archives.good_weights()
    weights["config"]["lin.bias"]["use_pickle"] = True
    files = archives.members(weights=weights)
    files["data/weights/weight_1"] = pickle.dumps(Payload(marker))
    return files


def opaque_constant(marker: Path) -> Files:
    graph = archives.good_graph()
    graph["graph_module"]["signature"]["input_specs"][1] = {
        "tensor_constant": {"arg": {"name": "b"}, "tensor_constant_name": "c"}
    }
    constants = {"config": {"c": archives.payload("opaque_constant_0", None)}}
    files = archives.members(graph=graph, constants=constants)
    files["data/constants/opaque_constant_0"] = pickle.dumps(Payload(marker))
    return files


def custom_object(marker: Path) -> Files:
    graph = archives.good_graph()
    graph["graph_module"]["signature"]["input_specs"][1] = {
        "custom_obj": {"arg": {"name": "b", "class_fqn": "os.system"}, "custom_obj_name": "c"}
    }
    files = archives.members(graph=graph)
    files["data/constants/custom_obj_0"] = pickle.dumps(Payload(marker))
    return files


def size_expression(text: Callable[[Path], str]) -> Callable[[Path], Files]:
    def make(marker: Path) -> Files:
        graph = archives.good_graph()
        values = graph["graph_module"]["graph"]["tensor_values"]
        values["y"]["sizes"][0] = archives.sym(text(marker))
        return archives.members(graph=graph)

    return make


def guards(marker: Path) -> Files:
    graph = archives.good_graph()
    graph["guards_code"] = [expression(marker)]
    graph["graph_module"]["guards_code"] = [expression(marker)]
    return archives.members(graph=graph)


def metadata(marker: Path) -> Files:
    graph = archives.good_graph()
    node = graph["graph_module"]["graph"]["nodes"][0]
    node["metadata"] = {"stack_trace": expression(marker), "torch_fn": expression(marker)}
    graph["graph_module"]["module_call_graph"] = [{"fqn": expression(marker)}]
    graph["opset_version"] = {expression(marker): 1}
    return archives.members(graph=graph)


def target(name: str) -> Callable[[Path], Files]:
    def make(marker: Path) -> Files:
        graph = archives.good_graph()
        command = archives.argument("command", {"as_string": f"touch {marker}"})
        node = archives.node("x", [command], "y")
        node["target"] = name
        graph["graph_module"]["graph"]["nodes"] = [node]
        return archives.members(graph=graph)

    return make


def from_file(marker: Path) -> Files:
    graph = archives.good_graph()
    inputs = [
        archives.argument("filename", {"as_string": str(marker)}),
        archives.argument("shared", {"as_bool": True}),
        archives.argument("size", {"as_int": 4}),
    ]
    graph["graph_module"]["graph"]["nodes"] = [archives.node("from_file.default", inputs, "y")]
    return archives.members(graph=graph)


def keyword_argument(name: Callable[[Path], str]) -> Callable[[Path], Files]:
    def make(marker: Path) -> Files:
        graph = archives.good_graph()
        node = graph["graph_module"]["graph"]["nodes"][0]
        node["inputs"][2] = archives.argument(name(marker), archives.tensor("b"), kind=2)
        return archives.members(graph=graph)

    return make


def value_name(marker: Path) -> Files:
    """A tensor whose name is code, everywhere that it is named."""
    text = archives.encoded(archives.good_graph()).decode()
    code = f"y\\n    {expression(marker)}\\n"
    files = archives.members()
    files["models/model.json"] = text.replace('"y"', f'"{code}"').encode()
    return files


def symbol_name(marker: Path) -> Files:
    text = archives.encoded(archives.good_graph()).decode()
    files = archives.members()
    files["models/model.json"] = text.replace("s0", expression(marker).replace("'", '\\"')).encode()
    return files


REFUSED: list[tuple[str, Callable[[Path], Files], str]] = [
    # the path                       the archive                          part of the reason
    ("weight that is a pickle", pickled_weight, "is a pickle"),
    ("opaque constant", opaque_constant, "is a pickle"),
    ("custom object", custom_object, "custom_obj is not supported"),
    ("size that is code", size_expression(expression), "expected a call"),
    ("size that is a lambda", size_expression(lambda m: f"(lambda: {expression(m)})()"), "call"),
    ("code in a symbol", size_expression(lambda m: f"Symbol({expression(m)!r})"), "symbol's name"),
    ("code in a keyword", size_expression(lambda m: f"Symbol('s', x={expression(m)})"), "no lit"),
    ("guards", guards, "can't be checked by this daemon"),
    ("torch.os.system", target("torch.os.system"), "is not allowed"),
    ("builtins", target("builtins.eval"), "is not allowed"),
    ("a dunder of an operator", target("torch.ops.aten.add.__globals__"), "is not allowed"),
    ("a class of operators", target("torch.ops.aten.__class__"), "is not allowed"),
    ("operators of others", target("torch.ops.prim.Print.default"), "is not allowed"),
    ("load_library", target("torch.ops.load_library"), "is not allowed"),
    ("from_file", from_file, "is not allowed"),
    ("code as a keyword", keyword_argument(lambda m: f"a={expression(m)}, b"), "misplaced"),
    ("keyword of another script", keyword_argument(lambda m: "ｂias"), "misplaced"),  # noqa: RUF001
    ("symbol that is code", symbol_name, ""),
]  # fmt: skip

HARMLESS: list[tuple[str, Callable[[Path], Files]]] = [
    ("sample inputs", sample_inputs),
    ("stack traces and call graph", metadata),
    ("tensors named as code", value_name),
]

FOREIGN: list[tuple[str, Callable[[Path], bytes]]] = [
    ("a plain pickle", lambda marker: pickle.dumps(Payload(marker))),
    ("torch.save", lambda marker: saved_by_torch(marker)),
    ("TorchScript", lambda marker: torch_script(marker)),
]


def saved_by_torch(marker: Path) -> bytes:
    out = io.BytesIO()
    torch.save(Payload(marker), out)
    return out.getvalue()


def torch_script(marker: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zipped:
        zipped.writestr("m/data.pkl", pickle.dumps(Payload(marker)))
        zipped.writestr("m/constants.pkl", pickle.dumps(Payload(marker)))
        zipped.writestr("m/code/__torch__.py", f"class M:\n  {expression(marker)}\n")
        zipped.writestr("m/version", "3\n")
        zipped.writestr("m/byteorder", "little")
    return out.getvalue()


def ask_loader(path: Path) -> ReadDone | ReadFailed:
    with path.open("rb") as file, one_loader() as loader:
        answer, fds = loader.ask(file.fileno())
    for made in fds:
        os.close(made)
    assert isinstance(answer, ReadDone | ReadFailed)
    return answer


@pytest.mark.parametrize(
    ("make", "reason"), [pytest.param(make, reason, id=what) for what, make, reason in REFUSED]
)
def test_refused_and_nothing_ran(
    make: Callable[[Path], Files], reason: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    data = archives.archive(make(marker))
    with pytest.raises(InvalidModel) as error:
        Artifact(data)
    assert reason in error.value.message
    assert len(error.value.message) < 600
    assert not marker.exists()


@pytest.mark.parametrize(
    "make", [pytest.param(make, id=what) for what, make, _ in REFUSED[:3]]
    + [pytest.param(make, id=what) for what, make, _ in REFUSED if what == "size that is code"],
)  # fmt: skip
def test_the_real_loader_refuses_it_too(make: Callable[[Path], Files], tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "m.pt2"
    path.write_bytes(archives.archive(make(marker)).getvalue())
    assert isinstance(ask_loader(path), ReadFailed)
    assert not marker.exists()


@pytest.mark.parametrize("make", [pytest.param(make, id=what) for what, make in FOREIGN])
def test_other_formats_are_refused(make: Callable[[Path], bytes], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(InvalidModel, match=r"expected a \.pt2 archive"):
        Artifact(io.BytesIO(make(marker)))
    assert not marker.exists()


@pytest.mark.parametrize("make", [pytest.param(make, id=what) for what, make in HARMLESS])
def test_loads_and_runs_without_it(
    make: Callable[[Path], Files], child: DeviceChild, tmp_path: Path
) -> None:
    marker, path = tmp_path / "marker", tmp_path / "m.pt2"
    path.write_bytes(archives.archive(make(marker)).getvalue())
    if "sample" in make.__name__:  # one is enough: a process takes a while
        assert isinstance(ask_loader(path), ReadDone)
    child.load(read_artifact(path), "m/1")
    spec_input = {"x": torch.ones(2, 4)}
    (y,) = child.infer("m/1", spec_input)
    assert torch.equal(y, torch.tensor([[6.5, 23.5, 40.5]] * 2))
    child.unload("m/1")
    child.expect_either(ModelReleased, ModelFailed)
    assert not marker.exists()


def test_the_payload_works_where_something_runs_it(tmp_path: Path) -> None:
    """Or the tests above could not fail."""
    marker = tmp_path / "marker"
    program = "import sys, pickle; pickle.loads(sys.stdin.buffer.read())"
    subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(Payload(marker)), check=True, timeout=60
    )
    assert marker.exists()
