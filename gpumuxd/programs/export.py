"""`gpumuxd export package.module:factory -o repository/name/1`, or `--torchscript FILE`.

The command only; `exporter.py` does the work. This module must not import torch before it has said
so: that alone takes seconds, and the whole may take half a minute. So the names of `exporter` that
factories and scripts import from here are looked up when they are asked for.
"""

import argparse
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpumuxd.errors import GpumuxdError, InvalidModel
from gpumuxd.models.spec import ModelSpec
from gpumuxd.programs.publishing import output_path, print_artifact

ARTIFACT_NAME = "model.pt2"

_IN_EXPORTER = ("ExportRequest", "export_model", "write_artifact")


def __getattr__(name: str) -> Any:
    if name in _IN_EXPORTER:
        return getattr(importlib.import_module("gpumuxd.programs.exporter"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str]) -> int:
    """The command. Phases and refusals go to stderr, the signature to stdout."""
    if any(argument.split("=")[0] == "--onnx" for argument in argv):
        from gpumuxd.programs import export_onnx_command

        return export_onnx_command.main(argv)
    parser = _parser()
    options = parser.parse_args(list(argv))
    if (options.factory is None) is (options.torchscript is None):
        parser.error("expected a factory, or --torchscript FILE")
    if options.torchscript is None and (options.input or options.dynamic or options.size):
        parser.error("--input, --dynamic and --size describe a --torchscript file")
    try:
        path = output_path(options.output, ARTIFACT_NAME)
        spec = _run(options, path)
    except (GpumuxdError, OSError) as error:
        _tell_refusal(error, is_verbose=options.verbose)
        return 1
    print_artifact(path, spec)
    return 0


def _tell_refusal(error: Exception, *, is_verbose: bool) -> None:
    _tell(f"can't write: {error}" if isinstance(error, OSError) else str(error))
    cause = error.__cause__
    if cause is not None and is_verbose:
        # From the owner's code on: what lies before is how it was called.
        _tell("".join(traceback.format_exception(cause, chain=False)).rstrip())
    elif cause is not None and str(cause) not in str(error):
        _tell("--verbose shows the whole error")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpumuxd export",
        usage="gpumuxd export package.module:function -o OUTPUT [--batch-max N] [--verbose]\n"
        "       gpumuxd export --torchscript FILE --input NAME:TYPE[SIZES] ... -o OUTPUT [...]\n"
        "       gpumuxd export --onnx FILE -o OUTPUT [...]",
        description="Export a torch module to an artifact that gpumuxd serves.",
        epilog="The factory takes no arguments and returns a gpumuxd.programs.export.ExportRequest "
        "or a tuple (module, example_inputs). docs/export.md says what can be exported. "
        "The options of the ONNX form are others: `gpumuxd export --onnx FILE --help` lists them.",
    )
    parser.add_argument("factory", nargs="?", help="package.module:function")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        help="the directory of a version, REPOSITORY/NAME/VERSION (model.pt2 is written there), or "
        "a .pt2 file; its checksum is written beside it",
    )
    parser.add_argument(
        "--batch-max", type=int, help="the largest batch served, whatever the factory says"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show all that torch says, and where an error is"
    )
    script = parser.add_argument_group("traced TorchScript instead of a factory")
    script.add_argument(
        "--torchscript", metavar="FILE", type=Path, help="written by torch.jit.save"
    )
    script.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME:TYPE[SIZES]",
        help="an input with an example's sizes, in the order of forward: image:FP32[2,3,64,64]",
    )
    script.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="NAME:DIM=DIMENSION,...",
        help="what may vary: image:0=batch,2=height (default: dimension 0 of every input is the "
        "batch; `none` for nothing)",
    )
    script.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="DIMENSION=MIN:MAX[:MULTIPLE]",
        help="the range of a dimension: height=32:640:32",
    )
    return parser


def _run(options: argparse.Namespace, path: Path) -> ModelSpec:
    _tell("importing torch")
    from gpumuxd.programs import exporter
    from gpumuxd.programs.export_request import request_of

    if options.torchscript is not None:
        return _run_torchscript(options, path)
    _tell(f"calling {options.factory}")
    request = request_of(_made(options.factory), options.batch_max)
    return exporter.write_artifact(request, path, _tell, is_verbose=options.verbose)


def _run_torchscript(options: argparse.Namespace, path: Path) -> ModelSpec:
    from gpumuxd.programs import exporter, torchscript, torchscript_options
    from gpumuxd.programs.export_request import BATCH_MAX

    described = torchscript_options.read(options.input, options.dynamic, options.size)
    _tell(f"reading {options.torchscript}")
    script = torchscript.load(options.torchscript)
    request = torchscript.request_of(script, described, options.batch_max or BATCH_MAX)
    _tell("tracing what it calls")
    traced = exporter.trace(request, is_verbose=options.verbose)
    _tell(torchscript.compare(script, traced, request))
    return exporter.write_traced(traced, path, _tell)


def _tell(text: str) -> None:
    print(f"gpumuxd export: {text}", file=sys.stderr, flush=True)


def _made(name: str) -> Any:
    """What a factory returns. Raises InvalidModel for whatever it raises, named by its place."""
    from gpumuxd.programs.rehearsal import told

    factory = _import_factory(name)
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise InvalidModel(f"{name} must take no arguments: {error}") from None
    except ValueError:  # of a built-in
        pass
    try:
        return factory()
    except Exception as error:
        raise InvalidModel(f"{name} failed: {told(error)}") from error


def _told_import(error: Exception) -> str:
    from gpumuxd.programs.rehearsal import told

    return str(error) if isinstance(error, ImportError) else told(error)


def _import_factory(name: str) -> Callable[[], Any]:
    module_name, colon, function = name.partition(":")
    if not colon or not module_name or not function:
        raise InvalidModel(f"expected package.module:function, got {name!r}")
    # The current directory, as `python -m` has it: a factory is usually a file beside the weights.
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything
        raise InvalidModel(f"can't import {module_name!r}: {_told_import(error)}") from error
    finally:
        sys.path.remove("")
    factory = getattr(module, function, None)
    if not callable(factory):
        raise InvalidModel(f"{module_name!r} has no function {function!r}")
    return factory  # type: ignore[no-any-return]  # what it returns is checked in exporter
