"""Loaders take the processor time that nobody else wants."""

import os

from gpumuxd.node.child_process import (
    LOADER_NICE,
    SPAWN_STARTER,
    Spawn,
    loader_environment,
    spawn_module,
)
from gpumuxd.wire.channel import Channel


def scheduling(spawn: Spawn) -> tuple[int, int]:
    """Niceness and policy of a child right after its start, which those that it forks have too."""
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
    assert scheduling(SPAWN_STARTER) == (LOADER_NICE, os.SCHED_BATCH)
    own = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    assert scheduling(spawn_module("gpumuxd.loader")) == own
