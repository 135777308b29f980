from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UnloadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[UnloadedReplica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[UnloadedReplica, _Mapping]]] = ...) -> None: ...

class UnloadedReplica(_message.Message):
    __slots__ = ("version", "device", "weights_bytes", "resident_bytes_before", "resident_bytes_after")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    version: str
    device: str
    weights_bytes: int
    resident_bytes_before: int
    resident_bytes_after: int
    def __init__(self, version: _Optional[str] = ..., device: _Optional[str] = ..., weights_bytes: _Optional[int] = ..., resident_bytes_before: _Optional[int] = ..., resident_bytes_after: _Optional[int] = ...) -> None: ...

class NodeStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("name", "state", "description", "pid", "restarts", "requests_in_flight", "queued", "preemptions", "bound_ns", "window", "memory_bytes", "device_busy_ns", "best_effort_grants", "best_effort_granted_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    BOUND_NS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    BEST_EFFORT_GRANTS_FIELD_NUMBER: _ClassVar[int]
    BEST_EFFORT_GRANTED_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    description: str
    pid: int
    restarts: int
    requests_in_flight: int
    queued: int
    preemptions: int
    bound_ns: int
    window: int
    memory_bytes: int
    device_busy_ns: int
    best_effort_grants: int
    best_effort_granted_ns: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., description: _Optional[str] = ..., pid: _Optional[int] = ..., restarts: _Optional[int] = ..., requests_in_flight: _Optional[int] = ..., queued: _Optional[int] = ..., preemptions: _Optional[int] = ..., bound_ns: _Optional[int] = ..., window: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., device_busy_ns: _Optional[int] = ..., best_effort_grants: _Optional[int] = ..., best_effort_granted_ns: _Optional[int] = ...) -> None: ...

class NodeStatusResponse(_message.Message):
    __slots__ = ("version", "ready", "uptime_ns", "devices", "reason")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: str
    ready: bool
    uptime_ns: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    reason: str
    def __init__(self, version: _Optional[str] = ..., ready: _Optional[bool] = ..., uptime_ns: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class ModelDetailRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ModelDetailResponse(_message.Message):
    __slots__ = ("name", "versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    versions: _containers.RepeatedCompositeFieldContainer[VersionDetail]
    def __init__(self, name: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[VersionDetail, _Mapping]]] = ...) -> None: ...

class VersionDetail(_message.Message):
    __slots__ = ("version", "state", "reason", "policy", "loaded")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: str
    reason: str
    policy: PolicyDetail
    loaded: LoadedDetail
    def __init__(self, version: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., policy: _Optional[_Union[PolicyDetail, _Mapping]] = ..., loaded: _Optional[_Union[LoadedDetail, _Mapping]] = ...) -> None: ...

class PolicyDetail(_message.Message):
    __slots__ = ("for_everyone", "tenants", "class_max", "slo_ns", "device", "batch_max", "versions", "replicas")
    FOR_EVERYONE_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    CLASS_MAX_FIELD_NUMBER: _ClassVar[int]
    SLO_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BATCH_MAX_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    for_everyone: bool
    tenants: _containers.RepeatedScalarFieldContainer[str]
    class_max: str
    slo_ns: int
    device: str
    batch_max: int
    versions: str
    replicas: str
    def __init__(self, for_everyone: _Optional[bool] = ..., tenants: _Optional[_Iterable[str]] = ..., class_max: _Optional[str] = ..., slo_ns: _Optional[int] = ..., device: _Optional[str] = ..., batch_max: _Optional[int] = ..., versions: _Optional[str] = ..., replicas: _Optional[str] = ...) -> None: ...

class LoadedDetail(_message.Message):
    __slots__ = ("platform", "device", "artifact_hash", "inputs", "outputs", "dimensions", "batch_max", "parameter_count", "weights_bytes", "frame_bytes", "group_count", "buckets", "bound", "preemptible", "verdict", "advice", "notes", "replicas")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_HASH_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_MAX_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    platform: str
    device: str
    artifact_hash: str
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDetail]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDetail]
    dimensions: _containers.RepeatedCompositeFieldContainer[DimensionDetail]
    batch_max: int
    parameter_count: int
    weights_bytes: int
    frame_bytes: int
    group_count: int
    buckets: _containers.RepeatedCompositeFieldContainer[BucketDetail]
    bound: BoundDetail
    preemptible: bool
    verdict: str
    advice: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    replicas: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, platform: _Optional[str] = ..., device: _Optional[str] = ..., artifact_hash: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorDetail, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorDetail, _Mapping]]] = ..., dimensions: _Optional[_Iterable[_Union[DimensionDetail, _Mapping]]] = ..., batch_max: _Optional[int] = ..., parameter_count: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., frame_bytes: _Optional[int] = ..., group_count: _Optional[int] = ..., buckets: _Optional[_Iterable[_Union[BucketDetail, _Mapping]]] = ..., bound: _Optional[_Union[BoundDetail, _Mapping]] = ..., preemptible: _Optional[bool] = ..., verdict: _Optional[str] = ..., advice: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., replicas: _Optional[_Iterable[str]] = ...) -> None: ...

