"""What `check-config` prints: the configuration as it will be used, doubts, and what is unchecked.

A doubt is no error: a model may be copied into the repository later, and a daemon that does not
start serves nobody. It reads the repository and must not open sockets or write anywhere.
"""

import os
from collections.abc import Iterator

from gpumuxd.daemon.access import is_loopback
from gpumuxd.daemon.config import Config
from gpumuxd.errors import ConfigError, GpumuxdError
from gpumuxd.models.repository import scan_all
from gpumuxd.node.settings import ALL_MODELS, RepositoryMode
from gpumuxd.rpc.listener import Listener, TcpAddress, UnixAddress, parse_address
from gpumuxd.rpc.tls import read_tls
from gpumuxd.settings import Order, SchedulerSettings, Slicing, format_slicing
from gpumuxd.units import NS_PER_S

UNCHECKED = (
    "whether addresses are free and directories can be written",
    "whether artifacts can be loaded (that is known when they are)",
)


def describe(config: Config) -> str:
    """All of it, for people."""
    return "\n".join(
        [
            f"configuration: {'it will not start' if why_no_start(config) else 'good'}",
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
    found += _doubts_of_listeners(config)
    found += _doubts_of_models(config)
    found += dict.fromkeys(
        doubt for device in config.node.devices for doubt in _without_effect(device.scheduler)
    )
    threads = sum(device.threads for device in config.node.devices)
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        found.append(f"the devices have {threads} threads together, this machine {cores} cores")
    return found


def why_no_start(config: Config) -> str:
    """What no daemon starts with, as whoever asks can see it; "" where nothing is known."""
    if config.tls is not None:
        try:
            read_tls(config.tls)
        except ConfigError as error:
            return str(error)
    return ""


def _doubts_of_listeners(config: Config) -> Iterator[str]:
    if why := why_no_start(config):
        yield f"it will not start: {why}"
    for listener in config.listeners:
        address = parse_address(listener.address)
        if isinstance(address, UnixAddress) and not address.path.parent.is_dir():
            yield f"{listener.address}: there is no directory {address.path.parent} now"
        is_tcp = isinstance(address, TcpAddress)
        if is_tcp and not listener.is_encrypted and not is_loopback(listener.address):
            yield f"{listener.address}: tokens and tensors go over the network in clear"


def _doubts_of_models(config: Config) -> Iterator[str]:
    scan = scan_all(config.node.repository_paths)
    names = config.node.startup_models
    if names == (ALL_MODELS,) or config.node.repository_mode is RepositoryMode.POLL:
        names = tuple(sorted({*names, *scan.models} - {ALL_MODELS}))
    for name in names:
        listing = scan.models.get(name)
        if listing is None:
            yield f"startup model {name!r}: no model {name!r} in the repository"
            continue
        try:
            broken = listing.select().broken
        except GpumuxdError as error:
            yield error.message
        else:
            yield from (f"model {name!r} version {e.version}: {e.reason}" for e in broken)
    for entry in scan.shadowed:
        yield f"model {entry.name!r}: {entry.reason}"


def _without_effect(settings: SchedulerSettings) -> Iterator[str]:
    """Keys that say nothing beside others."""
    base = SchedulerSettings()
    slicing = format_slicing(settings.slicing, settings.slicing_operators, settings.slicing_window)
    fifo = "order = 'fifo': nobody is ordered ahead of others"
    cut = f"slicing = '{slicing}': a baseline cuts by itself"
    is_fifo, is_baseline = settings.order is Order.FIFO, settings.slicing is not Slicing.ADAPTIVE
    is_bound = settings.preemption_delay_ns_max is not None
    for key, is_said, why_not in (
        ("best_effort_share_min", settings.best_effort_share_min_ppm > 0, is_fifo and fifo),
        ("preemption_delay_ms_max", is_bound, (is_fifo and fifo) or (is_baseline and cut)),
        ("slice_ms_max", settings.slice_ns_max != base.slice_ns_max, is_baseline and cut),
        (
            "weigh_preemption_by_arrivals",
            settings.weigh_preemption_by_arrivals,
            is_baseline and cut,
        ),
    ):
        if is_said and why_not:
            yield f"[scheduler].{key} has no effect with {why_not}"


def _facts(config: Config) -> Iterator[tuple[str, object]]:
    yield "state", config.state_dir
    for path in config.node.repository_paths:
        yield "repository", path
    mode = config.node.repository_mode
    every = f", every {config.node.poll_ns / NS_PER_S:g} s" if mode is RepositoryMode.POLL else ""
    yield "mode", f"{mode.value}{every}"
    for name in config.node.startup_models:
        yield "startup model", "all there are" if name == ALL_MODELS else name
    for device in config.node.devices:
        threads = "1 thread" if device.threads == 1 else f"{device.threads} threads"
        yield "device", f"{device.device}, {threads}"
    for listener in config.listeners:
        yield "listener", f"{listener.address} ({_whose(config, listener)})"
    for entry in config.node.tenants:
        yield "tenant", f"{entry.tenant.name}, up to {entry.tenant.priority_max.name}"


def _whose(config: Config, listener: Listener) -> str:
    has_certificates = config.tls is not None and config.tls.client_ca is not None
    whose = "tenants by token"
    if listener.tenant is not None:
        whose = f"tenant {listener.tenant.name}"
    elif listener.is_encrypted and has_certificates:
        whose = "tenants by certificate or token"
    return f"encrypted, {whose}" if listener.is_encrypted else whose
