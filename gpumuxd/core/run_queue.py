"""Who could be launched on a lane, and in which order. It never launches and never looks ahead.

    RunQueue     one per lane: strict order between classes
    ClassQueue   one class: start-time fair queueing over flows, then deadline, then arrival
    Flow         one tenant in one class: its started cursors and, per model, its waiting ones

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
has passed. Waiting cursors whose model's frame does not fit in memory are passed over, model by
model (`Model.is_blocked`), because a smaller frame behind them may fit.

Invariant: each flow with an eligible cursor has exactly one current entry in the matching heap,
and that entry's key is never later than the flow's true one.
"""

from heapq import heapify, heappop, heappush

from gpumuxd.core.cursor import Cursor
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.domain import PriorityClass
from gpumuxd.settings import Order

TAG_SCALE = 1 << 10
"""Tags are nanoseconds times this over the weight, so that integer weights divide finely."""

STALE_MIN = 64
"""Heaps are not rebuilt for fewer dead entries than this."""

_Item = tuple[int, int, Cursor]  # deadline (0 in fifo), arrival, cursor
_Entry = tuple[int, int, int, int, "Flow"]  # tag, deadline, arrival, serial, flow


class Flow:
    """One tenant in one class of one lane."""

    __slots__ = ("current", "started", "tag", "waiting")

    def __init__(self) -> None:
        self.tag = 0
        self.started: list[_Item] = []
        self.waiting: dict[int, tuple[Model, list[_Item]]] = {}  # by model number
        self.current: list[_Entry | None] = [None, None]  # of its waiting and its started head

    def head(self, want_started: bool) -> _Item | None:
        """The first started cursor, or the first waiting one whose frame may fit."""
        if want_started:
            return _living_head(self.started)
        best: _Item | None = None
        empty: list[int] = []
        for number, (model, heap) in self.waiting.items():
            item = _living_head(heap)
            if item is None:
                empty.append(number)
            elif not model.is_blocked and (best is None or item < best):
                best = item
        for number in empty:
            del self.waiting[number]
        return best

    def is_idle(self) -> bool:
        return self.head(True) is None and not self.waiting


def _living_head(heap: list[_Item]) -> _Item | None:
    while heap:
        if heap[0][2].is_queued:
            return heap[0]
        heappop(heap)
    return None


class ClassQueue:
    """One priority class: flows in order of their tags."""

    __slots__ = ("_dead", "_flows", "_heaps", "_is_fair", "_serial", "_uses_deadlines", "live", "v")

    def __init__(self, *, is_fair: bool, uses_deadlines: bool) -> None:
        self._is_fair = is_fair
        self._uses_deadlines = uses_deadlines
        self._flows: dict[str, Flow] = {}
        self._heaps: tuple[list[_Entry], list[_Entry]] = ([], [])  # waiting, started
        self._serial = 0
        self._dead = 0
        self.live = 0  # queued cursors
        self.v = 0  # the tag served last

    def add(self, cursor: Cursor) -> None:
        """Take in a cursor; one that is started already moved here from another lane."""
        flow = self._flow(cursor)
        if self._is_fair and flow.is_idle():
            flow.tag = max(flow.tag, self.v)
        self.live += 1
        self._push(flow, cursor)

    def start(self, cursor: Cursor) -> None:
        """It took a frame. Its waiting item is dead from now on; the head is dropped lazily."""
        flow = self._flow(cursor)
        model = cursor.model
        assert model is not None
        _, heap = flow.waiting[model.number]
        item = heappop(heap)
        assert item[2] is cursor, "only the head of a queue may start"
        if not heap:
            del flow.waiting[model.number]
        heappush(flow.started, item)
        self._refresh(flow, want_started=False)
        self._refresh(flow, want_started=True)

    def drop(self, cursor: Cursor) -> None:
        """It ended or has nothing left to launch; `is_queued` is False already."""
        assert not cursor.is_queued, "dropped before it said so"
        self.live -= 1
        self._dead += 1
        if self._dead > max(STALE_MIN, self.live):
            self._rebuild()

    def charge(self, cursor: Cursor, device_ns: int) -> None:
        """Book device time on the cursor's flow; negative when a prediction was too high."""
        if not self._is_fair or device_ns == 0:
            return
        flow = self._flow(cursor)
        flow.tag += device_ns * TAG_SCALE // cursor.tenant.weight
        self._refresh(flow, want_started=False)
        self._refresh(flow, want_started=True)

    def serve(self, cursor: Cursor) -> None:
        """A slice of it goes now: the tag of its flow is the class's time."""
        if self._is_fair:
            self.v = max(self.v, self._flow(cursor).tag)

    def peek(self, may_start: bool, ledger: Ledger) -> Cursor | None:
        """The next eligible cursor. Marks models whose frame does not fit as blocked."""
        started = self._top(want_started=True)
        if not may_start:
            return started[1] if started is not None else None
        while True:
            waiting = self._top(want_started=False)
            if waiting is None or (started is not None and started[0] < waiting[0]):
                return started[1] if started is not None else None
            model = waiting[1].model
            assert model is not None
            if ledger.fits(model):
                return waiting[1]
            model.is_blocked = True

    def unblock(self) -> None:
        """Frames of some model fit again: give every flow its entry back."""
        for flow in self._flows.values():
            self._refresh(flow, want_started=False)

    def _flow(self, cursor: Cursor) -> Flow:
        name = cursor.tenant.name if self._is_fair else ""
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow()
        return flow

    def _push(self, flow: Flow, cursor: Cursor) -> None:
        deadline_ns = cursor.deadline_ns if self._uses_deadlines else 0
        item = (deadline_ns, cursor.arrival, cursor)
        if cursor.is_started:
            heappush(flow.started, item)
            self._refresh(flow, want_started=True)
            return
        model = cursor.model
        assert model is not None, "only admitted cursors are queued"
        if model.number not in flow.waiting:
            flow.waiting[model.number] = (model, [])
        heap = flow.waiting[model.number][1]
        heappush(heap, item)
        if heap[0] is item:
            self._refresh(flow, want_started=False)

    def _top(self, *, want_started: bool) -> tuple[_Entry, Cursor] | None:
        heap = self._heaps[want_started]
        while heap:
            entry = heap[0]
            flow = entry[4]
            if entry is not flow.current[want_started]:
                heappop(heap)
                continue
            item = flow.head(want_started)
            if item is not None and item[1] == entry[2]:
                return entry, item[2]
            self._refresh(flow, want_started=want_started)
        return None

    def _refresh(self, flow: Flow, *, want_started: bool) -> None:
        """Give a flow the entry that its head and tag ask for now."""
        item = flow.head(want_started)
        if item is None:
            flow.current[want_started] = None
            return
        current = flow.current[want_started]
        if current is not None and current[2] == item[1] and current[0] == flow.tag:
            return
        self._serial += 1
        entry: _Entry = (flow.tag, item[0], item[1], self._serial, flow)
        flow.current[want_started] = entry
        heap = self._heaps[want_started]
        heappush(heap, entry)
        if len(heap) > STALE_MIN + 4 * len(self._flows):
            heap[:] = [each for each in heap if each is each[4].current[want_started]]
            heapify(heap)

    def _rebuild(self) -> None:
        self._dead = 0
        for flow in self._flows.values():
            _keep_living(flow.started)
            for _, heap in flow.waiting.values():
                _keep_living(heap)