class TensorDetail(_message.Message):
    __slots__ = ("name", "datatype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[str]] = ...) -> None: ...

class DimensionDetail(_message.Message):
    __slots__ = ("name", "minimum", "maximum", "multiple", "is_batch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    MULTIPLE_FIELD_NUMBER: _ClassVar[int]
    IS_BATCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    minimum: int
    maximum: int
    multiple: int
    is_batch: bool
    def __init__(self, name: _Optional[str] = ..., minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., multiple: _Optional[int] = ..., is_batch: _Optional[bool] = ...) -> None: ...

class BucketDetail(_message.Message):
    __slots__ = ("sizes", "run_ns", "longest", "beyond_count", "has_more_beyond", "is_allowed")
    SIZES_FIELD_NUMBER: _ClassVar[int]
    RUN_NS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    BEYOND_COUNT_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_BEYOND_FIELD_NUMBER: _ClassVar[int]
    IS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    run_ns: int
    longest: GroupDetail
    beyond_count: int
    has_more_beyond: bool
    is_allowed: bool
    def __init__(self, sizes: _Optional[_Iterable[int]] = ..., run_ns: _Optional[int] = ..., longest: _Optional[_Union[GroupDetail, _Mapping]] = ..., beyond_count: _Optional[int] = ..., has_more_beyond: _Optional[bool] = ..., is_allowed: _Optional[bool] = ...) -> None: ...

class GroupDetail(_message.Message):
    __slots__ = ("group", "device_ns", "first_node", "end_node")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_NODE_FIELD_NUMBER: _ClassVar[int]
    END_NODE_FIELD_NUMBER: _ClassVar[int]
    group: int
    device_ns: int
    first_node: int
    end_node: int
    def __init__(self, group: _Optional[int] = ..., device_ns: _Optional[int] = ..., first_node: _Optional[int] = ..., end_node: _Optional[int] = ...) -> None: ...

class BoundDetail(_message.Message):
    __slots__ = ("bound_ns", "origin", "model")
    BOUND_NS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    bound_ns: int
    origin: str
    model: str
    def __init__(self, bound_ns: _Optional[int] = ..., origin: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class ExplainModelRequest(_message.Message):
    __slots__ = ("name", "version", "sizes")
    class SizesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    sizes: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., sizes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ExplainModelResponse(_message.Message):
    __slots__ = ("name", "version", "device", "sizes", "inputs", "priority_class", "mode", "reason", "bound", "group_count", "group_ns", "run_ns", "slice_count", "slices", "window", "slice_ns", "floor", "is_floor_over_bound", "exec_ns", "preempt_ns", "preempt_expected_ns", "is_guess", "is_cost_doubtful")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUP_NS_FIELD_NUMBER: _ClassVar[int]
    RUN_NS_FIELD_NUMBER: _ClassVar[int]
    SLICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SLICE_NS_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    IS_FLOOR_OVER_BOUND_FIELD_NUMBER: _ClassVar[int]
    EXEC_NS_FIELD_NUMBER: _ClassVar[int]
    PREEMPT_NS_FIELD_NUMBER: _ClassVar[int]
    PREEMPT_EXPECTED_NS_FIELD_NUMBER: _ClassVar[int]
    IS_GUESS_FIELD_NUMBER: _ClassVar[int]
    IS_COST_DOUBTFUL_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    device: str
    sizes: _containers.RepeatedCompositeFieldContainer[SizeDetail]
    inputs: _containers.RepeatedCompositeFieldContainer[SizedTensor]
    priority_class: str
    mode: str
    reason: str
    bound: BoundDetail
    group_count: int
    group_ns: _containers.RepeatedScalarFieldContainer[int]
    run_ns: int
    slice_count: int
    slices: _containers.RepeatedCompositeFieldContainer[SliceDetail]
    window: int
    slice_ns: int
    floor: GroupDetail
    is_floor_over_bound: bool
    exec_ns: int
    preempt_ns: int
    preempt_expected_ns: int
    is_guess: bool
    is_cost_doubtful: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., device: _Optional[str] = ..., sizes: _Optional[_Iterable[_Union[SizeDetail, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[SizedTensor, _Mapping]]] = ..., priority_class: _Optional[str] = ..., mode: _Optional[str] = ..., reason: _Optional[str] = ..., bound: _Optional[_Union[BoundDetail, _Mapping]] = ..., group_count: _Optional[int] = ..., group_ns: _Optional[_Iterable[int]] = ..., run_ns: _Optional[int] = ..., slice_count: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[SliceDetail, _Mapping]]] = ..., window: _Optional[int] = ..., slice_ns: _Optional[int] = ..., floor: _Optional[_Union[GroupDetail, _Mapping]] = ..., is_floor_over_bound: _Optional[bool] = ..., exec_ns: _Optional[int] = ..., preempt_ns: _Optional[int] = ..., preempt_expected_ns: _Optional[int] = ..., is_guess: _Optional[bool] = ..., is_cost_doubtful: _Optional[bool] = ...) -> None: ...

class SizeDetail(_message.Message):
    __slots__ = ("name", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class SizedTensor(_message.Message):
    __slots__ = ("name", "datatype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class SliceDetail(_message.Message):
    __slots__ = ("first_group", "end_group", "predicted_ns")
    FIRST_GROUP_FIELD_NUMBER: _ClassVar[int]
    END_GROUP_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_NS_FIELD_NUMBER: _ClassVar[int]
    first_group: int
    end_group: int
    predicted_ns: int
    def __init__(self, first_group: _Optional[int] = ..., end_group: _Optional[int] = ..., predicted_ns: _Optional[int] = ...) -> None: ...

class RecordRequest(_message.Message):
    __slots__ = ("device", "duration_ns", "bytes_max")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    device: str
    duration_ns: int
    bytes_max: int
    def __init__(self, device: _Optional[str] = ..., duration_ns: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class RecordResponse(_message.Message):
    __slots__ = ("data", "end")
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    end: RecordingEnd
    def __init__(self, data: _Optional[bytes] = ..., end: _Optional[_Union[RecordingEnd, _Mapping]] = ...) -> None: ...

class RecordingEnd(_message.Message):
    __slots__ = ("reason", "records", "commands", "is_whole")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    records: int
    commands: int
    is_whole: bool
    def __init__(self, reason: _Optional[str] = ..., records: _Optional[int] = ..., commands: _Optional[int] = ..., is_whole: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: str
    def __init__(self, device: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[DrainedModel]
    def __init__(self, models: _Optional[_Iterable[_Union[DrainedModel, _Mapping]]] = ...) -> None: ...

class DrainedModel(_message.Message):
    __slots__ = ("name", "version", "fate", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    fate: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., fate: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class MemoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemoryResponse(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceMemory]
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceMemory, _Mapping]]] = ...) -> None: ...

class DeviceMemory(_message.Message):
    __slots__ = ("name", "models", "tenants", "totals")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    name: str
    models: _containers.RepeatedCompositeFieldContainer[ModelMemory]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantMemory]
    totals: DeviceTotals
    def __init__(self, name: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelMemory, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantMemory, _Mapping]]] = ..., totals: _Optional[_Union[DeviceTotals, _Mapping]] = ...) -> None: ...

