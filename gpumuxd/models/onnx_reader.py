"""The reader of ONNX artifacts: from a `model.onnx` to a plan and an image of its weights.

The message is decoded by the `onnx` package as plain data; nothing is looked up in other files and
no kernel is run before the graph was checked. The parts of this package check nodes, weights and
the signature; types of values come from ONNX's own inference, run on the checked graph without its
weights. Then, where asked to, the plan's pieces are those of the optimised graph instead
(`onnx_optimiser.py`); the signature stays the artifact's.

Invariant: either a plan that `onnx_plan.check` passes, or InvalidModel that says what was expected
and what came.
"""

from importlib import metadata
from typing import Any, BinaryIO

from msgspec import structs

from gpumuxd.errors import InvalidModel
from gpumuxd.models import onnx_plan
from gpumuxd.models.layers import onnx_layer_ends
from gpumuxd.models.onnx_division import Divisions
from gpumuxd.models.onnx_graph import OnnxGraph
from gpumuxd.models.onnx_limits import DEFAULT_ONNX_LIMITS, OnnxLimits
from gpumuxd.models.onnx_notes import NOTES_KEY, Notes, decode_notes
from gpumuxd.models.onnx_operators import OnnxAllowList
from gpumuxd.models.onnx_optimiser import RUNTIME_DOMAINS, NotOptimised, Optimised
from gpumuxd.models.onnx_plan import OnnxPlan, OnnxValue
from gpumuxd.models.onnx_proto import DATATYPES, check_text, onnx_package
from gpumuxd.models.onnx_signature import GraphTensor, graph_tensor, signature_of
from gpumuxd.models.onnx_tensors import OnnxWeightImage, Sink

OPSET_MIN = 7
"""The oldest that ONNX Runtime promises to run."""

IR_MIN = 3

_OWN_DOMAINS = ("", "ai.onnx")

_ONNX_TYPES = {datatype: number for number, datatype in DATATYPES.items()}


class OnnxArtifact:
    """A read and validated artifact: its plan, and its weights ready to be copied once.

    `why_not_optimised` says why the plan is not of the optimised graph, if that was asked for.
    """

    def __init__(
        self,
        file: BinaryIO,
        limits: OnnxLimits = DEFAULT_ONNX_LIMITS,
        *,
        is_optimised: bool = False,
    ) -> None:
        package = onnx_package()
        model = decode_model(package, file, limits)
        self._weights = OnnxWeightImage(limits)
        self.opset = check_versions(package, model)
        self.inputs, self.outputs, self.plan = _read_plan(
            package, model, self.opset, self._weights, limits
        )
        onnx_plan.check(self.plan)
        self.parameter_count = self._weights.parameter_count
        """Elements of all weights, as the artifact has them."""
        self.why_not_optimised = ""
        if is_optimised:
            self._optimise(package, model, limits)

    def _optimise(self, package: Any, model: Any, limits: OnnxLimits) -> None:
        try:
            made = Optimised(package, model, limits.artifact_bytes_max + limits.graph_bytes_max)
        except NotOptimised as error:
            self.why_not_optimised = str(error)
            return
        weights = OnnxWeightImage(limits)
        try:
            plan = _read_optimised(package, made, self.plan, weights, limits)
            onnx_plan.check(plan)
        except InvalidModel as error:
            # What it was made of has been checked, so it can be served as it is.
            self.why_not_optimised = error.message
        else:
            self.plan, self._weights = plan, weights

    @property
    def weights_bytes(self) -> int:
        """Size of the image that `write_weights` writes."""
        return self._weights.size_bytes

    def write_weights(self, sink: Sink) -> None:
        """Give the image of all weights to `sink`, in order."""
        self._weights.write(sink)


def decode_model(package: Any, file: BinaryIO, limits: OnnxLimits) -> Any:
    """The ModelProto of a file, without fields that nobody knows. Raises InvalidModel."""
    data = file.read(limits.artifact_bytes_max + 1)
    if len(data) > limits.artifact_bytes_max:
        raise InvalidModel(
            f"an artifact over {limits.artifact_bytes_max} bytes (artifact_bytes_max)"
        )
    model = package.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # the type is protobuf's, which is not imported here
        if isinstance(error, MemoryError):
            raise
        raise InvalidModel(f"not an ONNX model: {str(error)[:200]}") from error
    if not model.HasField("graph") or not len(model.graph.node):
        raise InvalidModel(
            f"not an ONNX model: {len(data)} bytes that begin with {data[:5]!r} hold no nodes"
        )
    model.DiscardUnknownFields()
    check_text(model)
    return model


