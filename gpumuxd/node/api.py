"""What the front door asks of the node, and what it gets: the seam between `rpc/` and `node/`.

Values only. `rpc/` turns protobuf into these and back; `node/` never sees protobuf, `rpc/` never
sees a frame. Errors are the classes of `errors.py`.
"""

import enum
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpumuxd.domain import PriorityClass, RunReport
from gpumuxd.models.spec import ModelSpec
from gpumuxd.node.memory_view import DeviceMemory


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks. `priority_max` is its ceiling, `priority_default` what 0 on the wire means,
    `memory_bytes_max` what models that are its alone may take on each device."""

    name: str
    priority_default: int = 2
    priority_max: PriorityClass = PriorityClass.STANDARD
    weight: int = 1
    realtime_per_s: int | None = None
    realtime_burst: int = 1
    memory_bytes_max: int | None = None
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class UnloadedReplica:
    """A replica that went. `weights_bytes` are booked no more; its device's process held so much
    before and after it let go of it, as the kernel counts, whatever else it did meanwhile."""

    version: str
    device: str
    weights_bytes: int
    resident_bytes_before: int
    resident_bytes_after: int


@dataclass(frozen=True, slots=True)
class RegionRef:
    """A place in shared memory that a client registered under this name."""

    region: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RegionView:
    """A region of shared memory as it was registered: `size_bytes` bytes at `offset` of the object
    `key`."""

    name: str
    key: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which sequence a request is a step of; numbers and texts are different names."""

    sequence_id: int | str
    is_start: bool = False
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input as it came: dense, C order, little-endian. Where it lies in a `region`, `data` is
    empty."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    region: RegionRef | None = None

    @property
    def size_bytes(self) -> int:
        if self.region is not None:
            return self.region.size_bytes
        return len(self.data) if isinstance(self.data, bytes) else self.data.nbytes


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output, ready to be sent. Where it was written to a `region`, `data` is empty. A view is
    of memory that is somebody else's soon: `InferCall.encode` says when."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    region: RegionRef | None = None


@dataclass(frozen=True, slots=True)
class InferCall:
    """An inference as a tenant asked for it, not yet validated against its model.

    `priority` is the wire number (0: the tenant's default); `deadline_ns` the earliest of the gRPC
    deadline and the `timeout` parameter, on CLOCK_MONOTONIC; `arrived_ns` when the RPC came in.
    `output_regions` says by name which outputs go to shared memory, and where.

    `encode` makes the message of the reply while its outputs still lie where the device wrote them,
    so that they are copied once; they are gone when it returns. Without it they are copies.
    """

    tenant: Tenant
    model: str
    version: str
    priority: int
    deadline_ns: int | None
    arrived_ns: int
    inputs: Sequence[InputTensor]
    outputs_wanted: Sequence[str] = ()
    output_regions: Mapping[str, RegionRef] = field(default_factory=dict)
    sequence: SequenceStep | None = None
    encode: "Callable[[InferReply], bytes] | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class InferReply:
    """The result; `version` is the one that ran. `replays`: how often it was sent again, because
    its device was lost. `rows` are its own; its tensors were copied in and out in such times.
    `message` is what the call's `encode` made of it, which then has the outputs."""

    model: str
    version: str
    outputs: Sequence[OutputTensor]
    report: RunReport
    replays: int = 0
    rows: int = 1
    copied_in_ns: int = 0
    copied_out_ns: int = 0
    message: bytes = b""


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something was done, and how long it took altogether."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Runs of so many rows together."""

    rows: int
    copied_in: Duration
    compute: Duration
    copied_out: Duration


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """What became of the requests of one version since it was loaded.

    ended_ms            when the last one was done, in ms since 1970; 0: none was
    rows, runs          of requests that were done; those that ran together share a run
    pending             requests that have not ended
    success, failed     from arrival to the end; `failed` is all others, `cancelled` among them
    queued .. copied_out   of requests that were done
    weights_bytes       by the number of the device
    """

    name: str
    version: str
    ended_ms: int = 0
    rows: int = 0
    runs: int = 0
    pending: int = 0
    success: Duration = Duration()
    failed: Duration = Duration()
    cancelled: Duration = Duration()
    queued: Duration = Duration()
    copied_in: Duration = Duration()
    compute: Duration = Duration()
    copied_out: Duration = Duration()
    batches: Sequence[BatchStatistics] = ()
    weights_bytes: Sequence[tuple[int, int]] = ()