class ModelMemory(_message.Message):
    __slots__ = ("name", "version", "tenant", "weights_bytes", "frame_bytes_held", "frame_bytes_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_HELD_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    tenant: str
    weights_bytes: int
    frame_bytes_held: int
    frame_bytes_max: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., tenant: _Optional[str] = ..., weights_bytes: _Optional[int] = ..., frame_bytes_held: _Optional[int] = ..., frame_bytes_max: _Optional[int] = ...) -> None: ...

class TenantMemory(_message.Message):
    __slots__ = ("name", "weights_bytes", "frame_bytes_held", "bytes_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_HELD_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    weights_bytes: int
    frame_bytes_held: int
    bytes_max: int
    def __init__(self, name: _Optional[str] = ..., weights_bytes: _Optional[int] = ..., frame_bytes_held: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class DeviceTotals(_message.Message):
    __slots__ = ("bytes_max", "arena_bytes", "arena_bytes_used", "weights_bytes", "frame_bytes_held", "frames_held", "frames_max", "resident_bytes", "workspace_bytes", "models_untold", "untold_bytes")
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_HELD_FIELD_NUMBER: _ClassVar[int]
    FRAMES_HELD_FIELD_NUMBER: _ClassVar[int]
    FRAMES_MAX_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODELS_UNTOLD_FIELD_NUMBER: _ClassVar[int]
    UNTOLD_BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes_max: int
    arena_bytes: int
    arena_bytes_used: int
    weights_bytes: int
    frame_bytes_held: int
    frames_held: int
    frames_max: int
    resident_bytes: int
    workspace_bytes: int
    models_untold: int
    untold_bytes: int
    def __init__(self, bytes_max: _Optional[int] = ..., arena_bytes: _Optional[int] = ..., arena_bytes_used: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., frame_bytes_held: _Optional[int] = ..., frames_held: _Optional[int] = ..., frames_max: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., workspace_bytes: _Optional[int] = ..., models_untold: _Optional[int] = ..., untold_bytes: _Optional[int] = ...) -> None: ...
