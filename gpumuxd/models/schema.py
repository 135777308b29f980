"""The JSON that `torch.export.save` writes, as types: what a torch.export archive holds.

A mirror of torch's `_export/serde/schema.py` with the parts that an inference needs, and no torch.
msgspec checks types while it decodes, so everything past this module has the declared type. What
is missing here on purpose is never read, such as sample inputs (a pickle).

Invariant: decoding runs no code and evaluates no expression; a union (one JSON object with one key)
has exactly one member set, or `variant` refuses it.
"""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gpumuxd.errors import InvalidModel

SCHEMA_MAJOR = 8
"""torch raises it with every breaking change; minor versions only add. torch 2.9 writes 8.14, 2.10
writes 8.15, 2.13 and 2.14 write 8.20; archives of each are among the tests."""

Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Float = float | str
"""torch writes "Infinity", "-Infinity" and "NaN" as strings."""


class TensorArgument(Struct, frozen=True):
    """A tensor by name."""

    name: str


class SymIntArgument(Struct, frozen=True):
    """An integer of a list: a literal or a name."""

    as_name: str | None = None
    as_int: Int64 | None = None


class SymFloatArgument(Struct, frozen=True):
    """A float that depends on sizes."""

    as_name: str | None = None
    as_float: Float | None = None


class SymBoolArgument(Struct, frozen=True):
    """A truth value that depends on sizes."""

    as_name: str | None = None
    as_bool: bool | None = None


class OptionalTensorArgument(Struct, frozen=True):
    """A tensor of a list that may hold None."""

    as_tensor: TensorArgument | None = None
    as_none: bool | None = None


class Device(Struct, frozen=True):
    """Where a tensor was when the model was exported."""

    type: str
    index: int | None = None


class Argument(Struct, frozen=True):
    """An argument or a result: exactly one member is set."""

    as_none: bool | UnsetType = UNSET
    as_tensor: TensorArgument | UnsetType = UNSET
    as_tensors: list[TensorArgument] | UnsetType = UNSET
    as_int: Int64 | UnsetType = UNSET
    as_ints: list[Int64] | UnsetType = UNSET
    as_float: Float | UnsetType = UNSET
    as_floats: list[Float] | UnsetType = UNSET
    as_string: str | UnsetType = UNSET
    as_sym_int: SymIntArgument | UnsetType = UNSET
    as_sym_ints: list[SymIntArgument] | UnsetType = UNSET
    as_sym_float: SymFloatArgument | UnsetType = UNSET
    as_sym_floats: list[SymFloatArgument] | UnsetType = UNSET
    as_scalar_type: int | UnsetType = UNSET
    as_memory_format: int | UnsetType = UNSET
    as_layout: int | UnsetType = UNSET
    as_device: Device | UnsetType = UNSET
    as_bool: bool | UnsetType = UNSET
    as_bools: list[bool] | UnsetType = UNSET
    as_sym_bool: SymBoolArgument | UnsetType = UNSET
    as_optional_tensors: list[OptionalTensorArgument] | UnsetType = UNSET
    as_optional_tensor: OptionalTensorArgument | UnsetType = UNSET
    as_graph: "GraphArgument | UnsetType" = UNSET


class NamedArgument(Struct, frozen=True):
    """An argument of a node; kind 1 is positional, 2 is by keyword."""

    name: str
    arg: Argument
    kind: int | None = None


class Node(Struct, frozen=True):
    """One call."""

    target: str
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    """As it came: `layers.py` reads of it what it can, and nothing depends on that."""


class Hint(Struct, frozen=True):
    """What an expression was worth for the example inputs."""

    as_int: Int64 | None = None


class Expression(Struct, frozen=True):
    """A size that depends on symbols, as text that is parsed and never evaluated."""

    expr_str: str
    hint: Hint | None = None


class SymInt(Struct, frozen=True):
    """A size."""

    as_expr: Expression | UnsetType = UNSET
    as_int: Int64 | UnsetType = UNSET


class TensorMeta(Struct, frozen=True):
    """Type and shape of a tensor."""

    dtype: int
    sizes: list[SymInt]
    strides: list[SymInt]
    storage_offset: SymInt
    layout: int
    device: Device
    requires_grad: bool = False


class Graph(Struct, frozen=True):
    """All calls, in order."""

    inputs: list[Argument]
    outputs: list[Argument]
    nodes: list[Node]
    tensor_values: dict[str, TensorMeta]


class GraphArgument(Struct, frozen=True):
    """A graph inside a node, see `regions.py`."""

    name: str
    graph: Graph


