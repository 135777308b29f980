"""Who is next: classes, deadlines, shares, and what heaps remember."""

import random

import pytest

from gpumuxd.core.cursor import Cursor
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.run_queue import STALE_MIN, TAG_SCALE, RunQueue
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import PriorityClass
from gpumuxd.settings import Order
from tests.core.conversation import BEST_EFFORT, REALTIME, STANDARD
from tests.core.objects import make_cursor, make_model


class Player:
    """Selects and moves cursors as the device scheduler would."""

    def __init__(
        self, order: Order = Order.POLICY, frames: int = 1_000, bytes_max: int = 0
    ) -> None:
        self.queue = RunQueue(order)
        self.ledger = Ledger(bytes_max, frames, 0)

    def add(self, *cursors: Cursor) -> None:
        for cursor in cursors:
            self.queue.add(cursor)

    def move(self, groups: int = 1_000, predicted_ns: int = 10) -> int | None:
        """Launch the next cursor's next groups; its arrival number."""
        cursor = self.queue.select(self.ledger)
        if cursor is None:
            return None
        if not cursor.is_started:
            cursor.frame = self.ledger.take_frame(cursor.frame_size)
            self.queue.start(cursor)
        cursor.moved_to(min(cursor.group_count, cursor.next_group + groups))
        self.queue.launched(cursor, predicted_ns)
        return cursor.arrival

    def order(self, groups: int = 1_000) -> list[int]:
        moved = []
        while (arrival := self.move(groups)) is not None:
            moved.append(arrival)
        return moved


@pytest.mark.parametrize(
    ("order", "requests", "expected"),
    [
        # (class, deadline) by arrival number
        (Order.POLICY, [(BEST_EFFORT, None), (STANDARD, None), (REALTIME, None)], [2, 1, 0]),
        (Order.POLICY, [(REALTIME, 30), (REALTIME, 10), (REALTIME, 20)], [1, 2, 0]),
        (Order.POLICY, [(REALTIME, None), (REALTIME, 10), (REALTIME, None)], [1, 0, 2]),
        (Order.POLICY, [(REALTIME, 10), (REALTIME, 10)], [0, 1]),
        (Order.POLICY, [(STANDARD, None), (STANDARD, 20), (STANDARD, 10)], [2, 1, 0]),
        (Order.POLICY, [(BEST_EFFORT, 10), (STANDARD, 99)], [1, 0]),
        (Order.FIFO, [(BEST_EFFORT, None), (STANDARD, 5), (REALTIME, 1)], [0, 1, 2]),
    ],
)
def test_order(
    order: Order, requests: list[tuple[PriorityClass, int | None]], expected: list[int]
) -> None:
    player, model = Player(order), make_model()
    for arrival, (priority_class, deadline_ns) in enumerate(requests):
        player.add(make_cursor(arrival, model, priority_class, deadline_ns=deadline_ns))
    assert player.order() == expected


def test_an_earlier_deadline_overtakes_a_started_cursor() -> None:
    player, model = Player(), make_model(1, 1, 1)
    player.add(make_cursor(1, model, REALTIME, deadline_ns=100))
    assert player.move(1) == 1
    player.add(make_cursor(2, model, REALTIME, deadline_ns=50))
    assert player.order(1) == [2, 2, 2, 1, 1]


def test_tags_tie_by_deadline_then_arrival_over_tenants() -> None:
    player, model = Player(), make_model()
    a, b, c = Tenant("a"), Tenant("b"), Tenant("c")
    player.add(make_cursor(1, model, tenant=a))
    player.add(make_cursor(2, model, tenant=b, deadline_ns=50))
    player.add(make_cursor(3, model, tenant=c))
    assert player.order() == [2, 1, 3]


def served(player: Player, tenants: list[Tenant], slices: int, slice_ns: int) -> dict[str, int]:
    """Device time of always backlogged tenants."""
    model = make_model(*[1] * 10_000)
    for arrival, tenant in enumerate(tenants):
        player.add(make_cursor(arrival, model, tenant=tenant))
    time_ns = dict.fromkeys((tenant.name for tenant in tenants), 0)
    for _ in range(slices):
        arrival = player.move(1, slice_ns)
        assert arrival is not None
        time_ns[tenants[arrival].name] += slice_ns
    return time_ns


