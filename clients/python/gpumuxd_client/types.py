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
    replays             how often it was sent again, because its device was lost under it
    batch_rows          rows that ran together, its own among them, 0 if nobody says
    """

    queue_ns: int = 0
    compute_ns: int = 0
    preemptions: int = 0
    preemption_wait_ns: int = 0
    predicted_ns: int = 0
    replays: int = 0
    batch_rows: int = 0


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which sequence a request is a step of. The model keeps its state on the node between them."""

    sequence_id: int | str
    is_start: bool = False
    is_end: bool = False

    def __post_init__(self) -> None:
        """To the node these are requests of no sequence, which would keep nothing."""
        if self.sequence_id in (0, ""):
            raise ValueError(f"sequence_id: a number or a text expected, got {self.sequence_id!r}")


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
    """One device. `state` is starting, ready, lost or stopped. `best_effort_grants` are slices that
    went ahead of higher classes for `best_effort_share_min`, with their device time."""

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
    best_effort_grants: int = 0
    best_effort_granted_ns: int = 0


@dataclass(frozen=True, slots=True)
class TensorDetail:
    """One input or output. A size is a number, a dimension's name or an expression of such."""

    name: str
    datatype: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DimensionDetail:
    """A size that requests choose: both ends included, multiples of `multiple` only."""

    name: str
    minimum: int
    maximum: int
    multiple: int
    is_batch: bool


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """A kernel group, its time, and the nodes `first_node <= i < end_node` in it."""

    group: int
    device_ns: int
    first_node: int
    end_node: int


@dataclass(frozen=True, slots=True)
class BucketDetail:
    """What was measured at one shape bucket when the model was loaded.

    sizes          in the order of the dimensions
    beyond_count   groups that take longer than the bound; at least that many if `has_more_beyond`
    is_allowed     may a request be that large
    """

    sizes: tuple[int, ...]
    run_ns: int
    longest: GroupDetail | None
    beyond_count: int
    has_more_beyond: bool
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class BoundDetail:
    """The bound on preemption delay in force on a device; None: there is none, or it is unknown.

    origin   `preemption_delay_ms_max` or `slice_ms_max`, the setting that gives it; `laxity`, the
             SLO of `model`; `slicing` or `order`, the setting why there is none; `least_delay`,
             none is promised; `unknown`
    model    empty where another tenant's may not be named
    """

    bound_ns: int | None
    origin: str
    model: str


@dataclass(frozen=True, slots=True)
class PolicyDetail:
    """What may be done with a model. Whoever is no admin sees of the tenants only itself.

    tenants     None: everyone
    class_max   highest class of a request: REALTIME, STANDARD or BEST_EFFORT
    versions    which of its versions serve: `latest`, `latest 2`, `all` or `1, 7`
    replicas    on how many devices each is: a number, or `all`
    """

    tenants: tuple[str, ...] | None
    class_max: str
    slo_ns: int | None
    device: str | None
    batch_max: int | None
    versions: str = ""
    replicas: str = ""


@dataclass(frozen=True, slots=True)
class LoadedDetail:
    """A version that is loaded.

    batch_max        rows in a request; 0: no batch dimension
    frame_bytes      most that one run held, measured
    is_preemptible   within the bound; None: there is no telling. `verdict` says it in a sentence,
                     `advice` what would help
    replicas         the devices that have it; what was measured is of `device`
    """

    platform: str
    device: str
    artifact_hash: str
    inputs: tuple[TensorDetail, ...]
    outputs: tuple[TensorDetail, ...]
    dimensions: tuple[DimensionDetail, ...]
    batch_max: int
    parameter_count: int
    weights_bytes: int
    frame_bytes: int
    group_count: int
    buckets: tuple[BucketDetail, ...]
    bound: BoundDetail
    is_preemptible: bool | None
    verdict: str
    advice: str
    notes: tuple[str, ...]
    replicas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionDetail:
    """One version. `policy` is None where the manifest can't be read, `loaded` if it is not."""

    version: str
    state: str
    reason: str
    policy: PolicyDetail | None
    loaded: LoadedDetail | None


@dataclass(frozen=True, slots=True)
class ModelDetail:
    """One model, its versions newest first."""

    name: str
    versions: tuple[VersionDetail, ...]


@dataclass(frozen=True, slots=True)
class SizedTensor:
    """An input at given sizes."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SliceDetail:
    """Kernel groups `first_group <= i < end_group` that are launched together."""

    first_group: int
    end_group: int
    predicted_ns: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the work of a model is cut as it is, at one size, as it would be now if it ran alone.

    sizes           of the bucket, by the names of the model's dimensions
    priority_class  the one it is explained for: the highest that a request may have
    mode, reason    bounded, slo, least_delay, or the baseline none, every, layer or window; and
                    which rule decided that, in a sentence
    group_ns        predicted, the first ones of `group_count` where there are very many
    slices          of one undisturbed run, the first ones of `slice_count`
    slice_ns        what slices are cut to, 0 where that is no time
    floor           the longest group: nothing is cut finer; its nodes are 0 .. 0 if not known
    exec_ns         what the sync points add to a run
    preempt_ns, preempt_expected_ns
                    work in flight that an arrival may have to wait for: at most, on average
    is_guess        the times are borrowed from other sizes, or of one first run
    is_cost_doubtful  what sync points cost was measured on a busy machine
    """

    name: str
    version: str
    device: str
    sizes: Mapping[str, int]
    inputs: tuple[SizedTensor, ...]
    priority_class: str
    mode: str
    reason: str
    bound: BoundDetail
    group_count: int
    group_ns: tuple[int, ...]
    run_ns: int
    slice_count: int
    slices: tuple[SliceDetail, ...]
    window: int
    slice_ns: int
    floor: GroupDetail | None
    is_floor_over_bound: bool
    exec_ns: int
    preempt_ns: int
    preempt_expected_ns: int
    is_guess: bool
    is_cost_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class RecordingEnd:
    """How a recording ended. One that is not whole can be replayed as far as it goes."""

    reason: str
    records: int
    commands: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class DrainedModel:
    """What became of a version on a device that was drained or put back. `fate` is moved, served
    elsewhere, left (it serves no more) or loaded (again); `reason`: where it serves, or why not."""

    name: str
    version: str
    fate: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnloadedReplica:
    """A version that went from a device. Its weights are booked no more; the device's process held
    so much before and after it let go of it, as the kernel counts, whatever else it did meanwhile.
    """

    version: str
    device: str
    weights_bytes: int
    resident_bytes_before: int
    resident_bytes_after: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The node at one moment; `reason`: why it is not ready, and repositories that are silent."""

    version: str
    is_ready: bool
    uptime_ns: int
    devices: tuple[DeviceStatus, ...]
    reason: str = ""


def frozen_array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """A view of bytes that are never written again."""
    return np.frombuffer(data, dtype).reshape(shape)
