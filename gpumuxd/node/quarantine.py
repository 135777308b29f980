"""Models that end devices: counted, and after a few in a while not served until an admin says so.

What counts is being to blame for the end of a device (`blame.py`). A request that fails alone does
not, however often: else one tenant's bad inputs would take a shared model from all the others,
and nobody but that tenant is harmed. Kept in memory: a daemon that starts anew believes everyone.

It must not know how a device ended, nor how a model is taken down.
"""

from collections import defaultdict, deque
from collections.abc import Callable

import structlog

from gpumuxd.clock import Clock
from gpumuxd.node.model_table import ModelTable, VersionEntry
from gpumuxd.node.settings import RecoverySettings
from gpumuxd.units import NS_PER_S

_log = structlog.get_logger()


class Quarantine:
    """The faults of all versions. `take_down` is told of each that is not to be served."""

    def __init__(
        self,
        table: ModelTable,
        settings: RecoverySettings,
        clock: Clock,
        take_down: Callable[[VersionEntry], None],
    ) -> None:
        self._table = table
        self._settings = settings
        self._clock = clock
        self._take_down = take_down
        self._faults: defaultdict[str, deque[int]] = defaultdict(deque)

    def blame(self, label: str, what: str) -> None:
        """This version, as `name/number`, ended a device."""
        settings, now_ns = self._settings, self._clock()
        faults = self._faults[label]
        faults.append(now_ns)
        while faults[0] <= now_ns - settings.faults_window_ns:
            faults.popleft()
        count = len(faults)
        _log.error("model_blamed", model=label, reason=what, faults=count)
        name, _, number = label.rpartition("/")
        entry = self._table.entry(name, int(number))
        if count < settings.faults_max or entry.quarantined:
            return
        window_s = settings.faults_window_ns / NS_PER_S
        entry.quarantined = (
            f"in quarantine: it ended devices {count} times within {window_s:g} s (faults_max is "
            f"{settings.faults_max}), the last time {what}; an admin who loads it releases it"
        )
        _log.error("model_quarantined", model=label, reason=entry.quarantined)
        self._take_down(entry)

    def release(self, name: str) -> None:
        """An admin wants it: all of its versions begin anew."""
        for entry in self._table.versions(name):
            self._faults.pop(entry.label, None)
            if entry.quarantined:
                entry.quarantined = ""
                entry.failed = None
                _log.info("model_released", model=entry.label)