def test_equal_tenants_get_equal_time() -> None:
    tenants = [Tenant(name) for name in "abc"]
    assert served(Player(), tenants, 300, 7) == {"a": 700, "b": 700, "c": 700}


def test_time_follows_weights() -> None:
    tenants = [Tenant(name) for name in "abc"]
    for tenant, weight in zip(tenants, (1, 2, 5), strict=True):
        tenant.change(weight, None, 1, 0)
    assert served(Player(), tenants, 800, 1_000) == {"a": 100_000, "b": 200_000, "c": 500_000}


def test_unequal_slices_are_paid_for() -> None:
    """Tenant a runs slices three times as long and gets a third as many."""
    player, model = Player(), make_model(*[1] * 1_000)
    player.add(make_cursor(0, model, tenant=Tenant("a")))
    player.add(make_cursor(1, model, tenant=Tenant("b")))
    moves = []
    for _ in range(400):
        cursor = player.queue.select(player.ledger)
        assert cursor is not None
        moves.append(player.move(1, 300 if cursor.arrival == 0 else 100))
    assert moves.count(0) == 100


def test_a_wrong_prediction_is_corrected() -> None:
    """a was charged 10 and took 1,000, so b runs until it has had as much."""
    player, model = Player(), make_model(*[1] * 1_000)
    first = make_cursor(0, model, tenant=Tenant("a"))
    player.add(first, make_cursor(1, model, tenant=Tenant("b")))
    assert player.move(1, 10) == 0
    player.queue.correct(first, 990)
    assert [player.move(1, 100) for _ in range(11)] == [1] * 10 + [0]


def test_a_prediction_that_was_too_high_is_given_back() -> None:
    player, model = Player(), make_model(*[1] * 1_000)
    first = make_cursor(0, model, tenant=Tenant("a"))
    player.add(first, make_cursor(1, model, tenant=Tenant("b")))
    assert [player.move(1, 1_000), player.move(1, 100)] == [0, 1]
    player.queue.correct(first, -950)  # a had 50, b 100
    assert player.move(1, 100) == 0


def test_being_away_earns_nothing() -> None:
    player, model = Player(), make_model(*[1] * 1_000)
    a, b = Tenant("a"), Tenant("b")
    player.add(make_cursor(0, model, tenant=a))
    for _ in range(100):
        player.move(1, 100)
    player.add(make_cursor(1, model, tenant=b))
    moves = [player.move(1, 100) for _ in range(20)]
    assert 9 <= moves.count(1) <= 11


def test_a_short_absence_does_not_forgive_debt() -> None:
    player = Player()
    short, long = make_model(1), make_model(*[1] * 1_000)
    a, b = Tenant("a"), Tenant("b")
    player.add(make_cursor(0, short, tenant=a), make_cursor(1, long, tenant=b))
    assert player.move(1, 10_000) == 0  # a is gone, far ahead
    player.add(make_cursor(2, short, tenant=a))
    assert [player.move(1, 100) for _ in range(100)] == [1] * 100


def test_without_a_frame_only_started_cursors_are_eligible() -> None:
    player, model = Player(frames=1), make_model(1, 1)
    player.add(make_cursor(1, model, BEST_EFFORT))
    assert player.move(1) == 1
    player.add(make_cursor(2, model, REALTIME))
    assert player.move(1) == 1  # the one that can move does
    assert player.move(1) is None  # 2 waits for a frame
    player.ledger.return_frame(model.frame_size((1,)), 0)
    assert player.order(1) == [2, 2]


def test_a_frame_that_does_not_fit_lets_a_smaller_one_pass() -> None:
    player = Player(bytes_max=10)
    big, small = make_model(1, frame_bytes=8), make_model(1, frame_bytes=2)
    player.add(make_cursor(1, big), make_cursor(2, big), make_cursor(3, small))
    assert player.order() == [1, 3]
    size = big.frame_size((1,))
    assert size.is_blocked
    player.ledger.return_frame(size, 0)
    assert player.order() == [], "blocked until it is said that memory came back"
    size.is_blocked = False
    player.queue.unblock()
    assert player.order() == [2]


