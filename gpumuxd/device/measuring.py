"""One model that is being loaded, measured: where its groups end, and what each of them takes.

A load asks for the cuts first, then for the profile of the program that was cut there; both are
steps (`steps.py`), whose runs yield to tenants (`profiling.py` runs them and knows their limits).
It must not know how a load begins or ends, or who is served meanwhile.
Invariant: the smallest bucket is in every profile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.log import log
from gpumuxd.device.own_runs import OwnRun
from gpumuxd.device.profiling import PASSES_NS_MAX, Profiler, is_affordable
from gpumuxd.device.steps import Steps, build
from gpumuxd.domain import Bucket
from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.models.spec import evaluate_shape, tensor_bytes
from gpumuxd.programs.profile_cache import StoredProfile
from gpumuxd.programs.profiler import position_ns, profile_from_passes
from gpumuxd.programs.served import AnyProgram, Served
from gpumuxd.settings import DeviceSettings

INTERNAL_MARK = "@"
"""In the key of a program that is only measured; no model name may contain it."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """The measuring half of one load."""

    model: str
    tenant: str
    served: Served
    buckets: Sequence[Bucket]
    settings: DeviceSettings
    scheduler: DeviceScheduler
    profiler: Profiler
    wake: Callable[[], None]
    check_wanted: Callable[[], None]
    """Raises when the load was cancelled; asked before each program."""

    def cut(self) -> Steps[list[int]]:
        """Where the groups end: by the node times of the largest bucket, where they matter.

        The smallest one first, twice: it says how large a bucket may be to be run at all. Where
        that is not the largest, its times say what the largest would take.
        """
        program = yield from build(self.served.node_program, self.wake)
        smallest = bucket = largest = self.buckets[0]
        runs = yield from self._measure("nodes", program, [smallest], lambda _: 2)
        first = runs[smallest]
        run_ns = min(run.run_ns for run in first)
        if run_ns <= PASSES_NS_MAX:
            largest = [each for each in self.buckets if is_affordable(each, smallest, run_ns)][-1]
            allows = self.profiler.is_allowed
            bucket = [b for b in self.buckets if b == smallest or allows(b, smallest, first)][-1]
            passes = self.settings.profile_passes + 1
            runs = yield from self._measure("nodes", program, [bucket], lambda _: passes)
        grown = [
            [node_ns * prod(largest) // max(prod(bucket), 1) for node_ns in one]
            for one in _passes(runs[bucket])
        ]
        return self.served.cut_by_time(position_ns(grown), self.settings.group_target_ns)

    def profile(
        self, program: AnyProgram, cuts: Sequence[int], stored: StoredProfile | None
    ) -> Steps[StoredProfile]:
        """Measure the buckets that are not in the stored profile. The others are run once, so that
        nobody's request is the first at its shape.

        A stored profile may lack buckets: those beyond the bound that was in force then.
        """
        known = stored.run_ns if stored is not None else {}
        passes = self.settings.profile_passes + 1
        runs = yield from self._measure(
            "groups", program, self.buckets, lambda b: 1 if b in known else passes
        )
        left_out = [list(each) for each in self.buckets if each not in known and each not in runs]
        if left_out:
            log("debug", "buckets_not_measured", model=self.model, buckets=left_out)
        measured = {bucket: _passes(each) for bucket, each in runs.items() if bucket not in known}
        if not measured:
            assert stored is not None, "the smallest bucket is always measured"
            return stored
        frame_bytes = {b: max(run.frame_bytes for run in runs[b]) for b in measured}
        fresh = profile_from_passes(cuts, measured, frame_bytes)
        if stored is None:
            return fresh
        return replace(
            stored,
            group_ns={**stored.group_ns, **fresh.group_ns},
            run_ns={**stored.run_ns, **fresh.run_ns},
            frame_bytes={**stored.frame_bytes, **fresh.frame_bytes},
        )

    def _measure(
        self,
        purpose: str,
        program: AnyProgram,
        buckets: Sequence[Bucket],
        passes: Callable[[Bucket], int],
    ) -> Steps[dict[Bucket, list[OwnRun]]]:
        self.check_wanted()
        return (
            yield from self.profiler.measure(
                f"{self.model}{INTERNAL_MARK}{purpose}",
                self.tenant,
                program,
                self.served.weights_bytes,
                buckets,
                self._example_inputs,
                passes,
            )
        )

    def _example_inputs(self, bucket: Bucket) -> Steps[list[torch.Tensor]]:
        """Only when they fit. Filling megabytes would hold the loop up."""
        spec = self.served.spec
        sizes = dict(zip([each.name for each in spec.symbols], bucket, strict=True))
        needed = sum(
            tensor_bytes(each.datatype, evaluate_shape(each.shape, sizes)) for each in spec.inputs
        )
        free_bytes = self.scheduler.free_bytes(self.tenant)
        if needed > free_bytes:
            raise OutOfDeviceMemory(
                f"inputs at sizes {list(bucket)} take {needed} bytes, {free_bytes} are free"
            )
        return (yield from build(lambda: self.served.example_inputs(bucket), self.wake))


def _passes(runs: Sequence[OwnRun]) -> list[list[int]]:
    """The first run at a shape is slow in every library below; the others count, if any."""
    return [run.group_ns for run in runs[1:] or runs]