class ModelState(enum.StrEnum):
    """The states that a repository index shows."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of one model in the repository. `reason` says why it is not READY, or what is
    wrong with its files while it serves."""

    name: str
    version: str
    state: ModelState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelView:
    """A loaded model as a client may see it."""

    name: str
    version: str
    versions: Sequence[str]
    platform: str
    spec: ModelSpec
    group_count: int = 0
    longest_group_ns: int = 0
    run_ns: Sequence[tuple[tuple[int, ...], int]] = ()
    weights_bytes: int = 0
    batch_rows_max: int = 0  # rows that may share a run; 0: each request runs alone
    batch_delay_ns_max: int = 0  # how long one waits for others


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What may be done with a model, as far as the tenant that asks may know: of the tenants that
    share it only itself, and the highest class that its own requests may have."""

    tenants: tuple[str, ...] | None  # None: everyone
    class_max: PriorityClass
    slo_ns: int | None
    device: str | None
    batch_max: int | None
    versions: str = "latest"  # which of them serve
    replicas: str = "1"  # on how many devices: a number, or all


@dataclass(frozen=True, slots=True)
class GroupView:
    """A kernel group, its time, and the nodes `first_node <= i < end_node` in it."""

    group: int
    device_ns: int
    first_node: int
    end_node: int


@dataclass(frozen=True, slots=True)
class BucketView:
    """What was measured at one shape bucket, `sizes` in the order of the spec's symbols.

    beyond_count   groups that take longer than the bound; at least that many if `has_more_beyond`
    is_allowed     may a request be that large; the manifest can say less than the artifact
    """

    sizes: tuple[int, ...]
    run_ns: int
    longest: GroupView | None
    beyond_count: int = 0
    has_more_beyond: bool = False
    is_allowed: bool = True


class BoundOrigin(enum.StrEnum):
    """What gives a device's bound on preemption delay, or why it has none."""

    STATED = "preemption_delay_ms_max"
    SLICE_MAX = "slice_ms_max"
    LAXITY = "laxity"
    NO_SLICING = "slicing"
    FIXED = "fixed"  # a baseline with sync points at fixed places
    NO_ORDER = "order"
    LEAST_DELAY = "least_delay"  # none is promised: slices are as long as is best for all
    SLO = "slo"  # none can be kept: the longest group takes more than an SLO leaves
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BoundView:
    """The bound in force on a device, None where there is none. `model` is whose SLO left that
    laxity, if the tenant that asks may know. A model with a group longer than `laxity_ns` keeps no
    bound but is cut so that the SLO of `laxity_model` is missed least; None: that is no
    question."""

    bound_ns: int | None
    origin: BoundOrigin
    model: str = ""
    laxity_ns: int | None = None
    laxity_model: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is a model preemptible within the bound: None if there is no telling. `advice` may be
    empty. `is_beyond_laxity`: no bound can be kept, nor the SLO that asks for it."""

    is_preemptible: bool | None
    sentence: str
    advice: str = ""
    is_beyond_laxity: bool = False


@dataclass(frozen=True, slots=True)
class LoadedView:
    """All that is known of a version that is loaded. `notes` are sentences for people; `replicas`
    the devices that have it, `device` the one whose measurements these are."""

    platform: str
    device: str
    artifact_hash: str
    spec: ModelSpec
    batch_max: int  # rows in a request; 0: no batch dimension
    parameter_count: int
    weights_bytes: int
    frame_bytes: int
    group_count: int
    buckets: Sequence[BucketView]
    bound: BoundView
    verdict: Verdict
    notes: Sequence[str] = ()
    replicas: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version; `policy` is None where the manifest can't be read, `loaded` if it is not."""

    version: str
    state: ModelState
    reason: str
    policy: PolicyView | None = None
    loaded: LoadedView | None = None


@dataclass(frozen=True, slots=True)
class ModelDetail:
    """One model, its versions newest first."""

    name: str
    versions: Sequence[VersionView]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as an operator sees it. `state` is starting, ready, lost or stopped, and of one that
    is ready but out of service draining or drained; `bound_ns` is 0 where none is promised."""

    name: str
    state: str
    description: str = ""
    pid: int = 0
    restarts: int = 0
    requests_in_flight: int = 0
    queued: int = 0
    preemptions: int = 0
    bound_ns: int = 0
    window: int = 0
    memory_bytes: int = 0
    device_busy_ns: int = 0
    best_effort_grants: int = 0
    best_effort_granted_ns: int = 0


@dataclass(frozen=True, slots=True)
class DrainedModel:
    """What became of a version on a device that was drained, or put back. `fate` is moved, served
    elsewhere, left (it serves no more) or loaded (again); `reason` where it serves, or why not."""

    name: str
    version: str
    fate: str
    reason: str


@dataclass(frozen=True, slots=True)
class SliceView:
    """Consecutive kernel groups `first_group <= i < end_group` and their predicted time."""

    first_group: int
    end_group: int
    predicted_ns: int


@dataclass(frozen=True, slots=True)
class SizedTensor:
    """An input at given sizes."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExplanationView:
    """Why the work of a model is cut as it is, at one bucket: as it would be now if it ran alone.

    sizes               of the bucket, by the names of the model's dimensions
    mode, reason        what decides: bounded, slo, least_delay, or a baseline; and why, a sentence
    group_ns, slices    as many as are told of `group_count` and `slice_count`; no times while
                        nothing was measured
    slice_ns            what slices are cut to, 0 where that is no time
    floor               the longest group, None while nothing was measured; nodes 0 .. 0 where it
                        is not known which they are
    exec_ns             what the sync points add to a run
    preempt_ns          work that an arrival may have to wait for, at worst and on average
    is_guess            the times are borrowed from other sizes, or of one first run
    is_cost_doubtful    what sync points cost was measured on a busy machine
    """

    name: str
    version: str
    device: str
    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[SizedTensor, ...]
    priority_class: PriorityClass
    mode: str
    reason: str
    bound: BoundView
    group_count: int
    group_ns: tuple[int, ...]
    run_ns: int
    slice_count: int
    slices: tuple[SliceView, ...]
    window: int
    slice_ns: int
    floor: GroupView | None
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
class NodeView:
    """The node at one moment; `reason`: why it is not ready, and repositories that are silent."""

    version: str
    started_ns: int
    now_ns: int
    devices: Sequence[DeviceView] = field(default_factory=tuple)
    reason: str = ""


