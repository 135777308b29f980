"""A model that can be launched on this device, from ModelReady to its Release.

It must not know cursors or queues. `live` counts the requests that were admitted and have not
ended; a draining model is released when that reaches zero. What arrived before it was told to drain
may still be admitted, however late that is decided: who sent it knew of no drain.
"""

from collections.abc import Sequence
from itertools import accumulate

from gpumuxd.core.estimator import Estimates
from gpumuxd.domain import PriorityClass


class Model:
    """One load of one version of one model, with its counters."""

    __slots__ = (
        "class_max",
        "completed",
        "estimates",
        "failed",
        "frame_bytes",
        "group_count",
        "is_blocked",
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
    ) -> None:
        self.key = key
        self.number = number
        self.estimates = estimates
        self.group_count = estimates.group_count
        self.class_max = class_max
        self.slo_ns = slo_ns
        self.weights_bytes = weights_bytes
        self.frame_bytes = frame_bytes
        # For the launch disciplines that count them: how many operators have run before each group,
        # and at its end; empty: one for each group. The ends of layers; empty: every group is one.
        self.operators_run = (0, *accumulate(operators)) if operators else ()
        self.layer_ends = tuple(layer_ends)
        self.last_arrival: int | None = None  # it drains once there is one, and takes none later
        self.is_blocked = False  # its frame does not fit beside what is held now
        self.live = 0
        self.started = 0
        self.completed = 0
        self.failed = 0

    @property
    def is_draining(self) -> bool:
        return self.last_arrival is not None

    def is_closed_to(self, arrival: int) -> bool:
        """Did it drain already when this arrived?"""
        return self.last_arrival is not None and arrival > self.last_arrival
