"""The reader of artifacts: from a `.pt2` archive to a plan and an image of its weights.

Nobody calls `torch.export.load` on a tenant's file: it unpickles, and evaluates shape expressions
and guards as Python. Here the graph's JSON is decoded as data, weights are copied as bytes, every
operator is looked up in an allow-list, and members that could carry code (sample inputs, guards,
pickled constants) are refused or never opened. The rest of this package does the parts; this module
says in which order.

Invariant: either a plan that `plan.check` passes, or InvalidModel that says what was expected and
what came.
"""

from typing import BinaryIO

from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models import schema
from gpumuxd.models.archive import GRAPH_MEMBER, Archive, Sink
from gpumuxd.models.limits import DEFAULT_LIMITS, ReadLimits
from gpumuxd.models.lowering import Lowering
from gpumuxd.models.signature import ScalarOutput, read_signature
from gpumuxd.models.weights import WeightImage

NAMES_FILE = "gpumuxd.json"
NAMES_MEMBER = f"extra/{NAMES_FILE}"


class Artifact:
    """A read and validated artifact: its plan, and its weights ready to be copied once."""

    def __init__(self, file: BinaryIO, limits: ReadLimits = DEFAULT_LIMITS) -> None:
        self._archive = Archive(file, limits)
        program = _read_program(self._archive, limits)
        names = _read_names(self._archive, limits)
        self._weights = WeightImage(self._archive, limits)
        self.plan = _read_plan(program, names, self._weights, limits)
        plans.check(self.plan)

    @property
    def weights_bytes(self) -> int:
        """Size of the image that `write_weights` writes."""
        return self._weights.size_bytes

    def write_weights(self, sink: Sink) -> None:
        """Give the image of all weights to `sink`, in order."""
        self._weights.write(sink)


def _read_program(archive: Archive, limits: ReadLimits) -> schema.ExportedProgram:
    if GRAPH_MEMBER not in archive:
        raise InvalidModel(
            f"{GRAPH_MEMBER!r} is missing: expected one program, saved by torch.export.save"
        )
    data = archive.read(GRAPH_MEMBER, limits.graph_bytes_max)
    versions = schema.decode(data, schema.VersionOnly, GRAPH_MEMBER)
    version = versions.schema_version
    if version.major != schema.SCHEMA_MAJOR:
        raise InvalidModel(
            f"torch.export schema: expected {schema.SCHEMA_MAJOR}.x, "
            f"got {version.major}.{version.minor}, written by torch {versions.torch_version[:40]} "
            "(export it again with the torch of this daemon, or any from 2.9 to 2.14)"
        )
    return schema.decode(data, schema.ExportedProgram, GRAPH_MEMBER)


def _read_names(archive: Archive, limits: ReadLimits) -> schema.Names | None:
    if NAMES_MEMBER not in archive:
        return None
    data = archive.read(NAMES_MEMBER, limits.names_bytes_max)
    return schema.decode(data, schema.Names, NAMES_MEMBER)


def _read_plan(
    program: schema.ExportedProgram,
    names: schema.Names | None,
    weights: WeightImage,
    limits: ReadLimits,
) -> plans.Plan:
    graph = program.graph_module.graph
    lowering = Lowering(limits)
    inputs = _declare_inputs(program.graph_module.signature, lowering, weights)
    for node in graph.nodes:
        lowering.add_node(node)
    outputs, operands = _outputs(program.graph_module.signature, lowering)
    signature = read_signature(program, inputs, outputs, names, limits)
    nodes = lowering.finish(operands)
    if not nodes:
        raise InvalidModel("the model computes nothing: its graph has no nodes")
    return plans.Plan(
        version=plans.PLAN_VERSION,
        spec=signature.spec,
        size_hints=signature.size_hints,
        weights_bytes=weights.size_bytes,
        weights=tuple(weights.entries),
        slot_count=lowering.slot_count,
        nodes=nodes,
        outputs=operands,
        layer_ends=lowering.layer_ends,
    )


def _declare_inputs(
    signature: schema.Signature, lowering: Lowering, weights: WeightImage
) -> list[str]:
    """Tell the lowering what each graph input is; return the names of the user's."""
    user_inputs: list[str] = []

    def declare_weight(name: str, kind: str, weight: str) -> None:
        lowering.add_weight(name, lambda: weights.add(kind, weight))

    for spec in signature.input_specs:
        match schema.variant(spec, "graph input"):
            case "user_input", schema.UserInputSpec(arg=argument):
                user_inputs.append(_tensor_name(argument, "input"))
                lowering.add_input(user_inputs[-1])
            case "parameter", schema.ParameterSpec(arg=argument, parameter_name=weight):
                declare_weight(argument.name, "weights", weight)
            case "buffer", schema.BufferSpec(
                arg=argument, buffer_name=weight, persistent=persistent
            ):
                kind = "weights" if persistent else "constants"
                declare_weight(argument.name, kind, weight)
            case "tensor_constant", schema.ConstantSpec(arg=argument, tensor_constant_name=weight):
                declare_weight(argument.name, "constants", weight)
            case "constant_input", _:
                pass  # A None or literal in the example inputs; the graph has it written in.
            case kind, _:
                raise InvalidModel(f"graph input of kind {kind} is not supported")
    return user_inputs


def _outputs(
    signature: schema.Signature, lowering: Lowering
) -> tuple[list[str | ScalarOutput], tuple[plans.Slot | plans.Weight, ...]]:
    """The user's outputs, by their name in the graph or their type, and where they lie."""
    outputs: list[str | ScalarOutput] = []
    operands: list[plans.Slot | plans.Weight] = []
    for spec in signature.output_specs:
        kind, value = schema.variant(spec, "graph output")
        if kind != "user_output":
            raise InvalidModel(
                f"graph output of kind {kind}: a model must not change its weights, buffers or "
                "inputs (pass state in and out instead)"
            )
        match schema.variant(value.arg, "output"):
            case "as_none", _:
                continue
            case "as_tensor", schema.TensorArgument(name=name):
                outputs.append(name)
                operands.append(lowering.read(name, "the output"))
            case kind, _:
                number = lowering.number(value.arg, "the output")
                if number is None:
                    raise InvalidModel(f"an output must be a tensor or a number, got {kind}")
                outputs.append(ScalarOutput(number[1]))
                operands.append(lowering.add_tensor_of(number[0]))
    return outputs, tuple(operands)


def _tensor_name(argument: schema.Argument, what: str) -> str:
    kind, value = schema.variant(argument, what)
    if kind != "as_tensor":
        raise InvalidModel(f"an {what} must be a tensor, got {kind}")
    assert isinstance(value, schema.TensorArgument)
    return value.name
