"""What the command line says of the inputs of a TorchScript file: the file itself does not say it.

--input image:FP32[2,3,64,64] --dynamic image:0=batch,2=height --size height=32:640:32
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.programs.operators import DTYPES

_INPUT = re.compile(r"([^:\s]+):([A-Z0-9]+)\[([0-9, ]*)\]", re.ASCII)
_DYNAMIC = re.compile(r"([^:\s]+):([0-9]+=\w+(?:,[0-9]+=\w+)*)", re.ASCII)
_SIZE = re.compile(r"(\w+)=([0-9]+):([0-9]+)(?::([0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Described:
    """Example inputs in the order of `forward`, and what may vary of them."""

    inputs: Mapping[str, torch.Tensor]
    dynamic: Mapping[str, Mapping[int, str]] | None
    sizes: Mapping[str, tuple[int, int]]
    multiples: Mapping[str, int]


def read(inputs: Sequence[str], dynamic: Sequence[str], sizes: Sequence[str]) -> Described:
    """Raises InvalidModel for what has another form."""
    if not inputs:
        raise InvalidModel("a TorchScript file needs an --input for each input of its forward")
    examples = dict(_input(text) for text in inputs)
    if len(examples) != len(inputs):
        raise InvalidModel("two inputs have the same name")
    varying = None if not dynamic else dict(_varying(text) for text in dynamic if text != "none")
    ranges = [_matched(_SIZE, text, "--size", "height=32:640:32") for text in sizes]
    return Described(
        examples,
        varying,
        {name: (int(minimum), int(maximum)) for name, minimum, maximum, _ in ranges},
        {name: int(multiple) for name, _, _, multiple in ranges if multiple},
    )


def _input(text: str) -> tuple[str, torch.Tensor]:
    name, datatype, sizes = _matched(_INPUT, text, "--input", "image:FP32[2,3,64,64]")
    if datatype not in DTYPES:
        raise InvalidModel(f"--input {text}: {datatype} is none of {', '.join(DTYPES)}")
    shape = [int(size) for size in sizes.split(",") if size.strip()]
    # Zeros are valid for every table of embeddings; tracing looks at no values.
    return name, torch.zeros(shape, dtype=DTYPES[datatype])


def _varying(text: str) -> tuple[str, dict[int, str]]:
    name, dimensions = _matched(_DYNAMIC, text, "--dynamic", "image:0=batch,2=height")
    pairs = (pair.split("=") for pair in dimensions.split(","))
    return name, {int(dimension): symbol for dimension, symbol in pairs}


def _matched(form: re.Pattern[str], text: str, option: str, example: str) -> Sequence[str]:
    found = form.fullmatch(text)
    if found is None:
        raise InvalidModel(f"{option} {text!r}: expected a form like {example}")
    return found.groups()
