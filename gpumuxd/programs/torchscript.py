"""From a traced TorchScript file to a module that torch.export can trace again.

torch.export takes no TorchScript. A traced one is a list of calls without control flow, so it is
read here into a module that makes the same calls on torch's operators, one after the other, and
that module is exported like any other. What tracing had written down about sizes
(`aten::size`, `prim::NumToTensor`, arithmetic) is computed again with numbers, so a batch that was
dynamic in the file is dynamic in the artifact. Scripted modules have branches, loops and state, and
are refused by the name of what they hold.

It runs on the owner's machine, never in the daemon: loading TorchScript trusts the file.
"""

import math
import operator
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gpumuxd.errors import InvalidModel
from gpumuxd.programs.example_inputs import ExampleInputs
from gpumuxd.programs.export_request import BATCH, ExportRequest
from gpumuxd.programs.exporter import Traced
from gpumuxd.programs.rehearsal import told
from gpumuxd.programs.torchscript_options import Described

_ADVICE = (
    "only traced TorchScript (torch.jit.trace) can be converted; export from the Python module "
    "instead (gpumuxd export package.module:factory)"
)

_CONSTRUCTS = {
    "prim::If": "a branch",
    "prim::Loop": "a loop",
    "prim::SetAttr": "state that a call changes",
    "prim::PythonOp": "a call into Python",
    "prim::RaiseException": "an exception",
    "prim::CallMethod": "a call of another method",
}

_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": lambda left, right, alpha=1: left + right * alpha,
    "sub": lambda left, right, alpha=1: left - right * alpha,
    "rsub": lambda left, right, alpha=1: right - left * alpha,
    "mul": operator.mul,
    "div": lambda left, right, rounding=None: left // right if rounding else left / right,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "neg": operator.neg,
    "pow": operator.pow,
}
"""What traces compute of sizes, on tensors without dimensions that hold them."""

TOLERANCE = 1e-6

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """A call: values by name in, values by name out."""

    call: Callable[..., Any]
    inputs: Names
    outputs: Names


def load(path: Path) -> Any:
    """A TorchScript module on the CPU. Raises InvalidModel."""
    if not hasattr(torch.jit, "load"):
        raise InvalidModel(
            f"torch {torch.__version__} has no TorchScript any more: use an older one"
        )
    with warnings.catch_warnings():  # that torch.jit is deprecated is why this module exists
        warnings.filterwarnings("ignore", r".*torch\.jit\.load. is (deprecated|not supported)")
        try:
            read: Any = torch.jit.load
            return read(path, map_location="cpu").eval()
        except (RuntimeError, ValueError, OSError) as error:
            raise InvalidModel(f"{path} is no TorchScript file: {_instead(path, error)}") from error


def _instead(path: Path, error: Exception) -> str:
    """What a file is that TorchScript can't read, and what to do with it."""
    if not path.is_file():
        return "there is no such file"
    if not zipfile.is_zipfile(path):
        return "it is no zip archive"
    with zipfile.ZipFile(path) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    if "archive_format" in names:
        return "it is an archive of torch.export; it is served as it is, as VERSION/model.pt2"
    if "data.pkl" in names:
        return (
            "torch.save wrote it, so it holds weights (a state_dict) or a pickled module. Load it "
            "in a factory: gpumuxd export package.module:factory"
        )
    return str(error).partition("\n")[0]


