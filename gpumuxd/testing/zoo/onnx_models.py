"""ONNX models that people ship, from packages installed here: for tests and `bench/zoo_onnx.py`.

Nothing is downloaded: each lies in a package that is installed for other reasons. It must not know
how a model is read or cut.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumuxd.models.spec import ModelSpec, evaluate_shape
from gpumuxd.programs.export_onnx import OnnxExport
from gpumuxd.programs.onnx_model import NUMPY_TYPES


@dataclass(frozen=True, slots=True)
class Real:
    """A model that an installed package ships, what its owner would say, and values of its dynamic
    dimensions: small ones to test it at, and what a request has."""

    package: str
    file: str
    request: OnnxExport = field(default_factory=OnnxExport)
    sizes: Sequence[Sequence[int]] = ((1,),)
    usual: Sequence[int] = (1,)

    def path(self) -> Path:
        """Found without importing the package, whose own imports need not be installed."""
        spec = importlib.util.find_spec(self.package)
        assert spec is not None, self.package
        assert spec.submodule_search_locations, self.package
        for folder in spec.submodule_search_locations:
            for path in Path(folder).rglob(self.file):
                return path
        raise AssertionError(f"{self.package} ships no {self.file}")


_IMAGE = {"h": (32, 1024, 32), "w": (32, 1024, 32)}
_SIDES = {("x", 2): "h", ("x", 3): "w"}

REAL = {
    "det": Real(
        "rapidocr",
        "PP-OCRv6_det_small.onnx",
        OnnxExport(dimensions=_SIDES, ranges=_IMAGE),
        [(1, 96, 128), (2, 64, 64)],
        (1, 320, 320),
    ),
    "rec": Real(
        "rapidocr",
        "PP-OCRv6_rec_small.onnx",
        OnnxExport(dimensions={("x", 3): "w"}, ranges={"w": (32, 2048, 1)}),
        [(1, 160), (2, 75)],
        (1, 320),
    ),
    "cls": Real(
        "rapidocr",
        "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        OnnxExport(dimensions={("x", 2): 48, ("x", 3): 192}),
        [(1,), (3,)],
    ),
    "magika": Real("magika", "model.onnx", sizes=[(1,), (2,)]),
    "silero_ifless": Real(
        "silero_vad",
        "silero_vad_op18_ifless.onnx",
        OnnxExport(fills={"sr": 16000}, dimensions={("input", 1): 576}),
        [(1,), (2,)],
    ),
    "silero_op15": Real(
        "silero_vad",
        "silero_vad_16k_op15.onnx",
        OnnxExport(fills={"sr": 16000}, dimensions={("input", 1): 576}),
        [(1,), (2,)],
    ),
    "nudenet": Real(
        "nudenet",
        "320n.onnx",
        OnnxExport(ranges={"height": (32, 640, 32), "width": (32, 640, 32)}),
        [(1, 96, 64)],
        (1, 320, 320),
    ),
    "basic_pitch": Real("basic_pitch", "nmp.onnx", sizes=[(1,)]),
}


def example(
    spec: ModelSpec, fills: Sequence[float | None], sizes: Sequence[int]
) -> list[NDArray[Any]]:
    """Smooth waves, as images and sound are: noise is no input that anybody sends."""
    names = [symbol.name for symbol in spec.symbols]
    made = []
    for tensor, fill in zip(spec.inputs, fills, strict=True):
        shape = evaluate_shape(tensor.shape, dict(zip(names, sizes, strict=True)))
        kind = NUMPY_TYPES[tensor.datatype]
        count = int(np.prod(shape))
        if fill is not None:
            made.append(np.full(shape, fill, kind))
        elif np.issubdtype(kind, np.floating):
            step = np.arange(count, dtype=np.float64)
            waves = np.sin(step / 7) * np.cos(step / 53) + 0.3 * np.sin(step / 1.7)
            made.append(np.clip(waves, -1, 1).reshape(shape).astype(kind))
        else:
            made.append((np.arange(count) % 200).reshape(shape).astype(kind))
    return made
