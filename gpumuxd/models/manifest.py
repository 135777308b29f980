"""A model's manifest, `model.toml` beside its versions: policy that the artifact can't know.

Everything is optional, and so is the file. Names, shapes and types come from the artifact and have
no place here. A key that is not known is an error that names it: a policy that is silently ignored
is worse than none.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from gpumuxd.domain import PriorityClass
from gpumuxd.errors import InvalidManifest
from gpumuxd.models.batching_policy import EXPECTED as EXPECTED_BATCHING
from gpumuxd.models.batching_policy import KEYS as BATCHING_KEYS
from gpumuxd.models.batching_policy import BatchingPolicy, parse_batching
from gpumuxd.models.files import NotRegular, open_regular
from gpumuxd.models.sequence_policy import EXPECTED as EXPECTED_SEQUENCE
from gpumuxd.models.sequence_policy import KEYS as SEQUENCE_KEYS
from gpumuxd.models.sequence_policy import SequencePolicy, parse_sequence
from gpumuxd.models.toml_text import parse_toml, shown
from gpumuxd.models.version_policy import DEFAULT_POLICY, EXPECTED, VersionPolicy, parse_policy
from gpumuxd.units import ns_from_ms

MANIFEST_NAME = "model.toml"
MANIFEST_BYTES_MAX = 64 * 1024

_PolicyT = TypeVar("_PolicyT")

SLO_MS_MAX = 3_600_000
BATCH_MAX_MAX = 2**31 - 1
DEVICE_CHARS_MAX = 32
REPLICAS_MAX = 1024
ALL_DEVICES = "all"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the owner of a model wants.

    slo_ms        latency its callers expect, from which the preemption bound is derived
    tenants       who may see and use it; None: everyone
    device        where it may be loaded (`cpu:0`); None: on any device
    replicas      on how many of these devices it is loaded; None: on all of them
    priority_max  highest class any request for it may have; None: the tenant's own ceiling
    batch_max     most rows in a request; None: what the artifact was exported for
    versions      which of its versions serve
    idempotent    may a request be run again whose device was lost while it ran
    sequence      what is kept between the steps of a sequence; None: it serves none
    batching      which requests may share a run; None: each runs alone
    """

    slo_ms: float | None = None
    tenants: tuple[str, ...] | None = None
    device: tuple[str, ...] | None = None
    replicas: int | None = 1
    priority_max: PriorityClass | None = None
    batch_max: int | None = None
    versions: VersionPolicy = DEFAULT_POLICY
    idempotent: bool = True
    sequence: SequencePolicy | None = None
    batching: BatchingPolicy | None = None

    @property
    def slo_ns(self) -> int | None:
        return None if self.slo_ms is None else ns_from_ms(self.slo_ms)

    @property
    def batch_delay_ns_max(self) -> int:
        return 0 if self.batching is None else ns_from_ms(self.batching.delay_ms_max)

    def serves_as(self, other: "Manifest") -> bool:
        """Would one version serve alike under both? Which versions there are is no matter of one
        of them."""
        return replace(self, versions=other.versions) == other


DEFAULT_MANIFEST = Manifest()


