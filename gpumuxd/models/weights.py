"""Where a model's weights will lie: one aligned image of all storages, and a table into it.

torch stores each distinct storage once, as raw bytes, and describes every weight as a strided view
of one: tied weights share a file. The image keeps that sharing. It must not know the graph.

Invariant: every entry of the table lies inside its own storage.
"""

import re
from dataclasses import dataclass

from gpumuxd.errors import InvalidModel
from gpumuxd.models import schema
from gpumuxd.models.archive import Archive, Sink
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.plan import WEIGHT_ALIGNMENT_BYTES, WeightEntry, span_items
from gpumuxd.models.spec import ITEM_BYTES

_DIRECTORIES = {"weights": "data/weights", "constants": "data/constants"}
_CONFIGS = {
    "weights": "data/weights/model_weights_config.json",
    "constants": "data/constants/model_constants_config.json",
}
_FILE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)

DATATYPES: dict[int, str] = {
    1: "UINT8",
    2: "INT8",
    3: "INT16",
    4: "INT32",
    5: "INT64",
    6: "FP16",
    7: "FP32",
    8: "FP64",
    12: "BOOL",
    13: "BF16",
    28: "UINT16",
    34: "UINT32",
    35: "UINT64",
}
"""torch's serialized ScalarType to the Open Inference Protocol's name."""

OTHER_TYPES: dict[int, str] = {
    9: "complex32",
    10: "complex64 (torch.view_as_real makes floats of it)",
    11: "complex128 (torch.view_as_real makes floats of it)",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
}
"""Those that no datatype of the Open Inference Protocol stands for."""

STRIDED_LAYOUT = 7

_FLOATING = frozenset({"FP16", "BF16", "FP32", "FP64"})
"""What can take a gradient."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One weight: the archive member with its storage, and how it lies in it."""

    member: str
    datatype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    is_trained: bool


class WeightImage:
    """The layout of the weights' bytes, filled in as the graph asks for weights by name."""

    def __init__(self, archive: Archive, limits: ReadLimits) -> None:
        self._archive = archive
        self._limits = limits
        self._payloads = {kind: self._read_config(kind) for kind in _CONFIGS}
        self._storage_offsets: dict[str, int] = {}
        self._size_bytes = 0
        self.entries: list[WeightEntry] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of the image, never 0 so that it can be mapped."""
        return max(self._size_bytes, WEIGHT_ALIGNMENT_BYTES)

    def _read_config(self, kind: str) -> dict[str, schema.PayloadMeta]:
        member = _CONFIGS[kind]
        data = self._archive.read(member, self._limits.config_bytes_max)
        return schema.decode(data, schema.PayloadConfig, member).config

    def add(self, kind: str, name: str) -> int:
        """Reserve room for a weight and return its index. `kind` is weights or constants."""
        if len(self.entries) >= self._limits.weights_max:
            raise InvalidModel(f"more than {self._limits.weights_max} weights (weights_max)")
        payload = self._payload(kind, name)
        offset = self._place(payload.member)
        item_bytes = ITEM_BYTES[payload.datatype]
        end = payload.storage_offset + span_items(payload.shape, payload.strides)
        if end * item_bytes > self._archive.size_bytes(payload.member):
            raise InvalidModel(
                f"weight {name!r}: its shape {list(payload.shape)} needs {end * item_bytes} bytes, "
                f"its file has {self._archive.size_bytes(payload.member)}"
            )
        self.entries.append(
            WeightEntry(
                offset + payload.storage_offset * item_bytes,
                payload.datatype,
                payload.shape,
                payload.strides,
                payload.is_trained,
            )
        )
        return len(self.entries) - 1

    def _payload(self, kind: str, name: str) -> Payload:
        meta = self._payloads[kind].get(name)
        if meta is None:
            raise InvalidModel(f"weight {name!r} is missing from the archive's table of {kind}")
        if meta.use_pickle or meta.tensor_meta is None:
            raise InvalidModel(
                f"weight {name!r} is a pickle, which can carry code: expected raw bytes "
                "(export plain tensors, no subclasses or objects)"
            )
        if not _FILE_NAME.fullmatch(meta.path_name):
            raise InvalidModel(f"weight {name!r}: {meta.path_name!r} is not a file's name")
        tensor = meta.tensor_meta
        datatype = DATATYPES.get(tensor.dtype)
        if datatype is None or tensor.layout != STRIDED_LAYOUT:
            raise InvalidModel(f"weight {name!r}: expected a dense tensor of a plain data type")
        if len(tensor.sizes) > self._limits.rank_max or len(tensor.sizes) != len(tensor.strides):
            raise InvalidModel(f"weight {name!r}: malformed shape")
        return Payload(
            f"{_DIRECTORIES[kind]}/{meta.path_name}",
            datatype,
            tuple(_literal(size, name) for size in tensor.sizes),
            tuple(_literal(stride, name) for stride in tensor.strides),
            _literal(tensor.storage_offset, name),
            tensor.requires_grad and datatype in _FLOATING,
        )

    def _place(self, member: str) -> int:
        if member not in self._storage_offsets:
            self._storage_offsets[member] = self._size_bytes
            size = self._archive.size_bytes(member)
            unaligned = self._size_bytes + size
            self._size_bytes = -(-unaligned // WEIGHT_ALIGNMENT_BYTES) * WEIGHT_ALIGNMENT_BYTES
            if self._size_bytes > self._limits.weights_bytes_max:
                raise InvalidModel(
                    f"weights of {self._size_bytes} bytes and more, the limit "
                    f"(weights_bytes_max) is {self._limits.weights_bytes_max}"
                )
        return self._storage_offsets[member]

    def write(self, sink: Sink) -> None:
        """Give the image's bytes to `sink`, in order: `size_bytes` of them."""
        written = 0

        def counted(piece: bytes) -> None:
            nonlocal written
            written += len(piece)
            sink(piece)

        for member, offset in self._storage_offsets.items():
            counted(bytes(offset - written))
            self._archive.copy(member, counted)
        counted(bytes(self.size_bytes - written))


def _literal(size: schema.SymInt, name: str) -> int:
    kind, value = schema.variant(size, f"size of weight {name!r}")
    if kind != "as_int" or value < 0:
        raise InvalidModel(f"weight {name!r}: expected fixed sizes of 0 or more, got {value}")
    assert isinstance(value, int)
    return value
