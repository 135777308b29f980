"""Runs an artifact as it will be served, and holds it to the module that it was made of.

What torch.export writes down can differ from the module without a word: state in a plain attribute
is fixed, and types are not checked. Both are run on the example, and on its first rows and columns
at the smallest sizes. Runs on the owner's machine; it must not know how a module is exported.
"""

import mmap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import ModelSpec
from gpumuxd.programs.example_inputs import ExampleInputs
from gpumuxd.programs.model import ServedModel

_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parent)

_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}
_TOLERANCE_ELSE = 1e-3
"""Of the largest value. Rounding differs far less; what is wrong differs more."""

Dynamic = Mapping[str, Mapping[int, str]]


def rehearse(
    module: torch.nn.Module,
    inputs: ExampleInputs,
    dynamic: Dynamic,
    artifact: Artifact,
    tell: Callable[[str], None],
) -> None:
    """Raises InvalidModel where the module fails, or is not what the artifact answers."""
    served = _open(artifact)
    spec = artifact.plan.spec
    expected = call(module, inputs)
    if _differences(expected, call(module, inputs)):
        raise InvalidModel(
            "the module answers the same inputs otherwise the second time: it keeps state or is "
            "random. Pass state in and out, and take noise as an input"
        )
    if wrong := _differences(expected, _served(served, inputs)):
        index, what = wrong[0]
        raise InvalidModel(f"{_output(spec, index)} of the artifact {what} (on the example)")
    smallest = {symbol.name: symbol.minimum for symbol in spec.symbols}
    if smallest and not spec.conditions:
        _rehearse_smallest(module, inputs.cut(dynamic, smallest), served, smallest, tell)


def _rehearse_smallest(
    module: torch.nn.Module,
    inputs: ExampleInputs,
    served: ServedModel,
    sizes: Mapping[str, int],
    tell: Callable[[str], None],
) -> None:
    """Values cut off may be what others speak of (lengths, positions), so the module may fail."""
    at = "at " + ", ".join(f"{name} {size}" for name, size in sizes.items())
    try:
        expected = call(module, inputs)
    except InvalidModel as error:
        tell(f"note: cut down to the smallest sizes, {at}: {error}")
        return
    advice = "say `sizes` for which it works"
    try:
        wrong = _differences(expected, _served(served, inputs))
    except InvalidModel as error:
        raise InvalidModel(f"{at}: {error}: {advice}") from error
    if wrong:
        index, what = wrong[0]
        raise InvalidModel(f"{_output(served.spec, index)} of the artifact {what} ({at}): {advice}")


def call(module: torch.nn.Module, inputs: ExampleInputs) -> list[Any]:
    """What the module itself answers, flat. Raises InvalidModel when it fails."""
    given = inputs.copied()
    with torch.no_grad(), _as_traced(), _warnings_ignored():
        try:
            result = module(*given.args, **given.kwargs)
        except Exception as error:  # whatever the module raises
            raise InvalidModel(f"the module fails on its example: {told(error)}") from error
    return [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]


def told(error: BaseException) -> str:
    """An error of the owner's code in one line: what, and where in their code."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(map(file.is_relative_to, _LIBRARIES)):
            return f"{text} ({file}:{frame.lineno})"
    return text


def _open(artifact: Artifact) -> ServedModel:
    weights = mmap.mmap(-1, max(1, artifact.weights_bytes))
    artifact.write_weights(weights.write)
    return ServedModel.open(plans.encode(artifact.plan), weights)


def _served(served: ServedModel, inputs: ExampleInputs) -> Sequence[Tensor]:
    tensors = [inputs.tensors[tensor.name].cpu().clone() for tensor in served.spec.inputs]
    program = served.node_program()
    with torch.inference_mode(), _warnings_ignored():
        try:
            slots = program.start(tensors)
            for group in program.groups:
                group(slots)
            return program.outputs(slots)
        except Exception as error:  # of an operator, of any type
            raise InvalidModel(f"the artifact fails where the module runs: {error}") from error


@contextmanager
def _warnings_ignored() -> Iterator[None]:
    """Remarks of kernels, and what tracing has warned of already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _as_traced() -> Iterator[None]:
    """Attention's fused path is not what torch.export traces, and rounds otherwise."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _differences(expected: Sequence[Any], got: Sequence[Any]) -> list[tuple[int, str]]:
    if len(expected) != len(got):
        raise InvalidModel(f"the module gives {len(expected)} results, the artifact {len(got)}")
    pairs = enumerate(zip(expected, got, strict=True))
    found = ((index, _difference(one, other)) for index, (one, other) in pairs)
    return [(index, what) for index, what in found if what is not None]


def _difference(expected: Any, got: Any) -> str | None:
    left, right = _tensor(expected), _tensor(got)
    if left.shape != right.shape:
        return f"has shape {list(right.shape)}, the module's {list(left.shape)}"
    if left.dtype != right.dtype and isinstance(expected, Tensor):
        return f"is {right.dtype}, the module's {left.dtype}"
    if not left.is_floating_point():
        count = int((left != right).sum())
        return f"differs from the module's in {count} of {left.numel()} values" if count else None
    tolerance = _TOLERANCE.get(left.dtype, _TOLERANCE_ELSE)
    left, right = left.double(), right.double()
    differs = (left != right) & ~(left.isnan() & right.isnan())
    if not differs.any():
        return None
    worst = float((left - right)[differs].abs().max())
    largest = float(left[left.isfinite()].abs().max()) if left.isfinite().any() else 0.0
    if worst <= 1e-5 + tolerance * largest:  # and not NaN
        return None
    return f"differs from the module's by {worst:.2g}"


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _output(spec: ModelSpec, index: int) -> str:
    return f"output {spec.outputs[index].name!r}"
