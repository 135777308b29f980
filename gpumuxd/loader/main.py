"""The loader process: reads one artifact that nobody trusts, answers once, ends.

A process of its own, because reading an artifact next to the device loop moved its wake p99 from
0.1 to about 100 ms, and because a reader of foreign bytes should have nothing to lose: it has no
descriptor but the channel and the artifact, bounds its own memory, time and file sizes, gives up
files, processes and connections before it looks at the artifact (`wire/sandbox.py`), and dies with
its parent, the starter that forks it (`starter.py`). It never imports torch.

The answer to one Read frame is ReadDone with the plan and the weights in two sealed memfds, or
ReadFailed with a reason for the artifact's owner.
"""

import codecs
import contextlib
import hashlib
import math
import os
import resource
import select
import stat
import sys
from dataclasses import replace
from io import BufferedReader
from typing import TypeVar

import msgspec

from gpumuxd.errors import InvalidModel
from gpumuxd.models import onnx_plan
from gpumuxd.models import plan as plans
from gpumuxd.models.limits import DEFAULT_LIMITS, ReadLimits
from gpumuxd.models.onnx_limits import DEFAULT_ONNX_LIMITS, OnnxLimits
from gpumuxd.models.onnx_operators import onnx_allow_list
from gpumuxd.models.onnx_optimiser import runtime_package
from gpumuxd.models.onnx_proto import onnx_package
from gpumuxd.models.onnx_reader import OnnxArtifact
from gpumuxd.models.operators import allow_list
from gpumuxd.models.pt2 import Artifact
from gpumuxd.units import GIB, MIB
from gpumuxd.wire.channel import Channel, ChannelClosed
from gpumuxd.wire.frames import Read, ReadDone, ReadFailed
from gpumuxd.wire.process import ParentGone, sealed_memfd, set_parent_death_signal
from gpumuxd.wire.sandbox import Policy, confine

ADDRESS_SPACE_BYTES_MAX = 2 * GIB
"""Decoding a graph of 60 MiB took 0.4 GiB; weights are copied in pieces, not mapped."""

ONNX_COPIES_MAX = 6
"""As many times the artifact's size more for ONNX: the message as bytes and decoded, what the
runtime makes of both, its file, and that decoded. Measured in all: 6.9 times 256 MiB."""

CPU_SECONDS_MAX = 60
"""About 1 s for each GiB of weights to hash and copy on a slow core, and room for the graph."""

OPEN_FILES_MAX = 32

PLAN_BYTES_MAX = 64 * MIB

ONNX = "onnx"
"""The artifact format that is not torch's."""

REASON_CHARS_MAX = 2000
"""A reason travels in one frame and ends in an error message."""


def run(channel_fd: int, parent_pid: int) -> int:
    """A loader's life; its exit status is 0 whenever an answer was sent."""
    try:
        set_parent_death_signal(parent_pid)
        with Channel.from_fd(channel_fd) as channel:
            serve(channel)
    except (ChannelClosed, ParentGone):
        return 1  # Nobody is left to tell.
    return 0


def prepare() -> None:
    """All that Python would open later, when a loader may no more: a data file, and the encoding
    of names in a zip file that are not said to be UTF-8."""
    allow_list()
    codecs.lookup("cp437")


def serve(channel: Channel) -> None:
    """Receive one Read, answer it, return."""
    frame, descriptors = _receive(channel)
    assert isinstance(frame, Read), f"expected Read, got {type(frame).__name__}"
    (artifact_fd,) = descriptors
    is_onnx = frame.artifact_format == ONNX
    address_space_bytes_max = ADDRESS_SPACE_BYTES_MAX
    if is_onnx:
        _import_onnx()
        address_space_bytes_max += ONNX_COPIES_MAX * min(
            os.fstat(artifact_fd).st_size, DEFAULT_ONNX_LIMITS.artifact_bytes_max
        )
    # ONNX Runtime writes what it optimised to a file, if only one in memory.
    give_up_rights(Policy(reopens_own_memory=is_onnx))
    limit_resources(frame.model_bytes_max, address_space_bytes_max)
    try:
        done, made = _read_descriptor(artifact_fd, frame.model_bytes_max, frame.artifact_format)
    except InvalidModel as error:
        _send(channel, ReadFailed(error.message[:REASON_CHARS_MAX]), [])
    except MemoryError:
        _send(channel, ReadFailed(_out_of_memory()), [])
    except OSError as error:
        _send(channel, ReadFailed(f"the artifact can't be read: {error.strerror}"), [])
    else:
        _send(channel, done, made)


