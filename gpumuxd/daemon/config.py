"""The configuration file: TOML in, frozen values out, or one message that names the key.

Whatever the file does not say has a default from `settings.py` or `node/settings.py`, where the
reasons are. Units are in the names of the keys; below this file there are only nanoseconds and
bytes. It must not open sockets, read the repository or start anything. What it can't see here is
looked at by `check.py`. Every key is explained in docs/configuration.md; a test compares the two.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpumuxd.core.placement import Policy
from gpumuxd.daemon.access import (
    parse_listeners,
    parse_shared_memory,
    parse_tenants,
    parse_tls,
)
from gpumuxd.daemon.changes import stated_keys
from gpumuxd.daemon.toml_table import TomlTable
from gpumuxd.errors import ConfigError, InvalidRequest
from gpumuxd.models.names import check_model_name
from gpumuxd.models.toml_text import parse_toml
from gpumuxd.node.journal import JOURNAL_NAME
from gpumuxd.node.settings import (
    ALL_MODELS,
    LoaderSettings,
    NodeSettings,
    RecoverySettings,
    RepositoryMode,
)
from gpumuxd.rpc.connections import ConnectionLimits
from gpumuxd.rpc.listener import Listener
from gpumuxd.rpc.tls import TlsFiles
from gpumuxd.settings import (
    WINDOW_MAX,
    DeviceSettings,
    Order,
    SchedulerSettings,
    Slicing,
    format_slicing,
    parse_slicing,
)
from gpumuxd.units import MIB, NS_PER_MS, NS_PER_S, NS_PER_US, PPM

DEFAULT_PATH = Path("/etc/gpumuxd/gpumuxd.toml")
"""Read when no other file is named and this one is there."""

MESSAGE_BYTES_MAX = 2047 * MIB
"""Protobuf has no messages of 2 GiB and more."""

REPOSITORIES_MAX = 6
"""Each may keep two worker threads from the others while its disk hangs (`workers.py`)."""

_DEVICE = re.compile(r"cpu:(0|[1-9][0-9]{0,2})")


@dataclass(frozen=True, slots=True)
class Config:
    """All that the daemon is told."""

    node: NodeSettings
    listeners: tuple[Listener, ...]
    state_dir: Path
    message_bytes_max: int = 64 * MIB
    """Largest request or reply on the wire."""

    tls: TlsFiles | None = None
    """What encrypted listeners show, and whose certificates they ask for."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)

    drain_ns_max: int = 30 * NS_PER_S
    """After SIGTERM, what was admitted ends in this time."""

    stated: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """What the file says, key by key, to tell what another one says differently."""


def load_config(path: Path | None, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration in this file, in the default one, or the defaults. Raises ConfigError."""
    if path is None:
        if not DEFAULT_PATH.exists():
            return parse_config("", environment)
        path = DEFAULT_PATH
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    try:
        return parse_config(text, environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(text: str, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration that a text states. Raises ConfigError."""
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"not TOML: {error}") from error

    root = TomlTable("", document)
    node = root.take_table("node")
    state_text = node.take_text("state_dir", str(_default_state_dir(environment)))
    state_dir = _absolute(node, "state_dir", state_text)
    drain_ns = node.take_scaled("drain_timeout_s", 30 * NS_PER_S, NS_PER_S, 0, 3600 * NS_PER_S)
    loader = LoaderSettings()
    read_ns_max = node.take_scaled(
        "read_timeout_s", loader.read_ns_max, NS_PER_S, NS_PER_S, 3600 * NS_PER_S
    )
    settings = NodeSettings(
        startup_models=_parse_startup_models(node),
        keeps_spare=node.take_flag("spare_device_child", True),
        journal_path=state_dir / JOURNAL_NAME,
        loader=replace(loader, read_ns_max=read_ns_max),
    )
    node.finish()
    settings = _parse_repository(root.take_table("repository"), state_dir, settings)
    placement = root.take_table("placement")
    settings = replace(
        settings, placement=placement.take_enum("policy", settings.placement, Policy)
    )
    placement.finish()
    settings = replace(settings, recovery=_parse_recovery(root.take_table("recovery")))
    shared_memory = parse_shared_memory(root.take_table("shared_memory"))
    settings = replace(settings, shared_memory=shared_memory)
    devices = _parse_devices(root, state_dir, environment)
    tenants, sockets = parse_tenants(root.take_table("tenants"))
    listen = root.take_table("listen")
    tls = parse_tls(listen, tenants, environment)
    listeners = parse_listeners(listen, sockets, has_tenants=bool(tenants))
    message_bytes_max = listen.take_scaled("message_mib_max", 64 * MIB, MIB, MIB, MESSAGE_BYTES_MAX)
    limits = _parse_limits(listen)
    listen.finish()
    root.finish()

    return Config(
        node=replace(settings, devices=devices, tenants=tenants),
        listeners=listeners,
        state_dir=state_dir,
        message_bytes_max=message_bytes_max,
        tls=tls,
        limits=limits,
        drain_ns_max=drain_ns,
        stated=stated_keys(document),
    )


