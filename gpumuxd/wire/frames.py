"""The frames between the parent, its device children and loaders.

One frame is one datagram of a SOCK_SEQPACKET pair, a msgpack object tagged with its type, at most
FRAME_BYTES_MAX. Anything larger travels as a memfd beside the frame (`wire/channel.py`); tensors
travel in the arena and a frame only says where. Times are integer nanoseconds on CLOCK_MONOTONIC.

    parent -> child                            child -> parent
    Start      settings; carries the arena     Started    what device this is
    Submit     a request                       Accepted   the child's half of "accepted"
    Cancel                                     Finished   the fate, and where the outputs are
    DropSequence  its state is not needed
    SetTenant  weight and rate
    LoadModel  carries plan and weights        ModelLoaded | ModelFailed
    UnloadModel                                ModelReleased
    Ping       with the parent's count         Pong       with the loop's count of turns
    AskStatistics                              Statistics
    AskExplanation                             Explained
    StartRecording  carries a memory file      RecordingEnded
    StopRecording
    Stop       end after what is in flight     (end of file)

    parent -> loader   Read                    loader -> parent   ReadDone (carries plan and
                                               weights) | ReadFailed
"""

from typing import Annotated

import msgspec

from gpumuxd.domain import Batching, Bucket, Outcome, PriorityClass, RunReport
from gpumuxd.settings import DeviceSettings

FRAME_BYTES_MAX = 64 * 1024

INT64_MAX = 2**63 - 1

NOTE_CHARACTERS_MAX = 1000

Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
"""A number from a child or a loader, which may have been turned: what is added, shown and passed on
must be one that nothing above chokes on. Checked once, when the frame is decoded."""

SignedNs = Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]

Sizes = tuple[Count, ...]
"""A Bucket, as a child tells of one."""


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in the arena: byte offset and size, datatype and shape."""

    offset: Count
    size_bytes: Count
    datatype: str
    shape: tuple[Count, ...]


class StateTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a sequence keeps: the places of its input and its output in the model's spec.

    `is_told`: the output is wanted too, so it is among the blocks of the request.
    """

    input: int
    output: int
    datatype: str
    shape: tuple[int, ...]
    is_told: bool = False


class SequenceState(msgspec.Struct, frozen=True, array_like=True):
    """What a request that is a step of a sequence reads and writes beside its blocks. A slot is
    begun by one request, with zeros, and never begun again."""

    slot: int
    is_start: bool
    tensors: tuple[StateTensor, ...]


class Frame(msgspec.Struct, frozen=True, tag=True):
    """Base of all frames; the tag is the class name."""


# Parent to child


class Start(Frame, frozen=True):
    """The first frame; two descriptors beside it: the memfds of the arena and of the board."""

    settings: DeviceSettings
    parent_pid: int


class Submit(Frame, frozen=True):
    """A request whose inputs lie in the arena and whose outputs are reserved there.

    `inputs` and `outputs` are in the order of the model's spec. An output block is what is
    expected and its size a bound; the child writes the true tensor at its offset. Those of one
    model with an equal `batch_key` can share a run; None: it runs alone. A step of a `sequence` has
    no blocks for what that keeps, but for outputs that are told, and runs alone.
    """

    request_id: int
    tenant: str
    model: str
    priority_class: PriorityClass
    bucket: Bucket
    rows: int
    arrived_ns: int
    deadline_ns: int | None
    inputs: tuple[Block, ...]
    outputs: tuple[Block, ...]
    batch_key: Bucket | None = None
    sequence: SequenceState | None = None


class Cancel(Frame, frozen=True):
    """Nobody waits for this request; the answer is still exactly one Finished."""

    request_id: int


class DropSequence(Frame, frozen=True):
    """No further step of this sequence comes. One that was never begun is no error."""

    model: str
    slot: int


class SetTenant(Frame, frozen=True):
    """Mirrors `events.TenantChanged`."""

    tenant: str
    weight: int
    realtime_per_s: int | None
    realtime_burst: int
    memory_bytes_max: int | None = None


class LoadModel(Frame, frozen=True):
    """Two descriptors beside it: the plan's memfd and the weights' memfd, both sealed.

    `artifact_hash` keys the profile cache. Where requests may share a run, `padded` names the
    dimensions in which they may differ, and if there are any, `fills` has for each input what it is
    filled with. Answered by ModelLoaded or ModelFailed.
    """

    model: str
    artifact_hash: str
    class_max: PriorityClass
    slo_ns: int | None
    tenant: str
    batching: Batching | None = None
    padded: tuple[str, ...] = ()
    fills: tuple[int | float, ...] = ()


