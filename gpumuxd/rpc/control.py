"""The control API: what operators see of the node, and tenants of their models."""

from collections.abc import Iterable
from dataclasses import asdict

from gpumuxd.errors import InvalidRequest, PermissionDenied, limit_facts
from gpumuxd.node.api import DrainedModel, NodeApi
from gpumuxd.rpc.call import Caller, Method, for_tenants
from gpumuxd.rpc.detail_codec import encode_detail
from gpumuxd.rpc.explanation_codec import encode_explanation
from gpumuxd.rpc.generated import control_pb2 as pb

SERVICE = "gpumuxd.v1.Control"

SIZES_MAX = 64
"""Dimensions of a model that may be named; no tensor has more than 32."""


class ControlService:
    """The methods of `gpumuxd.v1.Control`."""

    def __init__(self, node: NodeApi) -> None:
        self._node = node

    def methods(self) -> dict[str, Method]:
        """Each method by its name on the wire."""
        return {
            "NodeStatus": for_tenants(pb.NodeStatusRequest, self._node_status),
            "ModelDetail": for_tenants(pb.ModelDetailRequest, self._model_detail),
            "ExplainModel": for_tenants(pb.ExplainModelRequest, self._explain),
            "UnloadModel": for_tenants(pb.UnloadModelRequest, self._unload),
            "Drain": for_tenants(pb.DrainRequest, self._drain),
            "Undrain": for_tenants(pb.DrainRequest, self._undrain),
            "Memory": for_tenants(pb.MemoryRequest, self._memory),
        }

    async def _node_status(
        self, request: pb.NodeStatusRequest, caller: Caller
    ) -> pb.NodeStatusResponse:
        if not caller.tenant.is_admin:
            raise PermissionDenied(f"tenant {caller.tenant.name!r} is not an admin")
        view = self._node.view()
        return pb.NodeStatusResponse(
            version=view.version,
            ready=self._node.is_ready(),
            reason=view.reason,
            uptime_ns=max(0, view.now_ns - view.started_ns),
            devices=[
                pb.DeviceStatus(
                    name=device.name,
                    state=device.state,
                    description=device.description,
                    pid=device.pid,
                    restarts=device.restarts,
                    requests_in_flight=device.requests_in_flight,
                    queued=device.queued,
                    preemptions=device.preemptions,
                    bound_ns=device.bound_ns,
                    window=device.window,
                    memory_bytes=device.memory_bytes,
                    device_busy_ns=device.device_busy_ns,
                    best_effort_grants=device.best_effort_grants,
                    best_effort_granted_ns=device.best_effort_granted_ns,
                )
                for device in view.devices
            ],
        )

    async def _unload(
        self, request: pb.UnloadModelRequest, caller: Caller
    ) -> pb.UnloadModelResponse:
        unloaded = await self._node.unload(caller.tenant, request.name)
        return pb.UnloadModelResponse(
            replicas=[pb.UnloadedReplica(**asdict(replica)) for replica in unloaded]
        )

    async def _drain(self, request: pb.DrainRequest, caller: Caller) -> pb.DrainResponse:
        return _drained(await self._node.drain_device(caller.tenant, request.device))

    async def _undrain(self, request: pb.DrainRequest, caller: Caller) -> pb.DrainResponse:
        return _drained(await self._node.undrain_device(caller.tenant, request.device))

    async def _memory(self, request: pb.MemoryRequest, caller: Caller) -> pb.MemoryResponse:
        devices = await self._node.memory(caller.tenant)
        # Absent in the message is None in the view, and all names are the same.
        return pb.MemoryResponse(devices=[pb.DeviceMemory(**asdict(each)) for each in devices])

    async def _model_detail(
        self, request: pb.ModelDetailRequest, caller: Caller
    ) -> pb.ModelDetailResponse:
        detail = await self._node.model_detail(caller.tenant, request.name, request.version)
        return encode_detail(detail)

    async def _explain(
        self, request: pb.ExplainModelRequest, caller: Caller
    ) -> pb.ExplainModelResponse:
        if len(request.sizes) > SIZES_MAX:
            count = len(request.sizes)
            raise InvalidRequest(
                f"sizes: expected at most {SIZES_MAX}, got {count}",
                limit_facts("sizes_max", SIZES_MAX, "sizes", asked=count),
            )
        view = await self._node.explain(
            caller.tenant, request.name, request.version, dict(request.sizes)
        )
        return encode_explanation(view)


def _drained(models: Iterable[DrainedModel]) -> pb.DrainResponse:
    return pb.DrainResponse(
        models=[
            pb.DrainedModel(name=m.name, version=m.version, fate=m.fate, reason=m.reason)
            for m in models
        ]
    )