def _parse_limits(table: TomlTable) -> ConnectionLimits:
    base = ConnectionLimits()
    day_ns = 24 * 3600 * NS_PER_S

    def seconds(key: str, default_ns: int, minimum_ns: int) -> int:
        return table.take_scaled(key, default_ns, NS_PER_S, minimum_ns, day_ns)

    return ConnectionLimits(
        connections_max=table.take_int("connections_max", base.connections_max, 1, 1_000_000),
        connection_idle_ns_max=seconds("connection_idle_s_max", base.connection_idle_ns_max, 0),
        keepalive_ns=seconds("keepalive_s", base.keepalive_ns, 0),
        keepalive_timeout_ns=seconds("keepalive_timeout_s", base.keepalive_timeout_ns, NS_PER_S),
        client_ping_ns_min=seconds("client_ping_s_min", base.client_ping_ns_min, NS_PER_MS),
        receiving_bytes_max=table.take_scaled(
            "receiving_mib_max", base.receiving_bytes_max, MIB, MIB, 1 << 40
        ),
    )


def _parse_startup_models(table: TomlTable) -> tuple[str, ...]:
    names = table.take_texts("startup_models", ())
    if names == (ALL_MODELS,):
        return names
    for name in names:
        if name == ALL_MODELS:
            table.fail("startup_models", f"{ALL_MODELS!r} alone, or names of models", list(names))
        try:
            check_model_name(name)
        except InvalidRequest as error:
            raise ConfigError(f"{table.name('startup_models')}: {error}") from error
    return names


def _parse_repository(table: TomlTable, state_dir: Path, base: NodeSettings) -> NodeSettings:
    texts = table.take_texts("paths", (str(state_dir / "models"),))
    if len(texts) > REPOSITORIES_MAX:
        table.fail("paths", f"at most {REPOSITORIES_MAX} repositories", len(texts))
    settings = replace(
        base,
        repository_paths=tuple(_absolute(table, "paths", text) for text in texts),
        repository_mode=table.take_enum("mode", base.repository_mode, RepositoryMode),
        poll_ns=table.take_scaled("poll_s", base.poll_ns, NS_PER_S, NS_PER_S, 24 * 3600 * NS_PER_S),
    )
    table.finish()
    return settings


def _parse_recovery(table: TomlTable) -> RecoverySettings:
    base = RecoverySettings()
    day_ns = 24 * 3600 * NS_PER_S
    settings = RecoverySettings(
        replays_max=table.take_int("replays_max", base.replays_max, 0, 100),
        replay_wait_ns_max=table.take_scaled(
            "replay_wait_s_max", base.replay_wait_ns_max, NS_PER_S, 0, 3600 * NS_PER_S
        ),
        faults_max=table.take_int("faults_max", base.faults_max, 1, 1000),
        faults_window_ns=table.take_scaled(
            "faults_window_s", base.faults_window_ns, NS_PER_S, NS_PER_S, day_ns
        ),
    )
    table.finish()
    return settings


def _default_state_dir(environment: Mapping[str, str]) -> Path:
    """Systemd's choice, else where the user keeps such things, else the system's place."""
    if given := environment.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/gpumuxd")
    home = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '/')}/.local/state"
    return Path(home) / "gpumuxd"