class TracedModule(nn.Module):
    """The calls of a traced TorchScript module, in their order."""

    def __init__(self, script: Any) -> None:
        super().__init__()
        graph = script.inlined_graph
        own, *inputs = list(graph.inputs())
        self._objects: dict[str, Any] = {own.debugName(): script}
        self._values: dict[str, Any] = {}  # literals, and numbers that literal tensors hold
        self._buffer_names: dict[str, str] = {}
        self._stored: dict[tuple[Any, ...], str] = {}
        self._inputs = tuple(value.debugName() for value in inputs)
        self._outputs = tuple(value.debugName() for value in graph.outputs())
        self._steps = [step for node in graph.nodes() if (step := self._step(node)) is not None]

    @property
    def input_count(self) -> int:
        """How many arguments a call has."""
        return len(self._inputs)

    def forward(self, *inputs: Any) -> Any:
        values = dict(zip(self._inputs, inputs, strict=True))
        for name, buffer in self._buffer_names.items():
            values[name] = getattr(self, buffer)
        for step in self._steps:
            given = [values[name] if name in values else self._values[name] for name in step.inputs]
            result = step.call(*given)
            results = result if len(step.outputs) != 1 else [result]
            values.update(zip(step.outputs, results, strict=True))
        results = [values.get(name, self._values.get(name)) for name in self._outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _step(self, node: Any) -> _Step | None:
        """What a node of the graph does. None for one that only names a weight or a literal."""
        kind = node.kind()
        inputs = tuple(value.debugName() for value in node.inputs())
        outputs = tuple(value.debugName() for value in node.outputs())
        if kind == "prim::Constant":
            self._add_value(outputs[0], node.output().toIValue())
        elif kind == "prim::GetAttr":
            self._add_attribute(outputs[0], getattr(self._objects[inputs[0]], node.s("name")))
        elif kind in _PLAIN:
            return _Step(_PLAIN[kind], inputs, outputs)
        elif kind == "prim::TupleIndex" or kind == "aten::__getitem__":
            return _Step(operator.getitem, inputs, outputs)
        elif kind.startswith("aten::"):
            return _Step(self._aten(node, inputs), inputs, outputs)
        else:
            what = f" ({_CONSTRUCTS[kind]})" if kind in _CONSTRUCTS else ""
            raise InvalidModel(f"the TorchScript file holds {kind}{what}: {_ADVICE}")
        return None

    def _add_attribute(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self._add_tensor(name, value)
        elif isinstance(value, nn.Module | torch.jit.ScriptModule):
            self._objects[name] = value
        else:
            self._values[name] = value

    def _add_value(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self._add_tensor(name, value)
            if value.ndim == 0:
                self._values[name] = value.item()
        else:  # a trace on a GPU names it, and an artifact runs where it is loaded
            self._values[name] = torch.device("cpu") if isinstance(value, torch.device) else value

    def _add_tensor(self, name: str, value: Tensor) -> None:
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in self._stored or value.numel() == 0:
            self._stored[key] = f"tensor_{len(self._buffer_names)}"
            self.register_buffer(self._stored[key], value.detach())
        self._buffer_names[name] = self._stored[key]

    def _aten(self, node: Any, inputs: Names) -> Callable[..., Any]:
        name = node.schema().partition("(")[0].removeprefix("aten::")
        packet, _, overload = name.partition(".")
        if packet == "_convolution":  # what convolution calls, with the switches of the day
            return lambda *values: torch.ops.aten.convolution.default(*values[:9])
        try:
            function = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except AttributeError as error:
            raise InvalidModel(f"the TorchScript file holds aten::{name}: {_ADVICE}") from error
        arguments = function._schema.arguments
        positional = sum(not argument.kwarg_only for argument in arguments)
        keywords = [argument.name for argument in arguments[positional:]]
        tensors = [i for i, argument in enumerate(arguments) if str(argument.type) == "Tensor"]

        def call(*values: Any) -> Any:
            if packet in _ARITHMETIC and tensors:
                numbers = [self._number(inputs[i], values[i]) for i in tensors]
                computed = [i for i in tensors if not isinstance(values[i], Tensor)]
                if computed and all(number is not None for number in numbers):
                    rest = [value for i, value in enumerate(values) if i not in tensors]
                    return _ARITHMETIC[packet](*numbers, *rest)
            named = dict(zip(keywords, values[positional:], strict=True))
            return function(*values[:positional], **named)

        return call

    def _number(self, name: str, value: Any) -> Any:
        """The number that a literal tensor holds, or a computed one. None for other tensors."""
        return self._values.get(name) if isinstance(value, Tensor) else value


def _size(tensor: Tensor, dimension: int | None = None) -> Any:
    return list(tensor.shape) if dimension is None else tensor.shape[dimension]


def _integer(value: Any) -> Any:
    """As torch's `int`: a size stays what it is; of a tensor torch.export refuses it."""
    number: Any = value.item() if isinstance(value, Tensor) else value
    return math.trunc(number) if isinstance(number, float | torch.SymFloat) else number


def _float(value: Any) -> Any:
    convert: Any = torch.sym_float
    return convert(value.item() if isinstance(value, Tensor) else value)


def _list(*items: Any) -> list[Any]:
    return list(items)


def _tuple(*items: Any) -> tuple[Any, ...]:
    return items


def _dict(*items: Any) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _unpacked(items: Sequence[Any]) -> Any:
    return items[0] if len(items) == 1 else items


def _same(value: Any) -> Any:
    return value


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "prim::ListConstruct": _list,
    "prim::TupleConstruct": _tuple,
    "prim::DictConstruct": _dict,
    "prim::ListUnpack": _unpacked,
    "prim::TupleUnpack": _unpacked,
    "prim::NumToTensor": _same,
    "aten::size": _size,
    "aten::len": len,
    "aten::Int": _integer,
    "aten::IntImplicit": _integer,
    "aten::Float": _float,
    "aten::FloatImplicit": _float,
    "aten::ScalarImplicit": _same,
}
"""Nodes that handle sizes, lists and tuples."""


def request_of(script: Any, described: Described, batch_max: int) -> ExportRequest:
    """A TorchScript module as the request to export it."""
    module = TracedModule(script)
    if module.input_count != len(described.inputs):
        raise InvalidModel(
            f"the TorchScript file takes {module.input_count} inputs, "
            f"{len(described.inputs)} are described"
        )
    return ExportRequest(
        module,
        described.inputs,
        described.dynamic,
        described.sizes,
        batch_max,
        multiples=described.multiples,
    )


def compare(script: Any, traced: Traced, request: ExportRequest) -> str:
    """Run what was exported beside the TorchScript file, at the example's sizes and at others.

    Returns what was found. Raises InvalidModel where they differ by more than `TOLERANCE`.
    """
    run = traced.program.module()
    examples = ExampleInputs.of(request.module, request.example_inputs).tensors
    dynamic: Mapping[str, Mapping[str, str]] = traced.names["dynamic"]
    generator = torch.Generator().manual_seed(0)
    worst, tried = 0.0, []
    for is_other in (False, True):
        sizes: dict[str, int] = {}
        given = []
        for name, example in examples.items():
            shape = list(example.shape)
            for dimension, symbol in dynamic.get(name, {}).items():
                size = shape[int(dimension)]
                sizes[symbol] = _other_size(request, symbol, size) if is_other else size
                shape[int(dimension)] = sizes[symbol]
            given.append(_random(shape, example.dtype, generator))
        with torch.no_grad():
            theirs = _called("the TorchScript file", script, given)
            ours = _called("what was exported", run, given)
        pairs = zip(theirs, ours, strict=True)
        worst = max(worst, *(_difference(their, our) for their, our in pairs))
        tried.append(" ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes")
        if not sizes:
            break
    if not worst <= TOLERANCE:
        raise InvalidModel(
            f"what was exported differs from the TorchScript file by {worst:.2g} "
            f"(at {' and '.join(tried)}): {_cause(traced)}"
        )
    found = "bit-equal to" if worst == 0 else f"within {TOLERANCE:g} of"
    return f"{found} the TorchScript file at {' and '.join(tried)}"


def _called(what: str, function: Callable[..., Any], given: Sequence[Tensor]) -> list[Any]:
    try:
        return pytree.tree_leaves(function(*(tensor.clone() for tensor in given)))
    except Exception as error:  # of an operator, of any type
        lines = [line for line in str(error).splitlines() if line.strip()]
        sizes = ", ".join(f"{str(each.dtype)[6:]}{list(each.shape)}" for each in given)
        raise InvalidModel(
            f"{what} fails on inputs of {sizes}: {lines[-1] if lines else told(error)}"
        ) from error


def _cause(traced: Traced) -> str:
    for node in traced.program.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return f"it calls {node.target}, which is random: take the noise as an input"
    return _ADVICE


def _other_size(request: ExportRequest, symbol: str, size: int) -> int:
    _, maximum = request.sizes.get(symbol, (1, request.batch_max if symbol == BATCH else None))
    step = request.multiples.get(symbol, 1)
    return size + step if maximum is None or size + step <= maximum else size - step


def _random(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _difference(their: Any, our: Any) -> float:
    """The largest difference, infinite when shapes or types differ."""
    left, right = torch.as_tensor(their), torch.as_tensor(our)
    if left.shape != right.shape or left.dtype != right.dtype:
        return math.inf
    if torch.allclose(left, right, rtol=0, atol=0, equal_nan=True):
        return 0.0
    largest = float((left.double() - right.double()).abs().max())
    return math.inf if math.isnan(largest) else largest
