"""From a RequestArrived to its Admit or its refusal.

The arrival test is of a request that runs alone: whom a shared run serves sooner may be refused by
it, nobody is promised what only others' company would bring.

It makes the cursor, asks `admission` and `feasibility` at the next poll, and carries their answer
out: admitted cursors go to the run queue of their lane, refused ones get their Finish at once. It
must not know what becomes of them afterwards (`endings`) or who goes next (`launcher`).

Invariant: each arrival is decided in the poll after it, in the order of arrival.
"""

from collections.abc import Iterable, Mapping

from gpumuxd.commands import Admit, Command
from gpumuxd.core import admission, feasibility
from gpumuxd.core.batching import may_share
from gpumuxd.core.bucket_table import ONE, BucketTable
from gpumuxd.core.cursor import Cursor
from gpumuxd.core.eligibility import Blocked
from gpumuxd.core.endings import Endings
from gpumuxd.core.estimator import Estimator
from gpumuxd.core.lanes import Lanes, LaneState
from gpumuxd.core.launcher import Launcher
from gpumuxd.core.ledger import Ledger
from gpumuxd.core.model import Model
from gpumuxd.core.snapshot import Counters
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import CursorKind, Outcome, OutcomeKind, PriorityClass
from gpumuxd.events import RequestArrived
from gpumuxd.settings import Order, SchedulerSettings

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_REALTIME = PriorityClass.REALTIME
_PROFILE = CursorKind.PROFILE
_HELD_FOR_BATCH = Blocked.HELD_FOR_BATCH.value


