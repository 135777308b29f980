"""What a device scheduler asks for. `poll` returns them in the order they must be carried out.

Two more than the plan lists, because both sides need to be told: `Admit` is the child's half of
"accepted" (the parent may promise only what both halves took), and `Retire` ends a cursor, so
that the executor knows when the frame it held is free, also when nobody waits for the result.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gpumuxd.domain import Outcome, RunReport, Slice


@dataclass(frozen=True, slots=True)
class Admit:
    """The request is accepted; `predicted_finish_ns` is when it should be done, 0 if unknown."""

    request_id: int
    predicted_finish_ns: int


class Launch(NamedTuple):
    """Enqueue this slice in its lane and mark its sync point.

    A named tuple for the same reason as `Slice`: one is made in every decision.
    """

    slice: Slice


@dataclass(frozen=True, slots=True)
class Finish:
    """The fate of a request, exactly once. No slice that touches its memory is in flight."""

    request_id: int
    outcome: Outcome
    report: RunReport


@dataclass(frozen=True, slots=True)
class Retire:
    """A started cursor ended: nothing of it is in flight, its frame may be reused."""

    cursor_id: int
    model: str
    frame: int


@dataclass(frozen=True, slots=True)
class Release:
    """The last request of a draining model ended: its memory may go."""

    model: str


Command = Admit | Launch | Finish | Retire | Release
