"""Which replica serves, and which device takes a model."""

import random
from collections import deque

import pytest

from gpumuxd.core.placement import Backlog, Placement, Policy, Room
from gpumuxd.domain import PriorityClass
from gpumuxd.units import NS_PER_MS as MS
from gpumuxd.units import NS_PER_S, NS_PER_US, PPM

BEST_EFFORT, STANDARD, REALTIME = PriorityClass
LEAST, ROUND, FIRST = Policy


def told(*backlog_ms: int, known: int = 0, busy_ns: int = 0, now_ns: int = 0) -> Backlog:
    """A device that says that it has so much to do, by class."""
    backlog = Backlog()
    backlog.told([ms * MS for ms in backlog_ms], known, busy_ns, now_ns)
    return backlog


# What is believed of one device


@pytest.mark.parametrize(
    ("told_ms", "now_ms", "waits_ms"),  # by class, the lowest first
    [
        ((0, 0, 0), 0, (0, 0, 0)),
        ((5, 0, 0), 0, (5, 0, 0)),  # nobody waits for what is less urgent
        ((0, 0, 5), 0, (5, 5, 5)),  # everybody waits for what is more urgent
        ((1, 2, 4), 0, (7, 6, 4)),
        ((1, 2, 4), 3, (4, 3, 1)),  # it works meanwhile
        ((1, 2, 4), 9, (0, 0, 0)),
    ],
)
def test_a_statement(told_ms: tuple[int, ...], now_ms: int, waits_ms: tuple[int, ...]) -> None:
    backlog = told(*told_ms)
    waits = [backlog.wait_ns(each, now_ms * MS) for each in PriorityClass]
    assert waits == [ms * MS for ms in waits_ms]


@pytest.mark.parametrize(
    ("sent", "now_ms", "waits_ms"),  # class, run, when
    [
        ([(STANDARD, 3, 0)], 0, (3, 3, 0)),
        ([(STANDARD, 3, 0), (REALTIME, 2, 0)], 0, (5, 5, 2)),
        ([(STANDARD, 3, 0), (STANDARD, 3, 1)], 1, (5, 5, 0)),
        ([(STANDARD, 3, 0), (STANDARD, 3, 9)], 9, (3, 3, 0)),  # it was idle in between
        ([(BEST_EFFORT, 0, 0)], 0, (1 / MS, 0, 0)),  # of unknown length: counted
    ],
)
def test_what_was_sent(
    sent: list[tuple[PriorityClass, int, int]], now_ms: int, waits_ms: tuple[float, ...]
) -> None:
    backlog = Backlog()
    for number, (priority_class, run_ms, at_ms) in enumerate(sent, 1):
        backlog.sent(number, priority_class, run_ms * MS, at_ms * MS)
    waits = [backlog.wait_ns(each, now_ms * MS) for each in PriorityClass]
    assert waits == [round(ms * MS) for ms in waits_ms]


def test_a_statement_replaces_what_it_knows_and_keeps_what_was_sent_since() -> None:
    backlog = Backlog()
    for number in (1, 2, 3):
        backlog.sent(number, STANDARD, 10 * MS, 0)
    backlog.told([0, 4 * MS, 0], 2, 0, 1 * MS)  # the first two turned out to be short
    assert backlog.wait_ns(STANDARD, 1 * MS) == 14 * MS
    backlog.told([0, 0, 0], 3, 0, 2 * MS)
    assert backlog.wait_ns(STANDARD, 2 * MS) == 0


def test_a_device_that_says_nothing_of_its_backlog_is_judged_by_what_was_sent() -> None:
    backlog = Backlog()
    backlog.sent(1, STANDARD, 5 * MS, 0)
    backlog.told((), 1, 0, 1 * MS)
    assert backlog.wait_ns(STANDARD, 1 * MS) == 4 * MS


