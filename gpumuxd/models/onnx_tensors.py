"""Tensors that an ONNX artifact holds: checked, turned into raw bytes, laid out in one image.

It must not know nodes. Invariant: a weight of the table has exactly the bytes that its type and
shape ask for, whatever the artifact said, and lies at an aligned offset of its own.
"""

import array
import math
from collections.abc import Callable
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_limits import OnnxLimits
from gpumuxd.models.onnx_plan import OnnxWeight
from gpumuxd.models.onnx_proto import DATATYPES, TYPED_FIELDS
from gpumuxd.models.plan import WEIGHT_ALIGNMENT_BYTES
from gpumuxd.models.spec import ITEM_BYTES

Sink = Callable[[bytes], object]

_EXTERNAL = 1
EXTERNAL_LOCATION = "weights"
"""What a TensorProto of the plan names as the place of its bytes. It is no file: the child gives
ONNX Runtime the bytes by the tensor's name."""


def check_tensor(tensor: Any, what: str, limits: OnnxLimits) -> int:
    """Bytes that a TensorProto's type and shape ask for, and that it holds. Raises InvalidModel."""
    if tensor.data_location == _EXTERNAL or len(tensor.external_data):
        raise InvalidModel(
            f"{what}: its data is in another file, which is not read: expected all weights inside "
            "model.onnx (save it without save_as_external_data)"
        )
    if tensor.HasField("segment"):
        raise InvalidModel(f"{what}: tensors in segments are not supported")
    datatype = DATATYPES.get(tensor.data_type)
    if datatype is None:
        raise InvalidModel(f"{what}: ONNX data type {tensor.data_type} is not supported")
    shape: tuple[int, ...] = tuple(tensor.dims)
    if len(shape) > limits.rank_max or any(size < 0 for size in shape):
        raise InvalidModel(f"{what}: {list(shape[: limits.rank_max])} is no shape")
    items = math.prod(shape)
    size_bytes: int = items * ITEM_BYTES[datatype]
    if size_bytes > limits.weights_bytes_max:
        raise InvalidModel(
            f"{what}: {size_bytes} bytes, the limit (weights_bytes_max) is "
            f"{limits.weights_bytes_max}"
        )
    _check_amount(tensor, what, items, size_bytes)
    return size_bytes


def _check_amount(tensor: Any, what: str, items: int, size_bytes: int) -> None:
    field, _ = TYPED_FIELDS[tensor.data_type]
    filled = [name for name in _DATA_FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("raw_data"):
        if filled and filled != ["raw_data"]:
            raise InvalidModel(f"{what}: its items are there twice")
        if len(tensor.raw_data) != size_bytes:
            raise InvalidModel(
                f"{what}: expected {size_bytes} bytes for its shape {list(tensor.dims)}, "
                f"got {len(tensor.raw_data)}"
            )
    elif filled not in ([], [field]) or len(getattr(tensor, field)) != items:
        raise InvalidModel(
            f"{what}: expected {items} items in {field} for its shape {list(tensor.dims)}, "
            f"got {len(getattr(tensor, field))}"
        )


_DATA_FIELDS = (
    "raw_data",
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)


def raw_bytes(tensor: Any, what: str) -> bytes:
    """The items of a checked tensor, as they lie in memory."""
    if tensor.HasField("raw_data"):
        data: bytes = tensor.raw_data
    else:
        field, code = TYPED_FIELDS[tensor.data_type]
        try:
            data = array.array(code, getattr(tensor, field)).tobytes()
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidModel(f"{what}: an item is out of its type's range") from error
    if DATATYPES[tensor.data_type] == "BOOL" and data.strip(b"\0\1"):
        raise InvalidModel(f"{what}: a boolean that is neither 0 nor 1")
    return data


class OnnxWeightImage:
    """The table of weights and the layout of their bytes, filled in as the graph is read."""

    def __init__(self, limits: OnnxLimits) -> None:
        self._limits = limits
        self._payloads: list[tuple[int, Any]] = []
        self._end = 0
        self.weights: list[OnnxWeight] = []
        self.parameter_count = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the image, never 0 so that it can be mapped."""
        return max(self._end, WEIGHT_ALIGNMENT_BYTES)

    def add(self, tensor: Any, make: Callable[[], Any]) -> int:
        """Take a tensor into the table; its number. `make` gives an empty TensorProto."""
        what = f"weight {tensor.name[:80]!r}"
        if len(self.weights) >= self._limits.weights_max:
            raise InvalidModel(f"more than {self._limits.weights_max} weights (weights_max)")
        size_bytes = check_tensor(tensor, what, self._limits)
        described = make()
        described.name = tensor.name
        described.data_type = tensor.data_type
        described.dims.extend(tensor.dims)
        offset = None
        if size_bytes <= self._limits.inline_bytes_max:
            described.raw_data = raw_bytes(tensor, what)
        else:
            described.data_location = _EXTERNAL
            entry = described.external_data.add()
            entry.key, entry.value = "location", EXTERNAL_LOCATION
            offset = self._place(tensor, size_bytes)
        shape = tuple(tensor.dims)
        self.parameter_count += math.prod(shape)
        self.weights.append(
            OnnxWeight(
                name=tensor.name,
                tensor=described.SerializeToString(),
                datatype=DATATYPES[tensor.data_type],
                shape=shape,
                offset=offset,
                size_bytes=size_bytes,
            )
        )
        return len(self.weights) - 1

    def _place(self, tensor: Any, size_bytes: int) -> int:
        offset = self._end
        unaligned = offset + size_bytes
        self._end = -(-unaligned // WEIGHT_ALIGNMENT_BYTES) * WEIGHT_ALIGNMENT_BYTES
        if self._end > self._limits.weights_bytes_max:
            raise InvalidModel(
                f"weights of {self._end} bytes and more, the limit (weights_bytes_max) is "
                f"{self._limits.weights_bytes_max}"
            )
        self._payloads.append((offset, tensor))
        return offset

    def write(self, sink: Sink) -> None:
        """Give the image's bytes to `sink`, in order: `size_bytes` of them."""
        written = 0
        for offset, tensor in self._payloads:
            sink(bytes(offset - written))
            data = raw_bytes(tensor, f"weight {tensor.name[:80]!r}")
            sink(data)
            written = offset + len(data)
        sink(bytes(self.size_bytes - written))
