"""Who could be launched on a lane, and in which order. It never launches and never looks ahead.

    RunQueue     one per lane: strict order between classes
    ClassQueue   one class: start-time fair queueing over flows, then deadline, then arrival
    Flow         one tenant in one class: its started cursors and, by frame, its waiting ones

REALTIME is a class with a single flow, which makes it earliest deadline first. The baseline order
`fifo` is a single class with a single flow and no deadlines in its keys. In the fair classes a
flow's *tag* is the device time it was given, divided by its weight; the lowest tag goes next
(Goyal, Vin and Cheng, SIGCOMM 1996: start-time fair queueing). A flow that was away starts at the
tag that was served last, so being away earns nothing.

Started and waiting cursors are kept apart, because only waiting ones need a frame. Whoever ended
or has no group left is dropped when it comes to the head of a heap (`is_queued` is the truth); a
heap with more dead than living is rebuilt, so that a storm of cancels leaves nothing behind.

Decisions where the plan is silent. A request within its flow may overtake a started one by its
deadline. A charge is the prediction when a slice is launched, corrected by the true time when it
has passed. Waiting cursors whose frame does not fit in memory are passed over, size by size
(`FrameSize.is_blocked`), because a smaller frame behind them may fit.

Few cursors are started, at most one for each frame, so their flows are looked through. Any number
may wait, so the flows' waiting heads are entries of a heap.

Invariant: a flow has one current entry for its first waiting cursor if that goes before its first
started one; no entry's key is later than the flow's true one. So a charge needs no push: the entry
is found too early at the top, and corrected there.
"""

from heapq import heapify, heappop, heappush, heapreplace

from gpumuxd.core.best_effort_share import stretched_ns
from gpumuxd.core.cursor import Batch, Cursor
from gpumuxd.core.deadline_backlog import DeadlineBacklog
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import FrameSize
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import PriorityClass
from gpumuxd.settings import Order

TAG_SCALE = 1 << 10
"""Tags are nanoseconds times this over the weight, so that integer weights divide finely."""

_REALTIME = int(PriorityClass.REALTIME)
_BEST_EFFORT = int(PriorityClass.BEST_EFFORT)

STALE_MIN = 64
"""Heaps are not rebuilt for fewer dead entries than this."""

_Item = tuple[int, int, Cursor]  # deadline (0 in fifo), arrival, cursor
_Entry = tuple[int, int, int, int, "Flow", Cursor]  # tag, deadline, arrival, serial, flow, head


class Flow:
    """One tenant in one class of one lane."""

    __slots__ = ("entry", "started", "tag", "waiting")

    def __init__(self) -> None:
        self.tag = 0
        self.started: list[_Item] = []
        self.waiting: dict[FrameSize, list[_Item]] = {}  # by what they need
        self.entry: _Entry | None = None  # the current one, of its waiting head

    def waiting_head(self) -> _Item | None:
        """The first waiting cursor whose frame may fit."""
        best: _Item | None = None
        empty: list[FrameSize] = []
        for size, heap in self.waiting.items():
            item = _waiting_head(heap)
            if item is None:
                empty.append(size)
            elif not size.is_blocked and (best is None or item < best):
                best = item
        for size in empty:
            del self.waiting[size]
        return best

    def is_current(self, entry: _Entry) -> bool:
        """By its serial number, and not by identity, which a tuple loses in compiled code."""
        own = self.entry
        return own is not None and own[3] == entry[3]

    def is_idle(self) -> bool:
        # Without dropping a dead head: whoever drops it looks at the waiting one too.
        for _, _, cursor in self.started:
            if cursor.is_queued:
                return False
        return self.waiting_head() is None and not self.waiting


def _waiting_head(heap: list[_Item]) -> _Item | None:
    """Who comes back after a run that it shared has failed is there twice: its first item lives
    again with the second, and has to go when that one has started."""
    while heap:
        cursor = heap[0][2]
        if cursor.is_queued and not cursor.is_started:
            return heap[0]
        heappop(heap)
    return None


def _living_head(heap: list[_Item]) -> _Item | None:
    while heap:
        if heap[0][2].is_queued:
            return heap[0]
        heappop(heap)
    return None


