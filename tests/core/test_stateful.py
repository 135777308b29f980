"""The device scheduler under any order of events that hypothesis thinks of, with all checkers.

Where the simulator draws worlds, this searches: short programs of events at any time, and when one
fails, the shortest that does. The device below is in order and takes its true times, which are
not what the scheduler was told. The search is the same in every run: what it prints replays it.
"""

from heapq import heappop, heappush

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gpumuxd.commands import Launch, Release
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import CursorKind, PriorityClass, Slice, SyncCost
from gpumuxd.events import (
    DeviceLost,
    DeviceMeasured,
    Event,
    ModelDraining,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    RequestCancelled,
    SliceFailed,
    SyncPointReached,
    TenantChanged,
)
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.testing.checkers import Checkers
from tests.core.conversation import COMPUTE, MS, US

TRUE_NS = {
    "exact": (300 * US, 200 * US, 900 * US, 100 * US),
    "slower than told": (400 * US, 400 * US, 400 * US),
    "never measured": (250 * US, 250 * US),
    "one long group": (5 * MS,),
}
TOLD_NS = {
    "exact": TRUE_NS["exact"],
    "slower than told": (200 * US, 200 * US, 200 * US),
    "one long group": TRUE_NS["one long group"],
}
CLASS_MAX = {"one long group": PriorityClass.STANDARD}
SLO_NS = {"exact": 4 * MS, "slower than told": MS, "one long group": 1}
REST_STEPS_MAX = 2_000

chosen_settings = st.builds(
    SchedulerSettings,
    slicing=st.sampled_from(Slicing),
    slicing_operators=st.just(2),
    order=st.sampled_from(Order),
    preemption_delay_ns_max=st.sampled_from([None, 500 * US, 2 * MS]),
    window_max=st.integers(1, 4),
    frames_max=st.integers(2, 8),
    frames_reserved=st.integers(0, 1),
    best_effort_share_min_ppm=st.sampled_from([0, 50_000, 400_000]),
    weigh_preemption_by_arrivals=st.booleans(),
    queue_requests_max=st.sampled_from([3, 1_000]),
)


