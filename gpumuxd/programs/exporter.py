"""Export: from a torch module to an artifact that this daemon serves.

Runs on the owner's machine, never in the daemon. torch.export does the work; this adds what people
trip over: a batch dimension that is really dynamic (an example of batch 1 would fix it, so that is
refused with the reason), names for inputs, outputs and dynamic dimensions (torch's archive has no
place for them, so they go into a file beside the graph), and a last look with the daemon's own
reader, so that what can't be served is known at export and not at load. The command line is in
`export.py`.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models.pt2 import NAMES_FILE, Artifact
from gpumuxd.models.spec import ModelSpec
from gpumuxd.programs.example_inputs import ExampleInputs, Examples, output_names
from gpumuxd.programs.export_refusal import quiet_refusals, reason_of, reason_of_save
from gpumuxd.programs.recurrent import recurrence_of_any_length

BATCH = "batch"
BATCH_MAX = 64

# All of the tensors named: where one of them is the module's own, the warning matters.
_FLAT_WEIGHTS_ASSIGNED = (
    r"The tensor attributes? (self\.\S*_flat_weights\[\d+\](, )?)+ \w+ assigned during export"
)

Dynamic = Mapping[str, Mapping[int, str]]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What a factory returns to `gpumuxd export`.

    `example_inputs` by name: names of the arguments of `forward`, in any order, or names of your
    own in its order. A tuple is in its order and takes its names. An argument may be a tensor, a
    tuple, list or dict of them, whose parts are the inputs `feats.image` and `pair.0`, or None, a
    number or a string, which the artifact fixes. `dynamic` says which dimensions
    of which input may vary, and their names: `{"tokens": {0: "batch", 1: "length"}}`; without it,
    dimension 0 of every input is the batch. `sizes` gives each name's smallest and largest size; a
    batch is 1 to `batch_max` unless it is given. `multiples` names the dimensions that must be a
    multiple of something, `{"height": 32}`: torch.export says so when it refuses others.
    """

    module: torch.nn.Module
    example_inputs: Examples
    dynamic: Dynamic | None = None
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    batch_max: int = BATCH_MAX
    output_names: Sequence[str] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)


def export_model(
    module: torch.nn.Module,
    example_inputs: Examples,
    path: str | Path,
    *,
    dynamic: Dynamic | None = None,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    batch_max: int = BATCH_MAX,
    output_names: Sequence[str] = (),
    multiples: Mapping[str, int] | None = None,
) -> ModelSpec:
    """Export a module to `path` and return the signature it will be served with.

    The module is put into eval mode. Raises InvalidModel when it can't be exported or the result
    could not be served.
    """
    request = ExportRequest(
        module, example_inputs, dynamic, sizes or {}, batch_max, output_names, multiples or {}
    )
    return write_artifact(request, Path(path))


def _tell_nobody(phase: str) -> None:
    pass


def write_artifact(
    request: ExportRequest, path: Path, tell: Tell = _tell_nobody, *, is_verbose: bool = False
) -> ModelSpec:
    """Export, save and read back. `tell` hears of each phase as it begins: all take seconds.

    A refusal leaves the file system as it was.
    """
    tell("tracing the module")
    traced = trace(request, is_verbose=is_verbose)
    if traced.fixed:
        fixed = ", ".join(f"{name}={value!r}" for name, value in traced.fixed.items())
        tell(f"fixed in the artifact, since their examples are no tensors: {fixed}")
    return write_traced(traced, path, tell)


@dataclass(frozen=True, slots=True)
class Traced:
    """What torch.export made of a module, and the names that go into a file beside its graph."""

    program: torch.export.ExportedProgram
    names: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)


def trace(request: ExportRequest, *, is_verbose: bool = False) -> Traced:
    """Export, in memory. Raises InvalidModel when torch.export refuses the module."""
    inputs = ExampleInputs.of(request.module, request.example_inputs)
    dynamic = _dynamic(request, inputs.tensors)
    program = _export(request, inputs, dynamic, is_verbose=is_verbose)
    names = {
        "inputs": inputs.names_in_order_of(program.call_spec.in_spec),
        "outputs": list(request.output_names) or output_names(program),
        "dynamic": {
            name: {str(dimension): symbol for dimension, symbol in dimensions.items()}
            for name, dimensions in dynamic.items()
        },
        "batch": BATCH if any(BATCH in sizes.values() for sizes in dynamic.values()) else None,
    }
    return Traced(program, names, inputs.literals)


