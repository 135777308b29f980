"""What a factory returns to `gpumuxd export`, and what can be told of it before anything is traced.

It must not know how torch.export is called, only its object for a dimension.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models.spec import ModelSpec
from gpumuxd.programs.example_inputs import Examples

BATCH = "batch"
BATCH_MAX = 64

Dynamic = Mapping[str, Mapping[int, str]]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What a factory returns to `gpumuxd export`.

    `example_inputs` by name: names of the arguments of `forward`, in any order, or names of your
    own in its order. A tuple is in its order and takes its names. An argument may be a tensor, a
    tuple, list or dict of them, whose parts are the inputs `feats.image` and `pair.0`, or None, a
    number or a string, which the artifact fixes. `dynamic` says which dimensions
    of which input may vary, and their names: `{"tokens": {0: "batch", 1: "length"}}`; without it,
    dimension 0 of every input is the batch. `sizes` gives each name's smallest and largest size; a
    batch is 1 to `batch_max` unless it is given. `multiples` names the dimensions that must be a
    multiple of something, `{"height": 32}`: torch.export says so when it refuses others.
    """

    module: torch.nn.Module
    example_inputs: Examples
    dynamic: Dynamic | None = None
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    batch_max: int = BATCH_MAX
    output_names: Sequence[str] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)


def dynamic_of(
    request: ExportRequest, inputs: Mapping[str, torch.Tensor]
) -> dict[str, dict[int, str]]:
    dynamic: dict[str, dict[int, str]]
    if request.dynamic is None:
        scalars = [name for name, value in inputs.items() if value.ndim == 0]
        if scalars:
            raise InvalidModel(
                f"{scalars[0]!r} has no dimensions and so no batch: say with `dynamic` "
                "which dimensions of which inputs may vary"
            )
        dynamic = {name: {0: BATCH} for name in inputs}
    else:
        dynamic = {name: dict(dimensions) for name, dimensions in request.dynamic.items()}
    for name, dimensions in dynamic.items():
        if name not in inputs:
            raise InvalidModel(f"`dynamic` names {name!r}, inputs are {list(inputs)}")
        for dimension, symbol in dimensions.items():
            if not 0 <= dimension < inputs[name].ndim:
                raise InvalidModel(f"input {name!r} has no dimension {dimension}")
            _check_example_size(name, symbol, inputs[name].shape[dimension])
    symbols = list(dict.fromkeys(symbol for sizes in dynamic.values() for symbol in sizes.values()))
    for what, named in (("sizes", request.sizes), ("multiples", request.multiples)):
        for symbol in named:
            if symbol not in symbols:
                raise InvalidModel(
                    f"{what} names {symbol!r}, dimensions that vary are {symbols or 'none'}"
                )
    return dynamic


def _check_example_size(name: str, symbol: str, size: int) -> None:
    """torch.export treats 0 and 1 as constants, so an example of that size fixes the dimension."""
    if size < 2:
        raise InvalidModel(
            f"the example of {name!r} has a {symbol} of {size}. torch.export would fix the "
            f"{symbol} at {size}: give an example with a {symbol} of at least 2"
        )


def dim_of(request: ExportRequest, symbol: str) -> Any:
    """torch's object for a dynamic dimension; of a multiple it counts the units."""
    minimum, maximum = range_of(request, symbol)
    if minimum is not None and maximum is not None and not 1 <= minimum < maximum:
        raise InvalidModel(
            f"{symbol!r} of {minimum} to {maximum}: a dimension that varies needs sizes from 1 on, "
            "and at least two; leave it out of `dynamic` to fix it at the example's size"
        )
    multiple = request.multiples.get(symbol, 1)
    if multiple == 1:
        return torch.export.Dim(symbol, min=minimum, max=maximum)
    if multiple < 1 or (minimum or 0) % multiple or (maximum or 0) % multiple:
        raise InvalidModel(
            f"{symbol!r} of {minimum} to {maximum} must be a multiple of {multiple}: "
            "so must both ends"
        )
    units = torch.export.Dim(
        f"{symbol}_units",
        min=minimum and minimum // multiple,
        max=maximum and maximum // multiple,
    )
    return multiple * units


def range_of(request: ExportRequest, symbol: str) -> tuple[int | None, int | None]:
    default = (1, request.batch_max) if symbol == BATCH else (None, None)
    return request.sizes.get(symbol, default)


def without_single_units(request: ExportRequest) -> ExportRequest:
    """The same, without sides that are their multiple itself."""
    sizes = dict(request.sizes)
    for name, multiple in request.multiples.items():
        minimum, maximum = sizes.get(name, (0, 0))
        if minimum == multiple > 1 and maximum > 2 * multiple:
            sizes[name] = 2 * multiple, maximum
    return replace(request, sizes=sizes)


def tell_narrowed(request: ExportRequest, spec: ModelSpec, tell: Tell) -> None:
    for symbol in spec.symbols:
        minimum, maximum = range_of(request, symbol.name)
        served = symbol.minimum, symbol.maximum
        if served != (minimum or symbol.minimum, maximum or symbol.maximum):
            tell(
                f"note: {symbol.name} is served from {served[0]} to {served[1]}, not {minimum} to "
                f"{maximum}: the module's code takes another way for the others"
            )


def request_of(made: Any, batch_max: int | None) -> ExportRequest:
    """What a factory made, as a request; `batch_max` wins over its own."""
    match made:
        case ExportRequest():
            request = made
        case (torch.nn.Module() as module, example_inputs):
            request = ExportRequest(module, example_inputs)
        case _:
            raise InvalidModel(
                "the factory must return an ExportRequest or a tuple (module, example_inputs), "
                f"got {_type_told(made)}"
            )
    if not isinstance(request.module, torch.nn.Module):
        raise InvalidModel(f"the module is {_type_told(request.module)}, no torch.nn.Module")
    if batch_max is None:
        return request
    if request.dynamic is not None and not any(
        BATCH in dimensions.values() for dimensions in request.dynamic.values()
    ):
        raise InvalidModel(f"--batch-max {batch_max}: no dimension is named {BATCH!r}")
    sizes = dict(request.sizes)
    if BATCH in sizes:
        sizes[BATCH] = sizes[BATCH][0], batch_max
    return replace(request, batch_max=batch_max, sizes=sizes)


def _type_told(made: Any) -> str:
    if isinstance(made, tuple):
        return f"a tuple of ({', '.join(type(each).__name__ for each in made)})"
    return f"a {type(made).__name__}"
