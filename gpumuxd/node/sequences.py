"""Sequences: requests whose model keeps something on its device from one to the next.

A sequence is known by its tenant, its model and its id. Its first step binds it to one replica,
where its state lies in a *slot*. It ends with its last step, with a new first step, when nothing
came for too long, when its replica goes, and when a step that was accepted did not end well. Steps
run one at a time in the order of their calls: each waits for the one before it, and is told by that
whether the sequence goes on. It must not know what the state is, nor how a step runs.

Invariants: a step takes its place before anything is awaited; a slot is dropped once, after its
last step has ended; a step is sent once and never again, because what it would change may be gone.
"""

import asyncio
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field

from gpumuxd.clock import Clock
from gpumuxd.errors import (
    DeadlineMissed,
    GpumuxdError,
    InvalidRequest,
    ModelFaulted,
    QueueFull,
    QuotaExceeded,
    SequenceLost,
    deadline_facts,
    limit_facts,
)
from gpumuxd.node import sequence_ends as ends
from gpumuxd.node.api import InferCall, InferReply, SequenceStep
from gpumuxd.node.limits import Ticket
from gpumuxd.node.model_table import Replica
from gpumuxd.node.registry import Registry
from gpumuxd.node.replay import Requests, check_deadline
from gpumuxd.node.sequence_ends import Key
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.node.validation import check_priority, elide
from gpumuxd.units import NS_PER_MS, NS_PER_S

STEPS_MAX = 256
"""Steps of one sequence that were accepted and have not ended: 8 s of speech in frames of 32 ms."""

ID_CHARS_MAX = 256
"""Of a name that is kept as long as its sequence, and after."""

ENDED_KEPT_MAX = 1024
"""Sequences of one tenant of which it is known why they ended. The oldest are forgotten first: a
step of one of those is told that there is none."""

EXPIRY_NS_MIN = 50 * NS_PER_MS
"""Time between two looks for sequences that expired."""

LOOK_NS_MIN = NS_PER_S
"""Time between two looks at all sequences of a tenant at its limit, some of which may be lost."""

GONE = "its model was unloaded or moved, or its device lost"

Shapes = tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class _Sequence:
    """One sequence, from its first step until its slot is dropped.

    last         what the last step that was accepted tells the next one: None to go on, or why not
    steps        accepted, and not ended
    is_ending    its last step was accepted
    is_over      no further step will be
    """

    key: Key
    tenant: str
    replica: Replica
    slot: int
    shapes: Shapes
    idle_ns_max: int
    used_ns: int
    last: "asyncio.Future[GpumuxdError | None] | None" = None
    steps: int = 0
    is_ending: bool = False
    is_over: bool = False


@dataclass(slots=True)
class _Owned:
    """The sequences of one tenant. `slots` counts those that hold memory on a device."""

    live: dict[Key, _Sequence] = field(default_factory=dict)
    ended: dict[Key, GpumuxdError] = field(default_factory=dict)
    slots: int = 0
    looked_ns: int = 0


