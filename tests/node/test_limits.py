"""Limits: what is counted, what is refused with which numbers, and that all is given back."""

import pytest

from gpumuxd.errors import QuotaExceeded
from gpumuxd.node.api import Tenant
from gpumuxd.node.limits import Limits
from gpumuxd.node.settings import TenantSettings
from gpumuxd.node.tenants import TenantDirectory

A, B = Tenant("a"), Tenant("b")


def make_limits(idle: list[bool] | None = None) -> Limits:
    directory = TenantDirectory(
        [TenantSettings(t, requests_in_flight_max=2, bytes_in_flight_max=100) for t in (A, B)]
    )
    return Limits(directory, lambda: idle.append(True) if idle is not None else None)


def test_requests_in_flight_are_counted_per_tenant() -> None:
    limits = make_limits()
    first = limits.admit(A, 1)
    limits.admit(A, 1)
    with pytest.raises(QuotaExceeded, match=r"'a' has 2 requests .* requests_in_flight_max is 2"):
        limits.admit(A, 1)
    limits.admit(B, 1)
    assert limits.requests_in_flight == 3
    first.close()
    limits.admit(A, 1)


def test_bytes_are_counted_and_a_refusal_counts_nothing() -> None:
    limits = make_limits()
    ticket = limits.admit(A, 60)
    with pytest.raises(QuotaExceeded, match=r"60 tensor bytes .* 41 more; .* is 100"):
        limits.admit(A, 41)
    assert limits.requests_in_flight == 1
    with pytest.raises(QuotaExceeded):
        ticket.add_bytes(41)
    ticket.add_bytes(40)
    ticket.close()
    limits.admit(A, 100)


def test_the_last_holder_gives_back_and_the_last_ticket_tells() -> None:
    idle: list[bool] = []
    limits = make_limits(idle)
    first, second = limits.admit(A, 10), limits.admit(B, 10)
    first.hold()
    first.close()
    assert limits.requests_in_flight == 2
    first.close()
    assert limits.requests_in_flight == 1
    assert not idle
    second.close()
    assert idle == [True]
    assert limits.requests_in_flight == 0
