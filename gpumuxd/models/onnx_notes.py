"""What `gpumuxd export --onnx` notes in a model's metadata, and what the reader makes of it.

ONNX has no place for how the size of an output follows from the sizes of inputs, nor for the range
of a dimension, but a daemon that reserves memory before a request runs has to know both. They
travel as one JSON object under the key `gpumuxd`. It must not know graphs; whether the notes fit
one is for `onnx_signature.py` to say.
"""

import msgspec
from msgspec import Struct

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_limits import OnnxLimits
from gpumuxd.models.spec import OPERATORS, Size, Symbol, TensorSpec, evaluate_shape, format_shape

NOTES_KEY = "gpumuxd"
NOTES_VERSION = 1


class Notes(Struct, frozen=True, forbid_unknown_fields=True):
    """The shapes of inputs and outputs by name, the symbols in them, and example inputs.

    `hints` are sizes of symbols at which the model was tried, `fills` values that inputs have to
    hold to make sense (a sampling rate, for one).
    """

    version: int
    inputs: dict[str, tuple[Size, ...]]
    outputs: dict[str, tuple[Size, ...]]
    symbols: tuple[Symbol, ...] = ()
    batch: str | None = None
    hints: dict[str, int] = {}
    fills: dict[str, float] = {}


def decode_notes(data: bytes, limits: OnnxLimits) -> Notes:
    """Checked as far as they go by themselves. Raises InvalidModel."""
    if len(data) > limits.notes_bytes_max:
        raise InvalidModel(f"notes of {len(data)} bytes (notes_bytes_max)")
    try:
        notes = msgspec.json.decode(data, type=Notes)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidModel(f"its notes of gpumuxd export are malformed: {error}") from error
    if notes.version != NOTES_VERSION:
        raise InvalidModel(
            f"notes of gpumuxd export: expected version {NOTES_VERSION}, got {notes.version}"
        )
    if len(notes.symbols) > limits.symbols_max:
        raise InvalidModel(f"{len(notes.symbols)} dynamic dimensions (symbols_max)")
    known = {symbol.name for symbol in notes.symbols}
    for shape in (*notes.inputs.values(), *notes.outputs.values()):
        for size in shape:
            _check_size(size, known, limits)
    return notes


def encode_notes(notes: Notes) -> bytes:
    """As they are written into the file."""
    return msgspec.json.encode(notes)


def _check_size(size: Size, known: set[str], limits: OnnxLimits) -> None:
    if isinstance(size, int):
        return
    if not 1 <= len(size) <= limits.expression_tokens_max:
        raise InvalidModel(f"a size of {len(size)} tokens (expression_tokens_max)")
    for token in size:
        if isinstance(token, str) and token not in known and token not in OPERATORS:
            raise InvalidModel(f"a size names {token[:80]!r}, which is no dynamic dimension")


def check_sizes(tensors: tuple[TensorSpec, ...], symbols: tuple[Symbol, ...]) -> None:
    """Raise InvalidModel unless every shape makes sense at both ends of the symbols' ranges."""
    for end in ("minimum", "maximum"):
        bindings = {symbol.name: getattr(symbol, end) for symbol in symbols}
        for tensor in tensors:
            if any(size < 0 for size in evaluate_shape(tensor.shape, bindings)):
                shape = format_shape(tensor.shape)
                raise InvalidModel(f"tensor {tensor.name!r}: {shape} is negative at {bindings}")
