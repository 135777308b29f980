"""A node in memory: the identity model, a few ways to misbehave, and a record of what was asked.

It keeps the contract of `node/api.py`: names and versions are looked up, inputs are checked
against the spec, refusals are the classes of `errors.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import PriorityClass, RunReport
from gpumuxd.errors import (
    DeadlineMissed,
    InvalidRequest,
    ModelNotReady,
    PermissionDenied,
    UnknownModel,
)
from gpumuxd.models.spec import ITEM_BYTES, ModelSpec, Symbol, TensorSpec
from gpumuxd.node.api import (
    BatchStatistics,
    DeviceView,
    DrainedModel,
    Duration,
    ExplanationView,
    IndexEntry,
    InferCall,
    InferReply,
    ModelDetail,
    ModelState,
    ModelStatistics,
    ModelView,
    NodeView,
    OutputTensor,
    RecordingEnd,
    SharedMemoryApi,
    Tenant,
    UnloadedReplica,
)
from gpumuxd.node.memory_view import DeviceMemory, DeviceTotals, ModelMemory, TenantMemory
from gpumuxd.node.settings import SharedMemorySettings
from gpumuxd.node.shared_memory import SharedMemory
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.units import MIB
from tests.rpc.details import FIXED, FIXED_WHY, SEGMENTS, SEGMENTS_WHY

FOREVER_NS = 60_000_000_000
"""A recording of the fake node that is longer than this goes on until its reader leaves."""

WHY = {why.name: why for why in (SEGMENTS_WHY, FIXED_WHY)}
DETAILS = {detail.name: detail for detail in (SEGMENTS, FIXED)}
REPORT = RunReport(
    queue_ns=11, compute_ns=22, preemptions=3, preemption_wait_ns=44, predicted_ns=55
)
STATISTICS = ModelStatistics(
    name="identity_fp32",
    version="1",
    ended_ms=1_700_000_000_123,
    rows=9,
    runs=4,
    pending=1,
    success=Duration(5, 500),
    failed=Duration(3, 300),
    cancelled=Duration(1, 100),
    queued=Duration(5, 51),
    copied_in=Duration(5, 52),
    compute=Duration(5, 53),
    copied_out=Duration(5, 54),
    batches=(BatchStatistics(2, Duration(4, 41), Duration(4, 42), Duration(4, 43)),),
    weights_bytes=((0, 1024),),
)
MEMORY_TOTALS = DeviceTotals(
    bytes_max=100 * MIB,
    arena_bytes=16 * MIB,
    arena_bytes_used=3 * MIB,
    weights_bytes=50 * MIB,
    frame_bytes_held=4 * MIB,
    frames_held=2,
    frames_max=8,
    resident_bytes=200 * MIB,
    workspace_bytes=146 * MIB,
    models_untold=7,
    untold_bytes=47 * MIB,
)
ADMIN = Tenant("default", priority_max=PriorityClass.REALTIME, is_admin=True)
CAMERA = Tenant("camera", priority_max=PriorityClass.STANDARD)


def identity_spec(datatype: str, shape: tuple[object, ...] = (("batch",), 4)) -> ModelSpec:
    """One input `x` and one output `y` of the same type and shape."""
    return ModelSpec(
        inputs=(TensorSpec("x", datatype, shape),),  # type: ignore[arg-type]  # shortened
        outputs=(TensorSpec("y", datatype, shape),),  # type: ignore[arg-type]  # shortened
        symbols=(Symbol("batch", 1, 8),),
        batch_symbol="batch",
    )


@dataclass
class FakeNode:
    """Models by name; `before_reply` runs inside each inference."""

    models: dict[str, ModelSpec] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    calls: list[InferCall] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    before_reply: Callable[[InferCall], object] | None = None
    ready: bool = True
    details: dict[str, ModelDetail] = field(default_factory=dict)
    explained: list[tuple[Tenant, str, str, dict[str, int]]] = field(default_factory=list)
    recording: Sequence[bytes] = (b"one", b"two")
    shared_memory: SharedMemoryApi = field(
        default_factory=lambda: SharedMemory(
            SharedMemorySettings(is_allowed=True), TenantDirectory(())
        )
    )

    def is_ready(self) -> bool:
        return self.ready

    def is_model_ready(self, tenant: Tenant, name: str, version: str) -> bool:
        return name in self.loaded and version in ("", "1")

    async def model_view(self, tenant: Tenant, name: str, version: str) -> ModelView:
        return ModelView(
            name=name,
            version="1",
            versions=("1",),
            platform="pytorch_export",
            spec=self._spec(name, version),
            group_count=7,
            longest_group_ns=700,
            batch_rows_max=4 if name == "identity_bf16" else 0,
            batch_delay_ns_max=1500_000,
            weights_bytes=1024,
        )

    async def model_detail(self, tenant: Tenant, name: str, version: str) -> ModelDetail:
        detail = self.details.get(name)
        if detail is None:
            raise UnknownModel(f"no model {name!r}")
        versions = [each for each in detail.versions if version in ("", each.version)]
        if not versions:
            raise UnknownModel(f"model {name!r} has no version {version!r}")
        return replace(detail, versions=versions)

    async def explain(
        self, tenant: Tenant, name: str, version: str, sizes: Mapping[str, int]
    ) -> ExplanationView:
        self.explained.append((tenant, name, version, dict(sizes)))
        if name not in WHY:
            raise UnknownModel(f"no model {name!r}")
        return WHY[name]

    def model_statistics(
        self, tenant: Tenant, name: str, version: str
    ) -> Sequence[ModelStatistics]:
        if name not in ("", STATISTICS.name) or version not in ("", "1"):
            raise UnknownModel(f"model {name!r} is not loaded, so it has no statistics")
        return [STATISTICS]

    def count_refused(self, tenant: Tenant, name: str, version: str, arrived_ns: int) -> None:
        self.refused.append((tenant.name, name, version))

    async def index(self, tenant: Tenant) -> Sequence[IndexEntry]:
        return [
            IndexEntry(name, "1", ModelState.READY)
            if name in self.loaded
            else IndexEntry(name, "1", ModelState.UNAVAILABLE, "unloaded")
            for name in sorted(self.models)
        ]

    def view(self) -> NodeView:
        device = DeviceView(
            "cpu:0",
            "ready",
            "CPU device, 1 thread",
            pid=4711,
            preemptions=3,
            best_effort_grants=5,
            best_effort_granted_ns=6_000_000,
        )
        now_ns = monotonic_ns()
        reason = "" if self.ready else "model 'm': [unloaded]"
        return NodeView("0.1", now_ns - 5_000_000_000, now_ns, (device,), reason)

    async def infer(self, call: InferCall) -> InferReply:
        self.calls.append(call)
        self.started.set()
        spec = self._spec(call.model, call.version)
        self._check(spec, call)
        try:
            if self.before_reply is not None:
                waiting = self.before_reply(call)
                if asyncio.iscoroutine(waiting):
                    await waiting
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        (tensor,) = call.inputs
        output = OutputTensor("y", tensor.datatype, tensor.shape, bytes(tensor.data))
        reply = InferReply(call.model, "1", (output,), REPORT, replays=6)
        if call.encode is None:
            return reply
        return replace(reply, outputs=(), message=call.encode(reply))

    async def load(self, tenant: Tenant, name: str) -> None:
        if name not in self.models:
            raise UnknownModel(f"model {name!r} is not in the repository")
        self.loaded.add(name)

    async def unload(self, tenant: Tenant, name: str) -> Sequence[UnloadedReplica]:
        if name not in self.loaded:
            raise UnknownModel(f"model {name!r} is not loaded")
        self.loaded.remove(name)
        return [UnloadedReplica("1", "cpu:0", 12 * MIB, 200 * MIB, 187 * MIB)]

    async def memory(self, tenant: Tenant) -> Sequence[DeviceMemory]:
        model = ModelMemory("echo", "1", "camera", 5 * MIB, 2 * MIB, MIB)
        own = TenantMemory("camera", 5 * MIB, 2 * MIB, None)
        if not tenant.is_admin:
            return (DeviceMemory("cpu:0", (model,), (own,)),)
        other = TenantMemory("index", 0, 0, 0)
        return (DeviceMemory("cpu:0", (model,), (own, other), MEMORY_TOTALS), DeviceMemory("cpu:1"))

    async def drain_device(self, tenant: Tenant, device: str) -> Sequence[DrainedModel]:
        if not tenant.is_admin:
            raise PermissionDenied(f"tenant {tenant.name!r} is not an admin")
        self.drained.add(device)
        return (DrainedModel("echo", "1", "moved", "cpu:1"),) if device else ()

    async def undrain_device(self, tenant: Tenant, device: str) -> Sequence[DrainedModel]:
        if not tenant.is_admin:
            raise PermissionDenied(f"tenant {tenant.name!r} is not an admin")
        self.drained.discard(device)
        return (DrainedModel("echo", "1", "left", "no room"),) if device else ()

    async def record(
        self, tenant: Tenant, device: str, duration_ns: int, bytes_max: int
    ) -> AsyncGenerator[bytes | RecordingEnd, None]:
        if not tenant.is_admin:
            raise PermissionDenied(f"tenant {tenant.name!r} is not an admin")
        try:
            for part in self.recording:
                yield part
            if duration_ns > FOREVER_NS:
                self.started.set()
                await asyncio.Event().wait()
            yield RecordingEnd(f"{device} {duration_ns} {bytes_max}", 4, 5, is_whole=True)
        finally:
            self.cancelled.set()

    def _spec(self, name: str, version: str) -> ModelSpec:
        if name not in self.models or version not in ("", "1"):
            raise UnknownModel(f"model {name!r} version {version or 'any'} is not found")
        if name not in self.loaded:
            raise ModelNotReady(f"model {name!r} is not loaded")
        return self.models[name]

    def _check(self, spec: ModelSpec, call: InferCall) -> None:
        if call.priority and PriorityClass.from_wire(call.priority) > call.tenant.priority_max:
            raise PermissionDenied(
                f"priority {call.priority} is above the ceiling of tenant {call.tenant.name!r}"
            )
        if call.deadline_ns is not None and call.deadline_ns <= monotonic_ns():
            raise DeadlineMissed("the deadline was past on arrival")
        if [tensor.name for tensor in call.inputs] != ["x"]:
            raise InvalidRequest(f"expected input 'x', got {[t.name for t in call.inputs]}")
        if call.inputs[0].datatype != spec.inputs[0].datatype:
            raise InvalidRequest(
                f"input 'x': expected datatype {spec.inputs[0].datatype}, "
                f"got {call.inputs[0].datatype}"
            )
        unknown = set(call.outputs_wanted) - {"y"}
        if unknown:
            raise InvalidRequest(f"no output {min(unknown)!r}, there is 'y'")
        spec.bind({"x": call.inputs[0].shape})


DATATYPES = tuple(ITEM_BYTES)


def fake_node() -> FakeNode:
    """A node with an identity model per datatype, `identity_fp32` and so on, and one unloaded."""
    models = {f"identity_{datatype.lower()}": identity_spec(datatype) for datatype in DATATYPES}
    return FakeNode(
        models={**models, "unloaded": identity_spec("FP32")}, loaded=set(models), details=DETAILS
    )


@dataclass
class FakeTenants:
    """Tokens and names of certificates in dictionaries."""

    tokens: dict[str, Tenant] = field(default_factory=dict)
    subjects: dict[str, Tenant] = field(default_factory=dict)

    def by_token(self, token: str) -> Tenant | None:
        return self.tokens.get(token)

    def by_subject(self, names: Sequence[str]) -> Tenant | None:
        found = [self.subjects[name] for name in names if name in self.subjects]
        return found[0] if len(found) == 1 else None