class UserInputSpec(Struct, frozen=True):
    """An input of a request."""

    arg: Argument


class ParameterSpec(Struct, frozen=True):
    """A weight."""

    arg: TensorArgument
    parameter_name: str


class BufferSpec(Struct, frozen=True):
    """A buffer."""

    arg: TensorArgument
    buffer_name: str
    persistent: bool = True


class ConstantSpec(Struct, frozen=True):
    """A tensor that was a literal in the model's code."""

    arg: TensorArgument
    tensor_constant_name: str


class InputSpec(Struct, frozen=True):
    """What a graph input is."""

    user_input: UserInputSpec | UnsetType = UNSET
    parameter: ParameterSpec | UnsetType = UNSET
    buffer: BufferSpec | UnsetType = UNSET
    tensor_constant: ConstantSpec | UnsetType = UNSET
    constant_input: dict[str, Any] | UnsetType = UNSET
    custom_obj: dict[str, Any] | UnsetType = UNSET
    token: dict[str, Any] | UnsetType = UNSET


class UserOutputSpec(Struct, frozen=True):
    """An output of a request."""

    arg: Argument


class OutputSpec(Struct, frozen=True):
    """What a graph output is; everything but the first is refused."""

    user_output: UserOutputSpec | UnsetType = UNSET
    loss_output: dict[str, Any] | UnsetType = UNSET
    buffer_mutation: dict[str, Any] | UnsetType = UNSET
    parameter_mutation: dict[str, Any] | UnsetType = UNSET
    gradient_to_parameter: dict[str, Any] | UnsetType = UNSET
    gradient_to_user_input: dict[str, Any] | UnsetType = UNSET
    user_input_mutation: dict[str, Any] | UnsetType = UNSET
    token: dict[str, Any] | UnsetType = UNSET


class Signature(Struct, frozen=True):
    """The roles of the graph's inputs and outputs, in order."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]


class ModuleCallSignature(Struct, frozen=True):
    """How a module is called: the nesting of arguments and result, as JSON in a string."""

    in_spec: str
    out_spec: str
    forward_arg_names: list[str] | None = None


class ModuleCall(Struct, frozen=True):
    """A module inside the model; that of the empty name is the model itself."""

    fqn: str
    signature: ModuleCallSignature | None = None


class NamedTuple(Struct, frozen=True):
    """The fields of a type of the owner's."""

    field_names: list[str]


class GraphModule(Struct, frozen=True):
    """Graph and signature."""

    graph: Graph
    signature: Signature
    module_call_graph: list[ModuleCall] = []
    treespec_namedtuple_fields: dict[str, NamedTuple] = {}


class RangeConstraint(Struct, frozen=True):
    """The range of a symbol."""

    min_val: int | None = None
    max_val: int | None = None


class SchemaVersion(Struct, frozen=True):
    """Which schema the archive follows."""

    major: int
    minor: int


class ExportedProgram(Struct, frozen=True):
    """The whole of `models/model.json`."""

    graph_module: GraphModule
    range_constraints: dict[str, RangeConstraint]
    schema_version: SchemaVersion
    torch_version: str = "unknown"
    guards_code: list[str] = []


class VersionOnly(Struct, frozen=True):
    """Just the versions, read before the rest is believed to be what we know."""

    schema_version: SchemaVersion
    torch_version: str = "unknown"


class PayloadMeta(Struct, frozen=True):
    """Where the bytes of one weight or constant are."""

    path_name: str
    use_pickle: bool
    tensor_meta: TensorMeta | None = None


class PayloadConfig(Struct, frozen=True):
    """All weights, or all constants, by name."""

    config: dict[str, PayloadMeta]


class Names(Struct, frozen=True, forbid_unknown_fields=True):
    """Our own file in the archive: what torch's schema has no place for.

    `dynamic` names the dynamic dimensions of each input, `{"tokens": {"0": "batch"}}`.
    """

    inputs: list[str]
    outputs: list[str]
    dynamic: dict[str, dict[str, str]] = {}
    batch: str | None = None


T = TypeVar("T", bound=Struct)


def decode(data: bytes, kind: type[T], what: str) -> T:
    """Decode JSON of the archive. `what` names the file in the error."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidModel(f"{what} is not what torch.export writes: {error}") from error


def variant(union: Struct, what: str) -> tuple[str, Any]:
    """Name and value of the one member of a union that is set."""
    members = [
        (name, value)
        for name in union.__struct_fields__
        if (value := getattr(union, name)) is not UNSET
    ]
    if len(members) != 1:
        raise InvalidModel(f"{what}: expected one known kind of value, got {len(members)}")
    return members[0]
