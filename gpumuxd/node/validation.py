"""A call against the spec of its model: what is wrong with it, or what exactly will run.

Pure but for what a checker remembers. It must not know devices, memory or tenants. What it returns
is sure: every input is there once, in the order of the spec, with bytes that match its shape; every
output has its size. Each message names the input, what was expected and what came, and is short
whatever came.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.errors import InvalidModel, InvalidRequest, PermissionDenied, limit_facts
from gpumuxd.models.batching_policy import BatchingPolicy
from gpumuxd.models.sequence_policy import SequencePolicy
from gpumuxd.models.spec import (
    ModelSpec,
    TensorSpec,
    evaluate_shape,
    format_shape,
    tensor_bytes,
)
from gpumuxd.node.api import InferCall, InputTensor, RegionRef, Tenant
from gpumuxd.node.spec_check import TENSOR_BYTES_MAX
from gpumuxd.wire.frames import StateTensor

TEXT_SHOWN_MAX = 80
"""Characters of a foreign text that a message repeats. A gRPC status travels in the trailers,
where clients accept 8 KiB in all."""

DIMENSION_MAX = 2**63 - 1


FITS_KEPT_MAX = 64
"""Forms of calls that a checker remembers. Clients of one model send a few, over and over."""


@dataclass(frozen=True, slots=True)
class CheckedTensor:
    """One tensor of a request that fits: its shape and size, with the spec it fits."""

    spec: TensorSpec
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What follows from the form of a call, which is all of it but the bytes of its tensors.

    `places` tells where in the call each input of the spec is. `wanted` are positions in
    `outputs`, in the order asked for. `states` are what the sequence of a step keeps: these are
    not among the inputs, nor among the outputs unless they are wanted. Calls with an equal
    `batch_key` can share a run; None: it runs alone.
    """

    bucket: Bucket
    rows: int
    inputs: tuple[CheckedTensor, ...]
    outputs: tuple[CheckedTensor, ...]
    places: tuple[int, ...]
    wanted: tuple[int, ...]
    input_bytes: int
    output_bytes: int
    states: tuple[StateTensor, ...] = ()
    batch_key: Bucket | None = None


class CheckedCall(NamedTuple):
    """A call that can run: its form, and the bytes of its inputs in the order of the spec, or where
    in shared memory they lie."""

    fit: Fit
    data: tuple[bytes | memoryview | RegionRef, ...]


class CallChecker:
    """Validates the calls of one model. `rows_max` is the manifest's limit, if it has one.

    Forms that were good are remembered: finding out takes 50 us, which every request would add to
    its preemption delay, and looking it up takes 2 us.
    """

    def __init__(
        self,
        spec: ModelSpec,
        rows_max: int | None = None,
        sequence: SequencePolicy | None = None,
        batching: BatchingPolicy | None = None,
    ) -> None:
        self._spec = spec
        self._joining = None if batching is None else _Joining(spec, rows_max, batching)
        self._sequence = sequence
        self._rows_max = rows_max
        self._fits: dict[object, Fit] = {}

    def check(self, call: InferCall) -> CheckedCall:
        """Raises InvalidRequest, or InvalidModel for a spec that makes no sense of these sizes."""
        form = (
            tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in call.inputs]),
            tuple(call.outputs_wanted),
            call.sequence is not None,
        )
        fit = self._fits.get(form)
        if fit is None:
            if call.sequence is None:
                fit = _fit(self._spec, call, self._rows_max)
                if self._joining is not None:
                    fit = replace(fit, batch_key=self._joining.key(fit))
            else:
                fit = _fit_step(self._spec, self._sequence, call, self._rows_max)
            if len(self._fits) >= FITS_KEPT_MAX:
                self._fits.clear()
            self._fits[form] = fit
        if call.output_regions:
            _check_output_regions(fit, call.output_regions)
        data = []
        for tensor, place in zip(fit.inputs, fit.places, strict=True):
            data.append(_checked_bytes(tensor, call.inputs[place]))
        return CheckedCall(fit, tuple(data))


class _Joining:
    """Which calls of a model can share a run: those that agree in all sizes but the number of rows
    and what may be padded."""

    def __init__(self, spec: ModelSpec, rows_max: int | None, policy: BatchingPolicy) -> None:
        self._spec = spec
        self._rows_max = policy.batching(spec, rows_max).sizes[-1]
        ignored = (spec.batch_symbol, *policy.padded)
        self._symbols = [each.name for each in spec.symbols if each.name not in ignored]

    def key(self, fit: Fit) -> Bucket | None:
        """None where nobody could join it."""
        if not 0 < fit.rows < self._rows_max:
            return None
        sizes = self._spec.bind({tensor.spec.name: tensor.shape for tensor in fit.inputs})
        return tuple(sizes[symbol] for symbol in self._symbols)


