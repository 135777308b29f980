"""Is a spec that a loader sent one that requests can be validated against, and does what a device
child says of the model fit it?

Both work on what tenants made and could be turned by it, so their answers are foreign data like
a request is. After `check_spec`, `ModelSpec.bind` and the output shapes evaluate for every binding
of the symbols within their ranges that the probes stand for; it must not know who sent it.
"""

from gpumuxd.errors import InvalidModel
from gpumuxd.models.spec import (
    CONDITION_TOKENS_MAX,
    ITEM_BYTES,
    ModelSpec,
    TensorSpec,
    evaluate_shape,
    format_size,
    symbols_of,
    tensor_bytes,
)
from gpumuxd.wire.frames import ModelLoaded

TENSORS_MAX = 256
RANK_MAX = 16
NAME_CHARS_MAX = 256
TENSOR_BYTES_MAX = 1 << 40


def check_spec(spec: ModelSpec) -> None:
    """Raises InvalidModel saying what is wrong."""
    tensors = (*spec.inputs, *spec.outputs)
    if not spec.outputs or len(tensors) > TENSORS_MAX:
        raise InvalidModel(f"expected 1 to {TENSORS_MAX} inputs and outputs, got {len(tensors)}")
    for side in (spec.inputs, spec.outputs):
        names = [tensor.name for tensor in side]
        if len(set(names)) != len(names):
            raise InvalidModel(f"two tensors of one name among {names}")
    for tensor in tensors:
        _check_tensor(tensor)
    for symbol in spec.symbols:
        ends = (symbol.minimum, symbol.maximum)
        if symbol.multiple < 1 or any(end % symbol.multiple for end in ends):
            raise InvalidModel(f"dimension {symbol.name!r}: ends are no multiples in {symbol!r}")
        if not 0 <= symbol.minimum <= symbol.maximum <= 2**31:
            raise InvalidModel(f"dimension {symbol.name!r}: no range in {symbol!r}")
    names = [symbol.name for symbol in spec.symbols]
    if len(set(names)) != len(names):
        raise InvalidModel(f"two dynamic dimensions of one name among {names}")
    if spec.batch_symbol is not None and spec.batch_symbol not in names:
        raise InvalidModel(f"batch dimension {spec.batch_symbol!r} is not among {names}")
    _check_bound(spec)
    _check_conditions(spec, names)
    for bindings in (
        {symbol.name: symbol.minimum for symbol in spec.symbols},
        {symbol.name: symbol.maximum for symbol in spec.symbols},
    ):
        for tensor in tensors:
            _check_sizes(tensor, bindings)


def why_wrong_loaded(spec: ModelSpec, loaded: ModelLoaded) -> str:
    """What a child can't have measured of a model with this spec; "" if it can."""
    buckets = [*(bucket for bucket, _ in loaded.run_ns), *loaded.left_out]
    if not loaded.run_ns or len(set(buckets)) != len(buckets):
        return "no sizes that were measured, or some of them twice"
    if any(len(bucket) != len(spec.symbols) for bucket in buckets):
        return f"sizes for other than {len(spec.symbols)} dynamic dimensions"
    if loaded.longest_groups and len(loaded.longest_groups) != len(loaded.run_ns):
        return f"groups at {len(loaded.longest_groups)} sizes and runs at {len(loaded.run_ns)}"
    return ""


def _check_tensor(tensor: TensorSpec) -> None:
    if tensor.datatype not in ITEM_BYTES:
        raise InvalidModel(f"tensor {tensor.name!r}: datatype {tensor.datatype!r} is not served")
    if not 0 < len(tensor.name) <= NAME_CHARS_MAX:
        raise InvalidModel(f"a tensor name of {len(tensor.name)} characters")
    if len(tensor.shape) > RANK_MAX:
        raise InvalidModel(f"tensor {tensor.name!r}: over {RANK_MAX} dimensions")


def _check_bound(spec: ModelSpec) -> None:
    """Every symbol must be a size of some input by itself, else no request says its value."""
    direct = {
        size[0]
        for tensor in spec.inputs
        for size in tensor.shape
        if isinstance(size, tuple) and len(size) == 1
    }
    for symbol in spec.symbols:
        if symbol.name not in direct:
            raise InvalidModel(f"no input has dimension {symbol.name!r} by itself")


def _check_conditions(spec: ModelSpec, names: list[str]) -> None:
    """They are evaluated and shown with each request that they refuse."""
    if sum(map(len, spec.conditions)) > CONDITION_TOKENS_MAX:
        raise InvalidModel(f"conditions of over {CONDITION_TOKENS_MAX} terms")
    for condition in spec.conditions:
        format_size(condition)
        symbols = symbols_of(condition)
        if not symbols or not set(symbols) <= set(names):
            raise InvalidModel(f"a condition on {symbols}, dynamic dimensions are {names}")


def _check_sizes(tensor: TensorSpec, bindings: dict[str, int]) -> None:
    shape = evaluate_shape(tensor.shape, bindings)
    if any(size < 0 for size in shape):
        raise InvalidModel(f"tensor {tensor.name!r}: shape {list(shape)} for {bindings}")
    if tensor_bytes(tensor.datatype, shape) > TENSOR_BYTES_MAX:
        raise InvalidModel(f"tensor {tensor.name!r}: over {TENSOR_BYTES_MAX} bytes at {bindings}")