class DeviceMachine(RuleBasedStateMachine):
    """One scheduler, its checkers and a device of one lane."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.free_ns = 0
        self.request_id = 0
        self.generation = 0
        self.loaded: dict[str, str] = {}  # key of each name, until it is told to drain
        self.name_of: dict[str, str] = {}
        self.ends: list[tuple[int, int, SyncPointReached]] = []
        self.failed: set[int] = set()  # cursors: what follows a failed slice fails as well
        self.in_flight: dict[int, Slice] = {}
        self.is_lost = False

    @initialize(chosen=chosen_settings, measured=st.booleans(), has_slo=st.booleans())
    def begin(self, chosen: SchedulerSettings, measured: bool, has_slo: bool) -> None:
        self.has_slo = has_slo
        self.scheduler = DeviceScheduler(chosen)
        self.checkers = Checkers(
            chosen, self.scheduler.statistics, self.scheduler.explain, "stateful"
        )
        self.say(PartitionChanged(0, (COMPUTE,)), *map(self.ready, TRUE_NS))
        if measured:
            self.say(DeviceMeasured(tuple(SyncCost(d, 40_000 // d, 9_000) for d in range(1, 5))))

    def ready(self, name: str) -> ModelReady:
        self.generation += 1
        key = self.loaded[name] = f"{name}#{self.generation}"
        self.name_of[key] = name
        told = TOLD_NS.get(name)
        group_ns = {(1,): told} if told else {}
        profile = ModelProfile(
            len(TRUE_NS[name]), group_ns, {b: sum(t) for b, t in group_ns.items()}
        )
        slo_ns = SLO_NS.get(name) if self.has_slo else None
        return ModelReady(key, profile, CLASS_MAX.get(name, PriorityClass.REALTIME), slo_ns, 10, 10)

    def say(self, *events: Event) -> None:
        """Handle these, poll once, and carry out what comes."""
        for event in events:
            self.checkers.see_event(event, self.now_ns)
            self.scheduler.handle(event, self.now_ns)
        commands = self.scheduler.poll(self.now_ns)
        self.checkers.see_commands(commands, self.now_ns)
        for command in commands:
            if isinstance(command, Launch):
                self.launch(command.slice)
            elif isinstance(command, Release):
                del self.name_of[command.model]

    def launch(self, work: Slice) -> None:
        times = TRUE_NS[self.name_of[work.model]]
        started_ns = max(self.now_ns, self.free_ns)
        device_ns = work.bucket[0] * sum(times[work.first_group : work.end_group])
        self.free_ns = started_ns + device_ns
        self.in_flight[work.slice_id] = work
        passed = SyncPointReached(work.slice_id, started_ns, device_ns)
        heappush(self.ends, (self.free_ns, work.slice_id, passed))

    @rule(
        name=st.sampled_from(sorted(TRUE_NS)),
        priority_class=st.sampled_from(PriorityClass),
        tenant=st.sampled_from(["a", "b"]),
        deadline_ns=st.sampled_from([None, None, MS, 3 * MS, 20 * MS]),
        count=st.integers(1, 3),
        rows=st.sampled_from([1, 1, 2]),  # two were never profiled
    )
    def arrive(
        self,
        name: str,
        priority_class: PriorityClass,
        tenant: str,
        deadline_ns: int | None,
        count: int,
        rows: int,
    ) -> None:
        highest = CLASS_MAX.get(name, PriorityClass.REALTIME)
        events = []
        for _ in range(count):
            self.request_id += 1
            due_ns = None if deadline_ns is None else self.now_ns + deadline_ns
            key, asked = self.loaded.get(name, "gone"), min(priority_class, highest)
            events.append(
                RequestArrived(self.request_id, tenant, key, asked, (rows,), self.now_ns, due_ns)
            )
        self.say(*events)

    @rule(name=st.sampled_from(sorted(TRUE_NS)))
    def measure(self, name: str) -> None:
        if name in self.loaded:
            self.request_id += 1
            lowest, kind = PriorityClass.BEST_EFFORT, CursorKind.PROFILE
            key = self.loaded[name]
            self.say(RequestArrived(self.request_id, "", key, lowest, (1,), self.now_ns, kind=kind))

    @rule(back=st.integers(0, 6))
    def cancel(self, back: int) -> None:
        self.say(RequestCancelled(max(0, self.request_id - back)))

    @rule(elapsed_ns=st.sampled_from([1, 100 * US, MS]))
    def time_passes(self, elapsed_ns: int) -> None:
        """Up to the next sync point; whoever waits for a time is woken then."""
        until_ns = self.now_ns + elapsed_ns
        self.now_ns = min([until_ns, *(end for end, _, _ in self.ends[:1])])
        self.say()

    @precondition(lambda self: self.ends)
    @rule()
    def next_sync_point(self) -> None:
        end_ns, slice_id, passed = heappop(self.ends)
        wakeup_ns = self.scheduler.next_wakeup_ns()
        if wakeup_ns is not None and self.now_ns < wakeup_ns < end_ns:
            self.now_ns = wakeup_ns
            self.say()
        self.now_ns = max(self.now_ns, end_ns)
        work = self.in_flight.pop(slice_id)
        self.say(SliceFailed(slice_id, "before") if work.cursor_id in self.failed else passed)

    @precondition(lambda self: self.ends)
    @rule()
    def next_slice_fails(self) -> None:
        self.failed.add(self.in_flight[self.ends[0][1]].cursor_id)
        self.next_sync_point()

    @rule(name=st.sampled_from(sorted(TRUE_NS)), comes_back=st.booleans())
    def drain(self, name: str, comes_back: bool) -> None:
        if name in self.loaded:
            self.say(ModelDraining(self.loaded.pop(name)))
            if comes_back and not self.is_lost:
                self.say(self.ready(name))

    @rule(sync_ns=st.sampled_from([0, 1, 40 * US, MS]), windows=st.integers(1, 4))
    def measure_device(self, sync_ns: int, windows: int) -> None:
        costs = tuple(SyncCost(d, sync_ns // d, 9 * US) for d in range(1, windows + 1))
        self.say(DeviceMeasured(costs))

    @rule(tenant=st.sampled_from(["a", "b"]), weight=st.integers(1, 3), rate=st.booleans())
    def change_tenant(self, tenant: str, weight: int, rate: bool) -> None:
        self.say(TenantChanged(tenant, weight, 100 if rate else None, 2))

    @precondition(lambda self: not self.is_lost and self.request_id > 12)
    @rule()
    def lose_device(self) -> None:
        self.is_lost = True
        self.ends.clear()
        self.in_flight.clear()
        self.say(DeviceLost("gone"))

    def teardown(self) -> None:
        """No more events: all that was admitted comes to its end."""
        if not hasattr(self, "checkers"):
            return
        for _ in range(REST_STEPS_MAX):
            wakeup_ns = self.scheduler.next_wakeup_ns()
            if self.ends:
                self.next_sync_point()
            elif wakeup_ns is not None:
                self.now_ns = max(self.now_ns, wakeup_ns)
                self.say()
            else:
                break
        self.checkers.see_end()


DeviceMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[*HealthCheck],
)
TestDevice = DeviceMachine.TestCase
