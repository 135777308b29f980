"""Why the work of a model is cut as it is: the answer to `gpumuxctl explain`, as values.

Frozen, and nothing in it refers to a live object. `DeviceScheduler.explain` makes it.
"""

from dataclasses import dataclass

from gpumuxd.domain import Bucket, PriorityClass

BOUNDED = "bounded"
SLO = "slo"
LEAST_DELAY = "least_delay"
"""The three modes of `adaptive`. The mode of a baseline has the name of its setting."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One model at one bucket, as it would be cut now if it ran alone.

    mode               bounded, slo, least_delay, or a baseline: none, every, layer, window
    reason             which rule decided that, a sentence for people
    priority_class     the class it is explained for: the highest its tenants may ask for
    group_ns           predicted time of each group; empty while unknown
    slice_ends         the end group of each slice of an undisturbed run
    window             slices in flight
    slice_ns           the length that slices are cut to, 0 where none is
    bound_ns           on work in flight, None where none is promised
    bound_origin       the name of the setting, or "laxity of <model>"; empty without a bound
    floor_ns           the longest group: no cut is finer
    exec_ns            what sync points add to a run, 0 while the device's cost is not known
    preempt_ns         the most in flight that an arrival could be ordered ahead of
    preempt_expected_ns  the same at a random moment of the run, on average
    is_guess           the times were borrowed from other sizes or from one first run
    is_cost_doubtful   what sync points cost was measured on a busy machine
    is_floor_over_bound  one group alone is longer than the bound
    """

    model: str
    bucket: Bucket
    mode: str
    reason: str
    priority_class: PriorityClass
    group_ns: tuple[int, ...]
    slice_ends: tuple[int, ...]
    window: int
    slice_ns: int
    bound_ns: int | None
    bound_origin: str
    floor_ns: int
    exec_ns: int
    preempt_ns: int
    preempt_expected_ns: int
    is_guess: bool
    is_cost_doubtful: bool = False

    @property
    def is_floor_over_bound(self) -> bool:
        return self.bound_ns is not None and self.floor_ns > self.bound_ns
