"""Graphs of scheduler objects come back as they were; files of strangers make nothing else."""

from collections import deque
from typing import Any, cast

import msgspec
import pytest

from gpumuxd.domain import Lane, LaneKind, Outcome, OutcomeKind
from gpumuxd.replay.graph import DEPTH_MAX, NotPlain, Unreadable, freeze, thaw
from gpumuxd.replay.sources import SCHEDULER, source_modules
from gpumuxd.settings import SchedulerSettings
from tests.replay.recorded import record

DeviceScheduler: Any = source_modules()[SCHEDULER].DeviceScheduler
"""The sources': a translated one takes no attributes of another type."""


class Box:
    """None of the scheduler's."""


def boxed(value: object) -> Any:
    """A thawed copy of a value, which hung on a scheduler."""
    scheduler = DeviceScheduler(SchedulerSettings())
    scheduler._draining = value
    copy: Any = thaw(freeze(scheduler), source_modules())
    return copy._draining


SHARED = Outcome(OutcomeKind.CANCELLED, "why")
LANE = Lane(0, LaneKind.COMPUTE)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, 2, 3],
        [1, None, "x", True],
        [True, False],
        {1: [2], "x": (3, "y", (4,))},
        {LANE: 1, (1, 2): 2},
        deque([1, 2], maxlen=2),
        deque(),
        {3, 1},
        1 << 80,
        [1 << 62, 1 << 63, -(1 << 80)],
        OutcomeKind.COMPLETED,
        LANE,
        [SHARED, SHARED],
        1.5,
    ],
    ids=repr,
)
def test_values_come_back_with_their_types(value: Any) -> None:
    copy = boxed(value)
    assert copy == value
    assert type(copy) is type(value)
    if isinstance(value, deque):
        assert copy.maxlen == value.maxlen
    if isinstance(value, list):
        assert [type(item) for item in copy] == [type(item) for item in value]


def test_identities_and_circles_stay() -> None:
    inner: list[object] = []
    inner.append(inner)
    first, second, circle = boxed([SHARED, SHARED, inner])
    assert first is second
    assert circle[0] is circle


def test_a_field_that_was_never_set_stays_unset() -> None:
    devices, _ = record(2, begin_at=5)
    for device in devices:
        device.data()
        copy = thaw(freeze(device.scheduler), source_modules())
        assert freeze(copy) == freeze(device.scheduler)


@pytest.mark.parametrize(
    "value",
    [object(), Box(), print, [lambda: 1], iter(()), b"x"],
    ids=["object", "foreign class", "built-in", "function", "iterator", "bytes"],
)
def test_what_is_no_part_of_a_scheduler_is_refused_with_its_place(value: object) -> None:
    scheduler = DeviceScheduler(SchedulerSettings())
    scheduler._draining = value
    with pytest.raises(NotPlain, match=r"DeviceScheduler\._draining|is none of the scheduler's"):
        freeze(scheduler)


OUTCOME = ("gpumuxd.domain:Outcome", ["deadline_ns", "kind", "predicted_finish_ns", "reason"])


def nest_of_tuples(depth: int) -> list[Any]:
    """The last of them holds all others, one in each other."""
    return [["t", 1], *(["t", [number]] for number in range(depth))]


def chain_of_objects(count: int) -> list[Any]:
    """What hashes the last hashes all."""
    return [["o", 0, 0, 1, 0, ""], *(["o", 0, 0, [number], 0, ""] for number in range(count))]


HOSTILE = [
    # classes, nodes, what the refusal says
    ([("os:system", [])], [["o", 0]], "no 'os:system'"),
    ([("builtins:eval", [])], [["n", 0]], "no 'builtins:eval'"),
    ([("gpumuxd.device.main:main", [])], [["o", 0]], "has no"),
    ([("gpumuxd.core.launcher:Mapping", [])], [["o", 0]], "has no"),
    ([("gpumuxd.domain:enum", [])], [["o", 0]], "has no"),
    ([("gpumuxd.domain:Outcome.__init__", [])], [["o", 0]], "has no"),
    ([("gpumuxd.core.nothing:Here", [])], [["o", 0]], "has no"),
    ([("gpumuxd.core.device_scheduler:DeviceScheduler", ["handle"])], [["o", 0, 1]], "fields"),
    ([("gpumuxd.domain:Outcome", ["kind"])], [["o", 0, 1]], "other fields"),
    ([OUTCOME], [["o", 0, 1]], ""),
    ([OUTCOME], [["e", 0, 1]], "no enumeration"),
    ([OUTCOME], [["n", 0]], ""),
    ([("gpumuxd.domain:OutcomeKind", [])], [["e", 0, "no such"]], ""),
    ([("gpumuxd.domain:OutcomeKind", [])], [["o", 0]], "no class of"),
    ([("gpumuxd.domain:Lane", [])], [["n", 0, 1]], "another number"),
    ([("gpumuxd.domain:Lane", [])], [["o", 0]], "no class of"),
    ([], [["o", 0]], ""),
    ([], [["o", -1]], ""),
    ([], [["t", [0]]], "after it"),
    ([], [["t", [1]], ["l"]], "after it"),
    ([], [["t", [-1]]], "no node"),
    ([], [["l", [7]]], ""),
    ([], [["l", [0, 0]]], ""),
    ([], [["d", 1]], ""),
    ([], [["d", [1], 1], ["l"]], ""),
    ([], [["s", [0]]], ""),
    ([], [["q", "x"]], "no known kind"),
    ([], [["q", -5]], ""),
    ([], [["I", ["x"]]], "no known kind"),
    ([], [["I", b"seven b"]], ""),
    ([], [["i", "ten"]], ""),
    ([("gpumuxd.core.device_scheduler:DeviceScheduler", ["__class__"])], [["o", 0, 1]], "interp"),
    ([("gpumuxd.core.device_scheduler:DeviceScheduler", ["__dict__"])], [["o", 0, 1]], "interp"),
    ([], nest_of_tuples(DEPTH_MAX + 1), "tuple of more than 32 in each other"),
    ([], [*nest_of_tuples(100_000), ["s", [100_000]]], "tuple of more than 32 in each other"),
    ([OUTCOME], [*chain_of_objects(5_000), ["s", [5_000]]], "nested too deep"),
    ([], [["?"]], "no known kind"),
    ([], [[]], "no known kind"),
    ([], [], ""),
]


@pytest.mark.parametrize(("classes", "nodes", "says"), HOSTILE)
def test_a_hostile_graph_is_refused(classes: Any, nodes: Any, says: str) -> None:
    with pytest.raises(Unreadable, match=says or "."):
        thaw(msgspec.msgpack.encode([classes, nodes]), source_modules())


def test_tuples_up_to_the_limit_are_read() -> None:
    nodes: list[Any] = [["l", [DEPTH_MAX + 1]], *[["t", [1 + i]] for i in range(DEPTH_MAX)]]
    nodes.insert(1, ["t", 1])
    (value,) = cast("list[Any]", thaw(msgspec.msgpack.encode([[], nodes]), source_modules()))
    for _ in range(DEPTH_MAX):
        (value,) = value
    assert value == (1,)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x93\x01\x02\x03", b"\xc1" * 50, b"\x92\x90\x01"])
def test_what_is_no_graph_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        thaw(data, source_modules())


def test_digits_without_end_are_refused_before_they_are_a_number() -> None:
    with pytest.raises(Unreadable):
        thaw(msgspec.msgpack.encode([[], [["i", "9" * 100_000]]]), source_modules())
