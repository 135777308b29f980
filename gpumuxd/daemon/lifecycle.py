"""The daemon from its first line to its last: what starts after what, and how it ends.

Start: lock, a claim on every address (so that a second daemon is told at once and starts nothing),
device children, listeners, startup models, READY=1. Children come before the gRPC server, whose
threads a fork would not survive. Stop (SIGTERM or SIGINT): not ready, admit nothing,
finish what was admitted, close the listeners, end the children. A second signal cuts that short.
It must not know what a request is.
"""

import asyncio
import gc
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from gpumuxd.daemon.config import Config
from gpumuxd.daemon.lock import state_lock
from gpumuxd.daemon.notify import Notifier
from gpumuxd.node.node import Node
from gpumuxd.rpc.server import FrontDoor
from gpumuxd.units import NS_PER_S

REPLY_GRACE_S = 2.0
"""Time for replies that are computed to leave, after the last request ended."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = structlog.get_logger()


class StopRequests:
    """Signals as events: the first asks for a drain, the second for an end at once."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()

    def handle_signal(self) -> None:
        (self.now if self.drain.is_set() else self.drain).set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals are ours inside and what they were outside."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_signal)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


async def serve(config: Config, notifier: Notifier) -> None:
    """Run until a signal asks to stop. Raises AlreadyRunning, AddressInUse, ConfigError or
    DeviceLost when the daemon can't start."""
    stop = StopRequests()
    with stop.listening(), state_lock(config.state_dir):
        node = Node(config.node, on_readiness=lambda is_ready: front_door.set_serving(is_ready))
        front_door = FrontDoor(
            node, config.listeners, node.tenants, message_bytes_max=config.message_bytes_max
        )
        front_door.claim()
        notifier.send(STATUS="starting devices")
        try:
            if not await _unless_stopped(stop, node.start()):
                return
            await front_door.start()
            await _start_models_and_wait(node, front_door, stop, notifier)
        finally:
            notifier.send(STOPPING=1, STATUS="stopping")
            await _stop(node, front_door, stop, config.drain_ns_max)


async def _start_models_and_wait(
    node: Node, front_door: FrontDoor, stop: StopRequests, notifier: Notifier
) -> None:
    notifier.send(STATUS="loading models")
    failed: dict[str, str] = {}

    async def load() -> None:
        failed.update(await node.load_startup_models())

    if not await _unless_stopped(stop, load()):
        return
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
    await _unless_stopped(stop, node.wait_failed())


async def _unless_stopped(stop: StopRequests, work: Coroutine[Any, Any, None]) -> bool:
    """Do this work to its end, or give it up when a signal comes. True when it ended."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.drain.wait())
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


async def _drain(node: Node, stop: StopRequests, drain_ns_max: int) -> bool:
    """Wait for what was admitted, up to a time or a second signal. True when all of it ended."""
    drained = asyncio.ensure_future(node.drain())
    hurried = asyncio.ensure_future(stop.now.wait())
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


async def _stop(node: Node, front_door: FrontDoor, stop: StopRequests, drain_ns_max: int) -> None:
    _log.info("stopping", requests_in_flight=node.requests_in_flight)
    is_drained = await _drain(node, stop, drain_ns_max)
    if not is_drained:
        _log.warning("drain_cut_short", requests_in_flight=node.requests_in_flight)
    await front_door.stop(REPLY_GRACE_S if is_drained else 0.0)
    await node.stop(is_urgent=not is_drained)
    _log.info("stopped")
