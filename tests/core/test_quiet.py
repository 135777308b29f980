"""What is foreseen of REALTIME arrivals: tables of patterns, and what becomes of them."""

import pytest

from gpumuxd.core.quiet import ARRIVALS_KEPT, ARRIVALS_MIN, FOREVER_NS, Quiet

PERIOD = 32_000


def seen(*arrivals: int) -> Quiet:
    quiet = Quiet()
    for arrived_ns in arrivals:
        quiet.arrived(arrived_ns)
    return quiet


@pytest.mark.parametrize(
    ("name", "arrivals", "expected"),
    [
        # one stream: a period after the last
        ("one", [i * 1000 for i in range(12)], 12_000),
        # with jitter: no gap was shorter than 900
        ("jitter", [i * 1000 + (i % 3) * 50 for i in range(12)], 11_100 + 900),
        # two streams of one period, close together: the pair comes again a period later
        ("pair", [i // 2 * 1000 + (i % 2) * 10 for i in range(12)], 6_000),
        ("first of a pair", [i // 2 * 1000 + (i % 2) * 10 for i in range(13)], 6_010),
        # four at once; of five streams one more than lags is known of
        ("four", [i // 4 * 1000 for i in range(12)], 3_000),
        ("five", [i // 5 * 1000 for i in range(15)], 2_000),
        # no pattern: the shortest gap is next to nothing
        ("none", [0, 900, 901, 1700, 3000, 3002, 3003, 3004, 5000], 5_001),
    ],
)
def test_the_next_one_is_expected_no_later_than_the_gaps_say(
    name: str, arrivals: list[int], expected: int
) -> None:
    assert seen(*arrivals).until_ns(arrivals[-1]) == expected, name


def test_few_arrivals_say_nothing() -> None:
    arrivals = [i * 1000 for i in range(ARRIVALS_MIN)]
    assert seen(*arrivals[:-1]).until_ns(arrivals[-1]) == FOREVER_NS
    assert seen(*arrivals).until_ns(arrivals[-1]) == ARRIVALS_MIN * 1000


def test_an_overdue_one_is_expected_until_twice_the_longest_gap() -> None:
    quiet = seen(*[i * 1000 for i in range(10)])
    assert quiet.until_ns(9_000) == 10_000
    assert quiet.until_ns(10_999) == 10_000
    assert quiet.until_ns(11_000) == FOREVER_NS
    quiet.arrived(20_000)  # it goes on, and the pause counts among the gaps
    assert quiet.until_ns(20_000) == 21_000
    assert quiet.until_ns(41_999) == 21_000


def test_what_is_long_past_is_forgotten() -> None:
    quiet = seen(*[i * 10 for i in range(10)])
    begin = 1_000_000
    for i in range(ARRIVALS_KEPT):
        quiet.arrived(begin + i * PERIOD)
    last = begin + (ARRIVALS_KEPT - 1) * PERIOD
    assert quiet.until_ns(last) == last + PERIOD


def test_stamps_that_come_out_of_order_do_no_harm() -> None:
    quiet = seen(*[i * 1000 for i in range(10)])
    quiet.arrived(8_500)
    assert 9_000 <= quiet.until_ns(9_000) <= 10_000
