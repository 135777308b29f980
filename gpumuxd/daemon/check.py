"""What `check-config` prints: the configuration as it will be used, doubts, and what is unchecked.

A doubt is no error: a model may be copied into the repository later, and a daemon that does not
start serves nobody. It reads the repository and must not open sockets or write anywhere.
"""

import os
from collections.abc import Iterator

from gpumuxd.daemon.config import Config
from gpumuxd.errors import GpumuxdError
from gpumuxd.models.repository import Repository

UNCHECKED = (
    "whether addresses are free and directories can be written",
    "whether artifacts can be loaded (that is known when they are)",
)


def describe(config: Config) -> str:
    """All of it, for people."""
    return "\n".join(
        [
            "configuration: good",
            *(f"  {what:<14} {value}" for what, value in _facts(config)),
            *(f"warning: {doubt}" for doubt in doubts(config)),
            *(f"not checked: {what}" for what in UNCHECKED),
        ]
    )


def doubts(config: Config) -> list[str]:
    """What will probably not work as it is on this machine, one sentence each."""
    found = [
        f"repository {path} is not a directory"
        for path in config.node.repository_paths
        if not path.is_dir()
    ]
    repository = Repository(config.node.repository_paths)
    for name in config.node.startup_models:
        try:
            repository.find(name, "")
        except GpumuxdError as error:
            found.append(f"startup model {name!r}: {error.message}")
    threads = sum(device.threads for device in config.node.devices)
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        found.append(f"the devices have {threads} threads together, this machine {cores} cores")
    return found


def _facts(config: Config) -> Iterator[tuple[str, object]]:
    yield "state", config.state_dir
    for path in config.node.repository_paths:
        yield "repository", path
    for name in config.node.startup_models:
        yield "startup model", name
    for device in config.node.devices:
        threads = "1 thread" if device.threads == 1 else f"{device.threads} threads"
        yield "device", f"{device.device}, {threads}"
    for listener in config.listeners:
        whose = listener.tenant.name if listener.tenant is not None else "by token"
        yield "listener", f"{listener.address} ({whose})"
    for entry in config.node.tenants:
        yield "tenant", f"{entry.tenant.name}, up to {entry.tenant.priority_max.name}"
