"""Server reflection: what is served, for tools such as grpcurl. Whoever may connect may ask.

Our messages of the Open Inference Protocol lie in a protobuf package of our own, since two files
that define `inference.*` can't be loaded in one process. Who asks by reflection wants the standard
names: so these are in a pool of descriptors that nobody else sees, the same messages under the
standard package, with the service that goes with them. It holds what is served and no more.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha.reflection import aio

from gpumuxd.errors import GpumuxdError
from gpumuxd.rpc.call import Arrival, parse
from gpumuxd.rpc.control import SERVICE as CONTROL_SERVICE
from gpumuxd.rpc.generated import control_pb2, inference_pb2
from gpumuxd.rpc.health import SERVICE as HEALTH_SERVICE
from gpumuxd.rpc.inference import SERVICE as INFERENCE_SERVICE
from gpumuxd.rpc.status import Failure, failure_of
from gpumuxd.rpc.streams import Accept, Duplex

SERVICES = tuple(f"grpc.reflection.{version}.ServerReflection" for version in ("v1", "v1alpha"))
"""Two names of one service, whose messages are the same on the wire."""

_STREAM = "ModelStreamInfer"


class ReflectionService:
    """The one method that it takes."""

    def __init__(self, inference_methods: Iterable[str]) -> None:
        """These methods of the inference service are served."""
        names = (INFERENCE_SERVICE, CONTROL_SERVICE, HEALTH_SERVICE, *SERVICES)
        self._servicer = aio.ReflectionServicer(names, _pool(inference_methods))

    def methods(self) -> dict[str, Duplex]:
        """By its name on the wire."""
        return {"ServerReflectionInfo": Duplex(self._begin, needs_tenant=False)}

    def _begin(self, arrival: Arrival) -> Accept:
        return self._answer

    async def _answer(self, data: bytes) -> bytes | Failure:
        try:
            request = parse(pb.ServerReflectionRequest, data)
        except GpumuxdError as error:
            return failure_of(error, SERVICES[0])

        async def requests() -> AsyncIterator[pb.ServerReflectionRequest]:
            yield request

        # Its stub takes what is an async generator for a coroutine.
        answers: Any = self._servicer.ServerReflectionInfo(requests(), None)
        (answer,) = [each async for each in answers]
        encoded: bytes = answer.SerializeToString()
        return encoded


def _pool(inference_methods: Iterable[str]) -> DescriptorPool:
    pool = DescriptorPool()
    for module in (health_pb2, control_pb2, pb):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    reflection = _renamed(
        pb.DESCRIPTOR.serialized_pb, "grpc.reflection.v1", "grpc/reflection/v1/reflection.proto"
    )
    inference = _renamed(inference_pb2.DESCRIPTOR.serialized_pb, "inference", "inference.proto")
    _add_service(inference, inference_methods)
    for file in (reflection, inference):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _renamed(data: bytes, package: str, name: str) -> FileDescriptorProto:
    """A file, with all that it defines in another package."""
    file = FileDescriptorProto.FromString(data)
    before, after = f".{file.package}.", f".{package}."
    file.package, file.name = package, name

    def rename(messages: Iterable[DescriptorProto]) -> None:
        for message in messages:
            for field in message.field:
                if field.type_name:
                    field.type_name = field.type_name.replace(before, after, 1)
            rename(message.nested_type)

    rename(file.message_type)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(before, after, 1)
            method.output_type = method.output_type.replace(before, after, 1)
    return file


def _add_service(file: FileDescriptorProto, methods: Iterable[str]) -> None:
    """Messages are named after their methods, but that a stream asks what a single call does."""
    service = file.service.add(name=INFERENCE_SERVICE.rpartition(".")[2])
    for name in sorted(methods):
        is_stream = name == _STREAM
        asked = "ModelInfer" if is_stream else name
        service.method.add(
            name=name,
            input_type=f".{file.package}.{asked}Request",
            output_type=f".{file.package}.{name}Response",
            client_streaming=is_stream,
            server_streaming=is_stream,
        )