class SharedMemoryApi(Protocol):
    """Regions of shared memory, by tenant and name. All raises Unsupported where it is off."""

    @property
    def is_allowed(self) -> bool:
        """Is it on."""
        ...

    async def register(
        self, tenant: Tenant, name: str, key: str, offset: int, size_bytes: int
    ) -> None:
        """Raises RegionExists, UnknownRegion, InvalidRequest, QuotaExceeded or QueueFull."""
        ...

    def unregister(self, tenant: Tenant, name: str) -> None:
        """One region, or all of the tenant if none is named. One that is not there is no error."""
        ...

    def regions(self, tenant: Tenant, name: str) -> Sequence[RegionView]:
        """All, or that one. Raises UnknownRegion."""
        ...


class NodeApi(Protocol):
    """All that `rpc/` may call. Every method takes the tenant and checks what it may see."""

    @property
    def shared_memory(self) -> SharedMemoryApi:
        """Regions that tenants registered."""
        ...

    def is_ready(self) -> bool:
        """True when every device is up and every startup model serves."""
        ...

    def is_model_ready(self, tenant: Tenant, name: str, version: str) -> bool:
        """False for a model that does not exist; an empty version means any."""
        ...

    async def model_view(self, tenant: Tenant, name: str, version: str) -> ModelView:
        """Raises UnknownModel, or ModelNotReady for one that is not loaded."""
        ...

    async def model_detail(self, tenant: Tenant, name: str, version: str) -> ModelDetail:
        """All versions, or that one, whatever their state. Raises UnknownModel."""
        ...

    async def explain(
        self, tenant: Tenant, name: str, version: str, sizes: Mapping[str, int]
    ) -> ExplanationView:
        """Of a version that is loaded, the newest if none is named. Dimensions that `sizes` does
        not name are as in the longest run that was measured. Raises UnknownModel, ModelNotReady or
        InvalidRequest."""
        ...

    def model_statistics(
        self, tenant: Tenant, name: str, version: str
    ) -> Sequence[ModelStatistics]:
        """Of the loaded versions that the tenant may see: all, or of that model, or that version.
        Raises UnknownModel where a name is given and nothing of it is loaded."""
        ...

    async def memory(self, tenant: Tenant) -> Sequence[DeviceMemory]:
        """Who holds the memory of each device that is up, as far as the tenant may know."""
        ...

    def count_refused(self, tenant: Tenant, name: str, version: str, arrived_ns: int) -> None:
        """A request of this model was so wrong that it was no call: it counts as one that failed,
        if the tenant may know of the model."""
        ...

    async def index(self, tenant: Tenant) -> Sequence[IndexEntry]:
        """Every version in the repository that the tenant may see, with its state."""
        ...

    def view(self) -> NodeView:
        """The node at this moment."""
        ...

    async def infer(self, call: InferCall) -> InferReply:
        """Run one inference. Cancelling the task cancels the request. Raises GpumuxdError."""
        ...

    async def load(self, tenant: Tenant, name: str) -> None:
        """Load the versions that a model's manifest selects; return when all of them serve. Raises
        GpumuxdError."""
        ...

    async def unload(self, tenant: Tenant, name: str) -> Sequence[UnloadedReplica]:
        """Unload all versions; what runs finishes first. Says what went, and what of it came back.
        Raises UnknownModel."""
        ...

    async def drain_device(self, tenant: Tenant, device: str) -> Sequence[DrainedModel]:
        """Take a device out of service; return when it is empty. No name: the node admits nothing
        new. Raises PermissionDenied or InvalidRequest."""
        ...

    async def undrain_device(self, tenant: Tenant, device: str) -> Sequence[DrainedModel]:
        """Put it back. Raises PermissionDenied or InvalidRequest."""
        ...

    def record(
        self, tenant: Tenant, device: str, duration_ns: int, bytes_max: int
    ) -> AsyncGenerator[bytes | RecordingEnd, None]:
        """Record a device's scheduler; no name means the only device. Ends with a RecordingEnd.
        Raises GpumuxdError. Leaving it ends the recording."""
        ...
