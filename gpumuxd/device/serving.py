"""A device child once torch is imported: its parts are put together and its loop is run here."""

import gc
import os
import platform
import signal
from dataclasses import replace

import torch

from gpumuxd.clock import monotonic_ns
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.device.calibration import device_costs
from gpumuxd.device.confinement import limit_memory
from gpumuxd.device.log import log
from gpumuxd.device.loop import DeviceLoop
from gpumuxd.device.mailbox import Mailbox
from gpumuxd.device.tensors import ArenaTensors
from gpumuxd.executors.cpu import CpuExecutor
from gpumuxd.settings import DeviceSettings
from gpumuxd.wire.arena import ArenaMap
from gpumuxd.wire.channel import Channel
from gpumuxd.wire.frames import Start, Started
from gpumuxd.wire.in_flight_board import InFlightNotes
from gpumuxd.wire.process import set_timer_slack
from gpumuxd.wire.slices import PATIENT_NS, PROMPT_NS, set_slice

TIMER_SLACK_NS = 1
"""A wait of the loop ends when it is due: 12 us late instead of 64 us."""


def serve(channel: Channel, start: Start, arena: ArenaMap, notes: InFlightNotes) -> None:
    """Serve until Stop or SIGTERM and everything is finished. Raises ChannelClosed, or SliceOverdue
    when the device does not come back."""
    settings = _without_arena(start.settings, arena)
    kind, _, _ = settings.device.partition(":")
    assert kind == "cpu", f"no executor for device {settings.device!r}"
    limit_memory(settings.scheduler.memory_bytes_max)
    # Before the device thread starts, which inherits it.
    set_timer_slack(TIMER_SLACK_NS)
    torch.set_num_threads(settings.threads)
    torch.set_num_interop_threads(1)
    # Before there is a mailbox: the parent grants a child that starts more silence than this takes.
    costs = device_costs(settings, monotonic_ns)
    mailbox = Mailbox(channel)
    # The device thread computes; this one and the parent, whom it would keep waiting, do not.
    set_slice(PATIENT_NS)
    executor = CpuExecutor(
        threads=settings.threads,
        launch_cost_ns=settings.launch_cost_ns,
        mail_fd=mailbox.fileno(),
    )
    set_slice(PROMPT_NS)
    loop = DeviceLoop(
        mailbox,
        DeviceScheduler(settings.scheduler),
        executor,
        ArenaTensors(arena),
        notes,
        settings,
        monotonic_ns,
    )
    if costs is not None:
        loop.measured(costs)
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    mailbox.post(_started(settings))
    # What is there now stays: no later collection has to look at torch's objects again.
    gc.collect()
    gc.freeze()
    log("debug", "device_started", device=settings.device, threads=settings.threads)
    loop.run()
    executor.close()
    mailbox.close()
    log("debug", "device_stopped", device=settings.device)


def _without_arena(settings: DeviceSettings, arena: ArenaMap) -> DeviceSettings:
    """The ledger's limit is for weights and frames; what the arena takes is spent already."""
    limit = max(settings.scheduler.memory_bytes_max - arena.size_bytes, 0)
    return replace(settings, scheduler=replace(settings.scheduler, memory_bytes_max=limit))


def _started(settings: DeviceSettings) -> Started:
    threads = "1 thread" if settings.threads == 1 else f"{settings.threads} threads"
    return Started(
        device=settings.device,
        description=f"CPU ({platform.machine()}), {threads}",
        torch_version=str(torch.__version__),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
