"""What a child or a loader says is checked once, when its frame is decoded: no number that nothing
above could add up, show or send on."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpumuxd.domain import COMPLETED, Outcome, OutcomeKind, PriorityClass, RunReport
from gpumuxd.wire import frames

EXPLANATION = frames.Explanation(
    bucket=(1,),
    mode="bounded",
    reason="a reason",
    priority_class=PriorityClass.STANDARD,
    group_count=2,
    group_ns=(1, 2),
    run_ns=3,
    slice_count=1,
    slices=(frames.ExplainedSlice(0, 2, 3),),
    window=1,
    slice_ns=3,
    bound_ns=4,
    bound_origin="",
    bound_model="",
    floor_ns=2,
    floor_group=1,
    exec_ns=0,
    preempt_ns=0,
    preempt_expected_ns=0,
    is_guess=False,
)
LONG_GROUP = frames.LongGroup(0, 9, 0, 2)
TOLD: tuple[frames.Frame, ...] = (
    frames.Started("cpu:0", "a fake", "2.13", 1 << 30),
    frames.Accepted(7, 100),
    frames.Finished(7, COMPLETED, RunReport(1, 2, 3, 4, 5), (frames.Block(0, 64, "FP32", (4,)),)),
    frames.Finished(7, Outcome(OutcomeKind.DEADLINE_MISSED, "late", 5, 6), RunReport(), ()),
    frames.ModelLoaded("m/1#1", 2, 9, (((1,), 9),), 64, 128, False, ((LONG_GROUP,),)),
    frames.Pong(3, 4),
    frames.Statistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    frames.RecordingEnded("over", 1, 2),
    frames.Explained(3, EXPLANATION),
    frames.ReadDone("0" * 64, b"", 1, 1, 1),
)


def places(tree: Any) -> list[Callable[[int], None]]:
    """For each integer in a tree: what puts another in its place."""
    found: list[Callable[[int], None]] = []
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        if isinstance(value, int) and not isinstance(value, bool):
            found.append(lambda number, key=key: tree.__setitem__(key, number))  # type: ignore[misc]  # binds
        elif isinstance(value, dict | list):
            found += places(value)
    return found


@pytest.mark.parametrize("frame", TOLD, ids=lambda frame: type(frame).__name__)
def test_every_number_of_every_frame_has_limits(frame: frames.Frame) -> None:
    data = frames.encode(frame)
    assert frames.decode(data) == frame
    count = len(places(msgspec.msgpack.decode(data)))
    for place in range(count):
        for number in (-1, 2**63):
            tree = msgspec.msgpack.decode(data)
            places(tree)[place](number)
            with pytest.raises(msgspec.DecodeError):
                frames.decode(msgspec.msgpack.encode(tree))


@pytest.mark.parametrize(
    "changes",
    [{"artifact_hash": "x" * 64}, {"artifact_hash": "0" * 64 + "\n"}, {"platform": "pytorch"}],
    ids=str,
)
def test_a_loader_names_a_hash_and_a_platform(changes: dict[str, str]) -> None:
    done = msgspec.structs.replace(frames.ReadDone("0" * 64, b"", 1, 1, 1), **changes)
    with pytest.raises(msgspec.ValidationError):
        frames.decode(frames.encode(done))