@pytest.mark.parametrize("order", list(Order))
def test_dropped_cursors_never_come_up(order: Order) -> None:
    player, model = Player(order), make_model(1, 1)
    cursors = [make_cursor(number, model) for number in range(6)]
    player.add(*cursors)
    assert player.move(1) == 0
    for dropped in (0, 1, 4):
        player.queue.drop(cursors[dropped])
        player.queue.drop(cursors[dropped])  # idempotent
    assert player.queue.live == 3
    assert player.order() == [2, 3, 5]
    assert player.queue.live == 0


def test_a_storm_of_drops_leaves_nothing_behind() -> None:
    player, model = Player(), make_model()
    player.add(make_cursor(0, model, deadline_ns=1))
    for number in range(1, 50 * STALE_MIN):
        cursor = make_cursor(number, model, deadline_ns=1_000)
        player.add(cursor)
        player.queue.drop(cursor)
    queue = player.queue._classes[STANDARD]
    (flow,) = queue._flows.values()
    assert sum(len(heap) for heap in flow.waiting.values()) <= STALE_MIN + 2
    assert player.order() == [0]


def test_entries_do_not_pile_up_when_heads_change() -> None:
    """Each arrival with an earlier deadline makes a new entry; old ones must go."""
    player, model = Player(), make_model()
    for number in range(50 * STALE_MIN):
        player.add(make_cursor(number, model, deadline_ns=1_000_000 - number))
    queue = player.queue._classes[STANDARD]
    assert len(queue._waiting) <= STALE_MIN + 5


def test_backlog_is_the_unlaunched_work_by_class() -> None:
    player, model = Player(), make_model(50, 50)
    cursor = make_cursor(1, model, BEST_EFFORT)
    player.add(cursor, make_cursor(2, make_model(7), STANDARD))
    assert player.queue.backlog_ns == [100, 7, 0]
    assert [player.move(1), player.move(1)] == [2, 1]
    player.queue.settle()
    assert player.queue.backlog_ns == [50, 0, 0]
    player.queue.drop(cursor)
    assert player.queue.backlog_ns == [0, 0, 0]


def reference_next(cursors: list[Cursor], has_frame: bool) -> Cursor | None:
    """REALTIME and one tenant elsewhere: no shares, so the order is a plain sort."""
    able = [each for each in cursors if each.is_started or has_frame]
    key = lambda each: (-each.priority_class, each.deadline_ns, each.arrival)  # noqa: E731
    return min(able, key=key, default=None)


@pytest.mark.parametrize("seed", range(3))
def test_it_selects_like_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    player, tenant = Player(frames=3), Tenant("t")
    models: list[Model] = [make_model(*[1] * n) for n in (1, 2, 5)]
    alive: list[Cursor] = []
    compared = 0
    for arrival in range(600):
        if rng.random() < 0.5:
            cursor = make_cursor(
                arrival,
                rng.choice(models),
                rng.choice(list(PriorityClass)),
                deadline_ns=rng.choice((None, rng.randrange(1_000))),
                tenant=tenant,
            )
            player.add(cursor)
            alive.append(cursor)
        if alive and rng.random() < 0.1:
            cursor = alive.pop(rng.randrange(len(alive)))
            player.queue.drop(cursor)
            if cursor.is_started:
                player.ledger.return_frame(cursor.frame_size, cursor.frame)
        expected = reference_next(alive, player.ledger.has_frame(REALTIME))
        selected = player.queue.select(player.ledger)
        assert selected is expected
        if selected is None:
            continue
        compared += 1
        player.move(1)
        if not selected.is_queued:
            alive.remove(selected)
            player.ledger.return_frame(selected.frame_size, selected.frame)
    assert compared > 300


