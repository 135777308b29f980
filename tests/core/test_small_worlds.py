"""Every order of small worlds: up to three requests, up to four groups, enumerated.

Each world is played to its end and must keep what the core promises, whatever the order in which
arrivals and sync points interleave. Nothing here is drawn; the count of worlds is asserted.
"""

from collections.abc import Iterator
from itertools import permutations, product

import pytest

from gpumuxd.commands import Admit, Finish, Launch, Retire
from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.events import Event, ModelProfile, ModelReady, RequestCancelled, SliceFailed
from gpumuxd.settings import Order, Slicing
from tests.core.conversation import BEST_EFFORT, REALTIME, US, Conversation, ready, request

UNIT = 100 * US
"""Every group takes this long; the bound allows two of them in flight."""


def conversation(groups: tuple[int, ...], **changes: object) -> Conversation:
    """Model m<n> has n groups."""
    changes = {"preemption_delay_ns_max": 2 * UNIT, "frames_reserved": 0} | changes
    models = [ready(f"m{count}", *[UNIT] * count) for count in sorted(set(groups))]
    return Conversation(*models, **changes)


def play(talk: Conversation, script: tuple[Event | None, ...]) -> None:
    """None is the next sync point, anything else is said at once; then the rest runs."""
    for event in script:
        if event is None:
            talk.step()
        else:
            talk.say(event)
    talk.run()


def interleavings(events: tuple[Event, ...], pauses: int) -> Iterator[tuple[Event | None, ...]]:
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
