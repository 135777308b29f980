"""Every call as a value: path, request bytes, how to read the answer, may it be sent twice.

Both clients carry these out and know no message themselves, so they can't differ in anything but
how they wait.
"""

import ipaddress
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from gpumuxd_client import codec, detail, statistics, types
from gpumuxd_client.codec import check_seconds
from gpumuxd_client.errors import GpumuxdError
from gpumuxd_client.generated import control_pb2 as control
from gpumuxd_client.generated import inference_pb2 as pb
from gpumuxd_client.memory import DeviceMemory, decode_memory

ResultT = TypeVar("ResultT")

_INFERENCE = "/inference.GRPCInferenceService/"
_CONTROL = "/gpumuxd.v1.Control/"

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.max_frame_size", 1024 * 1024),
    # A daemon that restarts should be found again at once, not after gRPC's usual second.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

PORT_MAX = 65_535

RETRY_DELAY_S_FIRST = 0.05
RETRY_DELAY_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Call(Generic[ResultT]):
    """One call. Idempotent ones are sent again after a transient error."""

    path: str
    request: bytes
    decode: Callable[[bytes], ResultT]
    is_idempotent: bool = True


class Attempts:
    """How long to wait before sending a call again, if at all. Seconds on a monotonic clock."""

    def __init__(self, retries: int, deadline: float | None, now_s: float) -> None:
        self._left = retries
        self._delay_s = RETRY_DELAY_S_FIRST
        check_seconds("deadline", deadline)
        self._end_s = None if deadline is None else now_s + deadline

    def remaining_s(self, now_s: float) -> float | None:
        """What is left of the deadline, None without one."""
        return None if self._end_s is None else max(0.0, self._end_s - now_s)

    def delay_s(self, call: Call[Any], error: GpumuxdError, now_s: float) -> float | None:
        """None: don't send it again. Each delay is twice the one before, with jitter, so that
        many clients of a daemon that restarts do not come back in step; and never shorter than the
        daemon says is of use."""
        delay_s = self._delay_s * random.uniform(0.75, 1.25) + (error.retry_delay_s or 0.0)
        remaining_s = self.remaining_s(now_s)
        is_too_late = remaining_s is not None and delay_s >= remaining_s
        if not (call.is_idempotent and error.is_transient) or self._left <= 0 or is_too_late:
            return None
        self._left -= 1
        self._delay_s = min(2 * self._delay_s, RETRY_DELAY_S_MAX)
        return delay_s


def check_target(target: str) -> str:
    """Raises ValueError for what names no daemon: gRPC would only say that nobody answers."""
    if target.startswith(("unix:", "unix-abstract:")):
        is_good = target not in ("unix:", "unix-abstract:")
    else:
        host, _, port = target.rpartition(":")
        is_good = bool(host) and port.isascii() and port.isdecimal() and int(port) <= PORT_MAX
        is_good = is_good and not _is_bare_ipv6(target)
    if not is_good:
        raise ValueError(f"target: host:port or unix:/path expected, got {target!r}")
    return target


def _is_bare_ipv6(target: str) -> bool:
    try:
        return ipaddress.ip_address(target).version == 6
    except ValueError:
        return False


def version_text(version: str | int) -> str:
    """A version as it is sent; "" is any. Raises TypeError."""
    if isinstance(version, str):
        return version
    if isinstance(version, int) and not isinstance(version, bool):
        return str(version)
    raise TypeError(f"version: expected a number, or a str such as '3', got {version!r}")


def metadata_of(token: str | None) -> tuple[tuple[str, str], ...]:
    """What goes with every call."""
    return () if token is None else (("authorization", f"Bearer {token}"),)


def infer(
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    *,
    version: str | int,
    priority: int,
    deadline: float | None,
    timeout: float | None,
    outputs: Sequence[str] | None,
    request_id: str,
    sequence: types.SequenceStep | None = None,
) -> Call[types.InferResult]:
    check_seconds("deadline", deadline)
    if deadline is not None:
        # gRPC rounds a deadline up to three digits before it sends it, 30.01 s to 30.1 s, and
        # below a millisecond to one. The node is told in microseconds as well.
        timeout = deadline if timeout is None else min(deadline, timeout)
    # An inference keeps nothing on the node, so sending it twice costs time and no more; a step of
    # a sequence does.
    request = codec.encode_infer(
        model,
        inputs,
        version=version_text(version),
        priority=priority,
        timeout=timeout,
        outputs=outputs,
        request_id=request_id,
        sequence=sequence,
    )
    return Call(
        f"{_INFERENCE}ModelInfer", request, codec.decode_infer, is_idempotent=sequence is None
    )


def server_live() -> Call[bool]:
    return Call(
        f"{_INFERENCE}ServerLive", b"", lambda data: pb.ServerLiveResponse.FromString(data).live
    )


