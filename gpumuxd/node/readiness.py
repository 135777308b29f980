"""What is the matter with the node: words for the operator who reads a status.

It must not know how a device or a model comes to be ready, only what they say of themselves.
Invariant: `reason_not_ready` is empty exactly when the node is ready, by the same conditions.
"""

from collections.abc import Iterable

from gpumuxd.node.registry import Registry
from gpumuxd.node.startup import Startup
from gpumuxd.node.supervisor import DeviceSupervisor


def status_reason(
    halted: str,
    devices: Iterable[DeviceSupervisor],
    registry: Registry,
    startup: Startup,
) -> str:
    """All that keeps the node from being ready, and repositories that do not answer, which don't:
    what is loaded serves on. "" when all is well."""
    reasons = [reason_not_ready(halted, devices, registry, startup)]
    return "; ".join(filter(None, reasons + registry.catalogue.silent))


def reason_not_ready(
    halted: str,
    devices: Iterable[DeviceSupervisor],
    registry: Registry,
    startup: Startup,
) -> str:
    """All that keeps the node from being ready, "" for a node that is. `halted`: why it admits
    nothing at all."""
    reasons = [halted] if halted else []
    for device in devices:
        if device.state != "ready":
            why = f": {device.lost_reason}" if device.state == "lost" else ""
            reasons.append(f"device {device.settings.device} is {device.state}{why}")
    reasons += [
        f"model {name!r}: {registry.reason(name) or 'not loaded yet'}"
        for name in startup.models
        if not registry.is_serving(name)
    ]
    if startup.is_trying:
        reasons.append("models are being loaded")
    return "; ".join(reasons)
