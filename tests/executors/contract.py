"""What every executor must do: one suite, run by the virtual, the CPU and later devices.

A device takes part with a `Rig` (how to make programs and tensors for it) and a test class:

    class TestVirtual(ExecutorContract):
        def make_rig(self) -> Rig:
            return VirtualRig()

Kernel groups here are plain callables on the slots of a frame. `slots[0]` holds the request's one
value when the program starts, and what it holds after the last group is the result. Groups use
arithmetic that integers and tensors share, so the same ones run anywhere.
"""

import abc
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import pytest

from gpumuxd.domain import Lane, Slice
from gpumuxd.events import SliceFailed, SyncPointReached
from gpumuxd.executors.base import Completion, Executor

Group = Callable[[list[Any]], None]
ProgramT = TypeVar("ProgramT")
TensorsT = TypeVar("TensorsT")

MODEL = "m/1"
WAITS_MAX = 10_000
FAR_NS = 60_000_000_000


class Rig(abc.ABC, Generic[ProgramT, TensorsT]):
    """All that the suite must know of a device to try it."""

    executor: Executor[ProgramT, TensorsT]

    bucket: tuple[int, ...] = (1,)
    """The bucket of every slice in the suite."""

    blocking: bool = True
    """Whether `wait` really sleeps, so that another thread can wake it. Not in virtual time."""

    @abc.abstractmethod
    def now_ns(self) -> int:
        """The clock of this device's events."""

    @abc.abstractmethod
    def make_program(self, groups: Sequence[Group]) -> ProgramT:
        """A program of these groups."""

    @abc.abstractmethod
    def bind(self, request_id: int, value: int) -> None:
        """Call `executor.bind` with tensors that hold this value and room for the result."""

    @abc.abstractmethod
    def result(self, request_id: int) -> int | None:
        """The result that was written for the request, None if none was. After `unbind` and
        `close` too."""

    @abc.abstractmethod
    def long_group(self) -> Group:
        """A group that takes until `end_long_groups`, or very long in virtual time."""

    @abc.abstractmethod
    def end_long_groups(self) -> None:
        """Let every long group end, those to come too."""


def affine(factor: int, addend: int) -> Group:
    """A group with an effect that depends on order: applying two the other way round shows."""

    def group(slots: list[Any]) -> None:
        slots[0] = slots[0] * factor + addend

    return group


def raising(message: str) -> Group:
    def group(slots: list[Any]) -> None:
        raise RuntimeError(message)

    return group


def recording(log: list[object], what: object) -> Group:
    def group(slots: list[Any]) -> None:
        log.append(what)

    return group


class Driver:
    """Launches slices as a scheduler would: contiguous groups, numbered slices, held frames."""

    def __init__(self, rig: Rig[Any, Any]) -> None:
        self.rig = rig
        self.executor = rig.executor
        self._slices = 0
        self._launched: dict[int, int] = {}

    def load(self, groups: Sequence[Group], model: str = MODEL) -> None:
        self.executor.load(model, self.rig.make_program(groups))

    def launch(
        self,
        cursor: int,
        groups: int,
        model: str = MODEL,
        frame: int | None = None,
        lane: Lane | None = None,
        after: tuple[int, ...] = (),
        members: tuple[int, ...] = (),
    ) -> int:
        """Launch the next `groups` groups of a cursor, whose request has the same number, unless
        it has other members."""
        self._slices += 1
        first = self._launched.get(cursor, 0)
        self._launched[cursor] = first + groups
        self.executor.launch(
            Slice(
                slice_id=self._slices,
                cursor_id=cursor,
                model=model,
                bucket=self.rig.bucket,
                members=members or (cursor,),
                frame=cursor if frame is None else frame,
                first_group=first,
                end_group=first + groups,
                lane=self.executor.lanes[0] if lane is None else lane,
                after=after,
                predicted_ns=0,
            )
        )
        return self._slices

    def collect(self, count: int) -> list[Completion]:
        """Wait until `count` slices have passed or failed. More than that is a failure."""
        told: list[Completion] = []
        for _ in range(WAITS_MAX):
            if len(told) >= count:
                break
            told += self.executor.wait(self.rig.now_ns() + FAR_NS)
        assert len(told) == count, told
        return told

    def run(self, cursor: int, groups: int, model: str = MODEL, frame: int | None = None) -> None:
        """Launch one slice, see it pass, retire the cursor."""
        slice_id = self.launch(cursor, groups, model, frame)
        assert ids(self.collect(1)) == [slice_id]
        self.executor.retire(cursor)


def ids(told: Sequence[Completion]) -> list[int]:
    return [completion.slice_id for completion in told]