class Arrivals:
    """The admitting half of a device scheduler, which owns all that is given here."""

    __slots__ = (
        "_counters",
        "_endings",
        "_estimator",
        "_is_fifo",
        "_lanes",
        "_launcher",
        "_ledger",
        "_models",
        "_settings",
        "_tenants",
        "count",
        "undecided",
    )

    def __init__(
        self,
        settings: SchedulerSettings,
        lanes: Lanes,
        ledger: Ledger,
        models: Mapping[str, Model],
        estimator: Estimator,
        launcher: Launcher,
        endings: Endings,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._is_fifo = settings.order is Order.FIFO
        self._lanes = lanes
        self._ledger = ledger
        self._models = models
        self._estimator = estimator
        self._launcher = launcher
        self._endings = endings
        self._counters = counters
        self._tenants: dict[str, Tenant] = {}
        self.count = 0
        self.undecided: list[Cursor] = []

    def arrived(self, event: RequestArrived) -> None:
        """Take note of one more."""
        cursors = self._endings.cursors
        assert event.request_id not in cursors, f"request {event.request_id} arrived twice"
        self.count += 1
        self._endings.cursor_no = cursor_no = self._endings.cursor_no + 1
        cursor = Cursor(
            cursor_id=cursor_no,
            kind=event.kind,
            model_key=event.model,
            bucket=event.bucket,
            members=(event.request_id,),
            tenant=self.tenant(event.tenant),
            priority_class=event.priority_class,
            arrival=self.count,
            arrived_ns=event.arrived_ns,
            deadline_ns=event.deadline_ns,
            rows=event.rows,
            batch_key=event.batch_key,
        )
        cursors[event.request_id] = cursor
        self.undecided.append(cursor)

    def tenant(self, name: str) -> Tenant:
        """A tenant by its name; it may be new."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        return tenant

    def tenants(self) -> Iterable[Tenant]:
        """All that were ever named."""
        return self._tenants.values()

    def decide(self, lost: Outcome | None, now_ns: int, commands: list[Command]) -> None:
        """Admit or refuse all that are undecided. `lost`: their fate where the device is gone."""
        for cursor in self.undecided:
            outcome = cursor.ending or lost or self._place(cursor, now_ns, commands)
            if outcome is not None:
                cursor.ending = outcome
                self._counters.refused += outcome.kind is not OutcomeKind.CANCELLED
                self._endings.tell(cursor, now_ns, commands)
        self.undecided.clear()

    def _place(self, cursor: Cursor, now_ns: int, commands: list[Command]) -> Outcome | None:
        """Admit it if there is a place for it and it can be in time; else say why not."""
        model = self._models.get(cursor.model_key)
        outcome = admission.why_no_place(
            cursor, model, self._endings.live, self._settings.queue_requests_max, self._ledger
        )
        if outcome is not None:
            return outcome
        assert model is not None
        is_realtime = cursor.priority_class is _REALTIME
        if is_realtime and not cursor.tenant.is_within_rate(now_ns):
            cursor.order_as(PriorityClass.STANDARD)
        table = model.estimates.table(cursor.bucket, cursor.kind is not _PROFILE)
        cursor.predicted_ns = 0 if table.is_guess else table.run_ns
        lane = self._lanes.of(cursor)
        lane.run_queue.expect(cursor, cursor.predicted_ns)
        ahead = self._ahead(lane, now_ns)
        finish_ns = feasibility.predicted_finish_ns(cursor, ahead, now_ns)
        outcome = admission.why_too_late(cursor, ahead, now_ns, finish_ns)
        if outcome is not None:
            if not self._is_probe(cursor, table, lane, ahead, now_ns):
                return outcome
            finish_ns = feasibility.predicted_finish_ns(cursor, ahead, now_ns)
        if is_realtime and cursor.priority_class is _REALTIME:
            cursor.tenant.take()
            self._launcher.quiet.arrived(cursor.arrived_ns)
        if self._settings.weigh_preemption_by_arrivals:
            self._launcher.rates.arrived(cursor.rank, cursor.arrived_ns)
        if cursor.priority_class > model.class_max:
            model.class_max = cursor.priority_class
            self._launcher.bounds_are_stale = True
        cursor.admit(model, table)
        self._endings.admitted(cursor)
        if model.batching is not None and may_share(cursor):
            cursor.runs_alone = False
            self._launcher.batcher.add(cursor, lane.run_queue, now_ns)
            self._counters.blocked[_HELD_FOR_BATCH] += cursor.is_held
        else:
            lane.run_queue.add(cursor)
        commands.append(Admit(cursor.members[0], finish_ns if cursor.predicted_ns else 0))
        return None

    def _is_probe(
        self,
        cursor: Cursor,
        table: BucketTable,
        lane: LaneState,
        ahead: feasibility.Ahead,
        now_ns: int,
    ) -> bool:
        """It would be refused. Is it admitted all the same, since nobody like it could ever run?"""
        if not feasibility.is_refused_always(cursor, ahead, now_ns):
            return False
        lane.run_queue.expect(cursor, table.typical_run_ns)
        finish_ns = feasibility.predicted_finish_ns(cursor, ahead, now_ns)
        is_late = bool(feasibility.why_infeasible(cursor, ahead, now_ns, finish_ns))
        is_quiet = not lane.run_queue.live and not lane.launch_queue.flights
        may_be_in_time = not is_late or now_ns + table.least_rest[0] <= cursor.deadline_ns
        if (is_late and not is_quiet) or not table.is_probe(may_be_in_time):
            return False
        cursor.is_probe, cursor.goes_on = True, is_late
        cursor.predicted_ns = table.typical_run_ns
        return True

    def _ahead(self, lane: LaneState, now_ns: int) -> feasibility.Ahead:
        lane.run_queue.settle()
        is_beside = self._lanes.only is None and any(
            each.launch_queue.flights for each in self._lanes.in_order if each is not lane
        )
        return feasibility.Ahead(
            residual_ns=lane.launch_queue.residual_ns(now_ns),
            backlog_ns=lane.run_queue.backlog_ns,
            realtime=lane.run_queue.realtime,
            interference=self._estimator.interference if is_beside else ONE,
            is_fifo=self._is_fifo,
            share=self._launcher.share,
        )
