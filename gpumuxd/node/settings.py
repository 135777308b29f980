"""Every limit and choice of the parent's node, with its name, unit, default and reason.

The settings of a device child are in `gpumuxd/settings.py`; these never leave the parent.
"""

import enum
from dataclasses import dataclass, field
from pathlib import Path

from gpumuxd.core.placement import Policy
from gpumuxd.node.api import Tenant
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_S


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How the parent watches one device child."""

    ping_interval_ns: int = 250 * NS_PER_MS
    """Time between two signs of life; also how fine silence is measured."""

    statistics_interval_ns: int = NS_PER_S
    """Age that the figures of a device may reach before they are asked for again."""

    answer_ns_max: int = NS_PER_S
    """A question of people that a device does not answer in this time is given up."""

    explain_interval_ns: int = 100 * NS_PER_MS
    """Time between two explanations: one keeps the device loop for 1 to 3 ms with 160 groups, some
    15 ms with 2000, and whoever may see a model may ask for it over and over."""

    silence_ns_max: int = NS_PER_S
    """A loop that makes no turn for this long is dead, whatever its process says."""

    load_silence_ns_max: int = 10 * NS_PER_S
    """The same while a model is loaded: code that is compiled and inputs that are made can keep the
    loop of a slow machine for longer than it may stand still otherwise."""

    parent_lag_ns_max: int = 100 * NS_PER_MS
    """When the parent itself was late by this much, it can't judge the child."""

    start_ns_max: int = 60 * NS_PER_S
    """Torch is imported in this time, even from the flash of a small board."""

    load_ns_max: int = 300 * NS_PER_S
    """A model is compiled and profiled in this time, beside what tenants ask meanwhile; one that
    takes longer is given up."""

    stop_ns_max: int = 5 * NS_PER_S
    """After `Stop`, what is in flight ends in this time; then the child is killed."""

    exit_ns_max: int = NS_PER_S
    """A child that closed its channel is gone in this time."""


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """How soon a device child that ended is started again."""

    delay_ns_first: int = 100 * NS_PER_MS
    delay_ns_max: int = 30 * NS_PER_S
    factor: int = 2
    healthy_ns: int = 60 * NS_PER_S
    """A child that lived this long starts the delays from the first one again."""

    served_ns: int = 250 * NS_PER_MS
    """So does a device child that served this long with all its models: the delays are for one that
    does not come up or falls at once. What ends it in the middle of its work are runs of models,
    and those are counted by model."""


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """What becomes of requests and models after the loss of a device."""

    replays_max: int = 2
    """How often a request is sent again whose device was lost under it."""

    replay_wait_ns_max: int = 60 * NS_PER_S
    """So long it waits for its model to come back, if its deadline is not sooner."""

    faults_max: int = 3
    """Devices that a version ends within `faults_window_ns`, after which it is not served."""

    faults_window_ns: int = 600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Limits of a loader process, which reads what tenants made."""

    read_ns_max: int = 60 * NS_PER_S
    """Reading and checking an artifact; BERT-base took 0.8 s on two cores."""

    model_bytes_max: int = 4 * GIB
    """Weights and plan of one model."""

    loaders_max: int = 2
    """Loader processes at one time; each may hold `model_bytes_max`."""


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """One tenant, how it shows who it is, and its limits in the parent."""

    tenant: Tenant
    token_sha256: bytes | None = None
    tls_subject: str | None = None
    """A name that its client certificates have."""

    requests_in_flight_max: int = 1024
    bytes_in_flight_max: int = 128 * MIB
    """Arena bytes of its requests, inputs and outputs. Half of a default arena: one tenant alone
    can't fill it."""

    sequences_max: int = 1024
    """Sequences at one time, each with its state on a device."""

    shared_memory_uids: tuple[int, ...] | None = None
    """Users whose shared memory objects it may name; None: those of `SharedMemorySettings`."""


@dataclass(frozen=True, slots=True)
class SharedMemorySettings:
    """What clients may register as shared memory."""

    is_allowed: bool = False
    """Off, because a tenant then has the daemon open objects with the daemon's rights."""

    uids: tuple[int, ...] | None = None
    """Users whose objects any tenant may name; None: the one that the daemon runs as."""

    regions_max: int = 256
    """Open regions of one tenant, each with a file. perf_analyzer with 64 in flight takes 128."""

    region_bytes_max: int = 4 * GIB
    """Bytes of all open regions of one tenant: so much memory lives as long as the daemon has it
    open, whatever its owner does."""


ALL_MODELS = "*"
"""As the one startup model: every model that is in the repositories at the start."""


class RepositoryMode(enum.StrEnum):
    """Who says what is loaded."""

    EXPLICIT = "explicit"  # clients, and the startup models
    POLL = "poll"  # the repositories: all that is there


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The whole parent below the front door."""

    repository_paths: tuple[Path, ...] = ()
    repository_mode: RepositoryMode = RepositoryMode.EXPLICIT
    poll_ns: int = 15 * NS_PER_S
    """Time between two looks at the repositories, as in Triton; a change counts at the second."""

    journal_path: Path | None = None
    """Where the models that clients asked for are kept between runs; None: nowhere."""

    devices: tuple[DeviceSettings, ...] = (DeviceSettings(),)
    placement: Policy = Policy.LEAST_PREDICTED_FINISH
    tenants: tuple[TenantSettings, ...] = ()
    startup_models: tuple[str, ...] = ()
    keeps_spare: bool = True
    """A device child that has imported torch stands by for the next life of a device: 3 s less
    until a lost one is back, for some 160 MiB."""

    link: LinkSettings = field(default_factory=LinkSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    shared_memory: SharedMemorySettings = field(default_factory=SharedMemorySettings)
