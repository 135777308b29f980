"""The configuration file: TOML in, frozen values out, or one message that names the key.

Whatever the file does not say has a default from `settings.py` or `node/settings.py`, where the
reasons are. Units are in the names of the keys; below this file there are only nanoseconds and
bytes. It must not open sockets, read the repository or start anything. What it can't see here is
looked at by `check.py`. Every key is explained in docs/configuration.md; a test compares the two.
"""

import hashlib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpumuxd.daemon.toml_table import TomlTable
from gpumuxd.domain import PriorityClass
from gpumuxd.errors import ConfigError, InvalidRequest
from gpumuxd.models.names import check_model_name
from gpumuxd.node.api import Tenant
from gpumuxd.node.settings import NodeSettings, TenantSettings
from gpumuxd.node.tenants import DEFAULT_TENANT, hash_token
from gpumuxd.rpc.listener import Listener, parse_address
from gpumuxd.settings import DeviceSettings, Order, SchedulerSettings, Slicing
from gpumuxd.units import MIB, NS_PER_MS, NS_PER_S, NS_PER_US

DEFAULT_PATH = Path("/etc/gpumuxd/gpumuxd.toml")
"""Read when no other file is named and this one is there."""

DEFAULT_TCP = ("127.0.0.1:8001",)
"""Triton's gRPC port, on loopback alone."""

TOKEN_CHARS_MIN = 16
"""A shorter token can be guessed."""

MESSAGE_BYTES_MAX = 2047 * MIB
"""Protobuf has no messages of 2 GiB and more."""

_DEVICE = re.compile(r"cpu:(0|[1-9][0-9]{0,2})")
_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")


