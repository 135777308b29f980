"""Client of gpumuxd: inference with priorities and deadlines on a shared GPU.

    with Client("127.0.0.1:8001") as client:
        result = client.infer("silero", {"audio": audio}, priority=1, deadline=0.03)
        result["speech"], result.report.queue_ns

`AsyncClient` has the same methods. Errors are in `gpumuxd_client.errors`.
"""

from gpumuxd_client import errors
from gpumuxd_client.aio import AsyncClient
from gpumuxd_client.client import Client
from gpumuxd_client.memory import DeviceMemory, DeviceTotals, ModelMemory, TenantMemory
from gpumuxd_client.statistics import BatchStatistics, Duration, ModelStatistics
from gpumuxd_client.tls import Tls
from gpumuxd_client.types import (
    BoundDetail,
    BucketDetail,
    DeviceStatus,
    DimensionDetail,
    DrainedModel,
    Explanation,
    GroupDetail,
    IndexEntry,
    InferResult,
    LoadedDetail,
    ModelConfig,
    ModelDetail,
    ModelMetadata,
    NodeStatus,
    PolicyDetail,
    RecordingEnd,
    RunReport,
    SequenceStep,
    ServerMetadata,
    SizedTensor,
    SliceDetail,
    TensorDetail,
    TensorMetadata,
    UnloadedReplica,
    VersionDetail,
)
from gpumuxd_client.version import __version__

__all__ = [
    "AsyncClient",
    "BatchStatistics",
    "BoundDetail",
    "BucketDetail",
    "Client",
    "DeviceMemory",
    "DeviceStatus",
    "DeviceTotals",
    "DimensionDetail",
    "DrainedModel",
    "Duration",
    "Explanation",
    "GroupDetail",
    "IndexEntry",
    "InferResult",
    "LoadedDetail",
    "ModelConfig",
    "ModelDetail",
    "ModelMemory",
    "ModelMetadata",
    "ModelStatistics",
    "NodeStatus",
    "PolicyDetail",
    "RecordingEnd",
    "RunReport",
    "SequenceStep",
    "ServerMetadata",
    "SizedTensor",
    "SliceDetail",
    "TenantMemory",
    "TensorDetail",
    "TensorMetadata",
    "Tls",
    "UnloadedReplica",
    "VersionDetail",
    "__version__",
    "errors",
]
