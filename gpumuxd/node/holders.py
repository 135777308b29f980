"""Who holds the memory of a device: the last sentence of an error that says what does not fit.

A model that its reader may not know is counted and not named. It must not know why something did
not fit; that and the numbers of the device are the child's to say.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.model_table import Replica, VersionEntry
from gpumuxd.units import mib_from_bytes

NAMES_MAX = 5
"""More would drown what does not fit."""


def with_holders(
    error: OutOfDeviceMemory,
    device: str,
    entries: Iterable[VersionEntry],
    may_see: Callable[[Manifest], bool],
) -> OutOfDeviceMemory:
    """The same error with the weights of the models on that device and the frames of their runs,
    the largest first."""
    named: list[_Holder] = []
    other = _Holder("other models")
    for entry in entries:
        replica = entry.replicas.get(device)
        if replica is None:
            continue
        holder = _Holder(entry.label, replica.loaded.weights_bytes, _frame_bytes(replica))
        if may_see(replica.manifest):
            named.append(holder)
        else:
            other = other.with_(holder)
    named.sort(key=lambda each: (-each.size_bytes, each.label))
    for holder in named[NAMES_MAX:]:
        other = other.with_(holder)
    told = [str(each) for each in (*named[:NAMES_MAX], other) if each.size_bytes]
    if not told:
        return error
    message = f"{error.message}; weights on {device}: {', '.join(told)}"
    return OutOfDeviceMemory(message, error.facts, error.retry_delay_ns)


def _frame_bytes(replica: Replica) -> int:
    """Of its runs that are started, as its device said last."""
    figures = replica.link.statistics
    told = () if figures is None else figures.models
    return sum([each.frame_bytes_held for each in told if each.model == replica.key])


class _Holder(NamedTuple):
    """What a model holds, or several."""

    label: str
    weights_bytes: int = 0
    frame_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self.weights_bytes + self.frame_bytes

    def with_(self, other: "_Holder") -> "_Holder":
        return _Holder(
            self.label,
            self.weights_bytes + other.weights_bytes,
            self.frame_bytes + other.frame_bytes,
        )

    def __str__(self) -> str:
        frames = f" and {mib_from_bytes(self.frame_bytes):.1f} MiB of frames" * bool(
            self.frame_bytes
        )
        return f"{self.label} {mib_from_bytes(self.weights_bytes):.1f} MiB{frames}"