def read_manifest(path: Path) -> Manifest:
    """The manifest at `path`, a real path; the default one if there is no such file.

    Raises InvalidManifest.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        return DEFAULT_MANIFEST
    except NotRegular as error:
        raise InvalidManifest(f"{MANIFEST_NAME} {error}") from None
    except OSError as error:
        raise InvalidManifest(f"{MANIFEST_NAME} can't be read: {error.strerror}") from error
    if len(data) > MANIFEST_BYTES_MAX:
        raise InvalidManifest(f"{MANIFEST_NAME} is larger than {MANIFEST_BYTES_MAX} bytes")
    return parse_manifest(data)


def parse_manifest(data: bytes) -> Manifest:
    """A manifest from its text. Raises InvalidManifest naming the key."""
    try:
        table = parse_toml(data.decode("utf-8"))
    except ValueError as error:
        raise InvalidManifest(f"{MANIFEST_NAME} is not TOML: {error}") from error
    known = [field.name for field in fields(Manifest)]
    for key in table:
        if key not in known:
            raise InvalidManifest(
                f"{MANIFEST_NAME}: unknown key {key[:80]!r} (known: {', '.join(known)})"
            )
    return Manifest(
        slo_ms=_slo_ms(table),
        tenants=_tenants(table),
        device=_device(table),
        replicas=_replicas(table),
        priority_max=_priority_max(table),
        batch_max=_batch_max(table),
        versions=_versions(table),
        idempotent=_idempotent(table),
        sequence=_policy(table, "sequence", SEQUENCE_KEYS, parse_sequence, EXPECTED_SEQUENCE),
        batching=_policy(table, "batching", BATCHING_KEYS, parse_batching, EXPECTED_BATCHING),
    )


def _wrong(key: str, expected: str, value: object) -> InvalidManifest:
    return InvalidManifest(f"{MANIFEST_NAME}: {key}: expected {expected}, got {shown(value)}"[:300])


def _slo_ms(table: Mapping[str, Any]) -> float | None:
    value = table.get("slo_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("slo_ms", "a number of milliseconds", value)
    if not 0 < value <= SLO_MS_MAX:  # also refuses nan
        raise _wrong("slo_ms", f"more than 0 and at most {SLO_MS_MAX}", value)
    return float(value)


def _tenants(table: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = table.get("tenants")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _wrong("tenants", "a list of names", value)
    return tuple(value)


def _device(table: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = table.get("device")
    if value is None:
        return None
    names = value if isinstance(value, list) else [value]
    if not names or not all(map(_is_device, names)) or len(set(names)) < len(names):
        raise _wrong("device", "a device like 'cpu:0', or a list of different ones", value)
    return tuple(names)


def _is_device(value: object) -> bool:
    kind, _, index = value.partition(":") if isinstance(value, str) else ("", "", "")
    return kind.isalpha() and index.isdecimal() and len(str(value)) <= DEVICE_CHARS_MAX


def _replicas(table: Mapping[str, Any]) -> int | None:
    value = table.get("replicas", 1)
    if value == ALL_DEVICES:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= REPLICAS_MAX:
        raise _wrong("replicas", f"1 to {REPLICAS_MAX}, or {ALL_DEVICES!r}", value)
    return value


def _priority_max(table: Mapping[str, Any]) -> PriorityClass | None:
    value = table.get("priority_max")
    if value is None:
        return None
    names = [priority_class.name for priority_class in PriorityClass]
    if not isinstance(value, str) or value not in names:
        raise _wrong("priority_max", f"one of {', '.join(names)}", value)
    return PriorityClass[value]


def _batch_max(table: Mapping[str, Any]) -> int | None:
    value = table.get("batch_max")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong("batch_max", "a positive integer", value)
    if value > BATCH_MAX_MAX:
        raise _wrong("batch_max", f"at most {BATCH_MAX_MAX}", value)
    return value


def _versions(table: Mapping[str, Any]) -> VersionPolicy:
    value = table.get("versions")
    if value is None:
        return DEFAULT_POLICY
    policy = parse_policy(value)
    if policy is None:
        raise _wrong("versions", EXPECTED, value)
    return policy


def _idempotent(table: Mapping[str, Any]) -> bool:
    value = table.get("idempotent", True)
    if not isinstance(value, bool):
        raise _wrong("idempotent", "true or false", value)
    return value


def _policy(
    table: Mapping[str, Any],
    key: str,
    known: Sequence[str],
    parse: Callable[[object], _PolicyT | None],
    expected: str,
) -> _PolicyT | None:
    """What a table of its own says. A key below `[key]` in the file is one of that table, whatever
    its writer thought."""
    value = table.get(key)
    if value is None:
        return None
    for name in value if isinstance(value, Mapping) else ():
        if name not in known:
            raise InvalidManifest(
                f"{MANIFEST_NAME}: unknown key {str(name)[:80]!r} in [{key}] (known: "
                f"{', '.join(known)}; keys of the model stand above all tables)"
            )
    policy = parse(value)
    if policy is None:
        raise _wrong(key, expected, value)
    return policy