def _fit(spec: ModelSpec, call: InferCall, rows_max: int | None) -> Fit:
    """Check the form of a call. Raises InvalidRequest."""
    given = _by_name(spec, call.inputs)
    for tensor in spec.inputs:
        _check_tensor(tensor, given[tensor.name])
    bindings = spec.bind({name: value.shape for name, value in given.items()})
    rows = spec.rows(bindings)
    if rows_max is not None and rows > rows_max:
        raise InvalidRequest(
            f"expected at most {rows_max} rows in a request, got {rows}",
            limit_facts("batch_max", rows_max, "rows", asked=rows),
        )
    inputs = tuple(_sized(tensor, tuple(given[tensor.name].shape)) for tensor in spec.inputs)
    outputs = tuple(_output(tensor, bindings) for tensor in spec.outputs)
    names = [tensor.name for tensor in call.inputs]
    return Fit(
        bucket=spec.bucket(bindings),
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        places=tuple(names.index(tensor.name) for tensor in spec.inputs),
        wanted=_wanted(spec, call.outputs_wanted),
        input_bytes=sum(tensor.size_bytes for tensor in inputs),
        output_bytes=sum(tensor.size_bytes for tensor in outputs),
    )


def _fit_step(
    spec: ModelSpec, policy: SequencePolicy | None, call: InferCall, rows_max: int | None
) -> Fit:
    """The same of a step of a sequence, against what of the spec is not kept."""
    if policy is None:
        raise InvalidRequest(
            f"model {call.model!r} keeps nothing between requests: its model.toml has no [sequence]"
        )
    for tensor in call.inputs:
        if tensor.name in policy.inputs:
            raise InvalidRequest(f"input {tensor.name!r} is kept by the sequence; leave it out")
    told = set(policy.outputs).intersection(call.outputs_wanted)
    untold = set(policy.outputs) - told
    step = msgspec.structs.replace(
        spec,
        inputs=tuple(each for each in spec.inputs if each.name not in policy.inputs),
        outputs=tuple(each for each in spec.outputs if each.name not in untold),
    )
    fit = _fit(step, call, rows_max)
    bindings = step.bind({tensor.name: tensor.shape for tensor in call.inputs})
    inputs = {tensor.name: place for place, tensor in enumerate(spec.inputs)}
    outputs = {tensor.name: place for place, tensor in enumerate(spec.outputs)}
    states = []
    for pair in policy.state:
        place = inputs[pair.input]
        kept = _sized(spec.inputs[place], evaluate_shape(spec.inputs[place].shape, bindings))
        states.append(
            StateTensor(
                place, outputs[pair.output], kept.spec.datatype, kept.shape, pair.output in told
            )
        )
    return replace(fit, states=tuple(states))


def check_priority(tenant: Tenant, priority: int, model_max: PriorityClass) -> PriorityClass:
    """The class a wire priority asks for. Raises InvalidRequest or PermissionDenied.

    `model_max` is the highest class that the model was loaded for: the bound on preemption is
    derived from it, so nothing above may be submitted.
    """
    if priority < 0:
        raise InvalidRequest(
            f"expected a priority of 0 (the tenant's default), 1 (most urgent) or more, "
            f"got {elide(priority)}"
        )
    if priority == 0:
        return min(PriorityClass.from_wire(tenant.priority_default), model_max)
    asked = PriorityClass.from_wire(priority)
    ceiling = min(tenant.priority_max, model_max)
    if asked > ceiling:
        raise PermissionDenied(
            f"priority {priority} ({asked.name}) is above what tenant {tenant.name!r} may ask for "
            f"with this model: {ceiling.name}",
            {"limit": "priority_max", "limit_max": ceiling.name, "asked": asked.name},
        )
    return asked


def elide(value: object) -> str:
    """A foreign value as a message may show it: quoted, and never long."""
    text = repr(value)
    if len(text) <= TEXT_SHOWN_MAX:
        return text
    return f"{text[: TEXT_SHOWN_MAX // 2]}... ({len(text)} characters)"


