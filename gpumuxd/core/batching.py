"""Which requests of one model share a run, decided when the first of them is about to start.

    Batch      what a run cursor carries: its riders, their rows, and who pays which part
    Room       how large a run may become now
    Batcher    who waits to share, and who is held for others to come

The run queue says who is next; that one *leads*. Whoever waits with the same model, class and
`batch_key` may join until `Batching.sizes` is full. A run with several riders is a cursor of its
own that stands where its leader stood; a run of one is the leader itself, as ever. It must not
know lanes, slices or commands.

The size of a run. Never past the largest size whose predicted end meets the earliest deadline
among the riders, nor past the size whose longest group fits the bound on this work, nor past the
memory that is free now. Where the leader alone breaks one of these it runs alone: others would make
it worse. What is not known at all keeps no deadline and no bound.

Fair between tenants: in the classes that are, the next rider is of the tenant with the fewest rows
for its weight in this run, and of equal ones of the one that is first in the fair order; otherwise
riders come in the order of the class. Everybody pays by rows, and who is ahead of the leader in the
fair order by more than a full run is not taken along: company is no way around one's share.

Held. `delay_ns_max` from its admission a request may wait for others, unless enough rows wait to
fill a run, its model drains, or its deadline needs more than twice the time of a full run.

Whose run failed beside others runs again alone: `Cursor.runs_alone`.
"""

from heapq import heappop, heappush

from gpumuxd.core.bucket_table import BucketTable
from gpumuxd.core.cursor import NEVER_NS, NO_FRAME, Batch, Cursor
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.run_queue import TAG_SCALE, RunQueue
from gpumuxd.core.slicing import Bounds
from gpumuxd.domain import Batching, Bucket, CursorKind

SCANNED_PER_ROW = 4
"""Waiting requests that are looked at for each row that a run may have: a bound on the work."""

STALE_MIN = 64
"""Pools are not swept for fewer entries than this."""

_INFER = CursorKind.INFER

_Item = tuple[int, int, Cursor]  # deadline, arrival, cursor
_Key = tuple[int, int, Bucket]  # model, class, batch key


def may_share(cursor: Cursor) -> bool:
    """May this admitted cursor ever ride with others?"""
    batching = cursor.model.batching
    return (
        batching is not None
        and cursor.batch_key is not None
        and cursor.rows < batching.sizes[-1]
        and cursor.kind is _INFER
        and not cursor.is_probe
    )


def batch_bucket(batching: Batching, bucket: Bucket, rows: int) -> Bucket:
    """The bucket of a run of so many rows, whose other sizes are those of `bucket`."""
    size = next(size for size in batching.sizes if size >= rows)
    return (*bucket[: batching.place], size, *bucket[batching.place + 1 :])


class Room:
    """How large a run that is led by this cursor may become, if it starts at `start_ns`."""

    __slots__ = ("_batching", "_bound_ns", "_ends", "_ledger", "_model", "_start_ns", "may_grow")

    def __init__(self, leader: Cursor, start_ns: int, bounds: Bounds, ledger: Ledger) -> None:
        batching = leader.model.batching
        assert batching is not None, "its requests never share a run"
        self._batching = batching
        self._model = leader.model
        self._ledger = ledger
        self._start_ns = start_ns
        self._ends: dict[Bucket, int] = {}  # predicted, by bucket; -1: it may not be run now
        longest_ns = _longest_group_ns(leader.table)
        tier = bounds.tier_of(leader.rank, longest_ns)
        if tier is not None:
            self._bound_ns = tier.tightest_ns
        else:  # a bound holds for work that is finer than this, or none is asked for
            self._bound_ns = 0 if bounds.tiers[leader.rank] else NEVER_NS
        is_in_time = self._end_ns(leader.table.run_ns) <= leader.deadline_ns
        self.may_grow = longest_ns <= self._bound_ns and is_in_time

    def has(self, bucket: Bucket, rows: int, deadline_ns: int) -> bool:
        """Is there room for so many rows, if the earliest deadline is this?"""
        bucket = batch_bucket(self._batching, bucket, rows)
        end_ns = self._ends.get(bucket)
        if end_ns is None:
            end_ns = self._ends[bucket] = self._end_of(bucket)
        return 0 <= end_ns <= deadline_ns

    def _end_of(self, bucket: Bucket) -> int:
        model = self._model
        table = model.estimates.table(bucket)
        if _longest_group_ns(table) > self._bound_ns or not self._ledger.fits(
            model.frame_size(bucket)
        ):
            return -1
        return self._end_ns(table.run_ns)

    def _end_ns(self, run_ns: int) -> int:
        """Of a run that takes so long at its p95; 0: nobody knows."""
        return self._start_ns + run_ns if run_ns else NEVER_NS


