"""Why something is not launched now, as a value to count and a sentence to read.

It decides nothing: whoever refuses names the reason here, so that there is one list of them and
one way to say each. Two kinds: a cursor may not be eligible (first part), or a lane takes nothing
now, whoever is next (second part).
"""

import enum

from gpumuxd.core.cursor import Cursor
from gpumuxd.core.launch_queue import LaunchQueue
from gpumuxd.core.ledger import Ledger
from gpumuxd.units import mib_from_bytes, ms_from_ns


class Blocked(enum.StrEnum):
    """What keeps work from being launched."""

    NO_FRAME = "no_frame"
    NO_MEMORY = "no_memory"
    HELD_FOR_BATCH = "held_for_batch"

    WINDOW_FULL = "window_full"
    OVER_BOUND = "over_bound"
    UNKNOWN_ESTIMATE = "unknown_estimate"
    HELD_FOR_REALTIME = "held_for_realtime"
    REALTIME_EXPECTED = "realtime_expected"


def why_not_started(cursor: Cursor, ledger: Ledger) -> tuple[Blocked, str] | None:
    """Why a waiting cursor may not take a frame; None if it may, or holds one already."""
    if cursor.is_started:
        return None
    if cursor.is_held:
        batching = cursor.model.batching
        assert batching is not None, "held for others to share its run"
        return Blocked.HELD_FOR_BATCH, (
            "it waits for others to share its run, at most "
            f"{ms_from_ns(batching.delay_ns_max):.3f} ms"
        )
    name = cursor.priority_class.name
    if not ledger.has_frame(cursor.priority_class):
        return Blocked.NO_FRAME, (
            f"no frame: {ledger.frames_held} of {ledger.frames_max} are held "
            f"and {name} may use {ledger.frame_limit(cursor.priority_class)}"
        )
    size = cursor.frame_size
    if not ledger.fits(size):
        return Blocked.NO_MEMORY, (
            f"no memory for a frame of {mib_from_bytes(size.bytes):.1f} MiB: "
            f"{ledger.why_no_room(size.bytes, size.model.account)}"
        )
    return None


def explain(cursor: Cursor, queue: LaunchQueue, ledger: Ledger, held_ns: int = 0) -> str:
    """Why a queued cursor does not move now, for people. `held_ns`: it is held back for REALTIME
    requests that are expected, at one group for so long at most."""
    own = why_not_started(cursor, ledger)
    if own is not None:
        return own[1]
    lane = f"lane {queue.lane.partition}/{queue.lane.kind.value}"
    if held_ns:
        return (
            f"{lane}: a REALTIME request is expected before its next group would have passed; "
            f"the group waits for it, at most {ms_from_ns(held_ns):.3f} ms"
        )
    in_flight = f"{len(queue.flights)} slices, {ms_from_ns(queue.covered_ns[-1]):.3f} ms"
    if queue.is_full:
        return f"{lane}: in flight are {in_flight}; its window of {queue.window} is full"
    if queue.has_unknown or (queue.flights and not cursor.table.is_known):
        return f"{lane}: work that was not measured yet runs one group at a time"
    return f"{lane}: in flight are {in_flight}; others go first, or the bound leaves no room"
