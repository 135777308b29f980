"""The `onnx` package, which is optional: imported when the first ONNX model is read.

Its messages are decoded foreign data, so they are `Any` here and checked field by field by whoever
reads them. Invariant: nothing of the package is imported before `onnx_package` is called.
"""

import importlib
import importlib.util
from functools import cache
from typing import Any

from gpumuxd.errors import InvalidModel

INSTALL_HINT = "install gpumuxd[onnx]"
_RUNTIME = "onnxruntime"

DATATYPES: dict[int, str] = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
}
"""ONNX's data types to the Open Inference Protocol's names: those that numpy has, because values
travel between kernel groups as its arrays."""

TYPED_FIELDS: dict[int, tuple[str, str]] = {
    1: ("float_data", "f"),
    2: ("int32_data", "B"),
    3: ("int32_data", "b"),
    4: ("int32_data", "H"),
    5: ("int32_data", "h"),
    6: ("int32_data", "i"),
    7: ("int64_data", "q"),
    9: ("int32_data", "B"),
    10: ("int32_data", "H"),
    11: ("double_data", "d"),
    12: ("uint64_data", "I"),
    13: ("uint64_data", "Q"),
}
"""Where a tensor's items are when they are not raw bytes, and their type code in `array`."""


_STRING, _MESSAGE = 9, 11  # protobuf's FieldDescriptor.TYPE_*


def check_text(message: Any) -> None:
    """Refuse a message in which a text is no UTF-8: protobuf gives bytes for it, which compare with
    no name. Weights are not looked into. Raises InvalidModel."""
    for field, value in message.ListFields():
        if field.type == _STRING:
            texts = [value] if isinstance(value, str | bytes) else value
            if not all(isinstance(text, str) for text in texts):
                raise InvalidModel(f"a text in {field.name} is no UTF-8")
        elif field.type == _MESSAGE:
            for part in [value] if hasattr(value, "ListFields") else value:
                if part.DESCRIPTOR.name != "TensorProto":
                    check_text(part)
                elif not isinstance(part.name, str):
                    raise InvalidModel("the name of a tensor is no UTF-8")


@cache
def onnx_package() -> Any:
    """The package, with the parts that are used here. Raises InvalidModel where it is missing."""
    if importlib.util.find_spec(_RUNTIME) is None:
        raise InvalidModel(f"ONNX models need ONNX Runtime: {INSTALL_HINT}")
    try:
        package = importlib.import_module("onnx")
        importlib.import_module("onnx.shape_inference")
    except ImportError as error:
        raise InvalidModel(f"ONNX models need the package onnx: {INSTALL_HINT}") from error
    return package
