"""What one device child owes: the end of each request, the answer to each load and unload.

It is told what was sent and what the child said, and keeps who waits for what. It must not know
processes or channels. Invariants. Each future is resolved exactly once: with what the child said,
or in `settle`, after it was reaped. Memory of a request that nobody waits for is released at the
same two moments and never before, since until then a kernel may write there.
"""

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from gpumuxd.clock import Clock
from gpumuxd.errors import (
    DeadlineMissed,
    DeviceLost,
    GpumuxdError,
    ModelFaulted,
    deadline_facts,
)
from gpumuxd.node.blame import Cause, Suspect, Verdict, suspects_of, version_of_key
from gpumuxd.node.overdue import Overdue
from gpumuxd.node.request_memory import RequestMemory
from gpumuxd.wire import frames
from gpumuxd.wire.in_flight_board import InFlight

_T = TypeVar("_T")


class RequestLost(DeviceLost):
    """A device went away under a request or a load. `is_suspect`: that may be why."""

    def __init__(
        self,
        message: str,
        facts: Mapping[str, str] | None = None,
        retry_delay_ns: int | None = None,
        is_suspect: bool = False,
    ) -> None:
        super().__init__(message, facts, retry_delay_ns)
        self.is_suspect = is_suspect


class RequestOverdue(DeadlineMissed):
    """The device did not tell in time; it still has the request."""


class Owed:
    """All that one life of a device has to answer."""

    def __init__(self, device: str, clock: Clock) -> None:
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._requests: dict[int, asyncio.Future[frames.Finished]] = {}
        self._keys: dict[int, str] = {}  # the model of each request, also of abandoned ones
        self._abandoned: dict[int, RequestMemory] = {}
        self._overdue = Overdue(clock, self._request_overdue)
        self._loads: dict[str, asyncio.Future[frames.ModelLoaded]] = {}
        self._unloads: dict[str, asyncio.Future[frames.ModelReleased | None]] = {}

    @property
    def requests_in_flight(self) -> int:
        return len(self._requests) + len(self._abandoned)

    @property
    def is_loading(self) -> bool:
        return bool(self._loads)

    # What is sent

    def add_request(self, submit: frames.Submit) -> "asyncio.Future[frames.Finished]":
        """A request was sent. Whoever stops waiting for its end must call `abandon`."""
        number = submit.request_id
        assert number not in self._requests
        future: asyncio.Future[frames.Finished] = self._loop.create_future()
        self._requests[number] = future
        self._keys[number] = submit.model
        self._overdue.add(submit)
        return future

    def abandon(self, request_id: int, memory: RequestMemory) -> bool:
        """Nobody waits for a request any more: its memory is released when its end is known. False
        when it is already."""
        self._overdue.discard(request_id)
        if self._requests.pop(request_id, None) is None:
            memory.release()  # it had finished, or its child was reaped
            return False
        self._abandoned[request_id] = memory
        return True

    def add_load(self, key: str) -> "asyncio.Future[frames.ModelLoaded]":
        """A load was sent. Whoever stops waiting for it must call `forget_load`."""
        assert key not in self._loads, "model keys are new for each load"
        future = self._loads[key] = self._loop.create_future()
        return future

    def forget_load(self, key: str) -> None:
        self._loads.pop(key, None)

    def unload(self, key: str) -> "asyncio.Future[frames.ModelReleased | None] | None":
        """That which waits for the release of a model already, if any."""
        return self._unloads.get(key)

    def add_unload(self, key: str) -> "asyncio.Future[frames.ModelReleased | None]":
        """An unload is about to be sent."""
        future = self._unloads[key] = self._loop.create_future()
        return future

    # What the child says

    def finished(self, frame: frames.Finished) -> bool:
        """The end of a request. False: the child has no such request."""
        self._keys.pop(frame.request_id, None)
        memory = self._abandoned.pop(frame.request_id, None)
        if memory is not None:
            memory.release()
            return True
        self._overdue.discard(frame.request_id)
        future = self._requests.pop(frame.request_id, None)
        if future is None:
            return False
        if not future.done():
            future.set_result(frame)
        else:
            # The waiter was cancelled, or told that it is overdue, in this very turn of the loop
            # and has not run yet: it will call `abandon`, find the request gone and release its
            # memory.
            assert future.cancelled() or isinstance(future.exception(), RequestOverdue)
        return True

    def loaded(self, frame: frames.ModelLoaded) -> None:
        resolve(self._loads.pop(frame.model, None), frame)

    def load_failed(self, key: str, error: GpumuxdError) -> None:
        fail(self._loads.pop(key, None), error)

    def released(self, frame: frames.ModelReleased) -> None:
        resolve(self._unloads.pop(frame.model, None), frame)

    def _request_overdue(self, submit: frames.Submit) -> None:
        """Its deadline passed, and the child did not say so: whoever waits for it hears it now."""
        assert submit.deadline_ns is not None
        reason = f"device {self._device} gave no answer until the deadline"
        facts = deadline_facts(submit.arrived_ns, submit.deadline_ns, 0)
        fail(self._requests.get(submit.request_id), RequestOverdue(reason, facts))

    # Its end

    def suspects(self, noted: InFlight, cause: Cause) -> dict[Suspect, str]:
        """Of what it had, whom its board names, each with the version it is of."""
        return suspects_of(noted, self._keys, self._loads, cause)

    def settle(self, reason: str, verdict: Verdict, recovery_ns: int | None) -> int:
        """Fail all of it: the child was reaped, so nothing can touch its memory. Returns how many
        requests were lost."""
        message = f"device {self._device} was lost: {reason}; retry"
        blamed = ModelFaulted(f"it ended device {self._device} ({reason}): {verdict.why}")

        def error_for(suspect: Suspect) -> GpumuxdError:
            if suspect == verdict.culprit:
                return blamed
            return RequestLost(message, None, recovery_ns, suspect in verdict.suspects)

        self._overdue.close()
        lost = len(self._requests)
        for number, request in self._requests.items():
            fail(request, error_for(number))
        for key, load in self._loads.items():
            fail(load, error_for(version_of_key(key)))
        for unload in self._unloads.values():
            resolve(unload, None)
        abandoned = list(self._abandoned.values())
        for collection in (self._requests, self._keys, self._loads, self._unloads, self._abandoned):
            collection.clear()
        for memory in abandoned:
            memory.release()
        return lost


def resolve(future: "asyncio.Future[_T] | None", value: _T) -> None:
    """To whoever still waits."""
    if future is not None and not future.done():
        future.set_result(value)


def fail(future: "asyncio.Future[_T] | None", error: Exception) -> None:
    """The same with an error."""
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # asked for here, so that one that nobody awaits is not reported
