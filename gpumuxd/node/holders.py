"""Who holds the memory of a device: the last sentence of an error that says what does not fit.

A model that its reader may not know is counted and not named. It must not know why something did
not fit; that and the numbers of the device are the child's to say.
"""

from collections.abc import Callable, Iterable

from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.model_table import VersionEntry
from gpumuxd.units import mib_from_bytes

NAMES_MAX = 5
"""More would drown what does not fit."""


def with_holders(
    error: OutOfDeviceMemory,
    device: str,
    entries: Iterable[VersionEntry],
    may_see: Callable[[Manifest], bool],
) -> OutOfDeviceMemory:
    """The same error with the weights of the models on that device, the largest first."""
    named: list[tuple[int, str]] = []
    other_bytes = 0
    for entry in entries:
        replica = entry.replicas.get(device)
        if replica is None:
            continue
        if may_see(replica.manifest):
            named.append((replica.loaded.weights_bytes, entry.label))
        else:
            other_bytes += replica.loaded.weights_bytes
    named.sort(key=lambda each: (-each[0], each[1]))
    other_bytes += sum(size_bytes for size_bytes, _ in named[NAMES_MAX:])
    told = [f"{label} {mib_from_bytes(size):.1f} MiB" for size, label in named[:NAMES_MAX]]
    if other_bytes:
        told.append(f"other models {mib_from_bytes(other_bytes):.1f} MiB")
    if not told:
        return error
    message = f"{error.message}; weights on {device}: {', '.join(told)}"
    return OutOfDeviceMemory(message, error.facts, error.retry_delay_ns)
