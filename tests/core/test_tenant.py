"""The admitted rate: a token bucket without rounding."""

import pytest

from gpumuxd.core.tenant import Tenant
from gpumuxd.units import NS_PER_MS, NS_PER_S


def taken(tenant: Tenant, at_ms: list[int]) -> list[bool]:
    """Ask at each time, take when allowed."""
    answers = []
    for at in at_ms:
        answers.append(tenant.is_within_rate(at * NS_PER_MS))
        if answers[-1]:
            tenant.take()
    return answers


@pytest.mark.parametrize(
    ("per_s", "burst", "at_ms", "expected"),
    [
        (None, 1, [0, 0, 0, 0], [1, 1, 1, 1]),
        (10, 1, [0, 0, 99, 100, 199, 200], [1, 0, 0, 1, 0, 1]),
        (10, 3, [0, 0, 0, 0, 100, 100], [1, 1, 1, 0, 1, 0]),
        (10, 2, [0, 0, 5_000, 5_000, 5_000], [1, 1, 1, 1, 0]),  # an hour away earns one burst
        (3, 1, [0, 333, 334, 667, 668], [1, 0, 1, 0, 1]),  # thirds of a second, exactly
        (0, 1, [0, 10_000], [0, 0]),
    ],
)
def test_rate(per_s: int | None, burst: int, at_ms: list[int], expected: list[int]) -> None:
    tenant = Tenant("t")
    tenant.change(1, per_s, burst, 0)
    assert taken(tenant, at_ms) == [bool(each) for each in expected]


def test_an_unknown_tenant_has_no_limit() -> None:
    assert taken(Tenant("t"), [0] * 5) == [True] * 5


def test_nothing_is_lost_to_rounding_at_odd_rates() -> None:
    tenant = Tenant("t")
    tenant.change(1, 7, 1, 0)
    count = sum(taken(tenant, list(range(0, 10_000))))
    assert count == 1 + 7 * 10 - 1  # the first at once, then every seventh of a second


def test_asking_does_not_take() -> None:
    tenant = Tenant("t")
    tenant.change(1, 1, 1, 0)
    assert all(tenant.is_within_rate(0) for _ in range(5))


def test_time_that_runs_backwards_earns_nothing() -> None:
    tenant = Tenant("t")
    tenant.change(1, 1, 1, NS_PER_S)
    tenant.is_within_rate(NS_PER_S)
    tenant.take()
    assert not tenant.is_within_rate(0)
    assert not tenant.is_within_rate(2 * NS_PER_S - 1)
    assert tenant.is_within_rate(2 * NS_PER_S)


@pytest.mark.parametrize(
    ("weight", "per_s", "burst"), [(0, None, 1), (-1, None, 1), (1, -1, 1), (1, 1, 0)]
)
def test_impossible_figures_are_bugs(weight: int, per_s: int | None, burst: int) -> None:
    with pytest.raises(AssertionError):
        Tenant("t").change(weight, per_s, burst, 0)


def test_taking_without_asking_is_a_bug() -> None:
    tenant = Tenant("t")
    tenant.change(1, 1, 1, 0)
    tenant.take()
    with pytest.raises(AssertionError):
        tenant.take()
