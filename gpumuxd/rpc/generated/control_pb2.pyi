from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("name", "state", "description", "pid", "restarts", "requests_in_flight", "queued", "preemptions", "bound_ns", "window", "memory_bytes", "device_busy_ns")
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
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., description: _Optional[str] = ..., pid: _Optional[int] = ..., restarts: _Optional[int] = ..., requests_in_flight: _Optional[int] = ..., queued: _Optional[int] = ..., preemptions: _Optional[int] = ..., bound_ns: _Optional[int] = ..., window: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., device_busy_ns: _Optional[int] = ...) -> None: ...

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