def check_versions(package: Any, model: Any) -> int:
    """The opset. Raises InvalidModel for a format or opset that is not supported here."""
    here = f"onnx {metadata.version('onnx')} of this daemon"
    ir_max = int(package.IR_VERSION)
    if not IR_MIN <= model.ir_version <= ir_max:
        raise InvalidModel(
            f"ONNX format (ir_version): expected {IR_MIN} to {ir_max} ({here}), "
            f"got {model.ir_version}"
        )
    opsets = [entry.version for entry in model.opset_import if entry.domain in _OWN_DOMAINS]
    opset_max = int(package.defs.onnx_opset_version())
    if len(opsets) != 1 or not OPSET_MIN <= opsets[0] <= opset_max:
        raise InvalidModel(
            f"ONNX opset: expected {OPSET_MIN} to {opset_max} ({here}), got {opsets[:8]}"
        )
    for what, count in (
        ("functions", len(model.functions)),
        ("training", len(model.training_info)),
        ("sparse tensors", len(model.graph.sparse_initializer)),
    ):
        if count:
            raise InvalidModel(f"a model with {what} is not supported")
    return int(opsets[0])


def _read_plan(
    package: Any, model: Any, opset: int, weights: OnnxWeightImage, limits: OnnxLimits
) -> tuple[list[GraphTensor], list[GraphTensor], OnnxPlan]:
    source = model.graph
    graph = OnnxGraph(package, weights, limits)
    stored = {tensor.name for tensor in source.initializer}
    for tensor in source.initializer:
        graph.add_weight(tensor)
    # Until format 4 every weight had to be an input too, as a default.
    declared = [info for info in source.input if info.name not in stored]
    _check_count(declared, source.output, limits)
    inputs = [graph_tensor(info, "input", limits) for info in declared]
    for tensor in inputs:
        graph.add_input(tensor.name)
    for node in source.node:
        graph.add_node(node)
    numbers = graph.drop_unused([info.name for info in source.output])
    if not graph.nodes:
        raise InvalidModel("the model computes nothing: no output needs a node")
    _check_graph_bytes(graph, limits)
    infos = _infer(package, model, declared, graph, weights)
    _check_divisions(package, graph, infos, weights)
    outputs = [graph_tensor(infos[info.name], "output", limits) for info in source.output]
    signature = signature_of(inputs, outputs, _notes(model, limits), limits)
    plan = OnnxPlan(
        kind=onnx_plan.KIND,
        version=onnx_plan.PLAN_VERSION,
        spec=signature.spec,
        size_hints=signature.size_hints,
        fills=signature.fills,
        ir_version=model.ir_version,
        opsets=(("", opset),),
        is_optimised=False,
        weights_bytes=weights.size_bytes,
        values=_values(source, graph, infos),
        weights=tuple(weights.weights),
        nodes=tuple(graph.nodes),
        outputs=numbers,
        layer_ends=onnx_layer_ends(node.name for node in graph.kept),
    )
    return inputs, outputs, plan


def _read_optimised(
    package: Any, made: Optimised, source: OnnxPlan, weights: OnnxWeightImage, limits: OnnxLimits
) -> OnnxPlan:
    """The plan of an artifact, with the pieces of its optimised graph.

    Sub-models are told types and no shapes: what the artifact claims of sizes has done its work,
    and one that is wrong would only fail where the graph is cut.
    """
    graph = OnnxGraph(package, weights, limits, _OF_THE_RUNTIME)
    for tensor in made.model.graph.initializer:
        graph.add_weight(tensor)
    for tensor in source.spec.inputs:
        graph.add_input(tensor.name)
    for node in made.model.graph.node:
        graph.add_node(node)
    outputs = graph.drop_unused([tensor.name for tensor in source.spec.outputs])
    if not graph.nodes:
        raise InvalidModel("nothing is left of it")
    _check_graph_bytes(graph, limits)
    values = []
    for name in graph.values:
        info = package.ValueInfoProto(name=name)
        info.type.tensor_type.elem_type = made.types.get(name, 0)
        if not _is_supported(info):
            raise InvalidModel(f"value {name[:80]!r}: its data type is unknown or not supported")
        values.append(OnnxValue(name, info.SerializeToString()))
    return structs.replace(
        source,
        ir_version=made.model.ir_version,
        opsets=made.opsets,
        is_optimised=True,
        weights_bytes=weights.size_bytes,
        values=tuple(values),
        weights=tuple(weights.weights),
        nodes=tuple(graph.nodes),
        outputs=outputs,
        layer_ends=onnx_layer_ends(node.name for node in graph.kept),
    )


_OF_THE_RUNTIME = OnnxAllowList(frozenset(), {}, {}, {}, RUNTIME_DOMAINS, allows_all=True)


