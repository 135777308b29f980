"""The books of one partition's memory: bytes of weights and frames, and the frames themselves.

It must not know queues or order. `memory_bytes_max` covers weights and held frames; the arena is
a fixed block of the parent's and is subtracted by whoever sets that limit. Weights are booked
when a model is ready, because then they are there, even past the limit: the books tell the truth,
and what no longer fits are frames.

Frames are counted too. A class may start a cursor while it leaves `frames_reserved` free for each
class above it. A class whose share of a small `frames_max` would come to nothing may still start
when no frame is held at all, or its requests would never run.

Invariant: `0 <= held <= frames_max`, and the bytes are the sums of all that is booked.
"""

from heapq import heappop, heappush

from gpumuxd.core.model import Model
from gpumuxd.domain import PriorityClass
from gpumuxd.units import mib_from_bytes


class Ledger:
    """Bytes and frames of one partition."""

    __slots__ = (
        "_free",
        "_limit_of_class",
        "bytes_max",
        "frame_bytes",
        "frames_held",
        "frames_max",
        "weights_bytes",
    )

    def __init__(self, bytes_max: int, frames_max: int, frames_reserved: int) -> None:
        assert frames_max >= 1, "without a frame nothing can start"
        self.bytes_max = bytes_max
        self.weights_bytes = 0
        self.frame_bytes = 0
        self.frames_max = frames_max
        self.frames_held = 0
        self._free = list(range(frames_max))
        self._limit_of_class = [
            max(1, frames_max - frames_reserved * (PriorityClass.REALTIME - priority_class))
            for priority_class in PriorityClass
        ]

    def book_weights(self, model: Model) -> None:
        self.weights_bytes += model.weights_bytes

    def return_weights(self, model: Model) -> None:
        self.weights_bytes -= model.weights_bytes
        assert self.weights_bytes >= 0, "more returned than booked"

    @property
    def bytes_used(self) -> int:
        return self.weights_bytes + self.frame_bytes

    def has_frame(self, priority_class: int) -> bool:
        """May this class start one more cursor?"""
        return self.frames_held < self._limit_of_class[priority_class]

    def fits(self, model: Model) -> bool:
        """Is there memory for one more frame of this model?"""
        return self.bytes_used + model.frame_bytes <= self.bytes_max

    def frame_limit(self, priority_class: int) -> int:
        return self._limit_of_class[priority_class]

    def take_frame(self, model: Model) -> int:
        """The lowest free frame. Frames are reused in a fixed order, so that traces repeat."""
        assert self.fits(model), "asked for a frame that does not fit"
        self.frames_held += 1
        self.frame_bytes += model.frame_bytes
        return heappop(self._free)

    def return_frame(self, model: Model, frame: int) -> None:
        self.frames_held -= 1
        self.frame_bytes -= model.frame_bytes
        assert self.frame_bytes >= 0, "more returned than booked"
        heappush(self._free, frame)

    def why_never(self, model: Model) -> str:
        """Why a frame of this model can't fit even with no other frame held; empty if it can."""
        if self.weights_bytes + model.frame_bytes <= self.bytes_max:
            return ""
        return (
            f"a frame of model {model.key!r} needs {mib_from_bytes(model.frame_bytes):.1f} MiB; "
            f"weights take {mib_from_bytes(self.weights_bytes):.1f} of "
            f"{mib_from_bytes(self.bytes_max):.1f} MiB"
        )