def _keep_living(heap: list[_Item]) -> None:
    heap[:] = [item for item in heap if item[2].is_queued]
    heapify(heap)


class RunQueue:
    """Every cursor of one lane that has groups left to launch."""

    __slots__ = ("_classes", "_is_fifo", "backlog_ns")

    def __init__(self, order: Order) -> None:
        self._is_fifo = order is Order.FIFO
        if self._is_fifo:
            self._classes = [ClassQueue(is_fair=False, uses_deadlines=False)]
        else:
            self._classes = [
                ClassQueue(is_fair=each is not PriorityClass.REALTIME, uses_deadlines=True)
                for each in PriorityClass
            ]
        self.backlog_ns = [0] * len(PriorityClass)
        """Predicted time not launched yet, by class."""

    def add(self, cursor: Cursor) -> None:
        cursor.is_queued = True
        self.backlog_ns[cursor.priority_class] += cursor.remaining_ns
        self._class_of(cursor).add(cursor)

    def start(self, cursor: Cursor) -> None:
        """It was given a frame."""
        self._class_of(cursor).start(cursor)

    def launched(self, cursor: Cursor, predicted_ns: int, remaining_ns: int) -> None:
        """A slice of it was launched; `remaining_ns` is predicted for the rest."""
        queue = self._class_of(cursor)
        queue.serve(cursor)
        self.backlog_ns[cursor.priority_class] += remaining_ns - cursor.remaining_ns
        cursor.remaining_ns = remaining_ns
        if cursor.next_group == cursor.group_count:
            self.drop(cursor)
        queue.charge(cursor, predicted_ns)

    def drop(self, cursor: Cursor) -> None:
        """It ended, moved to another lane or has nothing left to launch. Idempotent."""
        if not cursor.is_queued:
            return
        cursor.is_queued = False
        self.backlog_ns[cursor.priority_class] -= cursor.remaining_ns
        self._class_of(cursor).drop(cursor)

    def correct(self, cursor: Cursor, device_ns: int) -> None:
        """A slice took this much more (or, negative, less) than was charged."""
        self._class_of(cursor).charge(cursor, device_ns)

    def select(self, ledger: Ledger) -> Cursor | None:
        """Who is next among the eligible. None: nobody, though some may wait for a frame."""
        for index in range(len(self._classes) - 1, -1, -1):
            queue = self._classes[index]
            if queue.live:
                frame_class = PriorityClass.REALTIME if self._is_fifo else index
                cursor = queue.peek(ledger.has_frame(frame_class), ledger)
                if cursor is not None:
                    return cursor
        return None

    def unblock(self) -> None:
        for queue in self._classes:
            queue.unblock()

    @property
    def live(self) -> int:
        """Queued cursors: admitted, alive, with groups left to launch."""
        return sum(queue.live for queue in self._classes)

    def _class_of(self, cursor: Cursor) -> ClassQueue:
        return self._classes[0 if self._is_fifo else cursor.priority_class]
