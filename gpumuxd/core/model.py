"""A model that can be launched on this device, from ModelReady to its Release, and its frames.

    Model       its requests and what it holds
    FrameSize   what one run of it holds, at one or several shape buckets
    Account     a tenant's own models together (`ledger`)

It must not know cursors or queues. `live` counts the requests that were admitted and have not
ended; a draining model is released when that reaches zero and no run holds a frame. What arrived
before it was told to drain may still be admitted, however late that is decided: who sent it knew
of no drain.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod

from gpumuxd.core.estimator import Estimates
from gpumuxd.domain import Batching, Bucket, PriorityClass


class Account:
    """What the models of one tenant alone hold on this device. The ledger keeps it."""

    __slots__ = ("bytes_max", "frame_bytes", "tenant", "weights_bytes")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.bytes_max: int | None = None
        self.weights_bytes = 0
        self.frame_bytes = 0

    @property
    def bytes_used(self) -> int:
        return self.weights_bytes + self.frame_bytes


class FrameSize:
    """What a frame of one model takes. Cursors that wait for one are queued by it, so that a small
    run does not wait for the memory of a large one."""

    __slots__ = ("bytes", "is_blocked", "model")

    def __init__(self, model: "Model", size_bytes: int) -> None:
        self.model = model
        self.bytes = size_bytes
        self.is_blocked = False  # it does not fit beside what is held now


class Model:
    """One load of one version of one model, with its counters."""

    __slots__ = (
        "_frame_sizes",
        "account",
        "batching",
        "class_max",
        "completed",
        "estimates",
        "failed",
        "frame_bytes_held",
        "frame_bytes_max",
        "frame_bytes_measured",
        "frames_held",
        "group_count",
        "key",
        "last_arrival",
        "layer_ends",
        "live",
        "number",
        "operators_run",
        "slo_ns",
        "started",
        "weights_bytes",
    )

    def __init__(
        self,
        key: str,
        number: int,
        estimates: Estimates,
        class_max: PriorityClass,
        slo_ns: int | None,
        weights_bytes: int,
        frame_bytes: int,
        operators: Sequence[int] = (),
        layer_ends: Sequence[int] = (),
        frame_bytes_measured: Mapping[Bucket, int] | None = None,
        account: Account | None = None,
        batching: Batching | None = None,
    ) -> None:
        """`frame_bytes` counts where a frame was measured in no bucket."""
        self.key = key
        self.number = number
        self.estimates = estimates
        self.group_count = estimates.group_count
        self.class_max = class_max
        self.slo_ns = slo_ns
        self.batching = batching  # None: its requests never share a run
        self.weights_bytes = weights_bytes
        self.account = account  # of the tenant whose model it is alone, if it is one's
        self.frame_bytes_measured = dict(frame_bytes_measured or {})
        self.frame_bytes_max = max(self.frame_bytes_measured.values(), default=frame_bytes)
        self.frame_bytes_held = 0
        self.frames_held = 0
        self._frame_sizes: dict[int, FrameSize] = {}
        # For the launch disciplines that count them: how many operators have run before each group,
        # and at its end; empty: one for each group. The ends of layers; empty: every group is one.
        self.operators_run = (0, *accumulate(operators)) if operators else ()
        self.layer_ends = tuple(layer_ends)
        self.last_arrival: int | None = None  # it drains once there is one, and takes none later
        self.live = 0
        self.started = 0  # requests, however many share a run
        self.completed = 0
        self.failed = 0

    @property
    def is_draining(self) -> bool:
        return self.last_arrival is not None

    def is_closed_to(self, arrival: int) -> bool:
        """Did it drain already when this arrived?"""
        return self.last_arrival is not None and arrival > self.last_arrival

    @property
    def frame_sizes(self) -> Iterable[FrameSize]:
        """All that were asked for. Few: they are measured, or such a one times a power of two."""
        return self._frame_sizes.values()

    def frame_size(self, bucket: Bucket) -> FrameSize:
        """What a run in this bucket holds."""
        size_bytes = self._frame_bytes(bucket)
        size = self._frame_sizes.get(size_bytes)
        if size is None:
            size = self._frame_sizes[size_bytes] = FrameSize(self, size_bytes)
        return size

    def _frame_bytes(self, bucket: Bucket) -> int:
        """As it was measured; of a bucket between those that were, what the next larger one takes.
        Beyond them all what is held should grow with the sizes, or faster: doubled until it covers
        that, so that there are few sizes of frames."""
        measured = self.frame_bytes_measured
        if not measured:
            return self.frame_bytes_max
        known = measured.get(bucket)
        if known is not None:
            return known
        covering = [
            size_bytes
            for other, size_bytes in measured.items()
            if len(other) == len(bucket)
            and all(ours <= theirs for ours, theirs in zip(bucket, other, strict=True))
        ]
        if covering:
            return min(covering)
        size, size_bytes = prod(bucket), self.frame_bytes_max
        covered = max(1, max(prod(other) for other in measured))
        while covered < size:
            covered, size_bytes = 2 * covered, 2 * size_bytes
        return size_bytes
