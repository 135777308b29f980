"""What launches and sync points cost on a device, kept on disk beside the profiles.

Measured once for a device, its machine and the libraries that run on it, which the key names; what
is read back is not trusted (`stored.py`). It must not know how it was measured.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpumuxd.domain import SyncCost
from gpumuxd.programs.stored import read_stored, write_stored
from gpumuxd.units import NS_PER_S

COSTS_VERSION = 3
"""Raise it when measuring changes: older files are then never looked at."""

_COST_NS_MAX = NS_PER_S
"""More than a launch, a sync point or a run's overhead can take on a device that serves."""


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """`sync_costs` for windows of 1 and up, without gaps; `launch_ns` is what a launch of one slice
    costs the host. Only firm ones are kept: the others were measured on a busy machine."""

    sync_costs: tuple[SyncCost, ...]
    launch_ns: int
    is_firm: bool = True

    def is_consistent(self) -> bool:
        """Could this have been measured?"""
        windows = [cost.window for cost in self.sync_costs]
        times = [ns for cost in self.sync_costs for ns in (cost.sync_ns, cost.base_ns)]
        return (
            len(windows) > 0
            and windows == list(range(1, len(windows) + 1))
            and all(0 <= ns <= _COST_NS_MAX for ns in (*times, self.launch_ns))
        )


class _File(msgspec.Struct, frozen=True):
    version: int
    key: str
    sync_costs: tuple[SyncCost, ...]
    launch_ns: int


def costs_key(parts: Iterable[str | int]) -> str:
    """The name of what was measured: a hash of all that it depends on."""
    return hashlib.sha256(msgspec.json.encode([COSTS_VERSION, *parts])).hexdigest()


class CostCache:
    """A directory, which may hold other files, and which many processes may share."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def get(self, key: str) -> DeviceCosts | None:
        """The costs, or None if there are none that can be used."""
        stored = read_stored(self._path(key), _File)
        if stored is None or stored.version != COSTS_VERSION or stored.key != key:
            return None
        costs = DeviceCosts(stored.sync_costs, stored.launch_ns)
        return costs if costs.is_consistent() else None

    def put(self, key: str, costs: DeviceCosts) -> bool:
        """Store them. False if the directory can't be written; that is no error."""
        assert costs.is_consistent(), costs
        assert costs.is_firm, "measured on a busy machine"
        file = _File(COSTS_VERSION, key, costs.sync_costs, costs.launch_ns)
        return write_stored(self._path(key), file)

    def _path(self, key: str) -> Path:
        assert key.isalnum(), f"{key!r} is not from costs_key"
        return self._directory / f"device-{key}.json"
