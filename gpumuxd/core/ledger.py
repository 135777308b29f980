"""The books of one partition's memory: bytes of weights and frames, and the frames themselves.

It must not know queues or order. `memory_bytes_max` covers weights and held frames; the arena is
a fixed block of the parent's and is subtracted by whoever sets that limit. Weights are booked
when a model is ready, because then they are there, even past the limit: the books tell the truth,
and what no longer fits are frames.

A tenant may have a limit too. Its `Account` books the models that are its alone, whose loads and
runs nobody else asks for: their weights, and the frames of their runs. What several tenants may run
counts for the device only, because nobody could say whose it is.

Frames are counted too. A class may start a cursor while it leaves `frames_reserved` free for each
class above it. A class whose share of a small `frames_max` would come to nothing may still start
when no frame is held at all, or its requests would never run.

Invariant: `0 <= held <= frames_max`, and the bytes are the sums of all that is booked.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from gpumuxd.core.model import Account, FrameSize, Model
from gpumuxd.domain import PriorityClass
from gpumuxd.units import mib_from_bytes


class Ledger:
    """Bytes and frames of one partition, and of each tenant's own models."""

    __slots__ = (
        "_accounts",
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
        self._accounts: dict[str, Account] = {}
        self._free = list(range(frames_max))
        self._limit_of_class = [
            max(1, frames_max - frames_reserved * (PriorityClass.REALTIME - priority_class))
            for priority_class in PriorityClass
        ]

    def account(self, tenant: str) -> Account | None:
        """Where a tenant's own models are booked; None for "", which is nobody."""
        if not tenant:
            return None
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant)
        return account

    def accounts(self) -> Iterable[Account]:
        """All that were ever named."""
        return self._accounts.values()

    def book_weights(self, model: Model) -> None:
        self.weights_bytes += model.weights_bytes
        if model.account is not None:
            model.account.weights_bytes += model.weights_bytes

    def return_weights(self, model: Model) -> None:
        self.weights_bytes -= model.weights_bytes
        assert self.weights_bytes >= 0, "more returned than booked"
        if model.account is not None:
            model.account.weights_bytes -= model.weights_bytes

    @property
    def bytes_used(self) -> int:
        return self.weights_bytes + self.frame_bytes

    def free_bytes(self, account: Account | None) -> int:
        """What may still be booked, for this account; below zero when weights came past it."""
        free_bytes = self.bytes_max - self.bytes_used
        if account is None or account.bytes_max is None:
            return free_bytes
        return min(free_bytes, account.bytes_max - account.bytes_used)

    def has_frame(self, priority_class: int) -> bool:
        """May this class start one more cursor?"""
        return self.frames_held < self._limit_of_class[priority_class]

    def fits(self, size: FrameSize) -> bool:
        """Is there memory for one more frame of this size?"""
        account = size.model.account
        if account is not None and account.bytes_max is not None:
            return size.bytes <= self.free_bytes(account)
        return self.weights_bytes + self.frame_bytes + size.bytes <= self.bytes_max

    def frame_limit(self, priority_class: int) -> int:
        return self._limit_of_class[priority_class]

    def take_frame(self, size: FrameSize) -> int:
        """The lowest free frame. Frames are reused in a fixed order, so that traces repeat."""
        assert self.fits(size), "asked for a frame that does not fit"
        self._book_frame(size, 1)
        return heappop(self._free)

    def return_frame(self, size: FrameSize, frame: int) -> None:
        self._book_frame(size, -1)
        assert self.frame_bytes >= 0, "more returned than booked"
        heappush(self._free, frame)

    def _book_frame(self, size: FrameSize, count: int) -> None:
        model, size_bytes = size.model, count * size.bytes
        self.frames_held += count
        self.frame_bytes += size_bytes
        model.frames_held += count
        model.frame_bytes_held += size_bytes
        if model.account is not None:
            model.account.frame_bytes += size_bytes

    def why_never(self, size: FrameSize) -> str:
        """Why a frame of this size can't fit even with no other frame held; empty if it can."""
        account = size.model.account
        needed = f"a frame of model {size.model.key!r} needs {_mib(size.bytes)} MiB; "
        if self.weights_bytes + size.bytes > self.bytes_max:
            return f"{needed}weights take {_mib(self.weights_bytes)} of {_mib(self.bytes_max)} MiB"
        if account is None or account.bytes_max is None:
            return ""
        if account.weights_bytes + size.bytes <= account.bytes_max:
            return ""
        return (
            f"{needed}weights of tenant {account.tenant!r} take {_mib(account.weights_bytes)} of "
            f"its {_mib(account.bytes_max)} MiB (memory_mib_max)"
        )

    def why_no_room(self, size_bytes: int, account: Account | None) -> str:
        """Why so much can't be booked now for this account; empty if it can."""
        if self.bytes_used + size_bytes > self.bytes_max:
            free_bytes = max(0, self.bytes_max - self.bytes_used)
            return f"{_mib(free_bytes)} of {_mib(self.bytes_max)} MiB are free"
        if account is None or account.bytes_max is None:
            return ""
        if account.bytes_used + size_bytes <= account.bytes_max:
            return ""
        free_bytes = max(0, account.bytes_max - account.bytes_used)
        return (
            f"tenant {account.tenant!r} has {_mib(free_bytes)} of its {_mib(account.bytes_max)} "
            "MiB free (memory_mib_max)"
        )


def _mib(size_bytes: int) -> str:
    return f"{mib_from_bytes(size_bytes):.1f}"
