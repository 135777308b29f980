"""Silence and back-off: tables of times, no clocks."""

from gpumuxd.node.settings import LinkSettings, RestartSettings
from gpumuxd.node.watch import Backoff, SilenceWatch

LIMITS = LinkSettings(silence_ns_max=1000, load_silence_ns_max=5000, parent_lag_ns_max=100)


def test_turns_that_grow_are_progress_and_nothing_else_is() -> None:
    watch = SilenceWatch(LIMITS, 0)
    assert not watch.has_turned
    watch.heard_pong(5, 900)
    assert watch.has_turned
    assert not watch.is_silent(1899, 0)
    watch.heard_pong(5, 1899)  # an answer, but the loop has not turned
    assert watch.is_silent(1900, 0)


def test_a_parent_that_was_late_judges_nobody() -> None:
    watch = SilenceWatch(LIMITS, 0)
    assert not watch.is_silent(5000, 100)  # suspended, say
    assert not watch.is_silent(5999, 99)
    assert watch.is_silent(6000, 99)


def test_a_child_that_starts_may_be_silent() -> None:
    watch = SilenceWatch(LIMITS, 0)
    assert not watch.is_silent(10_000, 0, is_starting=True)
    assert not watch.is_silent(10_999, 0)
    assert watch.is_silent(11_000, 0)


def test_a_child_that_loaded_a_model_has_started_though_no_pong_came_yet() -> None:
    watch = SilenceWatch(LIMITS, 0)
    watch.heard_turn(5000)
    assert watch.has_turned
    assert not watch.is_silent(5999, 0)
    assert watch.is_silent(6000, 0)
    watch.heard_turn(6000)  # once it was heard, only its pongs count
    assert watch.is_silent(6000, 0)


def test_a_child_that_loads_may_be_silent_for_longer_but_not_for_ever() -> None:
    watch = SilenceWatch(LIMITS, 0)
    watch.heard_pong(1, 0)
    assert not watch.is_silent(4999, 0, is_loading=True)
    assert watch.is_silent(5000, 0, is_loading=True)
    watch.heard_pong(2, 5000)
    assert not watch.is_silent(9000, 0, is_loading=True)
    assert not watch.is_silent(9001, 0)  # the load has ended, so it was not silent
    assert not watch.is_silent(10_000, 0)
    assert watch.is_silent(10_001, 0)


def test_delays_grow_to_a_limit_and_start_anew_after_a_good_life() -> None:
    settings = RestartSettings(delay_ns_first=10, delay_ns_max=50, factor=2, healthy_ns=1000)
    backoff = Backoff(settings)
    assert [backoff.delay_ns(lived) for lived in (0, 999, 0, 0, 0, 1000, 0)] == [
        10,
        20,
        40,
        50,
        50,
        10,
        20,
    ]


def test_the_next_delay_can_be_asked_for_and_stays_the_next() -> None:
    settings = RestartSettings(delay_ns_first=10, delay_ns_max=50, factor=2, healthy_ns=1000)
    backoff = Backoff(settings)
    backoff.delay_ns(0)
    assert [backoff.next_ns(lived) for lived in (0, 999, 1000, 0)] == [20, 20, 10, 20]
    assert backoff.delay_ns(0) == 20
