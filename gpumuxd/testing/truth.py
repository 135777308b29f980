"""What really happens on a simulated device: true durations, and the faults among them.

Drawn from its own generator, apart from every estimate: nothing here ever sees a profile. After
`FaultParameters.end_ns` only the ordinary noise is left.
"""

import math
import random
from functools import lru_cache
from itertools import accumulate

from gpumuxd.domain import Slice
from gpumuxd.executors.virtual import SliceTruth, VirtualClock, VirtualProgram
from gpumuxd.testing.parameters import PPM, DeviceParameters, ModelParameters

_new = tuple.__new__  # a named tuple without the Python call that `SliceTruth(...)` is

_NOISE_SHIFT = 10
_NOISE_COUNT = 256
_NEVER_NS = 1 << 62
_SPREAD = 618_033  # has no factor in common with PPM, so that numbers are spread evenly


def true_program(model: ModelParameters) -> VirtualProgram:
    """A model as the device knows it."""
    ends_ns = {}
    for bucket, times in model.group_ns.items():
        ends = [0]
        for group_ns in times:
            ends.append(ends[-1] + group_ns)
        ends_ns[bucket] = tuple(ends)
    return VirtualProgram(model.group_count, ends_ns)


def upload_program(model: ModelParameters) -> VirtualProgram:
    """What brings its weights in. It has one bucket, which says nothing."""
    return VirtualProgram(len(model.chunk_ns), {(): (0, *accumulate(model.chunk_ns))})


@lru_cache
def _noise(sigma: float) -> tuple[int, ...]:
    """A table of factors: a log-normal draw for every slice would cost more than the device."""
    rng = random.Random(f"noise {sigma}")
    return tuple(
        round(math.exp(rng.gauss(0.0, sigma)) * (1 << _NOISE_SHIFT)) for _ in range(_NOISE_COUNT)
    )


class Truth:
    """Draws the fate of each slice when it is launched. A `TruthOf` of the virtual executor."""

    def __init__(self, parameters: DeviceParameters, clock: VirtualClock, seed: str) -> None:
        faults = parameters.faults
        self._random = random.Random(seed).random
        self._clock = clock
        self._faults_end_ns = faults.end_ns
        self._late_ns_max = faults.late_ns_max
        # One draw decides between the faults, so these are the ends of stretches of 0..1.
        self._slow = faults.slow_ppm / PPM
        self._late = self._slow + faults.late_ppm / PPM
        self._failed = self._late + faults.failure_ppm / PPM
        self._noise = _noise(faults.noise_sigma)
        self._poisoned_ppm = faults.poisoned_ppm
        self._starved = frozenset(faults.starved)
        self._clocks = [*faults.clocks, (_NEVER_NS, PPM)]  # those to come
        self._clock_ppm = PPM

    def __call__(self, work: Slice, program: VirtualProgram) -> SliceTruth:
        ends_ns = program.group_ends_ns[work.bucket]
        first_group, end_group = work.first_group, work.end_group
        true_ns = ends_ns[end_group] - ends_ns[first_group]
        draw = self._random
        duration_ns = true_ns * self._noise[int(draw() * _NOISE_COUNT)] >> _NOISE_SHIFT
        now_ns = self._clock.now_ns
        while now_ns >= self._clocks[0][0]:
            self._clock_ppm = self._clocks.pop(0)[1]
        if self._clock_ppm != PPM:
            duration_ns = duration_ns * self._clock_ppm // PPM
        if now_ns >= self._faults_end_ns:
            return _new(SliceTruth, (duration_ns, 0, None))
        if self._starved and self._is_out_of_memory(work, program):
            return SliceTruth(duration_ns, failure="out of memory")
        if self._poisoned_ppm and any(self._is_poisoned(member) for member in work.members):
            return SliceTruth(duration_ns, failure="a request that can't be run")
        fate = draw()
        if fate >= self._failed:
            return _new(SliceTruth, (duration_ns, 0, None))
        if fate < self._slow:
            slow = first_group + int(draw() * (end_group - first_group))
            return SliceTruth(duration_ns + 9 * (ends_ns[slow + 1] - ends_ns[slow]))
        if fate < self._late:
            return SliceTruth(duration_ns, late_ns=int(draw() * self._late_ns_max))
        return SliceTruth(duration_ns, failure="a fault of the simulation")

    def _is_poisoned(self, request_id: int) -> bool:
        """It has been since it was sent, and stays so."""
        return request_id > 0 and request_id * _SPREAD % PPM < self._poisoned_ppm

    def _is_out_of_memory(self, work: Slice, program: VirtualProgram) -> bool:
        """Weights that don't fit are brought in up to the middle."""
        if () not in program.group_ends_ns or work.end_group <= program.group_count // 2:
            return False
        return work.model.partition("/")[0] in self._starved