def _check_count(inputs: Any, outputs: Any, limits: OnnxLimits) -> None:
    for what, tensors in (("inputs", inputs), ("outputs", outputs)):
        names = [info.name for info in tensors]
        if not 1 <= len(names) <= limits.tensors_max:
            raise InvalidModel(
                f"model with {len(names)} {what}: expected 1 to {limits.tensors_max}"
            )
        if len(set(names)) != len(names):
            raise InvalidModel(f"two {what} have the same name")


def _check_graph_bytes(graph: OnnxGraph, limits: OnnxLimits) -> None:
    size = sum(len(node.node) for node in graph.nodes)
    if size > limits.graph_bytes_max:
        raise InvalidModel(
            f"nodes of {size} bytes, the limit (graph_bytes_max) is {limits.graph_bytes_max}"
        )


def _notes(model: Any, limits: OnnxLimits) -> Notes | None:
    found = [entry.value for entry in model.metadata_props if entry.key == NOTES_KEY]
    if len(found) > 1:
        raise InvalidModel(f"metadata {NOTES_KEY!r} is there {len(found)} times")
    return decode_notes(found[0].encode(), limits) if found else None


def _infer(
    package: Any, model: Any, declared: Any, graph: OnnxGraph, weights: OnnxWeightImage
) -> dict[str, Any]:
    """The ValueInfoProto of every value that a node makes, and of inputs and outputs."""
    bare = package.ModelProto()
    bare.ir_version = max(model.ir_version, 4)  # from which on weights need not be inputs
    bare.opset_import.add(
        domain="",
        version=next(entry.version for entry in model.opset_import if entry.domain in _OWN_DOMAINS),
    )
    bare.graph.name = "graph"
    bare.graph.node.extend(graph.kept)
    bare.graph.input.extend(declared)
    bare.graph.output.extend(package.ValueInfoProto(name=o.name) for o in model.graph.output)
    for weight in weights.weights:
        bare.graph.initializer.add().ParseFromString(weight.tensor)
    try:
        inferred = package.shape_inference.infer_shapes(bare, check_type=True, data_prop=True)
    except MemoryError:
        raise
    except Exception as error:  # of several types, all of the package's own
        raise InvalidModel(f"types that do not fit: {str(error)[:300]}") from error
    infos = {info.name: info for info in inferred.graph.value_info}
    infos.update((info.name, info) for info in declared)
    made = {info.name: info for info in inferred.graph.output}
    for info in model.graph.output:
        found, said = _element_type(made[info.name]), _element_type(info)
        if found != said:
            raise InvalidModel(
                f"output {info.name[:80]!r}: its nodes make ONNX type {found}, "
                f"it is declared as {said}"
            )
        has_shape = info.type.tensor_type.HasField("shape")
        infos[info.name] = info if has_shape else made[info.name]
    return infos


def _check_divisions(
    package: Any, graph: OnnxGraph, infos: dict[str, Any], weights: OnnxWeightImage
) -> None:
    constants = []
    for weight in weights.weights:
        if weight.offset is None:  # others are large, and no divisors
            tensor = package.TensorProto()
            tensor.ParseFromString(weight.tensor)
            constants.append(tensor)
    types = {name: _element_type(info) for name, info in infos.items()}
    types |= {weight.name: _ONNX_TYPES[weight.datatype] for weight in weights.weights}
    Divisions(types).check(constants, graph.kept)


def _values(source: Any, graph: OnnxGraph, infos: dict[str, Any]) -> tuple[OnnxValue, ...]:
    """Types are the inferred ones. Shapes are the artifact's own where it has them: the runtime
    checks what it is told, and fuses what it would fuse in the whole model."""
    declared = {info.name: info for info in source.value_info}
    made = {number for node in graph.nodes for number in node.writes}
    values = []
    for name, number in graph.values.items():
        info = infos.get(name)
        if info is None or not _is_supported(info):
            if number in made:
                raise InvalidModel(
                    f"value {name[:80]!r}: its data type is unknown or not supported"
                )
            values.append(OnnxValue(name, b""))  # of a node that was dropped
            continue
        claim = declared.get(name)
        is_declared = claim is not None and _element_type(claim) == _element_type(info)
        values.append(OnnxValue(name, _plain(claim if is_declared else info), is_declared))
    return tuple(values)


def _is_supported(info: Any) -> bool:
    return _element_type(info) in DATATYPES


def _element_type(info: Any) -> int:
    is_tensor = info.type.WhichOneof("value") == "tensor_type"
    return int(info.type.tensor_type.elem_type) if is_tensor else 0


def _plain(info: Any) -> bytes:
    """A value's type and shape, without remarks. A negative size means that it is not known."""
    info.ClearField("doc_string")
    info.ClearField("metadata_props")
    for dimension in info.type.tensor_type.shape.dim:
        dimension.ClearField("denotation")
        if dimension.dim_value < 0:
            dimension.Clear()
    data: bytes = info.SerializeToString()
    return data
