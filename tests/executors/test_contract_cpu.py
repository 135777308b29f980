"""The CPU device passes the suite of executors, and deals with real tensors and their sizes."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import Slice
from gpumuxd.events import SliceFailed, SyncPointReached
from gpumuxd.executors.base import Completion
from gpumuxd.executors.cpu import COMPUTE, CpuExecutor, short_reason
from tests.executors.contract import ExecutorContract, Group, Rig

ITEM_BYTES = 8
UNWRITTEN = -(2**63)


class SlotProgram:
    """Groups over plain slots: inputs are the first, and `slots[0]` in the end is the output."""

    def __init__(self, groups: Sequence[Callable[[list[Any]], None]]) -> None:
        self.groups = tuple(groups)
        self.group_count = len(self.groups)

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return [*inputs]

    def outputs(self, slots: list[Any]) -> list[torch.Tensor]:
        return [slots[0]]

    def bytes_held(self, slots: list[Any]) -> int:
        return sum(int(slot.nbytes) for slot in slots)


def region(size_bytes: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.full((size_bytes // ITEM_BYTES,), UNWRITTEN).view(dtype)


class CpuRig(Rig[SlotProgram, Sequence[torch.Tensor]]):
    def __init__(self) -> None:
        self.executor = self.cpu = CpuExecutor()
        self.regions: dict[int, torch.Tensor] = {}
        self.go = threading.Event()

    def now_ns(self) -> int:
        return monotonic_ns()

    def make_program(self, groups: Sequence[Group]) -> SlotProgram:
        return SlotProgram(groups)

    def bind(self, request_id: int, value: int) -> None:
        self.regions[request_id] = region(ITEM_BYTES)
        self.executor.bind(request_id, [torch.tensor([value])], [self.regions[request_id]])

    def result(self, request_id: int) -> int | None:
        value = int(self.regions[request_id].view(torch.int64).item())
        return None if value == UNWRITTEN else value

    def long_group(self) -> Group:
        def group(slots: list[Any]) -> None:
            assert self.go.wait(timeout=60)

        return group

    def end_long_groups(self) -> None:
        self.go.set()


class TestCpu(ExecutorContract):
    def make_rig(self) -> Rig[SlotProgram, Sequence[torch.Tensor]]:
        return CpuRig()


@pytest.fixture
def executor() -> Iterator[CpuExecutor]:
    executor = CpuExecutor()
    yield executor
    executor.close()


def work(slice_id: int, first: int = 0, end: int = 1, cursor: int = 1) -> Slice:
    return Slice(slice_id, cursor, "m", (1,), (cursor,), cursor, first, end, COMPUTE, (), 0)


def run(executor: CpuExecutor, *slices: Slice) -> list[Completion]:
    for one in slices:
        executor.launch(one)
    told: list[Completion] = []
    while len(told) < len(slices):
        told += executor.wait(monotonic_ns() + 10**10)
    return told


def nothing(slots: list[Any]) -> None:
    """A group without effect."""


def test_the_true_output_may_be_smaller_than_its_region(executor: CpuExecutor) -> None:
    def halve(slots: list[Any]) -> None:
        slots[0] = slots[0][:, ::2].t()  # neither contiguous nor of the reserved shape

    executor.load("m", SlotProgram([halve]))
    room = region(64, torch.float32)
    executor.bind(1, [torch.arange(8.0).view(2, 4)], [room])
    run(executor, work(1))
    _, (result,) = executor.result(1)
    assert torch.equal(result, torch.tensor([[0.0, 4.0], [2.0, 6.0]]))
    assert result.data_ptr() == room.data_ptr()
    assert torch.equal(room[:4], torch.tensor([0.0, 4.0, 2.0, 6.0]))
    assert (room[4:].view(torch.int64) == UNWRITTEN).all()


def test_an_output_that_does_not_fit_fails_with_the_numbers(executor: CpuExecutor) -> None:
    executor.load("m", SlotProgram([nothing]))
    room = region(16, torch.float32)
    executor.bind(1, [torch.zeros(5)], [room])
    (failed,) = run(executor, work(1))
    assert isinstance(failed, SliceFailed)
    assert "shape [5] takes 20 bytes, 16 were reserved" in failed.reason
    assert (room.view(torch.int64) == UNWRITTEN).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_shapes_without_dimensions_or_elements(
    executor: CpuExecutor, shape: tuple[int, ...]
) -> None:
    executor.load("m", SlotProgram([nothing]))
    executor.bind(1, [torch.ones(shape, dtype=torch.bool)], [region(8, torch.bool)])
    run(executor, work(1))
    _, (result,) = executor.result(1)
    assert result.shape == shape
    assert result.dtype == torch.bool
    assert result.all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.float64])
def test_an_output_of_another_type_than_declared_fails_before_it_is_written(
    executor: CpuExecutor, dtype: torch.dtype
) -> None:
    executor.load("m", SlotProgram([nothing]))
    room = region(64)
    executor.bind(1, [torch.zeros(2, dtype=dtype)], [room])
    (failed,) = run(executor, work(1))
    assert isinstance(failed, SliceFailed)
    assert f"output 0 is of type {dtype}, its artifact declares torch.int64" in failed.reason
    assert (room == UNWRITTEN).all()


def test_outputs_are_dropped_when_nothing_is_reserved(executor: CpuExecutor) -> None:
    executor.load("m", SlotProgram([nothing]))
    executor.bind(1, [torch.zeros(5)], ())
    (passed,) = run(executor, work(1))
    assert isinstance(passed, SyncPointReached)
    assert executor.result(1) == ((), ())


def test_groups_run_in_inference_mode_on_the_device_thread(executor: CpuExecutor) -> None:
    seen: list[object] = []

    def look(slots: list[Any]) -> None:
        seen.append((torch.is_inference_mode_enabled(), threading.current_thread().name))

    executor.load("m", SlotProgram([look]))
    executor.bind(1, [torch.zeros(1)], ())
    run(executor, work(1))
    assert seen == [(True, "device")]
    assert not torch.is_inference_mode_enabled()


def test_inputs_are_read_in_place(executor: CpuExecutor) -> None:
    seen: list[int] = []
    executor.load("m", SlotProgram([lambda slots: seen.append(slots[0].data_ptr())]))
    inputs = torch.zeros(4)
    executor.bind(1, [inputs], ())
    run(executor, work(1))
    assert seen == [inputs.data_ptr()]


def test_bytes_held_between_slices(executor: CpuExecutor) -> None:
    def grow(slots: list[Any]) -> None:
        slots.append(torch.zeros(100))

    executor.load("m", SlotProgram([grow, nothing]))
    executor.bind(1, [torch.zeros(1)], ())
    run(executor, work(1))
    assert executor.bytes_held(1) == 404
    executor.launch(work(2, 1, 2))
    with pytest.raises(AssertionError):
        executor.bytes_held(1)


def test_retiring_a_cursor_in_flight_is_a_bug(executor: CpuExecutor) -> None:
    executor.load("m", SlotProgram([nothing]))
    executor.bind(1, [torch.zeros(1)], ())
    executor.launch(work(1))
    with pytest.raises(AssertionError):
        executor.retire(1)
    with pytest.raises(AssertionError):
        executor.unload("m")


def test_mail_ends_a_wait_and_is_left_to_its_reader() -> None:
    reader, writer = os.pipe()
    executor = CpuExecutor(mail_fd=reader)
    os.write(writer, b"x")
    assert executor.wait(None) == []
    assert os.read(reader, 2) == b"x"
    executor.close()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("cost_ns", [5_000, 3_000_000])
def test_launching_costs_host_time(cost_ns: int) -> None:
    executor = CpuExecutor(launch_cost_ns=cost_ns)
    executor.load("m", SlotProgram([nothing]))
    executor.bind(1, [torch.zeros(1)], ())
    began_ns = monotonic_ns()
    executor.launch(work(1))
    assert monotonic_ns() - began_ns >= cost_ns
    executor.close()


def test_a_failure_lets_go_of_what_the_cursor_held(executor: CpuExecutor) -> None:
    def fail(slots: list[Any]) -> None:
        raise ValueError("no")

    executor.load("m", SlotProgram([nothing, fail]))
    executor.bind(1, [torch.zeros(1)], ())
    run(executor, work(1), work(2, 1, 2))
    assert executor.bytes_held(1) == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("bad shape\n  at file.cpp:3"), "RuntimeError: bad shape"),
        (ValueError(), "ValueError"),
        (OSError("can't open '/home/user/secret.bin' now"), "OSError: can't open '<path>' now"),
        (RuntimeError("1/2 of a/b"), "RuntimeError: 1/2 of a/b"),
        (RuntimeError("x" * 1000), "RuntimeError: " + "x" * 286),
    ],
)
def test_reasons_are_short_and_name_no_path(error: Exception, reason: str) -> None:
    assert short_reason(error) == reason


def batch(slice_id: int, first: int, end: int, *members: int) -> Slice:
    return Slice(slice_id, 1, "m", (4,), members, 1, first, end, COMPUTE, (), 0)


def test_members_bring_rows_of_their_own_number(executor: CpuExecutor) -> None:
    def double(slots: list[Any]) -> None:
        slots[0] = slots[0] * 2 + slots[1]

    executor.load("m", SlotProgram([double, nothing]))
    inputs = {1: torch.arange(6.0).view(3, 2), 2: torch.ones(1, 2), 3: torch.full((2, 2), 7.0)}
    for member, value in inputs.items():
        executor.bind(member, [value, value], [torch.zeros(value.shape)])
    run(executor, batch(1, 0, 1, 1, 2, 3))
    assert executor.bytes_held(1) == 2 * 6 * 2 * 4  # what was put together lies in the frame
    run(executor, batch(2, 1, 2, 1, 2, 3))
    for member, value in inputs.items():
        (room,), (result,) = executor.result(member)
        assert result is room
        assert torch.equal(result, value * 3)


def test_what_is_shorter_is_padded_as_stated_and_cut_back(executor: CpuExecutor) -> None:
    seen: list[torch.Tensor] = []

    def look(slots: list[Any]) -> None:
        seen.extend(slots)

    executor.load("m", SlotProgram([look]), (-1, 1))
    inputs = {1: torch.tensor([[1, 2]]), 2: torch.tensor([[3], [4]]), 3: torch.tensor([[5, 6, 7]])}
    for member, value in inputs.items():
        executor.bind(member, [value, value > 3], [torch.zeros_like(value)])
    run(executor, batch(1, 0, 1, 1, 2, 3))
    assert seen[0].tolist() == [[1, 2, -1], [3, -1, -1], [4, -1, -1], [5, 6, 7]]
    assert (
        seen[1].tolist() == [[False, False, True], [False, True, True]] + [[True, True, True]] * 2
    )
    for member, value in inputs.items():
        assert torch.equal(executor.result(member)[1][0], value)


def test_an_output_without_a_row_for_each_fails_before_anything_is_written(
    executor: CpuExecutor,
) -> None:
    def total(slots: list[Any]) -> None:
        slots[0] = slots[0].sum(0, keepdim=True)

    executor.load("m", SlotProgram([total]))
    rooms = [region(ITEM_BYTES), region(ITEM_BYTES)]
    for member, room in enumerate(rooms, 1):
        executor.bind(member, [torch.tensor([member])], [room])
    (failed,) = run(executor, batch(1, 0, 1, 1, 2))
    assert isinstance(failed, SliceFailed)
    assert "output 0 of a run of 2 rows has shape [1]" in failed.reason
    assert all((room == UNWRITTEN).all() for room in rooms)


def test_what_cannot_be_put_together_fails_its_run_alone(executor: CpuExecutor) -> None:
    executor.load("m", SlotProgram([nothing]))
    for member, sizes in [(1, (1, 2)), (2, (1, 3)), (3, (1, 2))]:
        executor.bind(member, [torch.zeros(sizes)], [torch.ones(sizes)])
    (failed,) = run(executor, batch(1, 0, 1, 1, 2))
    assert isinstance(failed, SliceFailed)
    (passed,) = run(executor, work(2, cursor=3))
    assert isinstance(passed, SyncPointReached)
