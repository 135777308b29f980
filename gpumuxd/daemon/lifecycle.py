"""The daemon from its first line to its last: what starts after what, and how it ends.

Start: lock, a claim on every address (so that a second daemon is told at once and starts nothing),
device children, listeners, startup models, READY=1. Children come before the gRPC server, whose
threads a fork would not survive. SIGHUP reads the configuration again. Stop (SIGTERM or SIGINT):
not ready, admit nothing, finish what was admitted, close the listeners, end the children. A second
signal, or the end of the drain timeout, cuts that short: whoever still waits is told so, and the
log says whose requests they were. It must not know what a request is.
"""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import structlog

from gpumuxd.daemon.config import Config
from gpumuxd.daemon.lock import state_lock
from gpumuxd.daemon.logging import switches
from gpumuxd.daemon.notify import Notifier
from gpumuxd.daemon.reload import Reloading
from gpumuxd.node.child_process import SPAWN_SPARE_DEVICE
from gpumuxd.node.node import Node
from gpumuxd.rpc.server import FrontDoor
from gpumuxd.units import NS_PER_S

REPLY_GRACE_S = 2.0
"""Time for replies to leave after the last request ended, also for those that say it was cut."""

_STOPPING = (signal.SIGTERM, signal.SIGINT)

_EXTENSION_S = 30
"""While the daemon starts or drains, systemd's own limits (TimeoutStartSec, TimeoutStopSec) do not
cut it short as long as it says more often than this that it goes on."""

_log = structlog.get_logger()


class Signals:
    """Signals as events. Of those that stop, the first asks for a drain and the second for an end
    at once."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        self.reload = asyncio.Event()

    def handle_stop(self) -> None:
        (self.now if self.drain.is_set() else self.drain).set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals are ours inside and what they were outside."""
        loop = asyncio.get_running_loop()
        handlers = {**dict.fromkeys(_STOPPING, self.handle_stop), signal.SIGHUP: self.reload.set}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)


async def serve(config: Config, read_again: Callable[[], Config], notifier: Notifier) -> None:
    """Run until a signal asks to stop. Raises AlreadyRunning, AddressInUse, ConfigError or
    DeviceLost when the daemon can't start."""
    signals = Signals()
    with signals.listening(), state_lock(config.state_dir):
        node = Node(
            config.node,
            spawn_spare=SPAWN_SPARE_DEVICE,
            on_readiness=lambda is_ready: front_door.set_serving(is_ready),
        )
        front_door = FrontDoor(
            node,
            config.listeners,
            node.tenants,
            message_bytes_max=config.message_bytes_max,
            tls=config.tls,
            switches=switches,
            limits=config.limits,
        )
        reloading = Reloading(config, read_again, node, front_door)
        front_door.claim()
        notifier.send(STATUS="starting devices")
        try:
            async with _extending(notifier):
                if not await _unless_stopped(signals, node.start()):
                    return
                await front_door.start()
                notifier.send(STATUS="loading models")
                failed: dict[str, str] = {}
                if not await _unless_stopped(signals, _load_models(node, failed)):
                    return
            await _serve(node, front_door, signals, notifier, reloading, failed)
        finally:
            notifier.send(STOPPING=1, STATUS="stopping")
            async with _extending(notifier):
                cut = await _stop(node, front_door, signals, reloading.config.drain_ns_max)
            if cut:
                notifier.send(STATUS=f"stopped; requests cut: {cut}")


async def _load_models(node: Node, failed: dict[str, str]) -> None:
    failed.update(await node.load_startup_models())


async def _serve(
    node: Node,
    front_door: FrontDoor,
    signals: Signals,
    notifier: Notifier,
    reloading: Reloading,
    failed: dict[str, str],
) -> None:
    front_door.set_serving(node.is_ready())
    for name, reason in failed.items():
        _log.error("startup_model_failed", model=name, reason=reason)
    # One broken model must not keep the others from serving, so systemd hears READY all the same;
    # ServerReady and grpc.health.v1 stay false until the model is loaded.
    # What is there now stays: no later collection looks at it again, which was measured to keep
    # every call waiting for 16 ms.
    gc.collect()
    gc.freeze()
    status = "serving" if not failed else f"serving, but not {', '.join(sorted(failed))}"
    notifier.send(READY=1, STATUS=status)
    # Not "ready": what the journal has may still be loaded; `readiness` tells when that is over.
    reason = node.view().reason
    _log.info(
        "serving", addresses=list(front_door.addresses), is_ready=node.is_ready(), reason=reason
    )

    async def care() -> None:
        await asyncio.gather(node.wait_failed(), reloading.run(signals.reload, notifier, status))

    await _unless_stopped(signals, care())


@asynccontextmanager
async def _extending(notifier: Notifier) -> AsyncIterator[None]:
    """Keep systemd patient inside: each step of a start and of a stop has a limit of its own."""

    async def extend() -> None:
        while True:
            notifier.send(EXTEND_TIMEOUT_USEC=_EXTENSION_S * 1_000_000)
            await asyncio.sleep(_EXTENSION_S / 3)

    task = asyncio.ensure_future(extend())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _unless_stopped(signals: Signals, work: Coroutine[Any, Any, None]) -> bool:
    """Do this work to its end, or give it up when a signal comes. True when it ended."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(signals.drain.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        for waiter in (task, stopped):
            waiter.cancel()
        await asyncio.wait([task, stopped])


async def _drain(node: Node, signals: Signals, drain_ns_max: int) -> bool:
    """Wait for what was admitted, up to a time or a second signal. True when all of it ended."""
    drained = asyncio.ensure_future(node.drain())
    hurried = asyncio.ensure_future(signals.now.wait())
    try:
        await asyncio.wait(
            [drained, hurried],
            timeout=drain_ns_max / NS_PER_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        return drained.done()
    finally:
        for waiter in (drained, hurried):
            waiter.cancel()
        await asyncio.wait([drained, hurried])


async def _stop(
    node: Node, front_door: FrontDoor, signals: Signals, drain_ns_max: int
) -> dict[str, int]:
    """End all of it, and return how many requests were cut: by tenant and model."""
    _log.info("stopping", requests_in_flight=node.requests_in_flight)
    front_door.drain()
    is_drained = await _drain(node, signals, drain_ns_max)
    if not is_drained:
        await node.cut()
    await front_door.hear_out(REPLY_GRACE_S)
    await front_door.stop(REPLY_GRACE_S)  # behind it, nobody waits any more
    cut = {f"{tenant}: {model}": count for (tenant, model), count in node.requests_cut.items()}
    if not is_drained:
        is_hurried = signals.now.is_set()
        why = "a second signal" if is_hurried else f"drain_timeout_s ({drain_ns_max / NS_PER_S:g})"
        _log.warning("drain_cut_short", reason=why, requests=sum(cut.values()), cut=cut)
    await node.stop()
    _log.info("stopped")
    return cut