def server_ready() -> Call[bool]:
    return Call(
        f"{_INFERENCE}ServerReady", b"", lambda data: pb.ServerReadyResponse.FromString(data).ready
    )


def model_ready(model: str, version: str | int) -> Call[bool]:
    request = pb.ModelReadyRequest(name=model, version=version_text(version)).SerializeToString()
    return Call(
        f"{_INFERENCE}ModelReady",
        request,
        lambda data: pb.ModelReadyResponse.FromString(data).ready,
    )


def server_metadata() -> Call[types.ServerMetadata]:
    return Call(f"{_INFERENCE}ServerMetadata", b"", codec.decode_server_metadata)


def model_metadata(model: str, version: str | int) -> Call[types.ModelMetadata]:
    request = pb.ModelMetadataRequest(name=model, version=version_text(version)).SerializeToString()
    return Call(f"{_INFERENCE}ModelMetadata", request, codec.decode_model_metadata)


def model_config(model: str, version: str | int) -> Call[types.ModelConfig]:
    request = pb.ModelConfigRequest(name=model, version=version_text(version)).SerializeToString()
    return Call(f"{_INFERENCE}ModelConfig", request, codec.decode_model_config)


def model_statistics(
    model: str, version: str | int
) -> Call[tuple[statistics.ModelStatistics, ...]]:
    request = pb.ModelStatisticsRequest(name=model, version=version_text(version))
    return Call(
        f"{_INFERENCE}ModelStatistics", request.SerializeToString(), statistics.decode_statistics
    )


def index(*, only_ready: bool) -> Call[tuple[types.IndexEntry, ...]]:
    request = pb.RepositoryIndexRequest(ready=only_ready).SerializeToString()
    return Call(f"{_INFERENCE}RepositoryIndex", request, codec.decode_index)


def load(model: str) -> Call[None]:
    request = pb.RepositoryModelLoadRequest(model_name=model).SerializeToString()
    return Call(f"{_INFERENCE}RepositoryModelLoad", request, _nothing, is_idempotent=False)


def unload(model: str) -> Call[tuple[types.UnloadedReplica, ...]]:
    request = control.UnloadModelRequest(name=model).SerializeToString()
    return Call(f"{_CONTROL}UnloadModel", request, codec.decode_unloaded, is_idempotent=False)


def drain(device: str) -> Call[tuple[types.DrainedModel, ...]]:
    request = control.DrainRequest(device=device).SerializeToString()
    return Call(f"{_CONTROL}Drain", request, codec.decode_drained)


def undrain(device: str) -> Call[tuple[types.DrainedModel, ...]]:
    request = control.DrainRequest(device=device).SerializeToString()
    return Call(f"{_CONTROL}Undrain", request, codec.decode_drained)


def node_status() -> Call[types.NodeStatus]:
    request = control.NodeStatusRequest().SerializeToString()
    return Call(f"{_CONTROL}NodeStatus", request, codec.decode_node_status)


def memory() -> Call[tuple[DeviceMemory, ...]]:
    return Call(f"{_CONTROL}Memory", control.MemoryRequest().SerializeToString(), decode_memory)


def model_detail(model: str, version: str | int) -> Call[types.ModelDetail]:
    request = control.ModelDetailRequest(
        name=model, version=version_text(version)
    ).SerializeToString()
    return Call(f"{_CONTROL}ModelDetail", request, detail.decode_model_detail)


def explain(
    model: str, version: str | int, sizes: Mapping[str, int] | None
) -> Call[types.Explanation]:
    for name, size in (sizes or {}).items():
        if not 0 <= size < 2**63:
            raise ValueError(f"sizes: expected {name} of 0 or more, got {size}")
    request = control.ExplainModelRequest(
        name=model, version=version_text(version), sizes=sizes
    ).SerializeToString()
    return Call(f"{_CONTROL}ExplainModel", request, detail.decode_explanation)


RecordPart = bytes | types.RecordingEnd


def record(device: str, seconds: float, bytes_max: int) -> Call[RecordPart]:
    """Answered with a stream."""
    check_seconds("seconds", seconds)
    request = control.RecordRequest(
        device=device, duration_ns=round(seconds * 1e9), bytes_max=bytes_max
    ).SerializeToString()
    return Call(f"{_CONTROL}Record", request, _record_part, is_idempotent=False)


def _record_part(data: bytes) -> RecordPart:
    response = control.RecordResponse.FromString(data)
    if response.WhichOneof("part") == "data":
        return response.data
    end = response.end
    return types.RecordingEnd(end.reason, end.records, end.commands, end.is_whole)


def _nothing(data: bytes) -> None:
    """The answer says nothing beyond that it came."""
