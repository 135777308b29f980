"""What calls return: plain frozen values, no protobuf."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RunReport:
    """What happened to a request on the node, in nanoseconds.

    queue_ns            from arrival to the start of its first slice
    compute_ns          device time of its slices
    preemptions         how often other work went ahead after it had started
    preemption_wait_ns  how long it stood still because of that
    predicted_ns        the estimate of its run on arrival, 0 if there was none
    """

    queue_ns: int = 0
    compute_ns: int = 0
    preemptions: int = 0
    preemption_wait_ns: int = 0
    predicted_ns: int = 0


@dataclass(frozen=True, slots=True)
class InferResult(Mapping[str, NDArray[Any]]):
    """The outputs by name, and what happened. The arrays are read-only views of the answer."""

    model: str
    model_version: str
    request_id: str
    report: RunReport
    outputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Who answers, and the protocol extensions it serves."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One input or output; -1 in the shape may vary."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model takes and gives; shapes include the batch dimension."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How a model is served. With `batch_max` above 0, shapes leave the batch dimension out."""

    name: str
    platform: str
    backend: str
    batch_max: int
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version in the repository. `state` is READY, LOADING, UNLOADING or UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device. `state` is starting, ready, lost or stopped."""

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


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The node at one moment; `reason` says why it is not ready."""

    version: str
    is_ready: bool
    uptime_ns: int
    devices: tuple[DeviceStatus, ...]
    reason: str = ""


def frozen_array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """A view of bytes that are never written again."""
    return np.frombuffer(data, dtype).reshape(shape)
