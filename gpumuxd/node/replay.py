"""A request from its ticket to its reply, over as many lives of devices as it takes.

Who did no wrong when a device ended is sent again at once, to whichever replica of the same version
serves, or as soon as one does. Suspects of that end (`blame.py`) are too, but one at a time on a
device. What is sent is the call itself, which is kept until its reply: the memory on the old device
was released when that ended. Inputs in shared memory are read again: they are the client's to keep
until then. It must not know how a device ends or how a model comes back.

Invariants: a request has one id and one ticket over all its lives, and at most one memory that
is not abandoned; it waits for nothing but a signal, no longer than its deadline and
`replay_wait_ns_max`; it is sent at most 1 + `replays_max` times, and only once if its model's
manifest says that it is not idempotent.
"""

import asyncio
import itertools
from collections import defaultdict
from dataclasses import dataclass

from gpumuxd.clock import Clock
from gpumuxd.errors import (
    DeadlineInfeasible,
    DeadlineMissed,
    DeviceLost,
    Draining,
    GpumuxdError,
    OutOfDeviceMemory,
    deadline_facts,
)
from gpumuxd.node.api import InferCall, InferReply
from gpumuxd.node.blame import Blame
from gpumuxd.node.limits import Ticket
from gpumuxd.node.model_table import Replica
from gpumuxd.node.owed import RequestLost
from gpumuxd.node.registry import Registry
from gpumuxd.node.replies import wait_reply
from gpumuxd.node.request_memory import RequestMemory
from gpumuxd.node.settings import RecoverySettings
from gpumuxd.node.validation import Fit, check_priority
from gpumuxd.units import NS_PER_S, ms_from_ns
from gpumuxd.wire import frames


@dataclass(slots=True)
class _Request:
    """One request in all its lives. `output_bytes` are those that its ticket counts; a step of a
    sequence has a `slot`, where its state lies."""

    call: InferCall
    ticket: Ticket
    number: int
    output_bytes: int = 0
    replays: int = 0
    slot: int | None = None
    is_suspect: bool = False


