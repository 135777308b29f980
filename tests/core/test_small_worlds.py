"""Every order of small worlds: up to three requests, up to four groups, enumerated.

Each world is played to its end and must keep what the core promises, whatever the order in which
arrivals and sync points interleave. Nothing here is drawn; the count of worlds is asserted.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, permutations, product
from typing import Any

import pytest

from gpumuxd.commands import Admit, Finish, Launch, Retire
from gpumuxd.domain import OutcomeKind, PriorityClass, Slice, SyncCost
from gpumuxd.events import (
    DeviceMeasured,
    Event,
    ModelProfile,
    ModelReady,
    RequestCancelled,
    SliceFailed,
)
from gpumuxd.settings import Order, Slicing
from tests.core.conversation import BEST_EFFORT, REALTIME, US, Conversation, ready, request

Script = tuple[Event | None, ...]
"""What is said one after the other; None is the next sync point."""

UNIT = 100 * US
"""Every group takes this long; the bound allows two of them in flight."""


def conversation(groups: tuple[int, ...], **changes: object) -> Conversation:
    """Model m<n> has n groups."""
    changes = {"preemption_delay_ns_max": 2 * UNIT, "frames_reserved": 0} | changes
    models = [ready(f"m{count}", *[UNIT] * count) for count in sorted(set(groups))]
    return Conversation(*models, **changes)


def play(talk: Conversation, script: Script) -> None:
    """None is the next sync point, anything else is said at once; then the rest runs."""
    for event in script:
        if event is None:
            talk.step()
        else:
            talk.say(event)
    talk.run()


def interleavings(events: tuple[Event, ...], pauses: int) -> Iterator[Script]:
    """Every order of the events with every way to spread `pauses` sync points among them."""
    for order in permutations(events):
        for gaps in product(range(pauses + 1), repeat=len(events)):
            if sum(gaps) <= pauses:
                script: list[Event | None] = []
                for gap, event in zip(gaps, order, strict=True):
                    script += [None] * gap + [event]
                yield tuple(script)


def check(talk: Conversation, groups: dict[int, int]) -> None:
    """What holds in every world, for requests with these numbers of groups."""
    assert talk.outcomes.keys() == groups.keys(), "exactly one Finish each"
    assert len(talk.of_type(Admit)) == len({each.request_id for each in talk.of_type(Admit)})
    position = dict.fromkeys(groups, 0)
    held: dict[int, int] = {}
    in_flight: dict[int, int] = {}
    for command in talk.commands:
        match command:
            case Launch(work):
                (member,) = work.members
                assert work.first_group == position[member] < work.end_group <= groups[member]
                position[member] = work.end_group
                assert held.setdefault(work.frame, work.cursor_id) == work.cursor_id
                in_flight[work.cursor_id] = member
            case Retire(cursor_id, _, frame):
                assert held.pop(frame) == cursor_id
                assert in_flight[cursor_id] in talk.outcomes
            case _:
                pass
    assert held == {}, "every frame was given back"
    for request_id, kind in talk.outcomes.items():
        if kind is OutcomeKind.COMPLETED:
            assert position[request_id] == groups[request_id]
            assert talk.finish(request_id).report.compute_ns == groups[request_id] * UNIT
    statistics = talk.scheduler.statistics()
    assert (statistics.frames_held, statistics.in_flight_slices, statistics.queued) == (0, 0, 0)


def check_idle(talk: Conversation) -> None:
    """The device never idled while somebody waited: all arrived at 0 or while it was busy."""
    total_ns = talk.scheduler.statistics().device_busy_ns
    assert max(talk.finished_at.values()) == total_ns


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_mix_of_classes_and_lengths_completes_in_order(count: int) -> None:
    worlds = 0
    for groups in product((1, 2, 4), repeat=count):
        for classes in product(PriorityClass, repeat=count):
            talk = conversation(groups)
            asked = zip(range(count), groups, classes, strict=True)
            talk.say(*(request(n, f"m{size}", each) for n, size, each in asked))
            talk.run()
            check(talk, dict(enumerate(groups)))
            check_idle(talk)
            ends = sorted(range(count), key=lambda n: talk.finished_at[n])
            expected = sorted(range(count), key=lambda n: (-classes[n], n))
            assert ends == expected, (groups, classes)
            worlds += 1
    assert worlds == (3 * 3) ** count


def test_every_interleaving_of_three_arrivals() -> None:
    """Different classes: whoever is there and highest moves next, at every sync point."""
    groups = {0: 4, 1: 3, 2: 2}
    arrivals = tuple(request(n, f"m{size}", PriorityClass(n)) for n, size in groups.items())
    worlds = 0
    for script in interleavings(arrivals, pauses=4):
        talk = conversation(tuple(groups.values()))
        play(talk, script)
        check(talk, groups)
        blocked_ns = [talk.finish(n).report.queue_ns for n in (2,)]
        arrived = script.index(arrivals[2])
        said_at = min(talk.launched_at.values()) if arrived == 0 else None
        assert said_at is None or blocked_ns == [0]
        worlds += 1
    assert worlds == 6 * 35


def test_realtime_is_blocked_by_the_bound_at_most() -> None:
    worlds = 0
    for before in range(9):
        talk = conversation((4, 1))
        talk.say(request(0, "m4", BEST_EFFORT), request(1, "m4", BEST_EFFORT, tenant="u"))
        for _ in range(before):
            talk.step()
        talk.say(request(2, "m1", REALTIME, at=talk.now_ns))
        talk.run()
        check(talk, {0: 4, 1: 4, 2: 1})
        assert talk.finish(2).report.queue_ns <= 2 * UNIT
        worlds += 1
    assert worlds == 9


def test_every_moment_to_cancel() -> None:
    groups = {0: 4, 1: 4, 2: 1}
    arrivals = tuple(request(n, f"m{size}", PriorityClass(n)) for n, size in groups.items())
    worlds = 0
    for victim in groups:
        for pauses in range(10):
            for late in range(3):
                talk = conversation((4, 1))
                script: list[Event | None] = [*arrivals[:late], *[None] * pauses]
                play(talk, (*script, RequestCancelled(victim), *arrivals[late:]))
                check(talk, groups)
                others = [kind for n, kind in talk.outcomes.items() if n != victim]
                assert set(others) == {OutcomeKind.COMPLETED}
                worlds += 1
    assert worlds == 90


def test_every_moment_to_be_late() -> None:
    """A deadline at each half unit: before it, the request completes; at it, it does not. Who is
    given up would have been late: here predictions are true."""
    outcomes = []
    for half_units in range(1, 24):
        deadline_ns = half_units * UNIT // 2
        talk = conversation((4,), slicing=Slicing.ADAPTIVE)
        talk.say(
            request(0, "m4", REALTIME),
            request(1, "m4", BEST_EFFORT, deadline=deadline_ns),
            request(2, "m4", BEST_EFFORT, deadline=deadline_ns + 1, tenant="u"),
        )
        talk.run()
        check(talk, {0: 4, 1: 4, 2: 4})
        for request_id in (1, 2):
            kind = talk.outcomes[request_id]
            due_ns = deadline_ns + request_id - 1
            assert (kind is OutcomeKind.COMPLETED) <= (talk.finished_at[request_id] <= due_ns)
            if kind is OutcomeKind.DEADLINE_MISSED:
                assert talk.finished_at[request_id] <= due_ns + 2 * UNIT
                outcome = talk.finish(request_id).outcome
                assert outcome.predicted_finish_ns > outcome.deadline_ns == due_ns
        outcomes.append(talk.outcomes[1])
    changes = [a for a, b in zip(outcomes, [*outcomes[1:], None], strict=True) if a is not b]
    assert changes[0] is OutcomeKind.DEADLINE_INFEASIBLE
    assert changes[-1] is OutcomeKind.COMPLETED


def test_every_slice_that_could_fail() -> None:
    worlds = 0
    for failing in range(1, 9):
        talk = conversation((4,))
        talk.say(request(0, "m4", tenant="a"), request(1, "m4", tenant="b"))
        failed: set[int] = set()
        while talk._ends:
            end_ns, slice_id, passed = talk._ends[0]
            work = next(each for each in talk.slices if each.slice_id == slice_id)
            if slice_id == failing or work.cursor_id in failed:
                failed.add(work.cursor_id)
                talk._ends.pop(0)
                talk._ends.sort()
                talk.say(SliceFailed(slice_id, "boom"), at=end_ns)
            else:
                talk.step()
            del passed
        expected = [OutcomeKind.COMPLETED, OutcomeKind.MODEL_FAULTED]
        assert sorted(talk.outcomes.values()) == expected
        check(talk, {0: 4, 1: 4})
        worlds += 1
    assert worlds == 8


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("slicing", list(Slicing))
@pytest.mark.parametrize("window_max", [1, 2, 3])
@pytest.mark.parametrize("frames_max", [1, 2, 8])
def test_every_setting(order: Order, slicing: Slicing, window_max: int, frames_max: int) -> None:
    for groups in product((1, 3), repeat=3):
        talk = conversation(
            groups,
            order=order,
            slicing=slicing,
            window_max=window_max,
            frames_max=frames_max,
        )
        asked = enumerate(groups)
        talk.say(*(request(n, f"m{size}", PriorityClass(n)) for n, size in asked))
        talk.run()
        check(talk, dict(enumerate(groups)))
        assert set(talk.outcomes.values()) == {OutcomeKind.COMPLETED}
        check_idle(talk)


def test_every_start_without_a_profile() -> None:
    for sizes in product((1, 2, 3, 4), repeat=2):
        events = [ModelReady(f"m{n}", ModelProfile(size), REALTIME) for n, size in enumerate(sizes)]
        talk = Conversation(*events, duration_ns=lambda w: UNIT * (w.end_group - w.first_group))
        talk.say(*(request(n, f"m{n % 2}", PriorityClass(n % 3)) for n in range(6)))
        talk.run()
        check(talk, {n: sizes[n % 2] for n in range(6)})
        assert talk.of_type(Finish)[-1].outcome.kind is OutcomeKind.COMPLETED


# The same with every checker after every step, under every policy

GROUPS = {0: 4, 1: 3, 2: 2}
"""By request; its number is its class."""

COSTS = (SyncCost(1, 40 * US, 10 * US), SyncCost(2, 2 * US, 10 * US))

POLICIES: dict[str, dict[str, Any]] = {
    "a stated bound": {"preemption_delay_ns_max": 2 * UNIT},
    "less than a group": {"preemption_delay_ns_max": UNIT // 2},
    "no bound asked for": {},
    "a laxity": {"slo_ns": 5 * UNIT},
    "a laxity, measured": {"slo_ns": 5 * UNIT, "costs": COSTS},
    "fewest missed SLOs": {"slo_ns": 2 * UNIT + UNIT // 2, "costs": COSTS},
    "least delay": {"costs": COSTS},
    "none": {"slicing": Slicing.NONE},
    "layer": {"slicing": Slicing.LAYER},
    "every(2)": {"slicing": Slicing.EVERY, "slicing_operators": 2},
    "window(1, 2)": {"slicing": Slicing.WINDOW, "slicing_operators": 1, "slicing_window": 2},
}
ORDERS: dict[str, dict[str, Any]] = {
    "policy": {},
    "with a share": {"best_effort_share_min_ppm": 300_000},
    "fifo": {"order": Order.FIFO},  # knows no classes, so no share either
}


def watched(
    policy: str, order: str, duration_ns: Callable[[Slice], int] | None = None
) -> Conversation:
    """Three models, one for each request, and checkers that see all of it."""
    asked = POLICIES[policy] | ORDERS[order]
    slo_ns, costs = asked.pop("slo_ns", None), asked.pop("costs", ())
    models: list[Event] = []
    for number, size in GROUPS.items():
        times = (UNIT,) * size
        profile = ModelProfile(size, {(1,): times}, {(1,): sum(times)}, layer_ends=(1, size))
        is_urgent = number == REALTIME
        own_slo_ns = slo_ns if is_urgent else None
        models.append(ModelReady(f"m{size}", profile, PriorityClass(number), own_slo_ns))
    models += [DeviceMeasured(costs)] if costs else []
    return Conversation(
        *models, duration_ns=duration_ns, is_checked=True, frames_reserved=0, **asked
    )


def ends_well(talk: Conversation, script: Script) -> Script | None:
    """Play it. Not None: up to here, because it pauses where nothing can happen; so it is the same
    as another one with fewer pauses, and so is every script that begins like that."""
    for place, event in enumerate(script):
        if event is not None:
            talk.say(event)
        elif talk.step() is None:
            return script[: place + 1]
    talk.run()
    assert talk.checkers is not None
    talk.checkers.see_end()
    return None


def count_worlds(
    policy: str, order: str, scripts: Iterable[Script], over_percent: int = 100
) -> int:
    """Play all that differ. Every slice takes so much of what is predicted."""
    worlds, same = 0, set[Script]()
    for script in scripts:
        if any(script[:end] in same for end in range(1, len(script))):
            continue
        talk = watched(policy, order, lambda work: work.predicted_ns * over_percent // 100)
        is_as_another = ends_well(talk, script)
        if is_as_another is None:
            worlds += 1
        else:
            same.add(is_as_another)
    return worlds


def arrivals(deadlines: dict[int, int] | None = None) -> tuple[Event, ...]:
    due_ns = deadlines or {}
    return tuple(
        request(n, f"m{size}", PriorityClass(n), deadline=due_ns.get(n))
        for n, size in GROUPS.items()
    )


def orders_of_arrivals() -> Iterator[Script]:
    for count in (1, 2, 3):
        for chosen in combinations(arrivals(), count):
            yield from interleavings(chosen, pauses=3)


def orders_of_cancels() -> Iterator[Script]:
    """A cancel before its request arrived is another world without it."""
    for victim in GROUPS:
        for place, gaps in product(range(victim + 1, 4), product(range(3), repeat=4)):
            if sum(gaps) <= 2:
                events: list[Event] = list(arrivals())
                events.insert(place, RequestCancelled(victim))
                script: list[Event | None] = []
                for gap, event in zip(gaps, events, strict=True):
                    script += [None] * gap + [event]
                yield tuple(script)


def orders_of_deadlines() -> Iterator[Script]:
    for victim, half_units in product(GROUPS, range(1, 20, 3)):
        first, *others = arrivals({victim: half_units * UNIT // 2})
        yield (first, None, *others)


# Arrivals, cancels, deadlines, deadlines where all takes half as long again. With `fifo` nobody is
# ordered ahead, so all of `adaptive` is one policy.
WORLDS = """
a stated bound     | policy       |  83 |  60 |  18 |  18
a stated bound     | with a share |  83 |  60 |  18 |  18
less than a group  | policy       |  83 |  59 |  18 |  18
no bound asked for | policy       |  45 |  52 |  18 |  18
no bound asked for | fifo         |  45 |  52 |  18 |  18
a laxity           | policy       |  83 |  60 |  18 |  18
a laxity, measured | policy       |  83 |  60 |  18 |  18
a laxity, measured | with a share |  83 |  60 |  18 |  18
fewest missed SLOs | policy       |  83 |  59 |  18 |  18
fewest missed SLOs | with a share |  83 |  59 |  18 |  18
least delay        | policy       |  83 |  60 |  18 |  18
least delay        | with a share |  83 |  60 |  18 |  18
none               | policy       |  45 |  52 |  18 |  18
none               | fifo         |  45 |  52 |  18 |  18
layer              | policy       |  75 |  59 |  18 |  18
layer              | fifo         |  75 |  59 |  18 |  18
every(2)           | policy       |  69 |  59 |  18 |  18
every(2)           | fifo         |  69 |  59 |  18 |  18
window(1, 2)       | policy       |  83 |  60 |  18 |  18
window(1, 2)       | fifo         |  83 |  60 |  18 |  18
"""


@pytest.mark.parametrize("line", WORLDS.strip().splitlines())
def test_every_order_under_every_policy(line: str) -> None:
    policy, order, *counts = (cell.strip() for cell in line.split("|"))
    worlds = (
        count_worlds(policy, order, orders_of_arrivals()),
        count_worlds(policy, order, orders_of_cancels()),
        count_worlds(policy, order, orders_of_deadlines()),
        count_worlds(policy, order, orders_of_deadlines(), over_percent=150),
    )
    assert worlds == tuple(map(int, counts))
