"""Keeps one device child alive: start, wait for its end, wait a little, start again.

It must not know models or requests: who has something on the device is told when it was lost and
when it is back. Each life has its own link and its own arena, so nothing of a dead child can be
touched by its successor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gpumuxd.clock import Clock
from gpumuxd.errors import DeviceLost
from gpumuxd.node.api import DeviceView, Tenant
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.preemptible import bound_of
from gpumuxd.node.settings import RestartSettings
from gpumuxd.node.watch import Backoff
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_S
from gpumuxd.wire.frames import Started

_log = structlog.get_logger()


class DeviceSupervisor:
    """One configured device. `state` is starting, ready, lost or stopped."""

    def __init__(
        self,
        settings: DeviceSettings,
        restart: RestartSettings,
        clock: Clock,
        make_link: Callable[[DeviceSettings], DeviceLink],
        on_started: Callable[[DeviceLink], Awaitable[None]],
        on_changed: Callable[["DeviceSupervisor"], None],
    ) -> None:
        """`on_started` puts back what the device served; `on_changed` hears of each state."""
        self.settings = settings
        self.state = "starting"
        self.restarts = 0
        self.lost_reason = ""
        self._clock = clock
        self._restart = restart
        self._backoff = Backoff(restart)
        self._make_link = make_link
        self._on_started = on_started
        self._on_changed = on_changed
        self._link: DeviceLink | None = None
        self._started: Started | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False
        self._began_ns = 0
        self._ready_ns: int | None = None  # since when this life serves all it should
        self._start_ns = 0  # what the last start took, until everything was loaded again
        self._first_start: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def link(self) -> DeviceLink | None:
        """The link of a child that is up, also while its models are loaded again."""
        link = self._link
        return link if link is not None and link.is_alive and self._started else None

    async def start(self) -> None:
        """Returns when the device is up for the first time. Raises DeviceLost if its first child
        ends before: a device that can't start at all is for people to look at."""
        name = f"supervise {self.settings.device}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)
        await asyncio.wait([self._task, self._first_start], return_when=asyncio.FIRST_COMPLETED)
        if not self._first_start.done():
            self._task.result()  # raises what ended it
        self._first_start.result()

    async def wait_failed(self) -> None:
        """Never returns. Raises what ended the supervision, which is a bug."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Let the child finish and end. Nothing is started again."""
        self._is_ending = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._link is not None:
            await self._link.stop()
        self._change("stopped")

    def kill(self) -> None:
        """End the child now, before `stop` is called and keeps it from being started again."""
        self._is_ending = True
        if self._link is not None:
            self._link.kill("the daemon stops now")

    def set_tenants(self, tenants: Sequence[Tenant]) -> None:
        """Tell the child, also one that is not up yet; its successors are made with them."""
        if self._link is not None:
            self._link.set_tenants(tenants)

    def view(self) -> DeviceView:
        """The device as an operator sees it."""
        link, started = self.link, self._started
        figures = link.statistics if link is not None else None
        return DeviceView(
            name=self.settings.device,
            state=self.state,
            description=started.description if started is not None else "",
            pid=link.pid if link is not None else 0,
            restarts=self.restarts,
            requests_in_flight=link.requests_in_flight if link is not None else 0,
            queued=figures.queued if figures is not None else 0,
            preemptions=figures.preemptions if figures is not None else 0,
            bound_ns=bound_of(self.settings.scheduler, figures, str).bound_ns or 0,
            window=figures.window if figures is not None else 0,
            memory_bytes=self._memory_bytes(),
            device_busy_ns=figures.device_busy_ns if figures is not None else 0,
            best_effort_grants=figures.best_effort_grants if figures is not None else 0,
            best_effort_granted_ns=figures.best_effort_granted_ns if figures is not None else 0,
        )

    def _memory_bytes(self) -> int:
        """All that counts towards `memory_mib_max`: what the child books, and the arena."""
        figures = self.link.statistics if self.link is not None else None
        return 0 if figures is None else self.settings.arena_bytes + figures.memory_bytes

    async def _run(self) -> None:
        while True:
            await self._live_once()
            if self._first_start.exception() is not None:  # whoever waits for it gives up
                _log.error(
                    "device_not_started", device=self.settings.device, reason=self.lost_reason
                )
                return
            delay_ns = self._backoff.delay_ns(self._lived_ns())
            _log.warning(
                "device_lost",
                device=self.settings.device,
                reason=self.lost_reason,
                requests_lost=self._link.requests_lost if self._link is not None else 0,
                restart_in_ms=delay_ns // 1_000_000,
            )
            await asyncio.sleep(delay_ns / NS_PER_S)
            self.restarts += 1
            self._change("starting")

    async def _live_once(self) -> None:
        """One child, from start to end."""
        self._began_ns = self._clock()
        self._ready_ns = None
        self._started = None
        try:
            link = self._link = self._make_link(self.settings)
            link.recovery_ns = self._recovery_ns
        except OSError as error:
            self.lost_reason = f"no process for it: {error.strerror}"
            self._fail_first_start(self.lost_reason)
            self._change("lost")
            return
        try:
            self._started = await link.wait_started()
        except DeviceLost as error:
            self._fail_first_start(error.message)
        else:
            _log.info(
                "device_up",
                device=self.settings.device,
                pid=link.pid,
                description=self._started.description,
                after_ms=(self._clock() - self._began_ns) // 1_000_000,
            )
            await self._on_started(link)
            if link.is_alive:
                self._ready_ns = self._clock()
                self._start_ns = self._ready_ns - self._began_ns
                self._change("ready")
            if not self._first_start.done():
                self._first_start.set_result(None)
        self.lost_reason = await link.wait_ended()
        self._change("lost")

    def _recovery_ns(self) -> int | None:
        """How long a device that is lost now will be away, if its next start takes as long as the
        last. None when nothing is started again."""
        if self._is_ending:
            return None
        return self._backoff.next_ns(self._lived_ns()) + self._start_ns

    def _lived_ns(self) -> int:
        """As the delays count it: to have served for a while is to have lived long."""
        now_ns, restart = self._clock(), self._restart
        has_served = self._ready_ns is not None and now_ns - self._ready_ns >= restart.served_ns
        return restart.healthy_ns if has_served else now_ns - self._began_ns

    def _fail_first_start(self, reason: str) -> None:
        if not self._first_start.done():
            self._first_start.set_exception(DeviceLost(reason))

    def _change(self, state: str) -> None:
        self.state = state
        self._on_changed(self)
