"""How often somebody arrives who would go ahead."""

import pytest

from gpumuxd.core.arrival_rates import ARRIVALS_MIN, ArrivalRates, share_ppm
from gpumuxd.core.delay_predictor import PPM
from tests.core.conversation import BEST_EFFORT, REALTIME, STANDARD


@pytest.mark.parametrize(
    ("arriving", "ahead_of"),
    [
        (BEST_EFFORT, []),
        (STANDARD, [BEST_EFFORT]),
        (REALTIME, [BEST_EFFORT, STANDARD, REALTIME]),  # among themselves by deadline
    ],
)
def test_who_goes_ahead_of_whom(arriving: int, ahead_of: list[int]) -> None:
    rates = ArrivalRates()
    for number in range(ARRIVALS_MIN):
        rates.arrived(arriving, 1_000 * number)
    now_ns = 1_000 * (ARRIVALS_MIN - 1)
    known = [rank for rank in (BEST_EFFORT, STANDARD, REALTIME) if rates.gap_ns(rank, now_ns)]
    assert known == ahead_of
    assert all(rates.gap_ns(rank, now_ns) == 1_000 for rank in known)


def test_few_say_nothing() -> None:
    rates = ArrivalRates()
    for number in range(ARRIVALS_MIN - 1):
        rates.arrived(REALTIME, 1_000 * number)
        assert rates.gap_ns(BEST_EFFORT, 10**12) == 0


def test_the_gap_follows_and_grows_in_silence() -> None:
    rates = ArrivalRates()
    now_ns = 0
    for gap_ns in [1_000] * 50 + [4_000] * 80:
        now_ns += gap_ns
        rates.arrived(STANDARD, now_ns)
    assert 3_900 <= rates.gap_ns(BEST_EFFORT, now_ns) <= 4_000
    assert rates.gap_ns(BEST_EFFORT, now_ns + 9_000) == 9_000
    rates.arrived(STANDARD, now_ns - 500)  # stamped before, heard of later
    assert rates.gap_ns(BEST_EFFORT, now_ns) < 4_000


@pytest.mark.parametrize(
    ("run_ns", "gap_ns", "share"),
    [(100, 0, PPM), (100, 1_000, PPM // 10), (100, 100, PPM), (100, 1, PPM), (0, 100, 0)],
)
def test_share(run_ns: int, gap_ns: int, share: int) -> None:
    assert share_ppm(run_ns, gap_ns) == share
