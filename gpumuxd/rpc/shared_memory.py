"""Regions of shared memory: system memory as the node has it, CUDA memory not at all.

It must not know what a region is made of.
"""

from gpumuxd.errors import Unsupported
from gpumuxd.node.api import SharedMemoryApi
from gpumuxd.rpc.call import Caller, Method, for_tenants
from gpumuxd.rpc.generated import inference_pb2 as pb


class SharedMemoryService:
    """The methods of both shared memory extensions."""

    def __init__(self, memory: SharedMemoryApi) -> None:
        self._memory = memory

    def methods(self) -> dict[str, Method]:
        """Each method by its name on the wire."""
        return {
            "SystemSharedMemoryStatus": for_tenants(
                pb.SystemSharedMemoryStatusRequest, self._status
            ),
            "SystemSharedMemoryRegister": for_tenants(
                pb.SystemSharedMemoryRegisterRequest, self._register
            ),
            "SystemSharedMemoryUnregister": for_tenants(
                pb.SystemSharedMemoryUnregisterRequest, self._unregister
            ),
            "CudaSharedMemoryStatus": for_tenants(pb.CudaSharedMemoryStatusRequest, _no_cuda),
            "CudaSharedMemoryRegister": for_tenants(pb.CudaSharedMemoryRegisterRequest, _no_cuda),
            "CudaSharedMemoryUnregister": for_tenants(
                pb.CudaSharedMemoryUnregisterRequest, _no_cuda
            ),
        }

    async def _status(
        self, request: pb.SystemSharedMemoryStatusRequest, caller: Caller
    ) -> pb.SystemSharedMemoryStatusResponse:
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._memory.regions(caller.tenant, request.name):
            status = response.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.size_bytes
        return response

    async def _register(
        self, request: pb.SystemSharedMemoryRegisterRequest, caller: Caller
    ) -> pb.SystemSharedMemoryRegisterResponse:
        await self._memory.register(
            caller.tenant, request.name, request.key, request.offset, request.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    async def _unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, caller: Caller
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._memory.unregister(caller.tenant, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()


async def _no_cuda(request: object, caller: Caller) -> pb.CudaSharedMemoryStatusResponse:
    raise Unsupported(
        "CUDA shared memory is not supported: this version serves CPU devices alone; use system "
        "shared memory"
    )