class Requests:
    """All requests of a node that were accepted by its limits."""

    def __init__(
        self, registry: Registry, blame: Blame, settings: RecoverySettings, clock: Clock
    ) -> None:
        self._registry = registry
        self._blame = blame
        self._settings = settings
        self._clock = clock
        self._numbers = itertools.count(1)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_ending = False

    def end(self) -> None:
        """The devices are ended: nothing is sent again, and who waits for that is refused."""
        self._is_ending = True
        self._registry.changed.notify()

    async def run(self, call: InferCall, ticket: Ticket, replica: Replica) -> InferReply:
        """Send a request, again if need be, and return its reply. Raises GpumuxdError in the words
        of its client. The ticket stays the caller's."""
        request = _Request(call, ticket, next(self._numbers))
        try:
            return await self._send(request, replica)
        except (DeviceLost, Draining) as error:
            lost = error
        try:
            return await self._send_again(request, replica, lost)
        finally:
            self._blame.forget(request.number)

    async def run_step(
        self, call: InferCall, ticket: Ticket, replica: Replica, slot: int
    ) -> InferReply:
        """The same of one step of a sequence, which is sent once: its state is nowhere else."""
        request = _Request(call, ticket, next(self._numbers), slot=slot)
        try:
            return await self._send(request, replica)
        finally:
            self._blame.forget(request.number)

    # One life

    async def _send(self, request: _Request, replica: Replica) -> InferReply:
        fit, frame, memory = self._prepare(request, replica)
        if memory.is_unread:
            await self._read_rest(request, replica, memory)
        try:
            return await wait_reply(request.call, replica, fit, frame, memory, request.replays)
        except OutOfDeviceMemory as error:
            raise self._registry.with_holders(error, replica.device, request.call.tenant) from None

    def _prepare(
        self, request: _Request, replica: Replica
    ) -> tuple[Fit, frames.Submit, RequestMemory]:
        """Everything that can refuse a request in the parent, the copy of its inputs last."""
        call = request.call
        checked = replica.checker.check(call)
        fit = checked.fit
        priority_class = check_priority(call.tenant, call.priority, replica.class_max)
        check_deadline(call, self._clock())
        if fit.output_bytes > request.output_bytes:
            request.ticket.add_bytes(fit.output_bytes - request.output_bytes)
            request.output_bytes = fit.output_bytes
        memory = replica.link.reserve(checked, request.ticket)
        replica.expect(fit.bucket, priority_class, self._clock())
        frame = frames.Submit(
            request_id=request.number,
            tenant=call.tenant.name,
            model=replica.key,
            priority_class=priority_class,
            bucket=fit.bucket,
            rows=fit.rows,
            arrived_ns=call.arrived_ns,
            deadline_ns=call.deadline_ns,
            inputs=memory.inputs,
            outputs=memory.outputs,
            # What may have ended a device shares no run: nobody else should be in flight with it.
            batch_key=None if request.is_suspect else fit.batch_key,
            sequence=_state_of(request, fit),
        )
        return fit, frame, memory

    async def _read_rest(self, request: _Request, replica: Replica, memory: RequestMemory) -> None:
        """Read the inputs that take a while. Its model may be unloaded meanwhile."""
        try:
            await memory.read_rest()
            if not self._registry.is_in_force(request.call.model, replica):
                raise Draining(
                    f"model {request.call.model!r} version {replica.version} went while the inputs "
                    "of the request were read; retry"
                )
        except BaseException:
            memory.release()
            raise

    # The next lives

    async def _send_again(
        self, request: _Request, replica: Replica, lost: DeviceLost | Draining
    ) -> InferReply:
        while True:
            self._check_may_again(request, replica, lost)
            request.replays += 1
            request.is_suspect |= isinstance(lost, RequestLost) and lost.is_suspect
            replica, turn = await self._wait_turn(request.call, replica, lost)
            try:
                return await self._send(request, replica)
            except (DeviceLost, Draining) as error:
                lost = error
            finally:
                if turn is not None:
                    turn.release()

    def _check_may_again(
        self, request: _Request, replica: Replica, lost: DeviceLost | Draining
    ) -> None:
        """Raises why this request is not sent again."""
        if self._is_ending or request.replays >= self._settings.replays_max:
            raise lost
        # Whom a device refused that stops has not run, nor who never was in its hands.
        if isinstance(lost, RequestLost) and not replica.manifest.idempotent:
            raise DeviceLost(
                f"{lost.message} (it was not sent again: model.toml says idempotent = false)",
                retry_delay_ns=lost.retry_delay_ns,
            )

    async def _wait_turn(
        self, call: InferCall, lost_by: Replica, lost: DeviceLost | Draining
    ) -> tuple[Replica, asyncio.Lock | None]:
        """A replica that serves, and for a suspect the lock that it holds while it runs there.
        Raises DeadlineMissed, DeviceLost, or why the model does not come back."""
        is_suspect = isinstance(lost, RequestLost) and lost.is_suspect
        wait_ns, is_deadline = self._wait_ns(call)
        try:
            async with asyncio.timeout(wait_ns / NS_PER_S):
                while True:
                    found = await self._wait_replica(call, lost_by, lost)
                    if not is_suspect:
                        return found, None
                    turn = self._turns[found.device]
                    await turn.acquire()
                    again = self._find(call, lost_by)
                    if again is not None and again.device == found.device:
                        return again, turn
                    turn.release()
        except TimeoutError:
            raise self._too_late(call, lost, is_deadline) from None

    async def _wait_replica(
        self, call: InferCall, lost_by: Replica, lost: DeviceLost | Draining
    ) -> Replica:
        while not self._is_ending:
            found = self._find(call, lost_by)
            if found is not None:
                return found
            versions = _versions(call, lost_by)
            if not any(self._registry.is_coming(call.model, each) for each in versions):
                await self._registry.raise_absence(call.tenant, call.model, lost_by.version)
            await self._registry.changed.wait()
        raise lost

    def _find(self, call: InferCall, lost_by: Replica) -> Replica | None:
        """What serves it now: the same version, or if that does not come back, what the call asks
        for."""
        for version in _versions(call, lost_by):
            found = self._registry.replica(call.tenant, call.model, version, call.priority)
            if found is not None and found.is_alive:
                return found
            if self._registry.is_coming(call.model, version):
                return None
        return None

    def _wait_ns(self, call: InferCall) -> tuple[int, bool]:
        """How long it may wait, and whether that is for its deadline: the loop's timers may fire a
        little before the clock says that it passed."""
        limit_ns = self._settings.replay_wait_ns_max
        if call.deadline_ns is None:
            return limit_ns, False
        left_ns = max(call.deadline_ns - self._clock(), 0)
        return min(limit_ns, left_ns), left_ns <= limit_ns

    def _too_late(
        self, call: InferCall, lost: DeviceLost | Draining, is_deadline: bool
    ) -> GpumuxdError:
        if is_deadline:
            assert call.deadline_ns is not None
            return DeadlineMissed(
                f"the deadline passed while the request waited to be sent again: {lost.message}",
                deadline_facts(call.arrived_ns, call.deadline_ns, 0),
            )
        limit_s = self._settings.replay_wait_ns_max / NS_PER_S
        return DeviceLost(
            f"{lost.message}; its model did not come back in {limit_s:g} s",
            retry_delay_ns=lost.retry_delay_ns,
        )


def _state_of(request: _Request, fit: Fit) -> frames.SequenceState | None:
    if request.slot is None:
        return None
    step = request.call.sequence
    assert step is not None
    return frames.SequenceState(request.slot, step.is_start, fit.states)


def check_deadline(call: InferCall, now_ns: int) -> None:
    """Raises DeadlineInfeasible for a call that comes too late."""
    if call.deadline_ns is not None and call.deadline_ns <= now_ns:
        late_ms = ms_from_ns(now_ns - call.deadline_ns)
        raise DeadlineInfeasible(
            f"the deadline had passed {late_ms:.3f} ms before it was read",
            deadline_facts(call.arrived_ns, call.deadline_ns, 0),
        )


def _versions(call: InferCall, lost_by: Replica) -> tuple[str, str]:
    """Which version serves a call that was sent before: the same, else what it asks for."""
    return lost_by.version, call.version
