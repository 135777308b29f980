"""The first floor: may this tenant send this at all. Decided before a tensor is copied.

A `Ticket` is what an accepted request holds of its tenant's limits. It lives as long as the
request's memory does, past a cancellation, so that a storm of cancelled requests can't exceed
them. It must not know models or devices.
"""

from collections.abc import Callable

from gpumuxd.errors import QuotaExceeded, limit_facts
from gpumuxd.node.api import Tenant
from gpumuxd.node.tenants import TenantDirectory


class _Usage:
    __slots__ = ("bytes", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0


class Ticket:
    """One request and its bytes, counted until all who hold it have let go: first whoever it was
    given to, then each memory of the request, of which a replay has another."""

    def __init__(self, limits: "Limits", tenant: Tenant) -> None:
        self._limits = limits
        self._tenant = tenant
        self._bytes = 0
        self._holders = 1

    def hold(self) -> None:
        """One more holds it, and calls `close` in the end."""
        assert self._holders
        self._holders += 1

    def add_bytes(self, count: int) -> None:
        """Count more bytes. Raises QuotaExceeded and counts none of them."""
        assert self._holders
        self._limits._take_bytes(self._tenant, count)
        self._bytes += count

    def close(self) -> None:
        """One holder less; the last one gives all back."""
        assert self._holders, "closed more often than held"
        self._holders -= 1
        if not self._holders:
            self._limits._give_back(self._tenant, self._bytes)


class Limits:
    """What every tenant has in flight."""

    def __init__(self, directory: TenantDirectory, on_idle: Callable[[], None]) -> None:
        """`on_idle` is called when the last request of all has ended."""
        self._directory = directory
        self._on_idle = on_idle
        self._usage: dict[str, _Usage] = {}

    @property
    def requests_in_flight(self) -> int:
        return sum(usage.requests for usage in self._usage.values())

    def admit(self, tenant: Tenant, byte_count: int) -> Ticket:
        """Count a request with `byte_count` bytes. Raises QuotaExceeded with the numbers."""
        settings = self._directory.settings_of(tenant)
        usage = self._usage.setdefault(tenant.name, _Usage())
        if usage.requests >= settings.requests_in_flight_max:
            raise QuotaExceeded(
                f"tenant {tenant.name!r} has {usage.requests} requests in flight; "
                f"its requests_in_flight_max is {settings.requests_in_flight_max}",
                limit_facts(
                    "requests_in_flight_max",
                    settings.requests_in_flight_max,
                    "requests",
                    current=usage.requests,
                    asked=1,
                    tenant=tenant.name,
                ),
            )
        usage.requests += 1
        ticket = Ticket(self, tenant)
        try:
            ticket.add_bytes(byte_count)
        except QuotaExceeded:
            ticket.close()
            raise
        return ticket

    def _take_bytes(self, tenant: Tenant, count: int) -> None:
        usage = self._usage[tenant.name]
        bytes_max = self._directory.settings_of(tenant).bytes_in_flight_max
        if usage.bytes + count > bytes_max:
            raise QuotaExceeded(
                f"tenant {tenant.name!r} has {usage.bytes} tensor bytes in flight and asks for "
                f"{count} more; its bytes_in_flight_max is {bytes_max}",
                limit_facts(
                    "bytes_in_flight_max",
                    bytes_max,
                    "bytes",
                    current=usage.bytes,
                    asked=count,
                    tenant=tenant.name,
                ),
            )
        usage.bytes += count

    def _give_back(self, tenant: Tenant, byte_count: int) -> None:
        usage = self._usage[tenant.name]
        usage.requests -= 1
        usage.bytes -= byte_count
        assert usage.requests >= 0
        assert usage.bytes >= 0
        if usage.requests == 0:
            assert usage.bytes == 0
            del self._usage[tenant.name]
            if not self._usage:
                self._on_idle()
