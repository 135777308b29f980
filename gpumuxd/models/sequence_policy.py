"""What a model keeps between the steps of a sequence: the table `[sequence]` of a manifest.

    [sequence]
    state = [{ input = "state", output = "next_state" }]
    idle_s_max = 60

Each pair names an input that a step does not send and the output that is the next step's input. It
must not know requests: whether the names and shapes fit is asked of a spec when one is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpumuxd.errors import InvalidManifest
from gpumuxd.models.spec import ModelSpec, TensorSpec, format_shape
from gpumuxd.units import NS_PER_S

IDLE_S_DEFAULT = 60
IDLE_S_MAX = 24 * 3600
PAIRS_MAX = 64

KEYS = ("state", "idle_s_max")

EXPECTED = (
    'a table like { state = [{ input = "state", output = "next_state" }], idle_s_max = 60 }, with '
    f"1 to {PAIRS_MAX} pairs of different names and at most {IDLE_S_MAX} s"
)


@dataclass(frozen=True, slots=True)
class StatePair:
    """What a step reads, and what it leaves for the next one."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class SequencePolicy:
    """`idle_s_max`: a sequence without a step for so long is given up."""

    state: tuple[StatePair, ...]
    idle_s_max: float = IDLE_S_DEFAULT

    @property
    def idle_ns_max(self) -> int:
        return round(self.idle_s_max * NS_PER_S)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(pair.input for pair in self.state)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(pair.output for pair in self.state)

    def check(self, spec: ModelSpec) -> None:
        """Can a model of this signature keep this? Raises InvalidManifest."""
        inputs = {tensor.name: tensor for tensor in spec.inputs}
        outputs = {tensor.name: tensor for tensor in spec.outputs}
        for pair in self.state:
            read = _named(inputs, "input", pair.input)
            written = _named(outputs, "output", pair.output)
            if (read.datatype, read.shape) != (written.datatype, written.shape):
                raise InvalidManifest(
                    f"sequence.state: expected input and output of one type and shape, got "
                    f"{read.name!r} {_form(read)} and {written.name!r} {_form(written)}"
                )
        sent = {size for name, t in inputs.items() if name not in self.inputs for size in t.shape}
        for symbol in spec.symbols:
            if (symbol.name,) not in sent:
                raise InvalidManifest(
                    f"sequence.state: no input that a step sends has dimension {symbol.name!r}"
                )


def parse_sequence(value: object) -> SequencePolicy | None:
    """A policy as TOML states it; None for anything else (`EXPECTED` says what there is)."""
    match value:
        case {"state": [_, *_] as pairs, **others} if len(pairs) <= PAIRS_MAX:
            pass
        case _:
            return None
    match others:
        case {} if not others:
            idle_s: float = IDLE_S_DEFAULT
        case {"idle_s_max": int() | float() as idle_s, **rest} if not rest:
            pass
        case _:
            return None
    if isinstance(idle_s, bool) or not 0 < idle_s <= IDLE_S_MAX:  # also refuses nan
        return None
    state = []
    for pair in pairs:
        match pair:
            case {"input": str(read), "output": str(written), **rest} if not rest:
                state.append(StatePair(read, written))
            case _:
                return None
    policy = SequencePolicy(tuple(state), idle_s)
    for names in (policy.inputs, policy.outputs):
        if len(set(names)) < len(names):
            return None
    return policy


def _named(tensors: Mapping[str, TensorSpec], kind: str, name: str) -> TensorSpec:
    if name not in tensors:
        raise InvalidManifest(
            f"sequence.state: the model has no {kind} {name[:80]!r}, it has {list(tensors)}"
        )
    return tensors[name]


def _form(tensor: TensorSpec) -> str:
    return f"{tensor.datatype} {format_shape(tensor.shape)}"
