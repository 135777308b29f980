"""Who is to blame when a device child ends: from what was in flight to verdicts.

    one in flight at a fault            the culprit
    several                             suspects: each runs again, one at a time on a device
    one of them, and no other of them,
    in flight at the next fault         the culprit: nobody else was there both times
    everybody else                      did no wrong, and runs again at once

A *suspect* is a request, by its id, or a load, by the version it is of. Not every death is
somebody's fault: who kills from outside, an operator or the kernel that needs memory, does not say
why. Then there is a culprit only when one suspect alone was in flight again and again. Once
somebody is caught, all others are believed again.

Pure: it must not know clocks, links or what becomes of a verdict.
"""

import enum
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpumuxd.wire.in_flight_board import InFlight
from gpumuxd.wire.process import EXIT_BUG, EXIT_PARENT_GONE, EXIT_WATCHDOG
from gpumuxd.wire.starting import how_ended

Suspect = int | str

OUTSIDE_DEATHS_MIN = 3
"""Deaths from outside that prove something: a request that was in flight at two of a hundred
random ones is no rarity, at three in a row it is."""


class Cause(enum.StrEnum):
    """What ended a device child."""

    CRASH = "crash"
    BUG = "bug"
    WATCHDOG = "watchdog"
    SILENCE = "silence"
    NONSENSE = "nonsense"
    OUTSIDE = "outside"
    ORDERED = "ordered"


@dataclass(frozen=True, slots=True)
class Rule:
    """After how many deaths of this cause a suspect who alone was there each time is the culprit;
    None: never. `why` is for people."""

    deaths_min: int | None
    why: str


RULES: dict[Cause, Rule] = {
    Cause.CRASH: Rule(1, "only code that runs in a process makes it crash"),
    Cause.BUG: Rule(1, "an assertion of ours failed, or a model's code ended the process"),
    Cause.WATCHDOG: Rule(1, "what is at the head of a lane for so long never ends"),
    Cause.SILENCE: Rule(1, "the loop's thread waits for what keeps the GIL"),
    Cause.NONSENSE: Rule(OUTSIDE_DEATHS_MIN, "who was in flight when it was heard need not be why"),
    Cause.OUTSIDE: Rule(OUTSIDE_DEATHS_MIN, "an operator, or the kernel short of memory"),
    Cause.ORDERED: Rule(None, "the daemon stops"),
}

_CRASHES = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGSYS,
    signal.SIGTRAP,
)

_CAUSES: dict[str, Cause] = {
    **{how_ended(-number): Cause.CRASH for number in _CRASHES},
    how_ended(EXIT_WATCHDOG): Cause.WATCHDOG,
    how_ended(EXIT_PARENT_GONE): Cause.OUTSIDE,
    # SIGTERM: it finished what it had, and nobody was told to stop.
    how_ended(0): Cause.OUTSIDE,
    how_ended(EXIT_BUG): Cause.BUG,
}


def cause_of(how: str) -> Cause:
    """Of an end that the daemon did not order, by how a process says that it ended."""
    if how in _CAUSES:
        return _CAUSES[how]
    return Cause.OUTSIDE if how.startswith("signal") else Cause.BUG


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one life. `suspects` are in flight then, each with the version it is of."""

    device: str
    cause: Cause
    how: str
    suspects: Mapping[Suspect, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a death says of everyone. Who is neither did no wrong."""

    culprit: Suspect | None = None
    suspects: frozenset[Suspect] = frozenset()
    why: str = ""


@dataclass(slots=True)
class _Record:
    """Deaths at which a suspect was in flight, and how many of them were faults."""

    deaths: int = 0
    faults: int = 0


class Blame:
    """The suspects of all devices of a node."""

    def __init__(self) -> None:
        self._records: dict[Suspect, _Record] = {}

    def judge(self, death: Death) -> Verdict:
        """Called once for each death, after the child was reaped."""
        rule = RULES[death.cause]
        if rule.deaths_min is None:
            return Verdict()
        is_fault = rule.deaths_min == 1
        seen = {each: self._deaths(each, is_fault) for each in death.suspects}
        candidates = [each for each, deaths in seen.items() if deaths] or list(seen)
        if len(candidates) == 1 and seen[candidates[0]] + 1 >= rule.deaths_min:
            self._records.clear()
            (culprit,) = candidates
            return Verdict(culprit, why=_why(seen[culprit] + 1))
        for each in death.suspects:
            record = self._records.setdefault(each, _Record())
            record.deaths += 1
            record.faults += is_fault
        return Verdict(suspects=frozenset(death.suspects))

    def forget(self, suspect: Suspect) -> None:
        """It ended well, or for good."""
        self._records.pop(suspect, None)

    def _deaths(self, suspect: Suspect, is_fault: bool) -> int:
        """How many earlier deaths speak against it: at a fault only faults do."""
        record = self._records.get(suspect)
        if record is None:
            return 0
        return record.faults if is_fault else record.deaths


def _why(deaths: int) -> str:
    if deaths == 1:
        return "nothing else was in flight"
    return f"it was in flight at {deaths} such ends in a row, and nothing else was each time"


def suspects_of(
    noted: InFlight, requests: Mapping[int, str], loads: Collection[str], cause: Cause
) -> dict[Suspect, str]:
    """Whom the board of a dead child names, each with the version it is of.

    requests  what the child had, with the key of each one's model; other ids are a dead child's lie
    loads     keys that were being loaded, the oldest first, which is the order that a child keeps

    A load is suspected while it works. One that waits is suspected only if nobody else can be: what
    it does between its slices is done by the loop's thread. Where nothing is noted at all, a child
    that ended by itself may have been about to begin the next one.
    """
    found: dict[Suspect, str] = {
        member: version_of_key(requests[member]) for member in noted.members if member in requests
    }
    has_own_slice = any(member < 1 for member in noted.members)
    is_at_work = has_own_slice or noted.is_load_at_work or not found
    if noted.load in loads and is_at_work:
        label = version_of_key(noted.load)
        found[label] = label
    if not found and not noted.load and loads and cause not in (Cause.OUTSIDE, Cause.ORDERED):
        label = version_of_key(next(iter(loads)))
        found[label] = label
    return found


def version_of_key(key: str) -> str:
    """The version, as `name/number`, that a model key was made for."""
    return key.rpartition("#")[0]