def passed(told: Sequence[Completion]) -> list[SyncPointReached]:
    assert all(isinstance(completion, SyncPointReached) for completion in told), told
    return [completion for completion in told if isinstance(completion, SyncPointReached)]


class ExecutorContract(abc.ABC):
    """The suite. Subclasses say how to make a rig."""

    @abc.abstractmethod
    def make_rig(self) -> Rig[Any, Any]: ...

    @pytest.fixture
    def rig(self) -> Iterator[Rig[Any, Any]]:
        rig = self.make_rig()
        yield rig
        rig.end_long_groups()
        rig.executor.close()

    @pytest.fixture
    def driver(self, rig: Rig[Any, Any]) -> Driver:
        return Driver(rig)

    # Lanes and sync points

    def test_declares_its_lanes_once_and_for_all(self, rig: Rig[Any, Any]) -> None:
        lanes = list(rig.executor.lanes)
        assert lanes
        assert len(set(lanes)) == len(lanes)
        assert list(rig.executor.lanes) == lanes

    def test_a_slice_has_one_sync_point_with_sane_times(self, driver: Driver) -> None:
        driver.load([affine(2, 1)] * 3)
        driver.rig.bind(1, 5)
        launched_ns = driver.rig.now_ns()
        slice_id = driver.launch(1, 3)
        (point,) = passed(driver.collect(1))
        told_ns = driver.rig.now_ns()
        assert point.slice_id == slice_id
        assert point.device_ns >= 0
        assert launched_ns <= point.started_ns
        assert point.started_ns + point.device_ns <= told_ns
        assert driver.executor.wait(told_ns) == []

    def test_a_lane_is_in_order_and_its_slices_do_not_overlap(self, driver: Driver) -> None:
        driver.load([affine(2, 1)] * 6)
        for cursor in (1, 2):
            driver.rig.bind(cursor, cursor)
        order = [driver.launch(c, g) for c, g in [(1, 2), (2, 1), (1, 4), (2, 5)]]
        points = passed(driver.collect(4))
        assert ids(points) == order
        for earlier, later in itertools.pairwise(points):
            assert earlier.started_ns + earlier.device_ns <= later.started_ns

    def test_each_group_runs_once_and_in_order(self, driver: Driver) -> None:
        log: list[object] = []
        driver.load([recording(log, number) for number in range(7)])
        driver.rig.bind(1, 0)
        for groups in (1, 3, 2, 1):
            driver.launch(1, groups)
        driver.collect(4)
        assert log == [0, 1, 2, 3, 4, 5, 6]

    def test_launch_does_not_wait_for_what_is_enqueued(self, driver: Driver) -> None:
        log: list[object] = []
        driver.load([driver.rig.long_group(), recording(log, "after")])
        driver.rig.bind(1, 0)
        order = [driver.launch(1, 1), driver.launch(1, 1)]
        assert log == []
        driver.rig.end_long_groups()
        assert ids(driver.collect(2)) == order
        assert log == ["after"]

    # Tensors and frames

    def test_outputs_are_written_by_the_last_slice(self, driver: Driver) -> None:
        driver.load([affine(3, 1), affine(2, 5)])
        driver.rig.bind(1, 10)
        driver.launch(1, 1)
        driver.collect(1)
        assert driver.rig.result(1) is None
        driver.launch(1, 1)
        driver.collect(1)
        assert driver.rig.result(1) == (10 * 3 + 1) * 2 + 5

    def test_frames_of_interleaved_cursors_do_not_mix(self, driver: Driver) -> None:
        driver.load([affine(3, 1), affine(2, 5), affine(7, 2)])
        driver.load([affine(11, 0), affine(1, 4)], model="other/1")
        for cursor in (1, 2, 3):
            driver.rig.bind(cursor, cursor)
        for cursor, model in [(1, MODEL), (2, MODEL), (3, "other/1"), (2, MODEL), (1, MODEL)]:
            driver.launch(cursor, 1, model=model)
        for cursor, model in [(3, "other/1"), (1, MODEL), (2, MODEL)]:
            driver.launch(cursor, 1, model=model)
        driver.collect(8)
        assert driver.rig.result(1) == ((1 * 3 + 1) * 2 + 5) * 7 + 2
        assert driver.rig.result(2) == ((2 * 3 + 1) * 2 + 5) * 7 + 2
        assert driver.rig.result(3) == 3 * 11 + 4

    def test_a_cursor_that_stops_early_leaves_its_frame_clean(self, driver: Driver) -> None:
        driver.load([affine(3, 1), affine(2, 5)])
        driver.rig.bind(1, 100)
        driver.run(1, 1, frame=0)
        driver.executor.unbind(1)
        driver.rig.bind(2, 10)
        driver.run(2, 2, frame=0)
        assert driver.rig.result(1) is None
        assert driver.rig.result(2) == (10 * 3 + 1) * 2 + 5

    def test_retire_and_unbind_may_be_repeated(self, driver: Driver) -> None:
        driver.load([affine(3, 1)])
        driver.rig.bind(1, 1)
        driver.run(1, 1)
        for _ in range(2):
            driver.executor.retire(1)
            driver.executor.unbind(1)
        driver.executor.retire(99)
        driver.executor.unbind(99)
        driver.rig.bind(2, 2)
        driver.run(2, 1)
        assert driver.rig.result(2) == 7

    def test_a_request_can_be_bound_again_after_unbind(self, driver: Driver) -> None:
        driver.load([affine(3, 1)])
        driver.rig.bind(1, 1)
        driver.executor.unbind(1)
        driver.rig.bind(1, 2)
        driver.run(1, 1)
        assert driver.rig.result(1) == 7

    # Members of one run

    def test_each_member_gets_its_own_rows(self, driver: Driver) -> None:
        driver.load([affine(3, 1), affine(2, 5)])
        for member, value in [(4, 10), (5, 20), (6, 30)]:
            driver.rig.bind(member, value)
        for _ in range(2):
            driver.launch(1, 1, members=(4, 5, 6))
        passed(driver.collect(2))
        assert [driver.rig.result(each) for each in (4, 5, 6)] == [67, 127, 187]

    def test_a_member_that_is_gone_before_the_last_slice_gets_nothing(self, driver: Driver) -> None:
        driver.load([affine(3, 1), affine(2, 5)])
        for member, value in [(4, 10), (5, 20), (6, 30)]:
            driver.rig.bind(member, value)
        driver.launch(1, 1, members=(4, 5, 6))
        passed(driver.collect(1))
        driver.executor.unbind(4)
        driver.launch(1, 1, members=(4, 5, 6))
        passed(driver.collect(1))
        assert [driver.rig.result(each) for each in (4, 5, 6)] == [None, 127, 187]

    def test_members_of_a_run_that_failed_can_run_alone(self, driver: Driver) -> None:
        driver.load([affine(3, 1), raising("broken kernel")])
        driver.load([affine(3, 1)], model="good/1")
        for member in (4, 5):
            driver.rig.bind(member, member)
        driver.launch(1, 2, members=(4, 5))
        assert isinstance(driver.collect(1)[0], SliceFailed)
        driver.executor.retire(1)
        assert [driver.rig.result(each) for each in (4, 5)] == [None, None]
        for member in (4, 5):
            driver.executor.unbind(member)
            driver.rig.bind(member, member)
            driver.run(member, 1, model="good/1")
        assert [driver.rig.result(each) for each in (4, 5)] == [13, 16]

    # Programs

    def test_a_key_is_loaded_once(self, driver: Driver) -> None:
        driver.load([affine(3, 1)])
        with pytest.raises(AssertionError):
            driver.load([affine(3, 1)])

    def test_an_unloaded_key_can_be_loaded_with_another_program(self, driver: Driver) -> None:
        driver.load([affine(3, 1)])
        driver.rig.bind(1, 1)
        driver.run(1, 1)
        driver.executor.unload(MODEL)
        driver.load([affine(5, 0)])
        driver.rig.bind(2, 1)
        driver.run(2, 1)
        assert driver.rig.result(1) == 4
        assert driver.rig.result(2) == 5

    # Failures

    def test_a_failed_group_fails_its_slice_and_what_was_enqueued_behind_it(
        self, driver: Driver
    ) -> None:
        log: list[object] = []
        driver.load([recording(log, 0), raising("broken kernel"), recording(log, 2)])
        driver.rig.bind(1, 1)
        order = [driver.launch(1, 1), driver.launch(1, 1), driver.launch(1, 1)]
        told = driver.collect(3)
        assert ids(told) == order
        assert [type(t) for t in told] == [SyncPointReached, SliceFailed, SliceFailed]
        assert isinstance(told[1], SliceFailed)
        assert "broken kernel" in told[1].reason
        assert log == [0]
        assert driver.rig.result(1) is None

    def test_groups_behind_a_failed_one_in_its_slice_do_not_run(self, driver: Driver) -> None:
        log: list[object] = []
        driver.load([recording(log, 0), raising("broken kernel"), recording(log, 2)])
        driver.rig.bind(1, 1)
        driver.launch(1, 3)
        (failed,) = driver.collect(1)
        assert isinstance(failed, SliceFailed)
        assert log == [0]

    def test_other_cursors_go_on_after_a_failure(self, driver: Driver) -> None:
        driver.load([affine(3, 1), affine(2, 5)])
        driver.load([raising("broken kernel"), affine(1, 0)], model="bad/1")
        for cursor in (1, 2, 3):
            driver.rig.bind(cursor, cursor)
        good = [driver.launch(1, 1)]
        bad = [driver.launch(2, 1, model="bad/1")]
        good += [driver.launch(3, 1), driver.launch(1, 1)]
        bad += [driver.launch(2, 1, model="bad/1")]
        good += [driver.launch(3, 1)]
        told = driver.collect(6)
        assert ids([t for t in told if isinstance(t, SliceFailed)]) == bad
        assert ids([t for t in told if isinstance(t, SyncPointReached)]) == good
        assert driver.rig.result(1) == (1 * 3 + 1) * 2 + 5
        assert driver.rig.result(3) == (3 * 3 + 1) * 2 + 5

    def test_a_failed_cursor_leaves_frame_and_model_usable(self, driver: Driver) -> None:
        outcomes = iter([True, False])

        def sometimes(slots: list[Any]) -> None:
            if next(outcomes):
                raise RuntimeError("broken kernel")

        driver.load([sometimes, affine(2, 5)])
        driver.rig.bind(1, 1)
        driver.launch(1, 2, frame=0)
        assert isinstance(driver.collect(1)[0], SliceFailed)
        driver.executor.retire(1)
        driver.rig.bind(2, 2)
        driver.run(2, 2, frame=0)
        assert driver.rig.result(2) == 9

    # Waiting

    def test_wait_for_a_time_that_has_come_returns_at_once(self, driver: Driver) -> None:
        driver.load([driver.rig.long_group()])
        driver.rig.bind(1, 1)
        driver.launch(1, 1)
        now_ns = driver.rig.now_ns()
        for until_ns in (0, now_ns - 1, now_ns):
            assert driver.executor.wait(until_ns) == []

    def test_an_idle_wait_lasts_until_its_time(self, driver: Driver) -> None:
        until_ns = driver.rig.now_ns() + 2_000_000
        assert driver.executor.wait(until_ns) == []
        assert driver.rig.now_ns() >= until_ns

    def test_a_wait_ends_on_time_while_a_slice_runs(self, driver: Driver) -> None:
        driver.load([driver.rig.long_group()])
        driver.rig.bind(1, 1)
        driver.launch(1, 1)
        until_ns = driver.rig.now_ns() + 2_000_000
        assert driver.executor.wait(until_ns) == []
        assert until_ns <= driver.rig.now_ns() < until_ns + FAR_NS
        driver.rig.end_long_groups()
        assert len(driver.collect(1)) == 1

    def test_a_wait_without_a_limit_ends_when_a_slice_has_passed(self, driver: Driver) -> None:
        driver.load([affine(2, 0)])
        driver.rig.bind(1, 1)
        driver.launch(1, 1)
        assert len(passed(driver.executor.wait(None))) == 1

    def test_wake_ends_the_next_wait_and_only_that(self, driver: Driver) -> None:
        driver.executor.wake()
        assert driver.executor.wait(None) == []
        until_ns = driver.rig.now_ns() + 1_000_000
        driver.executor.wait(until_ns)
        assert driver.rig.now_ns() >= until_ns

    def test_wake_from_another_thread_ends_a_wait(self, driver: Driver) -> None:
        limit_ns = driver.rig.now_ns() + FAR_NS
        waker = threading.Thread(target=driver.executor.wake)
        waker.start()
        if not driver.rig.blocking:
            waker.join()
        assert driver.executor.wait(limit_ns) == []
        waker.join()
        assert driver.rig.now_ns() < limit_ns

    # The end

    def test_close_waits_for_what_is_enqueued_and_may_be_repeated(self, driver: Driver) -> None:
        driver.load([affine(3, 1), affine(2, 5)])
        driver.rig.bind(1, 10)
        driver.launch(1, 1)
        driver.launch(1, 1)
        driver.executor.close()
        assert driver.rig.result(1) == 67
        driver.executor.close()

    def test_close_of_an_idle_device(self, driver: Driver) -> None:
        driver.executor.close()


class MultiLaneContract(ExecutorContract):
    """For devices with more than one lane: the lanes wait for each other where a slice says so."""

    def test_after_names_slices_of_other_lanes_that_have_passed_first(self, driver: Driver) -> None:
        """A slice that passed long ago is no obstacle."""
        driver.load([affine(2, 0), affine(1, 1)])
        for cursor in (1, 2):
            driver.rig.bind(cursor, 3)
        first = driver.launch(1, 1)
        second = driver.launch(1, 1, lane=driver.executor.lanes[-1], after=(first,))
        assert ids(driver.collect(2)) == [first, second]
        driver.launch(2, 2, after=(second,))
        driver.collect(1)
        assert driver.rig.result(1) == 7
        assert driver.rig.result(2) == 7