class ObviousFairQueue:
    """Start-time fair queueing as one would write it down: scan everybody, every time."""

    def __init__(self) -> None:
        self.cursors: list[Cursor] = []
        self.tags: dict[str, int] = {}
        self.v = 0

    def add(self, cursor: Cursor) -> None:
        name = cursor.tenant.name
        tag = self.tags.setdefault(name, 0)
        if not any(each.tenant.name == name for each in self.cursors):
            self.tags[name] = max(tag, self.v)
        self.cursors.append(cursor)

    def next(self, ledger: Ledger) -> Cursor | None:
        able = [each for each in self.cursors if each.is_started or self._may_start(each, ledger)]
        return min(able, key=self._key, default=None)

    def charge(self, cursor: Cursor, device_ns: int) -> None:
        self.tags[cursor.tenant.name] += device_ns * TAG_SCALE // cursor.tenant.weight

    def _key(self, cursor: Cursor) -> tuple[int, int, int]:
        return self.tags[cursor.tenant.name], cursor.deadline_ns, cursor.arrival

    def _may_start(self, cursor: Cursor, ledger: Ledger) -> bool:
        return ledger.has_frame(STANDARD) and ledger.fits(cursor.frame_size)


@pytest.mark.parametrize("seed", range(8))
def test_it_selects_like_the_obvious_fair_queue(seed: int) -> None:
    """Tenants, weights, deadlines, corrections, drops, frames and memory, all at once."""
    rng = random.Random(seed)
    player, obvious = Player(frames=4, bytes_max=20), ObviousFairQueue()
    tenants = [Tenant(name) for name in "abc"]
    for tenant in tenants:
        tenant.change(rng.randrange(1, 4), None, 1, 0)
    models = [make_model(*[1] * n, frame_bytes=2 + 3 * n) for n in (1, 2, 4)]
    charged: list[tuple[Cursor, int]] = []
    compared = 0

    def end(cursor: Cursor) -> None:
        obvious.cursors.remove(cursor)
        if cursor.is_started:
            player.ledger.return_frame(cursor.frame_size, cursor.frame)
            for size in [size for model in models for size in model.frame_sizes]:
                size.is_blocked = size.is_blocked and not player.ledger.fits(size)
            player.queue.unblock()

    for arrival in range(700):
        if rng.random() < 0.4:
            deadline_ns = rng.choice((None, rng.randrange(1_000)))
            model, tenant = rng.choice(models), rng.choice(tenants)
            cursor = make_cursor(arrival, model, deadline_ns=deadline_ns, tenant=tenant)
            player.add(cursor)
            obvious.add(cursor)
        if obvious.cursors and rng.random() < 0.1:
            cursor = rng.choice(obvious.cursors)
            player.queue.drop(cursor)
            end(cursor)
        if charged and rng.random() < 0.5:
            cursor, predicted_ns = charged.pop(0)
            delta_ns = rng.randrange(-predicted_ns, 3 * predicted_ns)
            player.queue.correct(cursor, delta_ns)
            obvious.charge(cursor, delta_ns)
        expected = obvious.next(player.ledger)
        selected = player.queue.select(player.ledger)
        assert selected is expected
        if selected is None:
            continue
        compared += 1
        predicted_ns = rng.randrange(1, 100)
        obvious.v = max(obvious.v, obvious.tags[selected.tenant.name])
        obvious.charge(selected, predicted_ns)
        charged.append((selected, predicted_ns))
        player.move(1, predicted_ns)
        if not selected.is_queued:
            end(selected)
    assert compared > 300


def test_the_realtime_backlog_follows_its_cursors() -> None:
    player, model = Player(), make_model(500, 500)
    first, second = (make_cursor(n, model, REALTIME, deadline_ns=100 * n) for n in (1, 2))
    player.add(first, second, make_cursor(3, model))

    def before(deadline_ns: int) -> int:
        player.queue.settle()
        return player.queue.realtime.work_before_ns(deadline_ns)

    assert (before(100), before(200)) == (1_000, 2_000)
    assert player.move(1) == 1
    assert (before(100), before(200)) == (500, 1_500)
    assert player.move(1) == 1
    assert (before(100), before(200)) == (0, 1_000)
    player.queue.drop(second)
    player.queue.drop(second)
    assert len(player.queue.realtime) == 0