class ClassQueue:
    """One priority class: flows in order of their tags."""

    __slots__ = (
        "_dead",
        "_flows",
        "_running",
        "_serial",
        "_uses_deadlines",
        "_waiting",
        "is_fair",
        "live",
        "v",
    )

    def __init__(self, *, is_fair: bool, uses_deadlines: bool) -> None:
        self.is_fair = is_fair
        self._uses_deadlines = uses_deadlines
        self._flows: dict[str, Flow] = {}
        self._running: list[Flow] = []  # all that have started cursors, and some that had
        self._waiting: list[_Entry] = []  # a heap
        self._serial = 0
        self._dead = 0
        self.live = 0  # queued cursors
        self.v = 0  # the tag served last

    def add(self, cursor: Cursor) -> None:
        """Take in a cursor; one that is started already moved here from another lane."""
        flow = self._flow(cursor)
        # A run that is shared stands where its leader stood, whose flow was not away.
        if self.is_fair and cursor.batch is None and flow.is_idle():
            flow.tag = max(flow.tag, self.v)
        self.live += 1
        item = (self.deadline_of(cursor), cursor.arrival, cursor)
        if cursor.is_started:
            self._run(flow, item)
            return
        heap = flow.waiting.setdefault(cursor.frame_size, [])
        heappush(heap, item)
        if heap[0][2] is cursor:
            self._refresh(flow)

    def start(self, cursor: Cursor) -> None:
        """The waiting head took a frame."""
        flow = self._flow(cursor)
        heap = flow.waiting[cursor.frame_size]
        item = heappop(heap)
        assert item[2] is cursor, "only the head of a queue may start"
        if not heap:
            del flow.waiting[cursor.frame_size]
        self._run(flow, item)

    def _run(self, flow: Flow, item: _Item) -> None:
        """One more cursor of this flow is started."""
        heappush(flow.started, item)
        if flow not in self._running:
            self._running.append(flow)
        if flow.started[0][2] is item[2]:
            self._refresh(flow)

    def drop(self) -> None:
        """A cursor ended or has nothing left to launch; its `is_queued` is False already."""
        self.live -= 1
        self._dead += 1
        if self._dead > max(STALE_MIN, self.live):
            self._rebuild()

    def serve_batch(self, tenant: Tenant, batch: Batch, device_ns: int) -> None:
        """As `serve`, of a run that several share: each flow is charged for its rows."""
        self.serve(tenant, 0)
        for each, part_ns in batch.parts_of(device_ns):
            self._charge(each, part_ns)

    def serve(self, tenant: Tenant, device_ns: int) -> None:
        """A slice of its flow goes now: the flow's tag is the class's time, and is charged."""
        flow = self._flows[tenant.name]
        tag = flow.tag
        if tag > self.v:
            self.v = tag
        flow.tag = tag + device_ns * TAG_SCALE // tenant.weight

    def correct(self, cursor: Cursor, device_ns: int) -> None:
        """A slice took this much more than it was charged; negative: less."""
        if cursor.batch is None:
            self._charge(cursor.tenant, device_ns)
        else:
            for tenant, part_ns in cursor.batch.parts_of(device_ns):
                self._charge(tenant, part_ns)

    def _charge(self, tenant: Tenant, device_ns: int) -> None:
        flow = self._flows.get(tenant.name)
        if flow is None:  # its lane may be new
            flow = self._flows[tenant.name] = Flow()
        flow.tag = tag = flow.tag + device_ns * TAG_SCALE // tenant.weight
        entry = flow.entry
        if entry is not None and entry[0] > tag:  # no entry may be later than the truth
            heappush(self._waiting, self._retag(entry, flow))

    def _retag(self, entry: _Entry, flow: Flow) -> _Entry:
        """The same head with the flow's tag of now; whether it lives is asked at the top."""
        self._serial = serial = self._serial + 1
        _, deadline_ns, arrival, _, _, head = entry
        flow.entry = entry = (flow.tag, deadline_ns, arrival, serial, flow, head)
        return entry

    def peek(self, rank: int, ledger: Ledger, is_grant: bool = False) -> Cursor | None:
        """The next eligible cursor. Marks frames that do not fit as blocked. For a grant,
        flows in which the device's own work is next are passed over, and owed nothing for it."""
        started, started_tag = None, 0
        for flow in self._running:
            heap, tag = flow.started, flow.tag
            if not heap or not heap[0][2].is_queued:
                self._drop_ended()
                return self.peek(rank, ledger, is_grant)
            if is_grant and heap[0][2].is_own:
                flow.tag = max(tag, self.v)
                continue
            if started is None or tag < started_tag:
                started, started_tag = heap[0], tag
            elif tag == started_tag and heap[0] < started:
                started = heap[0]
        waiting = None
        if self._waiting and ledger.has_frame(rank):
            own: list[_Entry] = []
            while (entry := self._first_waiting()) is not None:
                if started is not None and (started_tag, started[0], started[1]) < entry:
                    break
                cursor = entry[5]
                if is_grant and cursor.is_own:
                    entry[4].tag = max(entry[4].tag, self.v)
                    own.append(heappop(self._waiting))
                    continue
                if ledger.fits(cursor.frame_size):
                    waiting = cursor
                    break
                cursor.frame_size.is_blocked = True
            for entry in own:
                heappush(self._waiting, entry)
        if waiting is not None:
            return waiting
        return started[2] if started is not None else None

    def flow_of(self, cursor: Cursor) -> str:
        """The name of the flow in which it waits."""
        return cursor.tenant.name if self.is_fair else ""

    def deadline_of(self, cursor: Cursor) -> int:
        """As far as it counts for the order."""
        return cursor.deadline_ns if self._uses_deadlines else 0

    def tag_of(self, flow: str) -> int:
        """0 for a flow that was never there."""
        known = self._flows.get(flow)
        return 0 if known is None else known.tag

    def unblock(self) -> None:
        """Frames of some size fit again: give every flow its entry back."""
        for flow in self._flows.values():
            self._refresh(flow)

    def _flow(self, cursor: Cursor) -> Flow:
        name = self.flow_of(cursor)
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow()
        return flow

    def _first_waiting(self) -> _Entry | None:
        """The first entry that still says the truth; others are corrected on the way."""
        heap = self._waiting
        while heap:
            entry = heap[0]
            tag, _, _, _, flow, cursor = entry
            if not flow.is_current(entry):
                heappop(heap)
            elif not cursor.is_queued or cursor.is_started or cursor.frame_size.is_blocked:
                heappop(heap)
                self._refresh(flow)
            elif tag == flow.tag:
                return entry
            else:  # the same head, charged since
                heapreplace(heap, self._retag(entry, flow))
        return None

    def _drop_ended(self) -> None:
        """The first started cursor of some flow has ended: a waiting one may come first now."""
        for flow in self._running:
            if not flow.started or not flow.started[0][2].is_queued:
                self._refresh(flow)
        self._running = [flow for flow in self._running if flow.started]

    def _refresh(self, flow: Flow) -> None:
        """Give a flow the entry that its waiting head and its tag ask for now; a head behind its
        own flow's started one needs none."""
        item, started = flow.waiting_head(), _living_head(flow.started)
        if item is None or (started is not None and started < item):
            flow.entry = None
            return
        self._serial += 1
        flow.entry = entry = (flow.tag, item[0], item[1], self._serial, flow, item[2])
        heap = self._waiting
        heappush(heap, entry)
        if len(heap) > STALE_MIN + 4 * len(self._flows):
            heap[:] = [each for each in heap if each[4].is_current(each)]
            heapify(heap)

    def _rebuild(self) -> None:
        self._dead = 0
        for flow in self._flows.values():
            for heap in flow.waiting.values():
                _keep_living(heap)
        for flow in self._running:
            _keep_living(flow.started)
            self._refresh(flow)