def _by_name(spec: ModelSpec, inputs: Sequence[InputTensor]) -> dict[str, InputTensor]:
    expected = [tensor.name for tensor in spec.inputs]
    given: dict[str, InputTensor] = {}
    for tensor in inputs:
        if tensor.name not in expected:
            raise InvalidRequest(f"unknown input {elide(tensor.name)}; expected inputs {expected}")
        if tensor.name in given:
            raise InvalidRequest(f"input {tensor.name!r} came twice; expected inputs {expected}")
        given[tensor.name] = tensor
    missing = [name for name in expected if name not in given]
    if missing:
        raise InvalidRequest(f"missing input {missing}; expected inputs {expected}")
    return given


def _check_tensor(expected: TensorSpec, given: InputTensor) -> None:
    """What can be said before the sizes of the model's symbols are known."""
    label = f"input {expected.name!r}"
    if given.datatype != expected.datatype:
        raise InvalidRequest(
            f"{label}: expected datatype {expected.datatype}, got {elide(given.datatype)}"
        )
    if len(given.shape) != len(expected.shape):
        raise InvalidRequest(
            f"{label}: expected {len(expected.shape)} dimensions {format_shape(expected.shape)}, "
            f"got {len(given.shape)}: {elide(list(given.shape))}"
        )
    for size in given.shape:
        if not 0 <= size <= DIMENSION_MAX:
            raise InvalidRequest(
                f"{label}: expected sizes of 0 or more in {format_shape(expected.shape)}, "
                f"got {elide(size)}"
            )


def _output(tensor: TensorSpec, bindings: Mapping[str, int]) -> CheckedTensor:
    """What a declared output is for these sizes. `spec_check.py` looked at the ends of their
    ranges alone, and between them a foreign expression may give anything."""
    shape = evaluate_shape(tensor.shape, bindings)
    if any(size < 0 for size in shape):
        raise InvalidModel(
            f"output {tensor.name!r}: the model declares {elide(list(shape))} "
            f"for sizes {elide(dict(bindings))}"
        )
    return _sized(tensor, shape)


def _sized(tensor: TensorSpec, shape: tuple[int, ...]) -> CheckedTensor:
    # As if no size were 0: the strides of an empty tensor have to be numbers too.
    extent = math.prod([size or 1 for size in shape])
    if extent > TENSOR_BYTES_MAX:
        raise InvalidRequest(
            f"tensor {tensor.name!r}: shape {elide(list(shape))} is over {TENSOR_BYTES_MAX} bytes"
        )
    return CheckedTensor(tensor, shape, tensor_bytes(tensor.datatype, shape))


def _checked_bytes(expected: CheckedTensor, given: InputTensor) -> bytes | memoryview | RegionRef:
    """The bytes of an input whose shape fits; those in shared memory are looked at when they have
    been read."""
    if given.size_bytes != expected.size_bytes:
        raise InvalidRequest(
            f"input {expected.spec.name!r}: expected {expected.size_bytes} bytes for "
            f"{expected.spec.datatype} {list(expected.shape)}, got {given.size_bytes}"
        )
    if given.region is not None:
        return given.region
    if expected.spec.datatype == "BOOL":
        check_bools(f"input {expected.spec.name!r}", given.data)
    return given.data


def check_bools(label: str, data: bytes | memoryview) -> None:
    """Raises InvalidRequest for any byte but 0 and 1: a bool tensor over it is undefined behaviour
    in the kernels that read it."""
    if bytes(data).translate(None, b"\x00\x01"):
        raise InvalidRequest(f"{label}: expected BOOL bytes of 0 or 1")


def _check_output_regions(fit: Fit, regions: Mapping[str, RegionRef]) -> None:
    """Each is for an output that is wanted, and has room for it."""
    wanted = {fit.outputs[place].spec.name: fit.outputs[place] for place in fit.wanted}
    for name, region in regions.items():
        if name not in wanted:
            raise InvalidRequest(
                f"output {elide(name)} is to go to shared memory and is not asked for; "
                f"asked for are {list(wanted)}"
            )
        if wanted[name].size_bytes > region.size_bytes:
            raise InvalidRequest(
                f"output {name!r}: its {wanted[name].spec.datatype} {list(wanted[name].shape)} "
                f"takes {wanted[name].size_bytes} bytes, there is room for {region.size_bytes} in "
                f"region {elide(region.region)}"
            )


def _wanted(spec: ModelSpec, names: Sequence[str]) -> tuple[int, ...]:
    available = [tensor.name for tensor in spec.outputs]
    if not names:
        return tuple(range(len(available)))
    for name in names:
        if name not in available:
            raise InvalidRequest(f"unknown output {elide(name)}; the model has {available}")
    return tuple(available.index(name) for name in dict.fromkeys(names))