class Sequences:
    """All sequences of a node."""

    def __init__(
        self, requests: Requests, registry: Registry, tenants: TenantDirectory, clock: Clock
    ) -> None:
        self._requests = requests
        self._registry = registry
        self._tenants = tenants
        self._clock = clock
        self._slot = 0  # the last one that was begun
        self._owned: dict[str, _Owned] = {}
        # Those without a step now, by how long they may be, in the order in which they became so.
        self._idle: defaultdict[int, OrderedDict[_Sequence, None]] = defaultdict(OrderedDict)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def close(self) -> None:
        """Nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, call: InferCall, ticket: Ticket) -> InferReply:
        """Run a step when its turn has come. Raises GpumuxdError. The ticket stays the caller's."""
        step = call.sequence
        assert step is not None
        sequence = self._accept(call, step)
        if sequence is None:
            await self._registry.raise_absence(call.tenant, call.model, call.version)
        before, mine = sequence.last, asyncio.get_running_loop().create_future()
        sequence.last, sequence.is_ending = mine, step.is_end
        sequence.steps += 1
        self._idle[sequence.idle_ns_max].pop(sequence, None)
        try:
            if before is not None:
                await self._wait_turn(before, call)
            reply = await self._requests.run_step(call, ticket, sequence.replica, sequence.slot)
        except BaseException as error:
            is_alive, has_next = sequence.replica.is_alive, sequence.last is not mine
            end = ends.end_by(error, sequence.key, is_alive=is_alive, has_next=has_next)
            mine.set_result(end)
            sequence.is_ending = False
            # A first step that never ran leaves nothing that could go on.
            self._step_ended(sequence, end, is_over=end is not None or step.is_start)
            if isinstance(end, SequenceLost) and not isinstance(error, ModelFaulted):
                raise ends.again(end) from None
            raise
        mine.set_result(None)
        self._step_ended(sequence, None, is_over=step.is_end)
        return reply

    async def _wait_turn(
        self, before: "asyncio.Future[GpumuxdError | None]", call: InferCall
    ) -> None:
        """Returns when the step before has ended. Raises why this one is not run."""
        if not before.done():
            timeout_s = None
            if call.deadline_ns is not None:
                timeout_s = max(call.deadline_ns - self._clock(), 0) / NS_PER_S
            await asyncio.wait([before], timeout=timeout_s)
        if not before.done():
            assert call.deadline_ns is not None
            raise DeadlineMissed(
                "the deadline passed while the step before this one in its sequence ran",
                deadline_facts(call.arrived_ns, call.deadline_ns, 0),
            )
        end = before.result()
        if end is not None:
            raise ends.again(end)

    # Which sequence a step is of

    def _accept(self, call: InferCall, step: SequenceStep) -> _Sequence | None:
        """The sequence that a step goes on or begins, all checked that can be before it runs; None
        where nothing serves its model. A step that is refused here changes nothing."""
        if isinstance(step.sequence_id, str) and len(step.sequence_id) > ID_CHARS_MAX:
            raise InvalidRequest(
                f"expected a sequence_id of at most {ID_CHARS_MAX} characters, "
                f"got {elide(step.sequence_id)}"
            )
        owned = self._owned.setdefault(call.tenant.name, _Owned())
        key = call.model, step.sequence_id
        sequence = owned.live.get(key)
        if step.is_start:
            return self._begin(call, owned, key)
        if sequence is not None and not self._registry.is_in_force(call.model, sequence.replica):
            self._end(sequence, ends.lost(sequence.key, GONE))
            sequence = None
        if sequence is None or sequence.is_ending:
            self._refuse_unknown(call, owned, key)
            return None
        if call.version not in ("", sequence.replica.version):
            raise InvalidRequest(
                f"{ends.name_of(key)} is of version {sequence.replica.version}, "
                f"this step asks for {elide(call.version)}"
            )
        shapes = self._check(call, sequence.replica)
        if shapes != sequence.shapes:
            raise InvalidRequest(
                f"{ends.name_of(key)} keeps tensors of shapes {_listed(sequence.shapes)}, "
                f"this step needs {_listed(shapes)}"
            )
        if sequence.steps >= STEPS_MAX:
            raise QueueFull(
                f"{ends.name_of(key)} has {sequence.steps} steps that have not ended, which is "
                "the limit",
                limit_facts("steps_max", STEPS_MAX, "steps", current=sequence.steps, asked=1),
            )
        return sequence

    def _begin(self, call: InferCall, owned: _Owned, key: Key) -> _Sequence | None:
        replica = self._registry.replica(call.tenant, call.model, call.version, call.priority)
        if replica is None:
            return None
        shapes = self._check(call, replica)
        policy = replica.manifest.sequence
        assert policy is not None, "the check of a step says so"
        old = owned.live.get(key)
        self._check_room(call, owned, replaced=int(old is not None and not old.steps))
        if old is not None:
            self._end(old, None)
        owned.ended.pop(key, None)
        self._slot += 1
        owned.slots += 1
        now_ns, idle_ns = self._clock(), policy.idle_ns_max
        sequence = _Sequence(key, call.tenant.name, replica, self._slot, shapes, idle_ns, now_ns)
        owned.live[key] = sequence
        return sequence

    def _check(self, call: InferCall, replica: Replica) -> Shapes:
        """What would be refused in its turn is refused before it takes one."""
        fit = replica.checker.check(call).fit
        check_priority(call.tenant, call.priority, replica.class_max)
        check_deadline(call, self._clock())
        return tuple(state.shape for state in fit.states)

    def _check_room(self, call: InferCall, owned: _Owned, replaced: int) -> None:
        limit = self._tenants.settings_of(call.tenant).sequences_max
        if owned.slots - replaced >= limit and self._clock() - owned.looked_ns >= LOOK_NS_MIN:
            self._look(owned)
        if owned.slots - replaced >= limit:
            raise QuotaExceeded(
                f"tenant {call.tenant.name!r} has {owned.slots} sequences; its sequences_max is "
                f"{limit}",
                limit_facts(
                    "sequences_max",
                    limit,
                    "sequences",
                    current=owned.slots,
                    asked=1,
                    tenant=call.tenant.name,
                ),
            )

    def _refuse_unknown(self, call: InferCall, owned: _Owned, key: Key) -> None:
        """Raises why there is no such sequence; returns where nothing serves its model."""
        if key in owned.ended:
            raise ends.again(owned.ended[key])
        replica = self._registry.replica(call.tenant, call.model, call.version, call.priority)
        if replica is not None:
            self._check(call, replica)
            raise ends.unknown(key)

    # Ends

    def _step_ended(self, sequence: _Sequence, end: GpumuxdError | None, is_over: bool) -> None:
        sequence.steps -= 1
        sequence.used_ns = self._clock()
        if is_over:
            self._end(sequence, end)
        elif sequence.is_over and not sequence.steps:
            self._drop(sequence)
        elif not sequence.steps:
            self._idle[sequence.idle_ns_max][sequence] = None
            self._expire_at(sequence.used_ns + sequence.idle_ns_max)

    def _end(self, sequence: _Sequence, end: GpumuxdError | None) -> None:
        """No further step is accepted; `end` says why, where that was not asked for."""
        owned = self._owned[sequence.tenant]
        sequence.is_over = True
        if owned.live.get(sequence.key) is sequence:
            del owned.live[sequence.key]
            if end is not None:
                owned.ended[sequence.key] = end
                if len(owned.ended) > ENDED_KEPT_MAX:
                    del owned.ended[next(iter(owned.ended))]
        if not sequence.steps:
            self._idle[sequence.idle_ns_max].pop(sequence, None)
            self._drop(sequence)

    def _look(self, owned: _Owned) -> None:
        """End the sequences of a tenant whose replica is gone."""
        owned.looked_ns = self._clock()
        for sequence in [each for each in owned.live.values() if not each.steps]:
            if not self._registry.is_in_force(sequence.key[0], sequence.replica):
                self._end(sequence, ends.lost(sequence.key, GONE))

    def _drop(self, sequence: _Sequence) -> None:
        self._owned[sequence.tenant].slots -= 1
        sequence.replica.link.drop_sequence(sequence.replica.key, sequence.slot)

    # Time

    def _expire_at(self, due_ns: int) -> None:
        """One timer for all sequences, which fires when the first of them may have expired."""
        if self._timer is not None:
            if self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer_ns = due_ns
        delay_s = max(due_ns - self._clock(), EXPIRY_NS_MIN) / NS_PER_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.expire)

    def expire(self) -> None:
        """End the sequences that had no step for too long."""
        self._timer = None
        now_ns = self._clock()
        for idle_ns, sequences in list(self._idle.items()):
            while sequences and (first := next(iter(sequences))).used_ns + idle_ns <= now_ns:
                self._end(first, ends.expired(first.key, idle_ns))
            if sequences:
                self._expire_at(next(iter(sequences)).used_ns + idle_ns)
            else:
                del self._idle[idle_ns]


def _listed(shapes: Shapes) -> list[list[int]]:
    return [list(shape) for shape in shapes]
