"""Which replica serves a request, and which device takes a model: the floor above the devices.

Theory. A device works on one request after the other, the higher classes first, and is never idle
while somebody waits. So what a request of class c finds ahead of it is the work of classes >= c,
and that is a *virtual queue*: it ends at some moment `free_ns[c]`, which a request of class k that
is sent moves on by its run time for every c <= k, from now if the moment has passed already. The
request is predicted to finish at `max(free_ns[c], now) + its own run time`; it goes where that is
soonest (`least_predicted_finish`). Joining the shortest queue in *work*, and not in requests, is
what counts where run times differ by orders of magnitude between models, sizes and devices.

Run times err, requests end early, and a device has work of its own: each statement of a device's
backlog puts its queue right. It is old when it comes, and stays until the next one. A decision on
it alone would send all that arrive meanwhile to the device that was idle then, so what was sent
since is added: a statement says how many requests it knows, and those after them are laid on top.
What a device tells of its urgent work is thereby seen by the less urgent requests, not vice versa.

Where the plan is silent: within the classes that are shared fairly a request may overtake others'
work; here it goes behind all of it, since shares say nothing about which device is better. Equal
predictions go to the device that comes first, so a node that has little to do keeps others idle.

A model goes where its weights fit, then to the device that was least busy with requests of late
(in steps of a quarter: less is noise), then to the one with the fewest bytes of weights, which is
what the next models need. Packing models that complement each other (Dilu) has no figures to go by
before they run, and is not done.

Baselines: `round_robin` (in turn, each model by itself) and `first_fit` (the first device, or for
models the first with room). It must not know tenants, replicas or frames. Each line costs O(number
of replicas); a statement costs what it does not know yet.
"""

import enum
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from gpumuxd.domain import PriorityClass
from gpumuxd.units import PPM

BUSY_STEPS = 4
"""How finely it is told apart how busy devices are."""


class Policy(enum.StrEnum):
    """How a replica and a device are chosen."""

    LEAST_PREDICTED_FINISH = "least_predicted_finish"
    ROUND_ROBIN = "round_robin"
    FIRST_FIT = "first_fit"


class Backlog:
    """What the parent believes that one life of one device has to do."""

    __slots__ = ("_free_ns", "_told_busy_ns", "_told_ns", "_unknown", "busy_ppm")

    def __init__(self) -> None:
        self._free_ns = [0] * len(PriorityClass)
        self._unknown: deque[tuple[int, int, int, int]] = deque()  # number, rank, run, sent at
        self._told_ns = 0
        self._told_busy_ns = 0
        self.busy_ppm = 0  # between the last two statements

    def wait_ns(self, priority_class: PriorityClass, now_ns: int) -> int:
        """Until a request of this class that is sent now would begin."""
        return max(0, self._free_ns[priority_class] - now_ns)

    def sent(self, number: int, priority_class: PriorityClass, run_ns: int, now_ns: int) -> None:
        """A request is on its way, the `number`th of this life."""
        rank = int(priority_class)
        run_ns = max(run_ns, 1)  # so that requests of unknown length are at least counted
        self._unknown.append((number, rank, run_ns, now_ns))
        self._lay(rank, run_ns, now_ns)

    def told(self, backlog_ns: Sequence[int], known: int, busy_ns: int, now_ns: int) -> None:
        """The device's own statement, which knows of its first `known` requests. `backlog_ns` is
        by class, and what is in flight counts as the highest; empty: it says nothing of it."""
        if now_ns > self._told_ns:
            spent_ns, passed_ns = busy_ns - self._told_busy_ns, now_ns - self._told_ns
            self.busy_ppm = max(0, min(PPM, spent_ns * PPM // passed_ns))
            self._told_ns, self._told_busy_ns = now_ns, busy_ns
        unknown = self._unknown
        while unknown and unknown[0][0] <= known:
            unknown.popleft()
        if backlog_ns:
            ahead_ns = 0
            for rank in range(len(PriorityClass) - 1, -1, -1):
                ahead_ns += backlog_ns[rank]
                self._free_ns[rank] = now_ns + ahead_ns
            for _, rank, run_ns, sent_ns in unknown:
                self._lay(rank, run_ns, sent_ns)

    def _lay(self, rank: int, run_ns: int, sent_ns: int) -> None:
        for each in range(rank + 1):
            self._free_ns[each] = max(self._free_ns[each], sent_ns) + run_ns


class Room(NamedTuple):
    """What one device has left for models, and what it carries."""

    free_bytes: int
    busy_ppm: int
    weights_bytes: int
    models: int


class Placement:
    """Chooses by one policy. Candidates come in the order of the configuration, never none."""

    __slots__ = ("_model_turns", "_policy", "_turns")

    def __init__(self, policy: Policy = Policy.LEAST_PREDICTED_FINISH) -> None:
        self._policy = policy
        self._turns: dict[str, int] = {}  # by model
        self._model_turns = 0

    def replica(
        self,
        model: str,
        candidates: Sequence[tuple[Backlog, int]],
        priority_class: PriorityClass,
        now_ns: int,
    ) -> int:
        """Which of a model's replicas serves a request: the backlog of each one's device, and how
        long the request would run there."""
        assert candidates
        if len(candidates) == 1 or self._policy is Policy.FIRST_FIT:
            return 0
        if self._policy is Policy.ROUND_ROBIN:
            self._turns[model] = turn = self._turns.get(model, -1) + 1
            return turn % len(candidates)
        best, best_ns = 0, -1
        for index, (backlog, run_ns) in enumerate(candidates):
            finish_ns = backlog.wait_ns(priority_class, now_ns) + run_ns
            if best_ns < 0 or finish_ns < best_ns:
                best, best_ns = index, finish_ns
        return best

    def device(self, rooms: Sequence[Room], weights_bytes: int) -> int:
        """Which device takes a model. Where it fits nowhere, still one: that one says why not."""
        assert rooms
        fitting = [i for i, room in enumerate(rooms) if room.free_bytes >= weights_bytes]
        among = fitting or list(range(len(rooms)))
        if self._policy is Policy.FIRST_FIT:
            return among[0]
        if self._policy is Policy.ROUND_ROBIN:
            self._model_turns += 1
            return among[(self._model_turns - 1) % len(among)]
        best = among[0]
        for index in among:
            if _load(rooms[index]) < _load(rooms[best]):
                best = index
        return best


def _load(room: Room) -> tuple[int, int, int]:
    return room.busy_ppm * BUSY_STEPS // PPM, room.weights_bytes, room.models
