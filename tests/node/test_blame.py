"""Verdicts, as tables of deaths: who was in flight, and who is to blame."""

import re

import pytest

from gpumuxd.node.blame import (
    OUTSIDE_DEATHS_MIN,
    RULES,
    Blame,
    Cause,
    Death,
    Suspect,
    cause_of,
    suspects_of,
    version_of_key,
)
from gpumuxd.wire.in_flight_board import InFlight

A, B, C, D = 1, 2, 3, 4


def death(cause: Cause, suspects: tuple[Suspect, ...]) -> Death:
    return Death("cpu:0", cause, "how", dict.fromkeys(suspects, "m/1"))


CASES: list[tuple[str, list[tuple[Cause, tuple[Suspect, ...], Suspect | None]]]] = [
    ("nobody in flight", [(Cause.CRASH, (), None)]),
    ("one in flight at a fault", [(Cause.CRASH, (A,), A)]),
    ("the watchdog", [(Cause.WATCHDOG, (A,), A)]),
    ("a load alone", [(Cause.CRASH, ("m/1",), "m/1")]),
    (
        "two, then the one that runs again with a new one beside it",
        [(Cause.CRASH, (A, B), None), (Cause.CRASH, (B, C), B)],
    ),
    (
        "two, then both again: nothing new is known",
        [(Cause.CRASH, (A, B), None), (Cause.CRASH, (A, B), None), (Cause.CRASH, (A,), A)],
    ),
    (
        "the suspects did no wrong meanwhile: a new one alone",
        [(Cause.CRASH, (A, B), None), (Cause.CRASH, (C,), C)],
    ),
    (
        "a request and a load",
        [(Cause.SILENCE, (A, "m/1"), None), (Cause.SILENCE, ("m/1", B), "m/1")],
    ),
    (
        "who was there when another was caught is believed again",
        [
            (Cause.CRASH, (A, B), None),
            (Cause.CRASH, (B, C), B),
            (Cause.CRASH, (A, D), None),
        ],
    ),
    ("killed from outside", [(Cause.OUTSIDE, (A,), None), (Cause.OUTSIDE, (A,), None)]),
    (
        "killed from outside, again and again, always with the same one",
        [
            (Cause.OUTSIDE, (A, B), None),
            (Cause.OUTSIDE, (A,), None),
            (Cause.OUTSIDE, (A, C), A),
        ],
    ),
    (
        "to be there when somebody kills says nothing at a fault",
        [(Cause.OUTSIDE, (A,), None), (Cause.CRASH, (A, B), None)],
    ),
    ("the daemon stops", [(Cause.ORDERED, (A,), None), (Cause.ORDERED, (A,), None)]),
]


@pytest.mark.parametrize("deaths", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_verdicts(deaths: list[tuple[Cause, tuple[Suspect, ...], Suspect | None]]) -> None:
    blame = Blame()
    for cause, suspects, culprit in deaths:
        verdict = blame.judge(death(cause, suspects))
        assert verdict.culprit == culprit, (cause, suspects)
        is_open = culprit is None and cause is not Cause.ORDERED
        assert verdict.suspects == (frozenset(suspects) if is_open else frozenset())
        assert bool(verdict.why) == (culprit is not None)


def test_who_ended_well_is_no_suspect_any_more() -> None:
    blame = Blame()
    blame.judge(death(Cause.CRASH, (A, B)))
    blame.forget(A)
    assert blame.judge(death(Cause.CRASH, (A, C))).culprit is None
    assert blame.judge(death(Cause.CRASH, (B,))).culprit == B


def test_why_tells_how_it_is_known() -> None:
    blame = Blame()
    assert blame.judge(death(Cause.CRASH, (A,))).why == "nothing else was in flight"
    blame.judge(death(Cause.CRASH, (A, B)))
    assert re.search("at 2 such ends in a row", blame.judge(death(Cause.CRASH, (A, C))).why)


def test_every_cause_has_a_rule_with_a_reason() -> None:
    assert set(RULES) == set(Cause)
    assert all(rule.why for rule in RULES.values())
    assert OUTSIDE_DEATHS_MIN > 1


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("signal SIGSEGV", Cause.CRASH),
        ("signal SIGABRT", Cause.CRASH),
        ("signal SIGSYS", Cause.CRASH),
        ("signal SIGKILL", Cause.OUTSIDE),
        ("signal SIGTERM", Cause.OUTSIDE),
        ("signal SIGXCPU", Cause.OUTSIDE),
        ("exit code 0", Cause.OUTSIDE),
        ("exit code 3", Cause.OUTSIDE),
        ("exit code 70", Cause.BUG),
        ("exit code 71", Cause.WATCHDOG),
        ("exit code 134", Cause.BUG),
    ],
)
def test_what_ended_a_process_by_how_it_ended(how: str, cause: Cause) -> None:
    assert cause_of(how) is cause


REQUESTS = {11: "a/1#1", 12: "b/2#2"}
LOADS = ("c/1#3",)


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        (InFlight(), {}),
        (InFlight((11,)), {11: "a/1"}),
        (InFlight((12, 11)), {12: "b/2", 11: "a/1"}),
        (InFlight((99, -(1 << 63))), {}),  # a lie
        (InFlight((-1,), "c/1#3"), {"c/1": "c/1"}),
        (InFlight((-1,), "d/1#9"), {}),  # not being loaded
        (InFlight((11, -1), "c/1#3"), {11: "a/1", "c/1": "c/1"}),
        (InFlight((11,), "c/1#3", True), {11: "a/1", "c/1": "c/1"}),
        (InFlight((11,), "c/1#3", False), {11: "a/1"}),  # it waits for a slice of its own
        (InFlight((), "c/1#3", False), {"c/1": "c/1"}),
    ],
)
def test_suspects_are_found_among_what_the_child_had(
    noted: InFlight, expected: dict[Suspect, str]
) -> None:
    assert suspects_of(noted, REQUESTS, LOADS, Cause.OUTSIDE) == expected


@pytest.mark.parametrize(
    ("noted", "cause", "expected"),
    [
        (InFlight(), Cause.CRASH, "c/1"),
        (InFlight(), Cause.BUG, "c/1"),
        (InFlight(), Cause.SILENCE, "c/1"),
        (InFlight(), Cause.NONSENSE, "c/1"),
        (InFlight((99,)), Cause.CRASH, "c/1"),
        (InFlight(), Cause.OUTSIDE, None),  # who kills need not wait for anything
        (InFlight(), Cause.ORDERED, None),
        (InFlight((), "x/1#7"), Cause.CRASH, None),  # it was busy with one that is not wanted
    ],
)
def test_a_child_that_ends_before_it_notes_anything_was_about_to_begin_the_oldest_load(
    noted: InFlight, cause: Cause, expected: str | None
) -> None:
    found = suspects_of(noted, REQUESTS, ("c/1#3", "d/1#4"), cause)
    assert found == ({} if expected is None else {expected: expected})
    assert suspects_of(noted, REQUESTS, (), cause) == {}
    assert suspects_of(InFlight((11,)), REQUESTS, ("c/1#3",), cause) == {11: "a/1"}


def test_version_of_a_key() -> None:
    assert version_of_key("a#b/2#31") == "a#b/2"