def write_traced(traced: Traced, path: Path, tell: Tell = _tell_nobody) -> ModelSpec:
    """Save and read back. A refusal leaves the file system as it was."""
    # Only a whole artifact that can be served takes the name, and the place of an older one.
    unfinished = path.with_name(f".{path.name}")
    with _folder_of(path):
        try:
            tell(f"writing {path}")
            _save(traced.program, unfinished, traced.names)
            tell("reading it back as the daemon will")
            with unfinished.open("rb") as file:
                spec = Artifact(file).plan.spec
            _publish(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    return spec


def _publish(unfinished: Path, path: Path) -> None:
    """Put a whole artifact in its place, with its checksum beside it.

    The old checksum goes first: a daemon that looks in between finds an artifact without one, which
    it serves, and never one that does not match.
    """
    checksum = path.with_name(f"{path.name}.sha256")
    new_checksum = checksum.with_name(f".{checksum.name}")
    with unfinished.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        new_checksum.write_text(f"{digest}  {path.name}\n", encoding="utf-8")
        checksum.unlink(missing_ok=True)
        unfinished.replace(path)
        new_checksum.replace(checksum)
    finally:
        new_checksum.unlink(missing_ok=True)


@contextmanager
def _folder_of(path: Path) -> Iterator[None]:
    """Makes the folders above `path`. Those that were made go again when the block fails."""
    missing = [folder for folder in path.parents if not folder.exists()]  # the deepest first
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # somebody else has put something there
            for folder in missing:
                folder.rmdir()
        raise


def _save(program: torch.export.ExportedProgram, path: Path, names: Mapping[str, Any]) -> None:
    with _torch_warnings_ignored():
        try:
            torch.export.save(program, path, extra_files={NAMES_FILE: json.dumps(names)})
        except OSError:
            raise
        except Exception as error:  # an output type that torch can't write, say
            raise InvalidModel(
                f"torch.export can't save the module: {reason_of_save(error)}"
            ) from error


def _dynamic(
    request: ExportRequest, inputs: Mapping[str, torch.Tensor]
) -> dict[str, dict[int, str]]:
    dynamic: dict[str, dict[int, str]]
    if request.dynamic is None:
        scalars = [name for name, value in inputs.items() if value.ndim == 0]
        if scalars:
            raise InvalidModel(
                f"export: {scalars[0]!r} has no dimensions and so no batch: say with `dynamic` "
                "which dimensions of which inputs may vary"
            )
        dynamic = {name: {0: BATCH} for name in inputs}
    else:
        dynamic = {name: dict(dimensions) for name, dimensions in request.dynamic.items()}
    for name, dimensions in dynamic.items():
        if name not in inputs:
            raise InvalidModel(f"export: `dynamic` names {name!r}, inputs are {list(inputs)}")
        for dimension, symbol in dimensions.items():
            if not 0 <= dimension < inputs[name].ndim:
                raise InvalidModel(f"export: input {name!r} has no dimension {dimension}")
            _check_example_size(name, symbol, inputs[name].shape[dimension])
    return dynamic


def _check_example_size(name: str, symbol: str, size: int) -> None:
    """torch.export treats 0 and 1 as constants, so an example of that size fixes the dimension."""
    if size < 2:
        raise InvalidModel(
            f"export: the example of {name!r} has a {symbol} of {size}. torch.export would fix the "
            f"{symbol} at {size}: give an example with a {symbol} of at least 2"
        )


def _export(
    request: ExportRequest,
    inputs: ExampleInputs,
    dynamic: Mapping[str, Mapping[int, str]],
    *,
    is_verbose: bool,
) -> torch.export.ExportedProgram:
    symbols = sorted({symbol for sizes in dynamic.values() for symbol in sizes.values()})
    dims = {symbol: _dim(request, symbol) for symbol in symbols}
    shapes = {
        name: {dimension: dims[symbol] for dimension, symbol in dimensions.items()}
        for name, dimensions in dynamic.items()
    }
    quiet = nullcontext() if is_verbose else quiet_refusals()
    with _torch_warnings_ignored(), torch.no_grad(), recurrence_of_any_length():
        try:
            with quiet:
                return torch.export.export(
                    request.module.eval(),
                    inputs.args,
                    inputs.kwargs,
                    dynamic_shapes=inputs.dynamic_shapes(shapes),
                    strict=False,
                )
        except Exception as error:  # torch.export raises whatever the module or the tracer does
            raise InvalidModel(f"torch.export refused the module: {reason_of(error)}") from error


def _dim(request: ExportRequest, symbol: str) -> Any:
    """torch's object for a dynamic dimension; of a multiple it counts the units."""
    default = (1, request.batch_max) if symbol == BATCH else (None, None)
    minimum, maximum = request.sizes.get(symbol, default)
    multiple = request.multiples.get(symbol, 1)
    if multiple == 1:
        return torch.export.Dim(symbol, min=minimum, max=maximum)
    if multiple < 1 or (minimum or 0) % multiple or (maximum or 0) % multiple:
        raise InvalidModel(
            f"export: {symbol!r} of {minimum} to {maximum} must be a multiple of {multiple}: "
            "so must both ends"
        )
    units = torch.export.Dim(
        f"{symbol}_units",
        min=minimum and minimum // multiple,
        max=maximum and maximum // multiple,
    )
    return multiple * units


@contextmanager
def _torch_warnings_ignored() -> Iterator[None]:
    """Exporting warns about torch's own future, about weights that are views, and about the list
    of its own weights that a GRU or an LSTM keeps beside them. None of these is ours.

    Narrow on purpose: only around the two calls into torch.export.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for message in ("No complete tensor found", _FLAT_WEIGHTS_ASSIGNED):
            warnings.filterwarnings("ignore", message, UserWarning)
        yield


def request_of(made: Any, batch_max: int | None) -> ExportRequest:
    """What a factory made, as a request; `batch_max` wins over its own."""
    match made:
        case ExportRequest():
            request = made
        case (torch.nn.Module() as module, example_inputs):
            request = ExportRequest(module, example_inputs)
        case _:
            raise InvalidModel(
                "the factory must return an ExportRequest or a tuple (module, example_inputs), "
                f"got a {type(made).__name__}"
            )
    return request if batch_max is None else replace(request, batch_max=batch_max)