def _absolute(table: TomlTable, key: str, text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        table.fail(key, "an absolute path", text)
    return path


# Devices and their schedulers


def _parse_devices(
    root: TomlTable, state_dir: Path, environment: Mapping[str, str]
) -> tuple[DeviceSettings, ...]:
    common = _parse_scheduler(root.take_table("scheduler"))
    cache = environment.get("CACHE_DIRECTORY", "").split(":")[0] or str(state_dir)
    common = replace(common, profile_cache_dir=f"{cache}/profiles")
    tables = root.take_tables("device")
    devices = [_parse_device(table, common) for table in tables] or [common]
    names = [device.device for device in devices]
    if len(set(names)) != len(names):
        raise ConfigError(f"[[device]].name: expected each device once, got {names}")
    return tuple(devices)


def _parse_scheduler(table: TomlTable) -> DeviceSettings:
    device, base = DeviceSettings(), SchedulerSettings()
    group_ns = table.take_scaled(
        "group_target_ms", device.group_target_ns, NS_PER_MS, NS_PER_US, NS_PER_S
    )
    slicing, operators, window = _parse_slicing(table, base)
    scheduler = SchedulerSettings(
        slicing=slicing,
        slicing_operators=operators,
        slicing_window=window,
        order=table.take_enum("order", base.order, Order),
        preemption_delay_ns_max=_parse_bound(table),
        slice_ns_max=table.take_scaled(
            "slice_ms_max", base.slice_ns_max, NS_PER_MS, NS_PER_US, 10 * NS_PER_S
        ),
        weigh_preemption_by_arrivals=table.take_flag(
            "weigh_preemption_by_arrivals", base.weigh_preemption_by_arrivals
        ),
        best_effort_share_min_ppm=table.take_scaled(
            "best_effort_share_min", base.best_effort_share_min_ppm, PPM, 0, PPM // 2
        ),
        window_max=table.take_int("window_max", base.window_max, 1, WINDOW_MAX),
        queue_requests_max=table.take_int(
            "queue_requests_max", base.queue_requests_max, 1, 1_000_000
        ),
        frames_max=table.take_int("frames_max", base.frames_max, 1, 1024),
        frames_reserved=table.take_int("frames_reserved", base.frames_reserved, 0, 512),
    )
    device = replace(
        device,
        watchdog_factor=table.take_int("watchdog_factor", device.watchdog_factor, 2, 1000),
        watchdog_ns_min=table.take_scaled(
            "watchdog_ms_min", device.watchdog_ns_min, NS_PER_MS, NS_PER_S // 2, 3600 * NS_PER_S
        ),
        watchdog_ns_unpredicted=table.take_scaled(
            "watchdog_s_unpredicted",
            device.watchdog_ns_unpredicted,
            NS_PER_S,
            NS_PER_S,
            3600 * NS_PER_S,
        ),
    )
    if 2 * scheduler.frames_reserved >= scheduler.frames_max:
        raise ConfigError(
            f"{table.name('frames_reserved')}: expected less than half of frames_max "
            f"({scheduler.frames_max}), else best-effort work never starts; "
            f"got {scheduler.frames_reserved}"
        )
    if scheduler.slicing_window > scheduler.window_max:
        raise ConfigError(
            f"{table.name('slicing')}: expected at most window_max ({scheduler.window_max}) slices "
            f"in flight, got {scheduler.slicing_window}"
        )
    table.finish()
    return replace(device, group_target_ns=group_ns, scheduler=scheduler)


def _parse_slicing(table: TomlTable, base: SchedulerSettings) -> tuple[Slicing, int, int]:
    default = format_slicing(base.slicing, base.slicing_operators, base.slicing_window)
    text = table.take_text("slicing", default)
    try:
        return parse_slicing(text)
    except ValueError as error:
        table.fail("slicing", str(error), text)


def _parse_bound(table: TomlTable) -> int | None:
    key = "preemption_delay_ms_max"
    if key in table and table.peek(key) == "auto":
        table.take_text(key, "")
        return None
    if key in table and isinstance(table.peek(key), str):
        table.fail(key, "'auto' or a number", table.peek(key))
    bound_ns = table.take_scaled(key, 0, NS_PER_MS, 0, 60 * NS_PER_S)
    return bound_ns or None


def _parse_device(table: TomlTable, common: DeviceSettings) -> DeviceSettings:
    name = table.take_text("name", "cpu:0")
    if not _DEVICE.fullmatch(name):
        table.fail("name", "'cpu:<index>' (this version serves CPU devices alone)", name)
    memory_bytes_max = table.take_scaled(
        "memory_mib_max", common.scheduler.memory_bytes_max, MIB, MIB, 1 << 50
    )
    device = replace(
        common,
        device=name,
        threads=table.take_int("threads", common.threads, 1, 1024),
        launch_cost_ns=table.take_scaled(
            "launch_cost_us", common.launch_cost_ns, NS_PER_US, 0, NS_PER_S
        ),
        arena_bytes=table.take_scaled("arena_mib", common.arena_bytes, MIB, MIB, 1 << 40),
        scheduler=replace(common.scheduler, memory_bytes_max=memory_bytes_max),
    )
    table.finish()
    return device
