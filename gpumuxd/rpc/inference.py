"""The Open Inference Protocol: what each method asks of the node.

It must not know how the node does it, nor anything of gRPC: messages come in, messages go out,
refusals are the classes of `errors.py`.
"""

from gpumuxd import __version__
from gpumuxd.errors import InvalidRequest, Unsupported
from gpumuxd.models.spec import Size, TensorSpec, wire_shape
from gpumuxd.node.api import ModelState, ModelView, NodeApi
from gpumuxd.rpc.call import Caller, Method, for_anyone, for_tenants, raw_for_tenants
from gpumuxd.rpc.codec import encode_infer
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.inferring import infer
from gpumuxd.rpc.raw_request import read_request
from gpumuxd.rpc.server_settings import LogSettingsService, LogSwitches, TraceSettingService
from gpumuxd.rpc.shared_memory import SharedMemoryService
from gpumuxd.rpc.statistics import encode_statistics
from gpumuxd.units import NS_PER_US

SERVICE = "inference.GRPCInferenceService"

EXTENSIONS: tuple[str, ...] = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
)
"""Only what works: clients act on these names."""

BATCH_MAX_ON_WIRE = 2**31 - 1
"""`max_batch_size` is an int32; a model exported without an upper limit has a larger one."""


class InferenceService:
    """The methods of `inference.GRPCInferenceService` that are served."""

    def __init__(self, node: NodeApi, switches: LogSwitches | None = None) -> None:
        """Log settings are served where there are switches to set."""
        self._node = node
        self._others = {
            **TraceSettingService(node).methods(),
            **SharedMemoryService(node.shared_memory).methods(),
        }
        self._extensions = EXTENSIONS
        if node.shared_memory.is_allowed:
            self._extensions = (*self._extensions, "system_shared_memory")
        if switches is not None:
            self._others.update(LogSettingsService(switches).methods())
            self._extensions = (*self._extensions, "logging")

    def methods(self) -> dict[str, Method]:
        """Each method by its name on the wire."""
        return {
            "ServerLive": for_anyone(pb.ServerLiveRequest, self._server_live),
            "ServerReady": for_anyone(pb.ServerReadyRequest, self._server_ready),
            "ModelReady": for_tenants(pb.ModelReadyRequest, self._model_ready),
            "ServerMetadata": for_tenants(pb.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": for_tenants(pb.ModelMetadataRequest, self._model_metadata),
            "ModelInfer": raw_for_tenants(self._model_infer),
            "ModelConfig": for_tenants(pb.ModelConfigRequest, self._model_config),
            "ModelStatistics": for_tenants(pb.ModelStatisticsRequest, self._model_statistics),
            "RepositoryIndex": for_tenants(pb.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": for_tenants(pb.RepositoryModelLoadRequest, self._load),
            "RepositoryModelUnload": for_tenants(pb.RepositoryModelUnloadRequest, self._unload),
            **self._others,
        }

    async def _server_live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._node.is_ready())

    async def _model_ready(
        self, request: pb.ModelReadyRequest, caller: Caller
    ) -> pb.ModelReadyResponse:
        ready = self._node.is_model_ready(caller.tenant, request.name, request.version)
        return pb.ModelReadyResponse(ready=ready)

    async def _server_metadata(
        self, request: pb.ServerMetadataRequest, caller: Caller
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name="gpumuxd", version=__version__, extensions=self._extensions
        )

    async def _model_metadata(
        self, request: pb.ModelMetadataRequest, caller: Caller
    ) -> pb.ModelMetadataResponse:
        view = await self._node.model_view(caller.tenant, request.name, request.version)
        return pb.ModelMetadataResponse(
            name=view.name,
            versions=view.versions,
            platform=view.platform,
            inputs=[_tensor_metadata(tensor) for tensor in view.spec.inputs],
            outputs=[_tensor_metadata(tensor) for tensor in view.spec.outputs],
        )

    async def _model_infer(self, data: bytes, caller: Caller) -> bytes:
        return await infer(self._node, read_request(data), caller, encode_infer)

    async def _model_config(
        self, request: pb.ModelConfigRequest, caller: Caller
    ) -> pb.ModelConfigResponse:
        view = await self._node.model_view(caller.tenant, request.name, request.version)
        return pb.ModelConfigResponse(config=_model_config(view))

    async def _model_statistics(
        self, request: pb.ModelStatisticsRequest, caller: Caller
    ) -> pb.ModelStatisticsResponse:
        return encode_statistics(
            self._node.model_statistics(caller.tenant, request.name, request.version)
        )

    async def _index(
        self, request: pb.RepositoryIndexRequest, caller: Caller
    ) -> pb.RepositoryIndexResponse:
        if request.repository_name:
            raise Unsupported("repository_name is not supported: leave it empty")
        models = [
            pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name,
                version=entry.version,
                state=entry.state.value,
                reason=entry.reason,
            )
            for entry in await self._node.index(caller.tenant)
            if entry.state is ModelState.READY or not request.ready
        ]
        return pb.RepositoryIndexResponse(models=models)

    async def _load(
        self, request: pb.RepositoryModelLoadRequest, caller: Caller
    ) -> pb.RepositoryModelLoadResponse:
        _check_repository_request(request.repository_name, request.model_name)
        if request.parameters:
            # `config` and `file:` would carry an artifact or a policy past the repository.
            raise Unsupported(
                f"load parameter {min(request.parameters)!r} is not supported: models come from "
                "the repository as they are"
            )
        await self._node.load(caller.tenant, request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def _unload(
        self, request: pb.RepositoryModelUnloadRequest, caller: Caller
    ) -> pb.RepositoryModelUnloadResponse:
        _check_repository_request(request.repository_name, request.model_name)
        for key in request.parameters:
            # Stock clients always send this one. No model has dependents, so both values hold.
            if key != "unload_dependents":
                raise Unsupported(f"unload parameter {key!r} is not supported")
        await self._node.unload(caller.tenant, request.model_name)
        return pb.RepositoryModelUnloadResponse()


def _check_repository_request(repository: str, model: str) -> None:
    if not model:
        raise InvalidRequest(
            "model_name (field 2) is empty, repository_name (field 1) is "
            f"{repository!r}: KServe's clients put the model's name at field 1, Triton's and "
            "gpumuxd's at field 2"
        )
    if repository:
        raise Unsupported("repository_name is not supported: leave it empty")


_FILE_NAMES = {"onnxruntime_onnx": "model.onnx"}


def _tensor_metadata(tensor: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype, shape=wire_shape(tensor.shape)
    )


def _model_config(view: ModelView) -> pb.ModelConfig:
    batch_max = min(view.spec.batch_max, BATCH_MAX_ON_WIRE)

    def dims(shape: tuple[Size, ...]) -> list[int]:
        return wire_shape(shape[1:] if batch_max else shape)

    config = pb.ModelConfig(
        name=view.name,
        platform=view.platform,
        backend="gpumuxd",
        default_model_filename=_FILE_NAMES.get(view.platform, "model.pt2"),
        max_batch_size=batch_max,
        input=[
            pb.ModelInput(
                name=tensor.name,
                data_type=f"TYPE_{tensor.datatype}",
                dims=dims(tensor.shape),
            )
            for tensor in view.spec.inputs
        ],
        output=[
            pb.ModelOutput(
                name=tensor.name,
                data_type=f"TYPE_{tensor.datatype}",
                dims=dims(tensor.shape),
            )
            for tensor in view.spec.outputs
        ],
    )
    measured = {
        "group_count": view.group_count,
        "longest_group_ns": view.longest_group_ns,
        "weights_bytes": view.weights_bytes,
    }
    if view.batch_rows_max:
        delay_us = view.batch_delay_ns_max // NS_PER_US
        config.dynamic_batching.max_queue_delay_microseconds = delay_us
        measured["batch_rows_max"] = view.batch_rows_max
    for key, value in measured.items():
        config.parameters[key].string_value = str(value)
    return config