def _longest_group_ns(table: BucketTable) -> int:
    return table.longest_group_ns if table.is_known else NEVER_NS


class _Pool:
    """Those of one model, class and batch key, by the flow that they wait in."""

    __slots__ = ("flows", "held")

    def __init__(self) -> None:
        self.flows: dict[str, list[_Item]] = {}
        self.held: list[Cursor] = []

    def next_of(self, flow: str) -> _Item | None:
        """Take out the first that still waits."""
        heap = self.flows[flow]
        while heap:
            item = heappop(heap)
            if _waits(item[2]):
                return item
        return None


def _waits(cursor: Cursor) -> bool:
    is_here = cursor.is_queued or cursor.is_held
    return is_here and cursor.frame == NO_FRAME and not cursor.runs_alone


class Batcher:
    """Who waits to share a run."""

    __slots__ = ("_entries", "_entries_max", "_held", "_pools")

    def __init__(self) -> None:
        self._pools: dict[_Key, _Pool] = {}
        self._entries = 0
        self._entries_max = STALE_MIN
        self._held: list[_Item] = []  # a heap, by the time until which each is held

    # Who waits

    def add(self, cursor: Cursor, run_queue: RunQueue, now_ns: int) -> None:
        """One more was admitted: it goes to the run queue, or is held for others to come."""
        batching, pool = cursor.model.batching, self._pool(cursor)
        assert batching is not None, "asked of one that may share"
        heap = pool.flows.setdefault(run_queue.flow_of(cursor), [])
        heappush(heap, (run_queue.deadline_of(cursor), cursor.arrival, cursor))
        self._entries += 1
        until_ns = self._held_until_ns(cursor, batching, now_ns)
        if until_ns <= now_ns:
            run_queue.add(cursor)
        else:
            run_queue.hold(cursor)
            heappush(self._held, (until_ns, cursor.arrival, cursor))
            pool.held = [*(each for each in pool.held if each.is_held), cursor]
            if sum(each.rows for each in pool.held) >= batching.sizes[-1]:
                for each in pool.held:
                    run_queue.release(each)
                pool.held = []
        if self._entries > self._entries_max:
            self._sweep()

    def _pool(self, cursor: Cursor) -> _Pool:
        assert cursor.batch_key is not None, "asked of one that may share"
        key = (cursor.model.number, cursor.rank, cursor.batch_key)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool()
        return pool

    def _sweep(self) -> None:
        """Forget who does not wait any more."""
        self._entries = 0
        for key, pool in list(self._pools.items()):
            for flow, heap in list(pool.flows.items()):
                kept = sorted(item for item in heap if _waits(item[2]))
                pool.flows[flow] = kept
                self._entries += len(kept)
                if not kept:
                    del pool.flows[flow]
            if not pool.flows:
                del self._pools[key]
        self._entries_max = STALE_MIN + 2 * self._entries

    # Who is held

    def _held_until_ns(self, cursor: Cursor, batching: Batching, now_ns: int) -> int:
        if not batching.delay_ns_max or cursor.model.is_draining:
            return now_ns
        until_ns = now_ns + batching.delay_ns_max
        if cursor.deadline_ns == NEVER_NS:
            return until_ns
        full = batch_bucket(batching, cursor.bucket, batching.sizes[-1])
        run_ns = cursor.model.estimates.table(full).run_ns
        return min(until_ns, cursor.deadline_ns - 2 * run_ns) if run_ns else now_ns

    def next_release_ns(self) -> int | None:
        """When the first of those that are held has waited long enough."""
        held = self._held
        while held and not held[0][2].is_held:
            heappop(held)
        return held[0][0] if held else None

    def pop_released(self, now_ns: int) -> Cursor | None:
        """The next one that has waited long enough."""
        until_ns = self.next_release_ns()
        return heappop(self._held)[2] if until_ns is not None and until_ns <= now_ns else None

    def held(self) -> list[Cursor]:
        """All that are held now, in the order of their times."""
        return [item[2] for item in sorted(self._held) if item[2].is_held]

    # Who joins

    def riders(self, leader: Cursor, room: Room, run_queue: RunQueue) -> list[Cursor]:
        """Who rides if this one starts now, itself first. Changes nothing."""
        riders = [leader]
        pool = self._pool(leader)
        if not room.may_grow:
            return riders
        batching = leader.model.batching
        assert batching is not None, "its requests never share a run"
        rows, bucket, deadline_ns = leader.rows, leader.bucket, leader.deadline_ns
        rows_max = batching.sizes[-1]
        own, ahead_max = run_queue.flow_of(leader), self._ahead_max(leader, batching)
        own_tag = run_queue.tag_of(leader.rank, own)
        turns: list[tuple[int, int, str]] = []  # rows taken for its weight, tag, flow
        for flow in pool.flows:
            if run_queue.tag_of(leader.rank, flow) > own_tag + ahead_max:
                continue
            taken = leader.rows * TAG_SCALE // leader.tenant.weight if flow == own else 0
            heappush(turns, (taken, run_queue.tag_of(leader.rank, flow), flow))
        looked_at: list[tuple[str, _Item]] = []
        scanned_max = SCANNED_PER_ROW * rows_max
        while turns and rows < rows_max and len(looked_at) < scanned_max:
            taken, tag, flow = turns[0]
            item = pool.next_of(flow)
            if item is None:
                heappop(turns)
                continue
            looked_at.append((flow, item))
            cursor = item[2]
            if cursor is leader:
                continue
            heappop(turns)
            # Also who does not fit has had a turn: others are not to wait behind all of its kind.
            taken += cursor.rows * TAG_SCALE // cursor.tenant.weight
            heappush(turns, (taken, tag, flow))
            if rows + cursor.rows > rows_max:
                continue
            larger = tuple([max(pair) for pair in zip(bucket, cursor.bucket, strict=True)])
            earliest_ns = min(deadline_ns, cursor.deadline_ns)
            if room.has(larger, rows + cursor.rows, earliest_ns):
                riders.append(cursor)
                rows, bucket, deadline_ns = rows + cursor.rows, larger, earliest_ns
        for flow, item in looked_at:
            heappush(pool.flows[flow], item)
        return riders

    def _ahead_max(self, leader: Cursor, batching: Batching) -> int:
        """How far ahead of the leader's a tag may be whose flow is taken along: a full run."""
        full = batch_bucket(batching, leader.bucket, batching.sizes[-1])
        run_ns = leader.model.estimates.table(full).run_ns
        return run_ns * TAG_SCALE if run_ns else NEVER_NS


def run_of(riders: list[Cursor]) -> Cursor:
    """The cursor of a run that these share. Nothing is booked yet."""
    leader, model = riders[0], riders[0].model
    batching = model.batching
    assert batching is not None, "its requests never share a run"
    rows = sum(rider.rows for rider in riders)
    widest = tuple([max(sizes) for sizes in zip(*[r.bucket for r in riders], strict=True)])
    run = Cursor(
        cursor_id=leader.cursor_id,
        kind=leader.kind,
        model_key=leader.model_key,
        bucket=batch_bucket(batching, widest, rows),
        members=tuple([rider.members[0] for rider in riders]),
        tenant=leader.tenant,
        priority_class=leader.priority_class,
        arrival=leader.arrival,
        arrived_ns=leader.arrived_ns,
        deadline_ns=leader.deadline_ns,  # of the order alone: each rider has its own
        rows=rows,
    )
    run.batch = Batch(riders)
    run.admit(model, model.estimates.table(run.bucket))
    return run