class UnloadModel(Frame, frozen=True):
    """Finish what was admitted, then answer ModelReleased."""

    model: str


class Ping(Frame, frozen=True):
    """Asks for a sign of life of the device loop."""

    count: int


class AskStatistics(Frame, frozen=True):
    """Asks for one Statistics frame."""


class StartRecording(Frame, frozen=True):
    """Record the scheduler into the memory file beside it, up to `bytes_max`. One at a time."""

    bytes_max: int


class StopRecording(Frame, frozen=True):
    """End the recording, if one goes on."""


class AskExplanation(Frame, frozen=True):
    """Asks why the work of a model is cut as it is. `bucket` None: whichever tells most."""

    ask_id: int
    model: str
    bucket: Bucket | None


class Stop(Frame, frozen=True):
    """Take nothing new, finish what was admitted, end."""


# Child to parent


class Started(Frame, frozen=True):
    """The device is ready for models."""

    device: str
    description: str
    torch_version: str
    memory_bytes: Count


class Accepted(Frame, frozen=True):
    """Mirrors `commands.Admit`."""

    request_id: Count
    predicted_finish_ns: Count


class Finished(Frame, frozen=True):
    """Mirrors `commands.Finish`; `outputs` are the true tensors when the outcome is COMPLETED."""

    request_id: Count
    outcome: Outcome
    report: RunReport
    outputs: tuple[Block, ...]

    def __post_init__(self) -> None:
        """The values of `domain.py` can't say themselves what a Count is."""
        told, report = self.outcome, self.report
        numbers = (
            *(told.predicted_finish_ns, told.deadline_ns, report.queue_ns, report.compute_ns),
            *(report.preemptions, report.preemption_wait_ns, report.predicted_ns),
            report.batch_rows,
        )
        if min(numbers) < 0 or max(numbers) > INT64_MAX:
            raise ValueError(f"a number that can't be in {told} or {report}")


class LongGroup(msgspec.Struct, frozen=True, array_like=True):
    """One kernel group of a program, its time, and the nodes `first_node <= i < end_node` in it."""

    group: Count
    device_ns: Count
    first_node: Count
    end_node: Count


class ModelLoaded(Frame, frozen=True):
    """The model serves from now on, with what the profiler found.

    `longest_groups` has for each bucket of `run_ns`, in its order, the longest groups, the longest
    first: all of them, or as many as one frame has room for. `left_out` are the buckets that were
    to be measured and would have taken too long. `batch_rows_max` is how many rows share a run, 0
    if requests run alone, and `batching_note` what was found when that was tried.
    """

    model: str
    group_count: Count
    longest_group_ns: Count
    run_ns: tuple[tuple[Sizes, Count], ...]
    weights_bytes: Count
    frame_bytes: Count
    profile_was_cached: bool
    longest_groups: tuple[tuple[LongGroup, ...], ...] = ()
    left_out: tuple[Sizes, ...] = ()
    batch_rows_max: Count = 0
    batching_note: Annotated[str, msgspec.Meta(max_length=NOTE_CHARACTERS_MAX)] = ""


class ModelFailed(Frame, frozen=True):
    """The model could not be made ready; nothing of it is left. Out of memory is no fault of the
    model's: with fewer of them it may do."""

    model: str
    reason: str
    is_out_of_memory: bool = False


class ModelReleased(Frame, frozen=True):
    """Nothing of the model is on the device any more: what the child's process held before and
    after it let go of it, as the kernel counts."""

    model: str
    resident_bytes_before: Count = 0
    resident_bytes_after: Count = 0


class Pong(Frame, frozen=True):
    """A sign of life: the ping's count and how many turns the device loop has made."""

    count: Count
    turns: Count


class ModelFigures(msgspec.Struct, frozen=True, array_like=True):
    """What a device child tells about one model. `frame_bytes_max` is the most one run held."""

    model: str
    queued: Count
    started: Count
    completed: Count
    failed: Count
    weights_bytes: Count = 0
    frame_bytes_held: Count = 0
    frame_bytes_max: Count = 0


class TenantFigures(msgspec.Struct, frozen=True, array_like=True):
    """What the models that are one tenant's alone hold of a device, and may hold."""

    tenant: str
    weights_bytes: Count
    frame_bytes_held: Count
    bytes_max: Count | None


