"""A loader takes the processor time that nobody else wants."""

import os

from gpumuxd.node.child_process import LOADER_NICE, SPAWN_LOADER, loader_environment, spawn_module
from gpumuxd.wire.channel import Channel


def scheduling(spawned_as_loader: bool) -> tuple[int, int]:
    """Niceness and policy of a child right after its start."""
    spawn = SPAWN_LOADER if spawned_as_loader else spawn_module("gpumuxd.loader")
    channel, peer = Channel.pair()
    with peer:
        child = spawn(peer, loader_environment())
    try:
        return os.getpriority(os.PRIO_PROCESS, child.pid), os.sched_getscheduler(child.pid)
    finally:
        child.kill()
        child.reap()
        child.close()
        channel.close()


def test_loaders_yield_to_everything_else_and_other_children_do_not() -> None:
    assert scheduling(spawned_as_loader=True) == (LOADER_NICE, os.SCHED_BATCH)
    own = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    assert scheduling(spawned_as_loader=False) == own
