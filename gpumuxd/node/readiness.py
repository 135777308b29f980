"""Why is the node not ready: words for the operator who reads a status.

It must not know how a device or a model comes to be ready, only what they say of themselves.
Invariant: empty exactly when the node is ready, by the same three conditions.
"""

from collections.abc import Iterable, Mapping

from gpumuxd.node.registry import Registry
from gpumuxd.node.supervisor import DeviceSupervisor


def reason_not_ready(
    is_draining: bool,
    devices: Iterable[DeviceSupervisor],
    registry: Registry,
    startup_models: Iterable[str],
    failures: Mapping[str, str],
) -> str:
    """All that keeps the node from being ready, "" for a node that is. `failures` says why a
    startup model could not be loaded, for those that the registry never heard of."""
    reasons = ["stopping"] if is_draining else []
    for device in devices:
        if device.state != "ready":
            why = f": {device.lost_reason}" if device.state == "lost" else ""
            reasons.append(f"device {device.settings.device} is {device.state}{why}")
    for name in startup_models:
        if not registry.is_serving(name):
            why = registry.reason(name) or failures.get(name, "not loaded yet")
            reasons.append(f"model {name!r}: {why}")
    return "; ".join(reasons)
