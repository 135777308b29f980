"""Steps of sequences through a real child, and what is kept between them."""

from collections.abc import Iterator
from itertools import count

import pytest
import torch

from gpumuxd.clock import monotonic_ns
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.sequences import Sequences
from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.events import TenantChanged
from gpumuxd.programs.exporter import export_model
from gpumuxd.settings import SchedulerSettings
from gpumuxd.units import MIB
from gpumuxd.wire.frames import (
    Accepted,
    Block,
    Cancel,
    DropSequence,
    ModelReleased,
    SequenceState,
    StateTensor,
    Submit,
)
from tests.device.support import DeviceChild, LoadedArtifact, read_artifact

SIZE = 64
STATE = StateTensor(1, 1, "FP32", (1, SIZE))
TOLD = StateTensor(1, 1, "FP32", (1, SIZE), is_told=True)


class Sum(torch.nn.Module):
    """All that came so far; the state is in the middle of the outputs. Some milliseconds long."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(512))

    def forward(
        self, x: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = state + x
        work: torch.Tensor = self.weight
        for _ in range(4):
            work = work @ self.weight
        return x * 2, state, state.sum(dim=1) * work[0, 0]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    path = tmp_path_factory.mktemp("sum") / "model.pt2"
    example = {"x": torch.zeros(2, SIZE), "state": torch.zeros(2, SIZE)}
    export_model(Sum(), example, path, batch_max=4, output_names=("double", "stateN", "sum"))
    return read_artifact(path)


@pytest.fixture(scope="module")
def child(artifact: LoadedArtifact) -> Iterator[DeviceChild]:
    with DeviceChild() as child:
        child.wait_started()
        child.load(artifact, "sum/1")
        yield child
        assert child.stop()[0] == 0


_requests = count(1_000_000)
_slots = count(1)


def submit(
    child: DeviceChild,
    slot: int,
    value: float,
    is_start: bool = False,
    state: StateTensor = STATE,
    model: str = "sum/1",
) -> Submit:
    """One step; its outputs are the double, the state if it is told, and the sum."""
    outputs = [child._reserve("FP32", (1, SIZE))]
    outputs += [child._reserve("FP32", (1, SIZE))] * state.is_told
    outputs.append(child._reserve("FP32", (1,)))
    frame = Submit(
        next(_requests),
        "tenant",
        model,
        PriorityClass.STANDARD,
        (1,),
        1,
        monotonic_ns(),
        None,
        (child._copy_in(torch.full((1, SIZE), float(value))),),
        tuple(outputs),
        sequence=SequenceState(slot, is_start, (state,)),
    )
    child.send(frame)
    return frame


def finish(child: DeviceChild, frame: Submit) -> list[torch.Tensor] | OutcomeKind:
    """Its outputs, or its fate."""
    finished = child.finish(frame)
    results = [child.tensor(block) for block in finished.outputs]
    child.free(frame)
    kind = finished.outcome.kind
    return results if kind is OutcomeKind.COMPLETED else kind


def step(child: DeviceChild, slot: int, value: float, is_start: bool = False) -> float:
    """The sum of the sequence so far, of one element."""
    results = finish(child, submit(child, slot, value, is_start))
    assert isinstance(results, list), results
    double, total = results
    assert torch.equal(double, torch.full((1, SIZE), 2.0 * value))
    return float(total) / SIZE


def test_state_begins_with_zeros_and_stays_from_step_to_step(child: DeviceChild) -> None:
    slot = next(_slots)
    assert [step(child, slot, v, is_start=v == 1) for v in (1, 2, 3, 4)] == [1, 3, 6, 10]
    child.send(DropSequence("sum/1", slot))


def test_sequences_do_not_mix(child: DeviceChild) -> None:
    slots = [next(_slots) for _ in range(5)]
    for turn in range(3):
        steps = [submit(child, slot, slot, is_start=turn == 0) for slot in slots]
        results = [finish(child, each) for each in steps]
        sums = [float(each[1]) / SIZE for each in results if isinstance(each, list)]
        assert sums == [slot * (turn + 1) for slot in slots]
    for slot in slots:
        child.send(DropSequence("sum/1", slot))


def test_a_state_that_is_told_is_kept_too(child: DeviceChild) -> None:
    slot = next(_slots)
    step(child, slot, 1, is_start=True)
    results = finish(child, submit(child, slot, 2, state=TOLD))
    assert isinstance(results, list)
    double, state, total = results
    assert torch.equal(double, torch.full((1, SIZE), 4.0))
    assert torch.equal(state, torch.full((1, SIZE), 3.0))
    assert total == 3 * SIZE
    assert step(child, slot, 3) == 6
    child.send(DropSequence("sum/1", slot))


def test_a_step_that_is_cancelled_leaves_the_state(child: DeviceChild) -> None:
    slot = next(_slots)
    step(child, slot, 1, is_start=True)
    late = submit(child, slot, 100)
    while child.expect(Accepted).request_id != late.request_id:
        pass
    child.send(Cancel(late.request_id))
    assert finish(child, late) is OutcomeKind.CANCELLED
    assert step(child, slot, 2) == 3
    child.send(DropSequence("sum/1", slot))


def test_a_slot_that_is_dropped_under_its_step_harms_nobody(child: DeviceChild) -> None:
    slot, other = next(_slots), next(_slots)
    step(child, slot, 1, is_start=True)
    under_way = submit(child, slot, 2)
    child.send(Cancel(under_way.request_id))
    child.send(DropSequence("sum/1", slot))
    child.send(DropSequence("sum/1", slot))  # a second time: no error
    assert step(child, other, 5, is_start=True) == 5
    finish(child, under_way)
    child.send(DropSequence("sum/1", other))


def test_a_state_of_another_shape_is_the_models_fault_and_is_not_kept(child: DeviceChild) -> None:
    slot = next(_slots)
    wrong = StateTensor(1, 1, "FP32", (1, 2 * SIZE))  # not what the model gives
    frame = submit(child, slot, 1, is_start=True, state=wrong)
    finished = child.finish(frame)
    assert finished.outcome.kind is OutcomeKind.MODEL_FAULTED, finished
    child.free(frame)
    child.send(DropSequence("sum/1", slot))
    assert step(child, next(_slots), 5, is_start=True) == 5


def test_states_vanish_with_their_model_and_a_late_step_is_a_fate(
    child: DeviceChild, artifact: LoadedArtifact
) -> None:
    child.load(artifact, "sum/2")
    slot, other = next(_slots), next(_slots)
    assert finish(child, submit(child, slot, 1, is_start=True, model="sum/2"))
    step(child, other, 1, is_start=True)
    child.unload("sum/2")
    after = submit(child, slot, 2, model="sum/2")
    assert finish(child, after) in (OutcomeKind.MODEL_NOT_READY, OutcomeKind.DRAINING)
    if not any(isinstance(frame, ModelReleased) for frame in child.frames):
        child.expect(ModelReleased)
    assert step(child, other, 2) == 3
    child.send(DropSequence("sum/1", other))


# The table alone


def begin(slot: int, tenant: str = "t", model: str = "m", elements: int = 1000) -> Submit:
    tensors = (StateTensor(0, 0, "FP32", (elements,)),)
    block = Block(0, 0, "FP32", (0,))
    state = SequenceState(slot, True, tensors)
    parts = (PriorityClass.STANDARD, (1,), 1, 0, None, (block,), ())
    return Submit(slot, tenant, model, *parts, sequence=state)


def test_no_more_is_held_than_there_is_room_for() -> None:
    asked: list[tuple[int, str]] = []
    limits = {"": 48_000, "poor": 8_000}

    def why_no_room(size_bytes: int, tenant: str) -> str:
        asked.append((size_bytes, tenant))
        return "it is full" if size_bytes > limits.get(tenant, 48_000) else ""

    sequences = Sequences(why_no_room)
    assert sequences.begin(begin(1, "poor")) == ""  # two sets of 4000 bytes
    assert "it is full" in sequences.begin(begin(2, "poor"))
    assert sequences.begin(begin(3, "rich")) == ""
    assert sequences.begin(begin(4, "rich", model="n")) == ""
    assert sequences.held_bytes == 24_000
    assert "does not fit: it is full" in sequences.begin(begin(5, "rich"))
    sequences.drop("m", 3)
    assert sequences.begin(begin(6, "rich")) == ""
    sequences.drop_model("m")
    assert sequences.held_bytes == 8_000
    sequences.drop("n", 4)
    assert sequences.held_bytes == 0
    assert asked[-1] == (48_000, ""), "as much as they take is left for runs"


def test_the_books_of_a_device_say_what_fits() -> None:
    scheduler = DeviceScheduler(SchedulerSettings(memory_bytes_max=4 * MIB))
    scheduler.handle(TenantChanged("poor", memory_bytes_max=MIB), 0)
    sequences = Sequences(scheduler.why_no_room)
    quarter = MIB // 4 // 2  # elements of 4 bytes, in two sets
    assert sequences.begin(begin(1, "poor", elements=quarter // 2)) == ""
    assert "tenant 'poor' has" in sequences.begin(begin(2, "poor", elements=quarter))
    assert sequences.begin(begin(3, "rich", elements=quarter)) == ""
    assert "4.0 MiB are free" in sequences.begin(begin(4, "rich", elements=quarter))
    assert sequences.held_bytes == 3 * MIB // 2


def test_a_state_that_the_process_has_no_memory_for_is_refused() -> None:
    sequences = Sequences(lambda size_bytes, tenant: "")
    assert "at its limit" in sequences.begin(begin(1, elements=1 << 50))
    assert sequences.held_bytes == 0
    assert sequences.begin(begin(1)) == ""
