"""One life of one device child: its process, its channel, its arena and what it owes.

A link starts a child, speaks frames with it and ends once; the next life is a new link with a new
arena (`supervisor.py`). It must not know models beyond their keys, nor why a request was sent.

Invariants. What the child owes (`owed.py`) is settled after it was reaped, and its arena is closed
after the last memory in it was released. No call blocks: a full channel is QueueFull for requests,
and for what must be said (cancels, unloads) a list that is sent as soon as there is room.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence

from gpumuxd.clock import Clock
from gpumuxd.core.placement import Backlog
from gpumuxd.domain import Bucket
from gpumuxd.errors import (
    DeviceLost,
    GpumuxdError,
    InvalidModel,
    ModelNotReady,
    OutOfDeviceMemory,
    QueueFull,
    WrongMode,
    limit_facts,
)
from gpumuxd.node.api import Tenant
from gpumuxd.node.blame import (
    Blame,
    Cause,
    Death,
    Verdict,
    cause_of,
)
from gpumuxd.node.child_process import Child, Spawn, device_environment, is_stopped
from gpumuxd.node.limits import Ticket
from gpumuxd.node.loop_channel import LoopChannel
from gpumuxd.node.owed import Owed, fail, resolve
from gpumuxd.node.questions import Questions
from gpumuxd.node.recording import Recording
from gpumuxd.node.request_memory import RequestMemory
from gpumuxd.node.settings import LinkSettings
from gpumuxd.node.validation import CheckedCall
from gpumuxd.node.watch import SilenceWatch
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_S
from gpumuxd.wire import frames
from gpumuxd.wire.arena import Arena
from gpumuxd.wire.channel import (
    OUTBOX_FRAMES_MAX,
    Channel,
    ChannelClosed,
    ChannelError,
    ChannelFull,
)
from gpumuxd.wire.in_flight_board import InFlightBoard

Judge = Callable[[Death], Verdict]


class DeviceLink:
    """A running device child, from its start to its end."""

    def __init__(
        self,
        settings: DeviceSettings,
        limits: LinkSettings,
        tenants: Sequence[Tenant],
        clock: Clock,
        spawn: Spawn,
        on_statistics: Callable[["DeviceLink"], None] = lambda link: None,
        judge: Judge | None = None,
    ) -> None:
        """Starts the child at once; `wait_started` tells when it is up. Raises OSError when there
        can be no new process. `on_statistics` hears each time `statistics` are new; `judge` says
        who is to blame for an end."""
        self.settings = settings
        self._judge = Blame().judge if judge is None else judge
        self._on_statistics = on_statistics
        self.statistics: frames.Statistics | None = None
        self.backlog = Backlog()
        self.submits = 0  # requests that were sent
        self.began_ns = clock()
        self.requests_lost = 0
        self.recovery_ns: Callable[[], int | None] = lambda: None  # its supervisor knows
        self._limits = limits
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._owed = Owed(settings.device, clock)
        self._statistics_asked: asyncio.Future[None] | None = None
        self._explanations: Questions[frames.Explanation | None] = Questions()
        self._explaining = asyncio.Lock()
        self._explain_next_ns = 0
        self._recording: Recording | None = None
        self._started: asyncio.Future[frames.Started] = self._loop.create_future()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._watch = SilenceWatch(limits, self.began_ns)
        self._arena = Arena(settings.arena_bytes)
        self._board = InFlightBoard()
        channel, peer = Channel.pair()
        self._channel = LoopChannel(channel, self._handle_frame, self._handle_broken)
        try:
            with peer:
                self._child: Child = spawn(peer, device_environment(settings.threads))
        except OSError:
            self._channel.close()
            self._arena.close()
            self._board.close()
            raise
        self._kill_reason = ""
        self._kill_cause: Cause | None = None
        self._loop.add_reader(self._child.fileno(), self._handle_exit)
        with contextlib.suppress(ChannelClosed):  # one that ended at once is told by its pidfd
            fds = [self._arena.fd, self._board.fd]
            self._channel.send(frames.Start(settings, os.getpid()), fds)
        self.set_tenants(tenants)
        self._watcher = self._loop.create_task(self._watch_child(), name=f"watch {settings.device}")

    # What callers ask

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return not self._ended.done()

    @property
    def requests_in_flight(self) -> int:
        return self._owed.requests_in_flight

    @property
    def arena_bytes_used(self) -> int:
        return self._arena.used_bytes

    async def wait_started(self) -> frames.Started:
        """Returns when the device is up. Raises DeviceLost when the child ended before."""
        return await asyncio.shield(self._started)

    async def wait_ended(self) -> str:
        """Returns when the child is gone and everything it owed has failed; says why."""
        return await asyncio.shield(self._ended)

    async def fresh_statistics(self) -> frames.Statistics | None:
        """The figures of this moment, or older ones of a device that is slow to tell; None from one
        that never did or is gone."""
        if not self.is_alive:
            return None
        if self._statistics_asked is None:
            self._statistics_asked = self._loop.create_future()
            self._ask(frames.AskStatistics())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.statistics_interval_ns / NS_PER_S):
                await asyncio.shield(self._statistics_asked)
        return self.statistics if self.is_alive else None

    async def explain(self, model: str, bucket: Bucket | None) -> frames.Explanation | None:
        """Why the work of a model is cut as it is, None where it does not serve any more. Raises
        DeviceLost, or ModelNotReady when there is no answer in time."""
        limit_s = self._limits.answer_ns_max / NS_PER_S
        try:
            async with asyncio.timeout(limit_s), self._explaining:
                await asyncio.sleep(max(0, self._explain_next_ns - self._clock()) / NS_PER_S)
                self._explain_next_ns = self._clock() + self._limits.explain_interval_ns
                self._check_alive()
                with self._explanations.asked() as (number, answer):
                    self._send_now(frames.AskExplanation(number, model, bucket))
                    told = await answer
                if told is not None and bucket is not None and told.bucket != bucket:
                    self.kill(f"it explained sizes {told.bucket}, asked for {bucket}")
                    raise DeviceLost(f"device {self.settings.device} was lost; retry")
                return told
        except TimeoutError:
            device = self.settings.device
            raise ModelNotReady(f"device {device} did not answer in {limit_s} s; retry") from None

    def set_tenants(self, tenants: Sequence[Tenant]) -> None:
        """Tell the child of tenants that are new or have changed."""
        if not self.is_alive:
            return
        for tenant in tenants:
            self._channel.owe(
                frames.SetTenant(
                    tenant.name,
                    tenant.weight,
                    tenant.realtime_per_s,
                    tenant.realtime_burst,
                    tenant.memory_bytes_max,
                )
            )

    def reserve(self, call: CheckedCall, ticket: Ticket) -> RequestMemory:
        """Memory in this device's arena, inputs copied in. Raises QueueFull or DeviceLost."""
        self._check_alive()
        return RequestMemory(self._arena, call, ticket, self._memory_released)

    def submit(self, frame: frames.Submit) -> "asyncio.Future[frames.Finished]":
        """Hand a request over. Raises QueueFull or DeviceLost, then nothing was handed over.

        Whoever stops waiting for the future must call `abandon`.
        """
        self._check_alive()
        self._send_now(frame)
        self.submits += 1
        return self._owed.add_request(frame)

    def abandon(self, request_id: int, memory: RequestMemory) -> None:
        """Nobody waits any more: cancel, and release the memory when that is confirmed."""
        if self._owed.abandon(request_id, memory):
            self._channel.owe(frames.Cancel(request_id))

    def drop_sequence(self, model: str, slot: int) -> None:
        """No further step of this sequence comes. A device that ended has forgotten it."""
        if self.is_alive:
            self._channel.owe(frames.DropSequence(model, slot))

    async def load(self, frame: frames.LoadModel, fds: Sequence[int]) -> frames.ModelLoaded:
        """Have a model made ready. Raises InvalidModel or OutOfDeviceMemory with the child's
        reason, ModelNotReady when it takes too long, or DeviceLost."""
        self._check_alive()
        self._send_now(frame, fds)
        future = self._owed.add_load(frame.model)
        try:
            async with asyncio.timeout(self._limits.load_ns_max / NS_PER_S):
                return await future
        except TimeoutError:
            # A loop that stands still is noticed long before; this one serves others well.
            self._channel.owe(frames.UnloadModel(frame.model))
            limit_s = self._limits.load_ns_max / NS_PER_S
            raise ModelNotReady(f"loading took over {limit_s} s; its device may be busy") from None
        finally:
            self._owed.forget_load(frame.model)

    async def unload(self, model: str) -> frames.ModelReleased | None:
        """Let a model finish what was admitted and go; returns what the child says of it. A device
        that ends has unloaded it too, and says nothing."""
        if not self.is_alive:
            return None
        future = self._owed.unload(model)
        if future is None:
            future = self._owed.add_unload(model)
            self._channel.owe(frames.UnloadModel(model))
        return await asyncio.shield(future)

    def record(self, bytes_max: int) -> Recording:
        """Begin to record. Raises WrongMode while one goes on, QueueFull or DeviceLost."""
        self._check_alive()
        if self._recording is not None:
            raise WrongMode("a recording of this device goes on already")
        recording = Recording(bytes_max, lambda: self._channel.owe(frames.StopRecording()))
        try:
            self._send_now(frames.StartRecording(bytes_max), [recording.fd])
        except BaseException:
            recording.end(frames.RecordingEnded("", 0, 0, has_begun=False))
            recording.close()
            raise
        self._recording = recording
        return recording

    def stop_recording(self) -> None:
        """End the recording that goes on, if any."""
        if self._recording is not None:
            self._recording.stop()

    async def stop(self) -> None:
        """Ask the child to finish and end; kill it when it does not."""
        if not self._started.done():
            self.kill("it was told to stop while it started")
        elif self.is_alive:
            self._channel.owe(frames.Stop())
        try:
            async with asyncio.timeout(self._limits.stop_ns_max / NS_PER_S):
                await self.wait_ended()
        except TimeoutError:
            self.kill("it did not stop when asked")
            await self.wait_ended()

    def kill(self, reason: str, cause: Cause = Cause.ORDERED) -> None:
        """End the child now. What it owes fails once it is reaped."""
        if self.is_alive:
            self._kill_reason = self._kill_reason or reason
            self._kill_cause = self._kill_cause or cause
            self._child.kill()

    # What the child says

    def _handle_broken(self, error: ChannelError) -> None:
        if isinstance(error, ChannelClosed):
            # It is ending, and says by its exit status why; one that does not end is of no use.
            delay_s = self._limits.exit_ns_max / NS_PER_S
            self._loop.call_later(delay_s, self.kill, "it closed its channel", Cause.NONSENSE)
        else:
            self.kill(f"it sent what is no frame: {error}", Cause.NONSENSE)

    def _handle_frame(self, frame: frames.AnyFrame, fds: Sequence[int]) -> None:
        for fd in fds:
            os.close(fd)  # a device child has none to send
        match frame:
            case frames.Finished(request_id=number):
                if not self._owed.finished(frame):
                    reason = f"it finished request {number}, which it does not have"
                    self.kill(reason, Cause.NONSENSE)
            case frames.Accepted():
                pass  # the promise is the child's; clients are told when it is kept or broken
            case frames.Pong(turns=turns):
                self._watch.heard_pong(turns, self._clock())
            case frames.Statistics():
                self.statistics = frame
                busy_ns, now_ns = frame.device_busy_ns, self._clock()
                self.backlog.told(frame.backlog_ns, frame.submits, busy_ns, now_ns)
                self._statistics_told()
                self._on_statistics(self)
            case frames.Explained(ask_id=number, explanation=explanation):
                self._explanations.answer(number, explanation)
            case frames.RecordingEnded():
                self._recording_ended(frame)
            case frames.Started():
                if not self._started.done():
                    self._started.set_result(frame)
            case frames.ModelLoaded():
                self._watch.heard_turn(self._clock())
                self._owed.loaded(frame)
            case frames.ModelFailed(model=model, reason=reason, is_out_of_memory=is_full):
                error: GpumuxdError = InvalidModel(reason)
                if is_full:
                    error = OutOfDeviceMemory(reason, {"device": self.settings.device})
                self._owed.load_failed(model, error)
            case frames.ModelReleased():
                self._owed.released(frame)
            case _:
                name = type(frame).__name__
                self.kill(f"it sent a {name}, which is the parent's to send", Cause.NONSENSE)

    def _statistics_told(self) -> None:
        """Frames come in order: whatever the parent knew when it asked is older than this."""
        asked, self._statistics_asked = self._statistics_asked, None
        resolve(asked, None)

    def _recording_ended(self, frame: frames.RecordingEnded) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.end(frame)

    def _handle_exit(self) -> None:
        """The process has ended: hear what it said last, reap it, then settle what it owed."""
        self._loop.remove_reader(self._child.fileno())
        self._channel.read_all()
        how = self._child.reap()
        self._child.close()
        self._channel.close()
        self._watcher.cancel()
        reason = f"{self._kill_reason} ({how})" if self._kill_reason else how
        cause = self._kill_cause or cause_of(how)
        suspects = self._owed.suspects(self._board.read(), cause)
        self._board.close()
        verdict = self._judge(Death(self.settings.device, cause, reason, suspects))
        self._ended.set_result(reason)
        self._settle(reason, verdict)

    def _settle(self, reason: str, verdict: Verdict) -> None:
        """Fail all that the child owed."""
        message = f"device {self.settings.device} was lost: {reason}; retry"
        self._statistics_told()
        self._recording_ended(frames.RecordingEnded(message, 0, 0, is_broken=True))
        self._explanations.fail(DeviceLost(message))
        self.requests_lost = self._owed.settle(reason, verdict, self.recovery_ns())
        fail(self._started, DeviceLost(message))
        self._memory_released()

    def _memory_released(self) -> None:
        if not self.is_alive and self._arena.used_bytes == 0:
            self._arena.close()

    def _check_alive(self) -> None:
        if not self.is_alive:
            raise DeviceLost(f"device {self.settings.device} was lost; retry")

    def _send_now(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        """Raises QueueFull, or DeviceLost when the other end is gone."""
        try:
            self._channel.send(frame, fds)
        except ChannelFull as error:
            raise QueueFull(
                "the device is behind with taking requests; retry",
                limit_facts(
                    "outbox_frames_max", OUTBOX_FRAMES_MAX, "frames", device=self.settings.device
                ),
            ) from error
        except ChannelClosed as error:
            raise DeviceLost(f"device {self.settings.device} was lost; retry") from error

    # Watching

    async def _watch_child(self) -> None:
        """Ping, and kill a child whose loop stands still (the rule is in `watch.py`)."""
        interval_ns = self._limits.ping_interval_ns
        count = 0
        asked_ns = self._clock()
        due_ns = asked_ns + interval_ns
        while True:
            await asyncio.sleep(max(due_ns - self._clock(), 0) / NS_PER_S)
            # An answer that is there already counts, however late we are to read it.
            self._channel.read()
            now_ns = self._clock()
            is_loading = self._owed.is_loading
            if self._watch.is_silent(
                now_ns,
                parent_lag_ns=now_ns - due_ns,
                # Up is what has turned: after Started the child still tidies up what it imported.
                is_starting=not self._watch.has_turned,
                is_loading=is_loading,
            ):
                limit_s = self._watch.limit_ns(is_loading) / NS_PER_S
                if is_stopped(self._child.pid):  # by a debugger, or a signal: no doing of its own
                    self.kill(f"its process was stopped for {limit_s} s", Cause.OUTSIDE)
                else:
                    self.kill(f"its loop stood still for {limit_s} s", Cause.SILENCE)
            elif not self._watch.has_turned and now_ns - self.began_ns > self._limits.start_ns_max:
                limit_s = self._limits.start_ns_max / NS_PER_S
                self.kill(
                    f"it was not up after {limit_s} s, which is all that a start may take (no "
                    "setting changes it): is the machine too busy, or its disk too slow?"
                )
            if self._started.done():
                count += 1
                self._ask(frames.Ping(count))
                if now_ns - asked_ns >= self._limits.statistics_interval_ns:
                    asked_ns = now_ns
                    self._ask(frames.AskStatistics())
            due_ns = now_ns + interval_ns

    def _ask(self, frame: frames.Frame) -> None:
        """Say this or leave it: it is said again soon."""
        with contextlib.suppress(ChannelFull, ChannelClosed):
            self._channel.send(frame)