def _keep_living(heap: list[_Item]) -> None:
    heap[:] = [item for item in heap if item[2].is_queued]
    heapify(heap)


class RunQueue:
    """Every cursor of one lane that has groups left to launch."""

    __slots__ = (
        "_classes",
        "_in_order",
        "_share_ppm",
        "_started",
        "_tenants_best_effort",
        "backlog_ns",
        "live",
        "realtime",
    )

    def __init__(self, order: Order, best_effort_share_min_ppm: int = 0) -> None:
        self._share_ppm = 0 if order is Order.FIFO else best_effort_share_min_ppm
        if order is Order.FIFO:
            only = ClassQueue(is_fair=False, uses_deadlines=False)
            self._classes = [only for _ in PriorityClass]
            self._in_order = [(int(PriorityClass.REALTIME), only)]
        else:
            self._classes = [
                ClassQueue(is_fair=each is not PriorityClass.REALTIME, uses_deadlines=True)
                for each in PriorityClass
            ]
            self._in_order = [(rank, self._classes[rank]) for rank in (2, 1, 0)]
        self._started: dict[int, Cursor] = {}  # by cursor id; at most as many as frames
        self.live = 0  # queued cursors: admitted, alive, with groups left to launch
        self._tenants_best_effort = 0  # of the lowest class, without the device's own
        # Predicted and not launched yet, by class, with the grants that may go between.
        self.backlog_ns = [0] * len(PriorityClass)
        self.realtime = DeadlineBacklog()  # the same for REALTIME, by deadline

    def add(self, cursor: Cursor) -> None:
        cursor.is_queued = True
        rank = cursor.rank
        self.live += 1
        self._tenants_best_effort += rank == _BEST_EFFORT and not cursor.is_own
        self.backlog_ns[rank] += cursor.remaining_ns
        self._classes[rank].add(cursor)
        if cursor.is_started:
            self._started[cursor.cursor_id] = cursor
        if rank == _REALTIME:
            self.realtime.add(cursor)

    def hold(self, cursor: Cursor) -> None:
        """It will be added later; its work is expected now."""
        cursor.is_held = True
        self.backlog_ns[cursor.rank] += cursor.remaining_ns
        if cursor.rank == _REALTIME:
            self.realtime.add(cursor)

    def release(self, cursor: Cursor) -> None:
        """It is held no longer."""
        self._end_hold(cursor)
        self.add(cursor)

    def _end_hold(self, cursor: Cursor) -> None:
        cursor.is_held = False
        self.backlog_ns[cursor.rank] -= cursor.remaining_ns
        if cursor.rank == _REALTIME:
            self.realtime.remove(cursor)

    def join(self, riders: list[Cursor], run: Cursor) -> None:
        """The run that these share, which has a frame, takes their places."""
        for rider in riders:
            self.drop(rider)
        self.add(run)

    def flow_of(self, cursor: Cursor) -> str:
        """The name of the flow of its class in which it waits."""
        return self._classes[cursor.rank].flow_of(cursor)

    def deadline_of(self, cursor: Cursor) -> int:
        """As far as it counts for the order."""
        return self._classes[cursor.rank].deadline_of(cursor)

    def tag_of(self, rank: int, flow: str) -> int:
        """The place of a flow in the fair order of a class: the lowest is next."""
        return self._classes[rank].tag_of(flow)

    def start(self, cursor: Cursor) -> None:
        """It was given a frame."""
        self._started[cursor.cursor_id] = cursor
        self._classes[cursor.rank].start(cursor)

    def launched(self, cursor: Cursor, predicted_ns: int) -> None:
        """A slice of it was launched; `cursor.next_group` has moved."""
        queue = self._classes[cursor.rank]
        if queue.is_fair:
            if cursor.batch is None:
                queue.serve(cursor.tenant, predicted_ns)
            else:
                queue.serve_batch(cursor.tenant, cursor.batch, predicted_ns)
        if cursor.next_group == cursor.group_count:
            self.drop(cursor)

    def drop(self, cursor: Cursor) -> None:
        """It ended, moved to another lane or has nothing left to launch. Idempotent."""
        if cursor.is_held:
            self._end_hold(cursor)
        elif cursor.is_queued:
            cursor.is_queued = False
            rank = cursor.rank
            self.live -= 1
            self._tenants_best_effort -= rank == _BEST_EFFORT and not cursor.is_own
            self.backlog_ns[rank] -= cursor.remaining_ns
            self._classes[rank].drop()
            self._started.pop(cursor.cursor_id, None)
            if rank == _REALTIME:
                self.realtime.remove(cursor)

    @property
    def has_best_effort(self) -> bool:
        """Does work of the lowest class wait that grants are for, eligible or not?"""
        return self._tenants_best_effort > 0

    def select_best_effort(self, ledger: Ledger) -> Cursor | None:
        """Who would be next if nobody of a higher class waited, and no work of the device's own."""
        if not self._tenants_best_effort:
            return None
        return self._classes[_BEST_EFFORT].peek(_BEST_EFFORT, ledger, True)

    def expect(self, cursor: Cursor, work_ns: int) -> None:
        """So much of it is predicted to be left. Higher classes also wait for grants."""
        if self._share_ppm and cursor.rank != _BEST_EFFORT:
            work_ns = stretched_ns(work_ns, self._share_ppm)
        cursor.remaining_ns = work_ns

    def settle(self) -> None:
        """Bring the backlogs up to date. Only started cursors have moved, and only arrivals ask,
        so this is done for them and not at every launch."""
        for cursor in self._started.values():
            before_ns = cursor.remaining_ns
            self.expect(cursor, cursor.predicted_rest_ns())
            self.backlog_ns[cursor.rank] += cursor.remaining_ns - before_ns
            if cursor.rank == _REALTIME:
                self.realtime.touch(cursor)

    def correct(self, cursor: Cursor, device_ns: int) -> None:
        """A slice took this much more than was charged; negative: less."""
        queue = self._classes[cursor.rank]
        if queue.is_fair:
            queue.correct(cursor, device_ns)

    def select(self, ledger: Ledger) -> Cursor | None:
        """Who is next among the eligible. None: nobody, though some may wait for a frame."""
        for rank, queue in self._in_order:
            if queue.live:
                cursor = queue.peek(rank, ledger)
                if cursor is not None:
                    return cursor
        return None

    def unblock(self) -> None:
        for _, queue in self._in_order:
            queue.unblock()