class Statistics(Frame, frozen=True):
    """A snapshot of the device scheduler, for people and placement.

    `bound_origin` names what gave `bound_ns`: `laxity`, and then `bound_model` is the key of the
    model with that SLO; or the setting that did; or why there is no bound. `best_effort_grants` are
    slices that went ahead of higher classes for `best_effort_share_min`. A model with a group
    longer than `laxity_ns`, which is that of `laxity_model`, keeps no bound. `backlog_ns` is what
    is predicted to be left, by class; it knows of the first `submits` requests that were sent.
    Of `model_count` models the first are told, and of the tenants those that hold the most; all
    frames together hold `frame_bytes_held` of `memory_bytes`. `resident_bytes` are those of the
    whole process, as the kernel counts.
    """

    queued: Count
    started: Count
    in_flight_slices: Count
    slices_launched: Count
    groups_launched: Count
    preemptions: Count
    deadline_missed: Count
    refused: Count
    frames_held: Count
    memory_bytes: Count
    bound_ns: Count
    window: Count
    device_busy_ns: Count
    models: tuple[ModelFigures, ...] = ()
    bound_origin: str = ""
    bound_model: str = ""
    best_effort_grants: Count = 0
    best_effort_granted_ns: Count = 0
    laxity_ns: SignedNs | None = None
    laxity_model: str = ""
    backlog_ns: Sizes = ()
    submits: Count = 0
    model_count: Count = 0
    tenants: tuple[TenantFigures, ...] = ()
    frame_bytes_held: Count = 0
    resident_bytes: Count = 0


class RecordingEnded(Frame, frozen=True):
    """All that will be in the memory file is there. Answers each StartRecording once."""

    reason: str
    records: Count
    commands: Count
    has_begun: bool = True
    is_broken: bool = False  # said by the parent of a child that died: it has no proper end


class ExplainedSlice(msgspec.Struct, frozen=True, array_like=True):
    """One slice of an undisturbed run: the groups `first_group <= i < end_group`, their time."""

    first_group: Count
    end_group: Count
    predicted_ns: Count


class Explanation(msgspec.Struct, frozen=True):
    """Mirrors `core.explanation.Explanation`, in as much detail as one frame has room for: of
    `group_count` groups and `slice_count` slices the first. `bound_model` is the key of the model
    whose laxity gives the bound, where `bound_origin` is `laxity`.
    """

    bucket: Sizes
    mode: str
    reason: str
    priority_class: PriorityClass
    group_count: Count
    group_ns: tuple[Count, ...]
    run_ns: Count
    slice_count: Count
    slices: tuple[ExplainedSlice, ...]
    window: Count
    slice_ns: Count
    bound_ns: Count | None
    bound_origin: str
    bound_model: str
    floor_ns: Count
    floor_group: Count
    exec_ns: Count
    preempt_ns: Count
    preempt_expected_ns: Count
    is_guess: bool
    is_cost_doubtful: bool = False


class Explained(Frame, frozen=True):
    """The answer to AskExplanation; none for a model that does not serve on this device."""

    ask_id: Count
    explanation: Explanation | None


# Parent and loader


class Read(Frame, frozen=True):
    """Read and validate this artifact. One descriptor beside it: the artifact, opened read-only.

    `artifact_format` is pt2 or onnx.
    """

    model_bytes_max: int
    artifact_format: str = "pt2"


class ReadDone(Frame, frozen=True):
    """Two descriptors beside it: plan and weights, sealed. `spec` is an encoded `ModelSpec`.

    `parameter_count` counts the elements of all weights.
    """

    artifact_hash: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    spec: bytes
    plan_bytes: Count
    weights_bytes: Count
    node_count: Count
    platform: Annotated[str, msgspec.Meta(pattern=r"^(pytorch_pt2|onnxruntime_onnx)\Z")] = (
        "pytorch_pt2"
    )
    parameter_count: Count = 0


class ReadFailed(Frame, frozen=True):
    """The artifact can't be served; `reason` is for its owner."""

    reason: str


AnyFrame = (
    Start
    | Submit
    | Cancel
    | DropSequence
    | SetTenant
    | LoadModel
    | UnloadModel
    | Ping
    | AskStatistics
    | AskExplanation
    | StartRecording
    | StopRecording
    | Stop
    | Started
    | Accepted
    | Finished
    | ModelLoaded
    | ModelFailed
    | ModelReleased
    | Pong
    | Statistics
    | Explained
    | RecordingEnded
    | Read
    | ReadDone
    | ReadFailed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def encode(frame: Frame) -> bytes:
    """A frame as one datagram."""
    data = _encoder.encode(frame)
    assert len(data) <= FRAME_BYTES_MAX, f"{type(frame).__name__} of {len(data)} bytes"
    return data


def decode(data: bytes | memoryview) -> AnyFrame:
    """The frame of a datagram, which nothing in it refers to. Raises msgspec.DecodeError."""
    return _decoder.decode(data)