def _import_onnx() -> None:
    """What can be imported later no more. Where it is missing, reading will say so."""
    # A thread that exists already can't be confined, and numpy's library would start some.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with contextlib.suppress(InvalidModel):
        onnx_package()
        runtime_package()
    onnx_allow_list()


def _read_descriptor(
    fd: int, model_bytes_max: int, artifact_format: str
) -> tuple[ReadDone, list[int]]:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise InvalidModel("the artifact is no regular file")
    with os.fdopen(fd, "rb") as file:
        return read(file, model_bytes_max, artifact_format)


def read(
    file: BufferedReader, model_bytes_max: int, artifact_format: str = "pt2"
) -> tuple[ReadDone, list[int]]:
    """Validate an artifact; return the answer and the descriptors of plan and weights."""
    artifact: Artifact | OnnxArtifact
    if artifact_format == ONNX:
        limits = _limited(DEFAULT_ONNX_LIMITS, model_bytes_max)
        onnx = OnnxArtifact(file, limits, is_optimised=True)
        if onnx.why_not_optimised:
            print(f"gpumuxd.loader: not optimised: {onnx.why_not_optimised}", file=sys.stderr)
        artifact, plan_bytes = onnx, onnx_plan.encode(onnx.plan)
        platform, parameter_count = "onnxruntime_onnx", onnx.parameter_count
    else:
        torch = Artifact(file, _limited(DEFAULT_LIMITS, model_bytes_max))
        artifact, plan_bytes = torch, plans.encode(torch.plan)
        # By place, so that weights that share their memory count once.
        sizes = {entry.offset: math.prod(entry.shape) for entry in torch.plan.weights}
        platform, parameter_count = "pytorch_pt2", sum(sizes.values())
    if len(plan_bytes) > PLAN_BYTES_MAX:
        raise InvalidModel(f"plan of {len(plan_bytes)} bytes, the limit is {PLAN_BYTES_MAX}")
    plan_fd = sealed_memfd("gpumuxd-plan", lambda out: out.write(plan_bytes))
    weights_fd = sealed_memfd("gpumuxd-weights", lambda out: artifact.write_weights(out.write))
    file.seek(0)
    done = ReadDone(
        artifact_hash=hashlib.file_digest(file, "sha256").hexdigest(),
        spec=msgspec.msgpack.encode(artifact.plan.spec),
        plan_bytes=len(plan_bytes),
        weights_bytes=artifact.weights_bytes,
        node_count=len(artifact.plan.nodes),
        platform=platform,
        parameter_count=parameter_count,
    )
    return done, [plan_fd, weights_fd]


_Limits = TypeVar("_Limits", ReadLimits, OnnxLimits)


def _limited(limits: _Limits, model_bytes_max: int) -> _Limits:
    return replace(
        limits,
        artifact_bytes_max=min(model_bytes_max, limits.artifact_bytes_max),
        weights_bytes_max=min(model_bytes_max, limits.weights_bytes_max),
    )


def limit_resources(
    model_bytes_max: int, address_space_bytes_max: int = ADDRESS_SPACE_BYTES_MAX
) -> None:
    """Bound what a hostile artifact can make this process use. Lower limits that exist stay."""
    file_bytes_max = max(model_bytes_max, PLAN_BYTES_MAX) + MIB
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, CPU_SECONDS_MAX),
        (resource.RLIMIT_AS, address_space_bytes_max),
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
        # Also the limit of each memfd, which is where weights go.
        (resource.RLIMIT_FSIZE, file_bytes_max),
    ):
        _, hard = resource.getrlimit(kind)
        is_open = hard == resource.RLIM_INFINITY
        bounded = value if is_open else min(value, hard)
        above = bounded
        if kind == resource.RLIMIT_CPU and (is_open or bounded < hard):
            # The soft limit sends SIGXCPU, the hard one SIGKILL, which anybody could have sent.
            above += 1
        resource.setrlimit(kind, (bounded, above))


def give_up_rights(policy: Policy) -> None:
    """From here on: no process, connection, file or right that an ordinary account would have."""
    parent_pid = os.getppid()
    prepare()
    confinement = confine(policy)
    for measure, reason in confinement.missing:
        print(f"gpumuxd.loader: this machine has no {measure} for it: {reason}", file=sys.stderr)
    # Becoming another account cleared it.
    set_parent_death_signal(parent_pid)


def _out_of_memory() -> str:
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    return f"reading the artifact takes more than {limit_bytes} bytes of memory"


def _receive(channel: Channel) -> tuple[object, list[int]]:
    while (received := channel.receive()) is None:
        select.select([channel], [], [])
    return received


def _send(channel: Channel, frame: ReadDone | ReadFailed, descriptors: list[int]) -> None:
    channel.send(frame, descriptors)
    while not channel.flush():
        select.select([], [channel], [])