@pytest.mark.parametrize(("busy_ms", "ppm"), [(0, 0), (500, PPM // 2), (1000, PPM), (3000, PPM)])
def test_how_busy_it_was(busy_ms: int, ppm: int) -> None:
    backlog = told(0, 0, 0, busy_ns=7 * NS_PER_S, now_ns=9 * NS_PER_S)
    backlog.told((), 0, 7 * NS_PER_S + busy_ms * MS, 10 * NS_PER_S)
    assert backlog.busy_ppm == ppm


# Which replica

IDLE, URGENT, LESSER = told(0, 0, 0), told(0, 0, 9), told(9, 0, 0)


@pytest.mark.parametrize(
    ("policy", "backlogs", "runs_ms", "priority_class", "chosen"),
    [
        (LEAST, (IDLE, IDLE), (2, 2), STANDARD, 0),
        (LEAST, (URGENT, IDLE), (2, 2), STANDARD, 1),
        (LEAST, (LESSER, IDLE), (2, 2), STANDARD, 0),  # which does not wait for it
        (LEAST, (LESSER, IDLE), (2, 2), BEST_EFFORT, 1),
        (LEAST, (URGENT, IDLE), (2, 12), STANDARD, 0),  # 11 ms on the fast one, 12 on the slow
        (LEAST, (IDLE, IDLE), (12, 2), STANDARD, 1),
        (LEAST, (URGENT, LESSER, IDLE), (1, 1, 1), BEST_EFFORT, 2),
        (FIRST, (URGENT, IDLE), (2, 2), STANDARD, 0),
        (ROUND, (URGENT, IDLE), (2, 2), STANDARD, 0),
        (LEAST, (URGENT,), (2,), STANDARD, 0),
    ],
)
def test_a_replica(
    policy: Policy,
    backlogs: tuple[Backlog, ...],
    runs_ms: tuple[int, ...],
    priority_class: PriorityClass,
    chosen: int,
) -> None:
    candidates = [(b, ms * MS) for b, ms in zip(backlogs, runs_ms, strict=True)]
    assert Placement(policy).replica("m", candidates, priority_class, 0) == chosen


def test_in_turn_is_each_model_by_itself() -> None:
    placement, both = Placement(ROUND), [(Backlog(), 1), (Backlog(), 1)]
    # Two models that alternate would else have a device each.
    turns = [placement.replica(model, both, STANDARD, 0) for model in "abababab"]
    assert turns == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_burst_on_old_statements_goes_to_both() -> None:
    devices = [told(0, 50, 0), told(0, 0, 0)]  # the second was idle when they were made
    placement, counts = Placement(), [0, 0]
    for _ in range(100):
        chosen = placement.replica("m", [(d, 2 * MS) for d in devices], STANDARD, 0)
        counts[chosen] += 1
        devices[chosen].sent(counts[chosen], STANDARD, 2 * MS, 0)
    assert counts == [38, 62]  # 50 + 76 ms, 124 ms


# Which device takes a model


@pytest.mark.parametrize(
    ("policy", "rooms", "chosen"),  # free bytes, busy, weights, models
    [
        (LEAST, [(100, 0, 0, 0), (100, 0, 0, 0)], 0),
        (LEAST, [(9, 0, 0, 0), (100, PPM, 50, 5)], 1),  # the first has no room
        (LEAST, [(9, 0, 5, 1), (9, 0, 4, 1)], 1),  # nor has the second, which may say so
        (LEAST, [(100, PPM // 2, 0, 0), (100, 0, 50, 5)], 1),  # busy
        (LEAST, [(100, PPM // 5, 0, 0), (100, 0, 50, 5)], 0),  # hardly busy
        (LEAST, [(100, 0, 50, 1), (100, 0, 40, 5)], 1),
        (LEAST, [(100, 0, 0, 1), (100, 0, 0, 0)], 1),  # one that is on its way
        (FIRST, [(9, 0, 0, 0), (100, PPM, 50, 5), (100, 0, 0, 0)], 1),
        (ROUND, [(9, 0, 0, 0), (100, PPM, 50, 5), (100, 0, 0, 0)], 1),
    ],
)
def test_a_device(policy: Policy, rooms: list[tuple[int, ...]], chosen: int) -> None:
    assert Placement(policy).device([Room(*room) for room in rooms], 10) == chosen


def test_devices_in_turn() -> None:
    placement, rooms = Placement(ROUND), [Room(100, 0, 0, 0)] * 3
    assert [placement.device(rooms, 10) for _ in range(4)] == [0, 1, 2, 0]


# All of it together, in virtual time


class Device:
    """Works off requests in the order in which they come; tells its backlog now and then."""

    def __init__(self, speed_percent: int) -> None:
        self.speed_percent = speed_percent
        self.backlog = Backlog()
        self.sent = self.busy_ns = self.free_ns = 0
        self.ends: deque[tuple[int, int]] = deque()

    def run_ns(self, work_ns: int) -> int:
        return work_ns * 100 // self.speed_percent

    def take(self, work_ns: int, truth_ns: int, now_ns: int) -> int:
        """Returns how long it takes from now to its end."""
        self.sent += 1
        self.backlog.sent(self.sent, STANDARD, self.run_ns(work_ns), now_ns)
        run_ns = self.run_ns(truth_ns)
        self.free_ns = max(self.free_ns, now_ns) + run_ns
        self.busy_ns += run_ns
        return self.free_ns - now_ns

    def tell(self, now_ns: int) -> None:
        left_ns = max(0, self.free_ns - now_ns)
        self.backlog.told([0, left_ns, 0], self.sent, self.busy_ns - left_ns, now_ns)


def serve(
    policy: Policy, speeds: tuple[int, int], works_ns: tuple[int, ...], load: float, seed: int
) -> tuple[float, tuple[int, int]]:
    """Poisson arrivals for a minute; statements once a second; estimates that err by a third.
    Returns the mean time in the system in ms, and how long each device was busy."""
    print("SEED", seed)
    draw = random.Random(seed)
    devices = [Device(speed) for speed in speeds]
    placement, total_ns, count, now_ns, tell_ns = Placement(policy), 0, 0, 0, 0
    capacity = sum(speeds) / 100 / (sum(works_ns) / len(works_ns))
    while now_ns < 60 * NS_PER_S:
        now_ns += round(draw.expovariate(capacity * load))
        while tell_ns <= now_ns:
            for device in devices:
                device.tell(tell_ns)
            tell_ns += NS_PER_S
        work_ns = draw.choice(works_ns)
        truth_ns = round(work_ns * draw.uniform(0.67, 1.33))
        candidates = [(device.backlog, device.run_ns(work_ns)) for device in devices]
        chosen = devices[placement.replica("m", candidates, STANDARD, now_ns)]
        total_ns += chosen.take(work_ns, truth_ns, now_ns)
        count += 1
    return total_ns / count / MS, (devices[0].busy_ns, devices[1].busy_ns)


UNEQUAL = (500 * NS_PER_US, 2 * MS, 40 * MS)


def test_equal_devices_end_up_balanced() -> None:
    _, (first_ns, second_ns) = serve(LEAST, (100, 100), (2 * MS,), 0.9, 1)
    assert abs(first_ns - second_ns) < 0.03 * (first_ns + second_ns)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("speeds", [(100, 100), (100, 40)])
def test_least_predicted_finish_beats_turns_where_run_times_differ(
    speeds: tuple[int, int], seed: int
) -> None:
    least_ms, _ = serve(LEAST, speeds, UNEQUAL, 0.6, seed)
    turns_ms, _ = serve(ROUND, speeds, UNEQUAL, 0.6, seed)
    assert least_ms < 0.85 * turns_ms
