"""Export: from a torch module to an artifact that this daemon serves.

Runs on the owner's machine, never in the daemon. torch.export does the work; this adds what people
trip over: a batch dimension that is really dynamic (an example of batch 1 would fix it, so that is
refused with the reason), names for inputs, outputs and dynamic dimensions (torch's archive has no
place for them, so they go into a file beside the graph), and a last look with the daemon's own
reader, so that what can't be served is known at export and not at load. The command line is in
`export.py`.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models.pt2 import NAMES_FILE, Artifact
from gpumuxd.models.spec import ModelSpec
from gpumuxd.programs.example_inputs import ExampleInputs, Examples, output_names
from gpumuxd.programs.export_refusal import quiet_refusals, reason_of, reason_of_save, state_kept
from gpumuxd.programs.export_request import (
    BATCH,
    BATCH_MAX,
    Dynamic,
    ExportRequest,
    Tell,
    dim_of,
    dynamic_of,
    tell_narrowed,
    without_single_units,
)
from gpumuxd.programs.publishing import folder_of, publish
from gpumuxd.programs.recurrent import recurrence_of_any_length
from gpumuxd.programs.rehearsal import call, rehearse

__all__ = ["ExportRequest", "Traced", "export_model", "trace", "write_artifact", "write_traced"]

_ASSIGNED = r"The tensor attributes? .* assigned during export"
# All of the tensors named: where one of them is the module's own, the module keeps state.
_FLAT_WEIGHTS_ASSIGNED = (
    r"The tensor attributes? (self\.\S*_flat_weights\[\d+\](, )?)+ \w+ assigned during export"
)


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
    if literals := traced.inputs.literals:
        fixed = ", ".join(f"{name}={value!r}" for name, value in literals.items())
        tell(f"fixed in the artifact, since their examples are no tensors: {fixed}")
    return write_traced(traced, path, tell)


@dataclass(frozen=True, slots=True)
class Traced:
    """What torch.export made of a module, and the names that go into a file beside its graph."""

    program: torch.export.ExportedProgram
    names: Mapping[str, Any]
    request: ExportRequest
    inputs: ExampleInputs


def trace(request: ExportRequest, *, is_verbose: bool = False) -> Traced:
    """Export, in memory. Raises InvalidModel when torch.export refuses the module."""
    inputs = ExampleInputs.of(request.module, request.example_inputs)
    dynamic = dynamic_of(request, inputs.tensors)
    program = _export(request, inputs, dynamic, is_verbose=is_verbose)
    smaller = without_single_units(request)
    if _guards(program) and smaller.sizes != request.sizes:
        # A side of one unit is often one pixel of the smallest map, which torch treats otherwise
        # and guards against. From two units on it need not.
        from_two = _export(smaller, inputs, dynamic, is_verbose=is_verbose)
        program = from_two if len(_guards(from_two)) < len(_guards(program)) else program
    names = {
        "inputs": inputs.names_in_order_of(program.call_spec.in_spec),
        "outputs": list(request.output_names) or output_names(program),
        "dynamic": {
            name: {str(dimension): symbol for dimension, symbol in dimensions.items()}
            for name, dimensions in dynamic.items()
        },
        "batch": BATCH if any(BATCH in sizes.values() for sizes in dynamic.values()) else None,
    }
    return Traced(program, names, request, inputs)


def write_traced(traced: Traced, path: Path, tell: Tell = _tell_nobody) -> ModelSpec:
    """Save and read back. A refusal leaves the file system as it was."""
    # Only a whole artifact that can be served takes the name, and the place of an older one.
    unfinished = path.with_name(f".{path.name}")
    with folder_of(path):
        try:
            tell(f"writing {path}")
            _save(traced.program, unfinished, traced.names)
            tell("reading it back as the daemon will")
            with unfinished.open("rb") as file:
                artifact = Artifact(file)
                tell("comparing its answers with the module's")
                dynamic = _by_number(traced.names["dynamic"])
                rehearse(traced.request.module, traced.inputs, dynamic, artifact, tell)
                spec = artifact.plan.spec
            tell_narrowed(traced.request, spec, tell)
            publish(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    return spec


def _guards(program: torch.export.ExportedProgram) -> list[str]:
    return getattr(program, "_guards_code", [])


def _by_number(dynamic: Mapping[str, Mapping[str, str]]) -> dict[str, dict[int, str]]:
    return {
        name: {int(dimension): symbol for dimension, symbol in dimensions.items()}
        for name, dimensions in dynamic.items()
    }


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


def _export(
    request: ExportRequest,
    inputs: ExampleInputs,
    dynamic: Mapping[str, Mapping[int, str]],
    *,
    is_verbose: bool,
) -> torch.export.ExportedProgram:
    symbols = sorted({symbol for sizes in dynamic.values() for symbol in sizes.values()})
    dims = {symbol: dim_of(request, symbol) for symbol in symbols}
    shapes = {
        name: {dimension: dims[symbol] for dimension, symbol in dimensions.items()}
        for name, dimensions in dynamic.items()
    }
    quiet = nullcontext() if is_verbose else quiet_refusals()
    try:
        with _torch_warnings_ignored(), torch.no_grad(), recurrence_of_any_length(), quiet:
            return torch.export.export(
                request.module.eval(),
                inputs.args,
                inputs.kwargs,
                dynamic_shapes=inputs.dynamic_shapes(shapes),
                strict=False,
            )
    except Exception as error:  # torch.export raises whatever the module or the tracer does
        if state := state_kept(error):
            raise InvalidModel(
                f"the module keeps state in {state}: pass state in and out, or use a local variable"
            ) from error
        call(request.module, inputs)  # raises where the module itself fails, in its words
        raise InvalidModel(f"torch.export refused the module: {reason_of(error)}") from error


@contextmanager
def _torch_warnings_ignored() -> Iterator[None]:
    """Exporting warns about torch's own future, about weights that are views, and about the list
    of its own weights that a GRU or an LSTM keeps beside them. None of these is ours. What it
    warns of state in plain attributes, which it fixes, is an error.

    Narrow on purpose: only around the two calls into torch.export.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("error", _ASSIGNED, UserWarning)
        for message in ("No complete tensor found", _FLAT_WEIGHTS_ASSIGNED):
            warnings.filterwarnings("ignore", message, UserWarning)
        yield
