"""Who may ask and where: the tables of tenants and of listeners in the configuration file.

Fails closed: an address that others can reach always needs a token or a certificate, and is
encrypted unless the file says in so many words that it need not be. No message repeats a token. It
must not know devices, and opens nothing.
"""

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpumuxd.daemon.toml_table import TomlTable
from gpumuxd.domain import PriorityClass
from gpumuxd.errors import ConfigError
from gpumuxd.node.api import Tenant
from gpumuxd.node.settings import SharedMemorySettings, TenantSettings
from gpumuxd.node.tenants import DEFAULT_TENANT, hash_token
from gpumuxd.rpc.listener import Listener, parse_address
from gpumuxd.rpc.tls import TlsFiles
from gpumuxd.units import MIB

DEFAULT_TCP = ("127.0.0.1:8001",)
"""Triton's gRPC port, on loopback alone."""

TOKEN_CHARS_MIN = 16
"""A shorter token can be guessed."""

_CREDENTIAL = "credential:"
"""Before the name of a file that systemd hands over: LoadCredential=, LoadCredentialEncrypted=."""

_SUBJECT_CHARS_MAX = 256
_UID_MAX = 2**32 - 2
_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")


def parse_tenants(table: TomlTable) -> tuple[tuple[TenantSettings, ...], list[Listener]]:
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
        is_known = settings.token_sha256 is not None or settings.tls_subject is not None
        if not has_socket and not is_known:
            raise ConfigError(
                f"{inner.path}: expected token, token_sha256, tls_subject or socket, got none"
            )
        tenants.append(settings)
    hashes = [t.token_sha256 for t in tenants if t.token_sha256 is not None]
    if len(set(hashes)) != len(hashes):
        raise ConfigError("[tenants]: two tenants have the same token")
    subjects = [t.tls_subject for t in tenants if t.tls_subject is not None]
    if len(set(subjects)) != len(subjects):
        raise ConfigError("[tenants]: two tenants have the same tls_subject")
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
        memory_bytes_max=table.take_scaled("memory_mib_max", 0, MIB, 0, 1 << 50) or None,
        is_admin=table.take_flag("admin", base.is_admin),
    )
    return TenantSettings(
        tenant=tenant,
        token_sha256=_parse_token(table),
        tls_subject=_parse_subject(table),
        requests_in_flight_max=table.take_int(
            "requests_in_flight_max", limits.requests_in_flight_max, 1, 10_000_000
        ),
        bytes_in_flight_max=table.take_int(
            "bytes_in_flight_max", limits.bytes_in_flight_max, 1, 1 << 50
        ),
        sequences_max=table.take_int("sequences_max", limits.sequences_max, 0, 1_000_000),
        shared_memory_uids=table.take_ints("shared_memory_uids", 0, _UID_MAX),
    )


def parse_shared_memory(table: TomlTable) -> SharedMemorySettings:
    """Whether clients may register shared memory, and whose."""
    base = SharedMemorySettings()
    settings = SharedMemorySettings(
        is_allowed=table.take_flag("allow", base.is_allowed),
        uids=table.take_ints("uids", 0, _UID_MAX),
        regions_max=table.take_int("regions_max", base.regions_max, 1, 100_000),
        region_bytes_max=table.take_scaled(
            "regions_mib_max", base.region_bytes_max, MIB, MIB, 1 << 50
        ),
    )
    table.finish()
    return settings


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


def _parse_subject(table: TomlTable) -> str | None:
    if "tls_subject" not in table:
        return None
    subject = table.take_text("tls_subject", "")
    if not subject.strip() or len(subject) > _SUBJECT_CHARS_MAX:
        table.fail("tls_subject", f"a name of up to {_SUBJECT_CHARS_MAX} characters", subject)
    return subject


def parse_tls(
    table: TomlTable, tenants: Sequence[TenantSettings], environment: Mapping[str, str]
) -> TlsFiles | None:
    """The files behind encrypted addresses; None without such an address."""
    keys = ("tls_certificate", "tls_key", "tls_client_ca")
    certificate, key, client_ca = (_file(table, name, environment) for name in keys)
    by_subject = [t.tenant.name for t in tenants if t.tls_subject is not None]
    if by_subject and client_ca is None:
        raise ConfigError(
            f"[tenants.{by_subject[0]}].tls_subject: expected {table.name('tls_client_ca')}, "
            "without which nobody is asked for a certificate"
        )
    has_addresses = "tls" in table and bool(table.peek("tls"))
    if not has_addresses and (certificate or key or client_ca):
        raise ConfigError(f"{table.name('tls')}: expected addresses for the certificate, got none")
    if not has_addresses:
        return None
    if certificate is None or key is None:
        missing = "tls_certificate" if certificate is None else "tls_key"
        raise ConfigError(f"{table.name(missing)}: expected a file of PEM, which tls needs")
    return TlsFiles(certificate, key, client_ca)


def _file(table: TomlTable, key: str, environment: Mapping[str, str]) -> Path | None:
    if key not in table:
        return None
    text = table.take_text(key, "")
    name = text.removeprefix(_CREDENTIAL)
    if name != text:
        directory = environment.get("CREDENTIALS_DIRECTORY")
        if not directory:
            raise ConfigError(
                f"{table.name(key)}: expected to be started by systemd with "
                f"LoadCredential={name}:/path, got no CREDENTIALS_DIRECTORY"
            )
        if not name or "/" in name or name in (".", ".."):
            table.fail(key, f"{_CREDENTIAL}NAME", text)
        return Path(directory) / name
    if not Path(text).is_absolute():
        table.fail(key, f"an absolute path, or {_CREDENTIAL}NAME", text)
    return Path(text)


def parse_listeners(
    table: TomlTable, sockets: list[Listener], has_tenants: bool
) -> tuple[Listener, ...]:
    """Without tenants everybody is the default one, an admin, and so must be on this machine; with
    some, open listeners need a token or a certificate."""
    tenant = None if has_tenants else DEFAULT_TENANT
    is_insecure_allowed = table.take_flag("allow_insecure", False)
    listeners = []
    for key, default in (("tcp", DEFAULT_TCP), ("tls", ())):
        for text in table.take_texts(key, default):
            address = _tcp(table, key, text)
            listener = Listener(address, tenant, is_encrypted=key == "tls")
            if not is_loopback(address):
                _check_reachable(table, key, text, listener, is_insecure_allowed)
            listeners.append(listener)
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


def _check_reachable(
    table: TomlTable, key: str, text: str, listener: Listener, is_insecure_allowed: bool
) -> None:
    if listener.tenant is not None:
        raise ConfigError(
            f"{table.name(key)}: {text!r} can be reached from other machines, and without "
            "tenants everyone is an admin: configure [tenants.NAME] tables with tokens, or "
            "listen on 127.0.0.1 or a Unix socket"
        )
    if not listener.is_encrypted and not is_insecure_allowed:
        raise ConfigError(
            f"{table.name(key)}: {text!r} can be reached from other machines, and tokens and "
            "tensors would go there in clear: name it in tls instead, listen on 127.0.0.1, or say "
            "allow_insecure = true where the network itself is trusted"
        )


def is_loopback(address: str) -> bool:
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