@dataclass(frozen=True, slots=True)
class Config:
    """All that the daemon is told."""

    node: NodeSettings
    listeners: tuple[Listener, ...]
    state_dir: Path
    message_bytes_max: int = 64 * MIB
    """Largest request or reply on the wire."""

    drain_ns_max: int = 30 * NS_PER_S
    """After SIGTERM, what was admitted ends in this time."""


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
        root = TomlTable("", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error

    node = root.take_table("node")
    state_text = node.take_text("state_dir", str(_default_state_dir(environment)))
    state_dir = _absolute(node, "state_dir", state_text)
    drain_ns = node.take_scaled("drain_timeout_s", 30 * NS_PER_S, NS_PER_S, 0, 3600 * NS_PER_S)
    startup_models = node.take_texts("startup_models", ())
    for name in startup_models:
        try:
            check_model_name(name)
        except InvalidRequest as error:
            raise ConfigError(f"{node.name('startup_models')}: {error}") from error
    node.finish()

    repository = root.take_table("repository")
    paths = repository.take_texts("paths", (str(state_dir / "models"),))
    repository_paths = tuple(_absolute(repository, "paths", path) for path in paths)
    repository.finish()

    devices = _parse_devices(root, state_dir, environment)
    tenants, sockets = _parse_tenants(root.take_table("tenants"))
    listen = root.take_table("listen")
    listeners = _parse_listeners(listen, sockets, has_tenants=bool(tenants))
    message_bytes_max = listen.take_scaled("message_mib_max", 64 * MIB, MIB, MIB, MESSAGE_BYTES_MAX)
    listen.finish()
    root.finish()

    return Config(
        node=NodeSettings(
            repository_paths=repository_paths,
            devices=devices,
            tenants=tenants,
            startup_models=startup_models,
        ),
        listeners=listeners,
        state_dir=state_dir,
        message_bytes_max=message_bytes_max,
        drain_ns_max=drain_ns,
    )


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
    scheduler = SchedulerSettings(
        slicing=table.take_enum("slicing", base.slicing, Slicing),
        order=table.take_enum("order", base.order, Order),
        preemption_delay_ns_max=_parse_bound(table),
        slice_ns_max=table.take_scaled(
            "slice_ms_max", base.slice_ns_max, NS_PER_MS, NS_PER_US, 10 * NS_PER_S
        ),
        window_max=table.take_int("window_max", base.window_max, 1, 64),
        queue_requests_max=table.take_int(
            "queue_requests_max", base.queue_requests_max, 1, 1_000_000
        ),
        frames_max=table.take_int("frames_max", base.frames_max, 1, 1024),
        frames_reserved=table.take_int("frames_reserved", base.frames_reserved, 0, 512),
    )
    if 2 * scheduler.frames_reserved >= scheduler.frames_max:
        raise ConfigError(
            f"{table.name('frames_reserved')}: expected less than half of frames_max "
            f"({scheduler.frames_max}), else best-effort work never starts; "
            f"got {scheduler.frames_reserved}"
        )
    table.finish()
    return replace(device, group_target_ns=group_ns, scheduler=scheduler)


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


# Tenants and listeners


def _parse_tenants(table: TomlTable) -> tuple[tuple[TenantSettings, ...], list[Listener]]:
    """The tenants, and the sockets that belong to one of them."""
    tenants: list[TenantSettings] = []
    sockets: list[Listener] = []
    for name, inner in table.take_named_tables():
        if not _TENANT.fullmatch(name):
            raise ConfigError(
                f"{inner.path}: expected a name of up to 64 letters, digits, '_', '-' and '.'"
            )
        settings = _parse_tenant(name, inner)
        has_socket = "socket" in inner
        if has_socket:
            address = _unix(inner, "socket", inner.take_text("socket", ""))
            sockets.append(Listener(address, settings.tenant))
        inner.finish()
        if not has_socket and settings.token_sha256 is None:
            raise ConfigError(f"{inner.path}: expected token, token_sha256 or socket, got none")
        tenants.append(settings)
    hashes = [t.token_sha256 for t in tenants if t.token_sha256 is not None]
    if len(set(hashes)) != len(hashes):
        raise ConfigError("[tenants]: two tenants have the same token")
    return tuple(tenants), sockets


def _parse_tenant(name: str, table: TomlTable) -> TenantSettings:
    base, limits = Tenant(name), TenantSettings(Tenant(name))
    ceiling = table.take_enum("priority_max", base.priority_max, PriorityClass)
    default = table.take_int(
        "priority_default", 3 if ceiling is PriorityClass.BEST_EFFORT else 2, 1, 1_000_000
    )
    if PriorityClass.from_wire(default) > ceiling:
        table.fail("priority_default", f"a priority within priority_max ({ceiling.name})", default)
    rate = None
    if "realtime_per_s" in table:
        rate = table.take_int("realtime_per_s", 0, 0, 1_000_000)
    tenant = Tenant(
        name=name,
        priority_default=default,
        priority_max=ceiling,
        weight=table.take_int("weight", base.weight, 1, 1_000_000),
        realtime_per_s=rate,
        realtime_burst=table.take_int("realtime_burst", base.realtime_burst, 1, 1_000_000),
        is_admin=table.take_flag("admin", base.is_admin),
    )
    return TenantSettings(
        tenant=tenant,
        token_sha256=_parse_token(table),
        requests_in_flight_max=table.take_int(
            "requests_in_flight_max", limits.requests_in_flight_max, 1, 10_000_000
        ),
        bytes_in_flight_max=table.take_int(
            "bytes_in_flight_max", limits.bytes_in_flight_max, 1, 1 << 50
        ),
    )


def _parse_token(table: TomlTable) -> bytes | None:
    """Only a hash goes on from here, and no message repeats a token."""
    if "token" in table and "token_sha256" in table:
        raise ConfigError(f"{table.path}: expected token or token_sha256, got both")
    if "token" in table:
        token = table.take_text("token", "")
        if len(token) < TOKEN_CHARS_MIN or token != token.strip() or not token.isascii():
            raise ConfigError(
                f"{table.name('token')}: expected at least {TOKEN_CHARS_MIN} ASCII characters "
                "without blanks around them"
            )
        return hash_token(token)
    if "token_sha256" in table:
        text = table.take_text("token_sha256", "")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
            raise ConfigError(f"{table.name('token_sha256')}: expected 64 hexadecimal digits")
        digest = bytes.fromhex(text)
        assert len(digest) == hashlib.sha256().digest_size
        return digest
    return None


def _parse_listeners(
    table: TomlTable, sockets: list[Listener], has_tenants: bool
) -> tuple[Listener, ...]:
    """Without tenants everybody is the default one, an admin, and so must be on this machine; with
    some, open listeners need a token."""
    tenant = None if has_tenants else DEFAULT_TENANT
    listeners = []
    for text in table.take_texts("tcp", DEFAULT_TCP):
        address = _tcp(table, "tcp", text)
        if not has_tenants and not _is_loopback(address):
            raise ConfigError(
                f"{table.name('tcp')}: {text!r} can be reached from other machines, and without "
                "tenants everyone is an admin: configure [tenants.NAME] tables with tokens, or "
                "listen on 127.0.0.1 or a Unix socket"
            )
        listeners.append(Listener(address, tenant))
    listeners += [
        Listener(_unix(table, "unix", text), tenant) for text in table.take_texts("unix", ())
    ]
    listeners += sockets
    if not listeners:
        raise ConfigError(f"{table.path}: expected at least one address in tcp or unix")
    addresses = [listener.address for listener in listeners]
    repeated = sorted({address for address in addresses if addresses.count(address) > 1})
    if repeated:
        raise ConfigError(f"{table.path}: expected each address once, got {repeated} twice")
    return tuple(listeners)


def _is_loopback(address: str) -> bool:
    """By its text alone: a name that resolves to loopback today may not tomorrow."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tcp(table: TomlTable, key: str, text: str) -> str:
    if text.startswith("unix:"):
        table.fail(key, "host:port", text)
    return _address(table, key, text)


def _unix(table: TomlTable, key: str, text: str) -> str:
    return _address(table, key, text if text.startswith("unix:") else f"unix:{text}")


def _address(table: TomlTable, key: str, text: str) -> str:
    try:
        return str(parse_address(text))
    except ConfigError as error:
        raise ConfigError(f"{table.name(key)}: {error}") from error
