"""The command `gpumuxd export --onnx FILE -o repository/name/1`: its words, and what it prints.

It must not know graphs: `export_onnx.py` does the work.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpumuxd.errors import GpumuxdError, InvalidModel
from gpumuxd.programs.export_onnx import OnnxExport, export_onnx
from gpumuxd.programs.publishing import output_path, print_artifact

ARTIFACT_NAME = "model.onnx"


def main(argv: Sequence[str]) -> int:
    """The command. Phases and refusals go to stderr, the signature to stdout."""
    options = _parser().parse_args(list(argv))
    try:
        path = output_path(options.output, ARTIFACT_NAME)
        spec = export_onnx(options.onnx, path, _request(options), _tell)
    except (GpumuxdError, OSError) as error:
        _tell(str(error))
        return 1
    print_artifact(path, spec)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpumuxd export",
        usage="gpumuxd export --onnx FILE -o OUTPUT [--dim INPUT:INDEX=NAME] ...\n"
        "           [--range NAME=MIN..MAX[:MULTIPLE]] ... [--try NAME=N] ... "
        "[--fill INPUT=VALUE] ...",
        description="Make an ONNX model one that gpumuxd serves: run it at several sizes, note in "
        "a copy how the sizes of outputs follow from those of inputs.",
    )
    parser.add_argument("--onnx", required=True, type=Path, metavar="FILE", help="the model")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        help="the directory of a version, REPOSITORY/NAME/VERSION (model.onnx is written there), "
        "or a .onnx file; its checksum is written beside it",
    )
    for name, metavar, text in (
        (
            "--dim",
            "INPUT:INDEX=NAME",
            "name a dynamic dimension of an input, or fix it to a number",
        ),
        ("--range", "NAME=MIN..MAX[:MULTIPLE]", "the sizes that a dynamic dimension may take"),
        ("--try", "NAME=N", "a size at which the model runs, to begin with"),
        ("--fill", "INPUT=VALUE", "a value that an input has to hold, such as a sampling rate"),
    ):
        parser.add_argument(
            name, action="append", default=[], metavar=metavar, help=text, dest=_DESTINATION[name]
        )
    return parser


_DESTINATION = {"--dim": "dim", "--range": "range", "--try": "tried", "--fill": "fill"}


def _request(options: argparse.Namespace) -> OnnxExport:
    return OnnxExport(
        dimensions=dict(map(_dimension, options.dim)),
        ranges=dict(map(_range, options.range)),
        sizes={name: _integer(value) for name, value in map(_pair, options.tried)},
        fills={name: _number(value) for name, value in map(_pair, options.fill)},
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise InvalidModel(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _dimension(text: str) -> tuple[tuple[str, int], str | int]:
    place, value = _pair(text)
    name, _, index = place.rpartition(":")
    if not name:
        raise InvalidModel(f"expected INPUT:INDEX=NAME, got {text!r}")
    return (name, _integer(index)), int(value) if value.isdecimal() else value


def _range(text: str) -> tuple[str, tuple[int, int, int]]:
    name, value = _pair(text)
    ends, _, multiple = value.partition(":")
    minimum, _, maximum = ends.partition("..")
    low, high, step = _integer(minimum), _integer(maximum), _integer(multiple or "1")
    if not 1 <= low <= high or step < 1 or low % step or high % step:
        raise InvalidModel(f"expected NAME=MIN..MAX[:MULTIPLE], both ends multiples, got {text!r}")
    return name, (low, high, step)


def _integer(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InvalidModel(f"expected a number, got {text!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidModel(f"expected a number, got {text!r}") from None


def _tell(text: str) -> None:
    print(f"gpumuxd export: {text}", file=sys.stderr, flush=True)
