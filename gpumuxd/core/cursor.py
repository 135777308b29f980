"""A cursor: a position in the kernel groups of a program, and who rides on it.

It knows where it stands and what it holds, never what should happen next. Progress is the
position: a cursor has no state field. It waits while it holds no frame, it is started once it
holds one, it is preempted while others move and it does not, it is done when every group passed.

Invariant: `0 <= passed_group <= next_group <= group_count`, and `in_flight` slices cover exactly
the groups between the first two.
"""

from gpumuxd.core.bucket_table import BucketTable
from gpumuxd.core.model import FrameSize, Model
from gpumuxd.core.tenant import Tenant
from gpumuxd.domain import Bucket, CursorKind, Outcome, PriorityClass, RunReport

NEVER_NS = 1 << 62
"""A deadline later than any, so that keys compare without a special case."""

NO_FRAME = -1

# Bound to names, because naming a member through its enum class takes 0.4 us on Python 3.11.
_PROFILE = CursorKind.PROFILE
_UPLOAD = CursorKind.UPLOAD


class Cursor:
    """One request, and the run of one program that it makes alone; or, with a `batch`, a run that
    several of them share (`batching`), each of which is a cursor that names it as its `run`.

    `model`, `table` and `frame_size` exist once it is admitted; asking for them before is a bug,
    and raises.
    """

    model: Model
    frame_size: FrameSize
    table: BucketTable

    __slots__ = (
        "after",
        "arrival",
        "arrived_ns",
        "batch",
        "batch_key",
        "bucket",
        "column",
        "compute_ns",
        "cursor_id",
        "deadline_ns",
        "ending",
        "first_started_ns",
        "frame",
        "frame_size",
        "goes_on",
        "group_count",
        "in_flight",
        "interfered",
        "is_admitted",
        "is_held",
        "is_own",
        "is_preempted",
        "is_probe",
        "is_queued",
        "is_spared",
        "kind",
        "last_end_ns",
        "members",
        "model",
        "model_key",
        "next_group",
        "passed_group",
        "predicted_ns",
        "preemption_wait_ns",
        "preemptions",
        "priority_class",
        "rank",
        "remaining_ns",
        "rows",
        "run",
        "runs_alone",
        "table",
        "tenant",
    )

    def __init__(
        self,
        cursor_id: int,
        kind: CursorKind,
        model_key: str,
        bucket: Bucket,
        members: tuple[int, ...],
        tenant: Tenant,
        priority_class: PriorityClass,
        arrival: int,
        arrived_ns: int,
        deadline_ns: int | None,
        rows: int = 1,
        batch_key: Bucket | None = None,
    ) -> None:
        self.cursor_id = cursor_id
        self.kind = kind
        self.model_key = model_key
        self.bucket = bucket
        self.members = members
        self.tenant = tenant
        self.order_as(priority_class)
        self.arrival = arrival
        self.arrived_ns = arrived_ns
        self.deadline_ns = NEVER_NS if deadline_ns is None else deadline_ns

        self.rows = rows
        self.batch_key = batch_key
        self.runs_alone = True  # it never shares a run, or not any more
        self.batch: Batch | None = None  # of a run that is shared
        self.run: Cursor | None = None  # that it shares with others
        self.is_held = False  # for others to share a run with it

        self.is_admitted = False
        self.is_own = kind is _PROFILE or kind is _UPLOAD  # work of the device, of no tenant
        self.is_probe = False  # admitted to learn how long it takes, and weighs its typical time
        self.is_spared = False  # it would have been stopped under way
        self.goes_on = False  # not given up before its deadline, to learn from it
        self.group_count = 0
        self.predicted_ns = 0  # of the whole run, at arrival; 0 while unknown or guessed
        self.remaining_ns = 0  # predicted, of the groups not launched yet and grants between

        self.frame = NO_FRAME
        self.column = 0  # where its samples go in the table
        self.next_group = 0
        self.passed_group = 0
        self.in_flight = 0  # slices
        self.after: tuple[int, ...] = ()  # what its next slice must wait for on another lane
        self.is_queued = False  # counted by its run queue: admitted, alive, groups left
        self.ending: Outcome | None = None  # its fate, as soon as it is known

        self.compute_ns = 0
        self.first_started_ns = -1
        self.last_end_ns = 0
        self.interfered = False  # some slice of it ran beside another lane
        self.is_preempted = False
        self.preemptions = 0
        self.preemption_wait_ns = 0

    def order_as(self, priority_class: PriorityClass) -> None:
        """The class it is ordered in: the one asked for, or a lower one for excess requests."""
        self.priority_class = priority_class
        self.rank = int(priority_class)  # lists are indexed with it: five times as fast

    def admit(self, model: Model, table: BucketTable) -> None:
        """It is accepted and will run this program."""
        self.model, self.table = model, table
        self.frame_size = model.frame_size(self.bucket)
        self.group_count = model.group_count
        self.is_admitted = True

    @property
    def is_started(self) -> bool:
        return self.frame != NO_FRAME

    def moved_to(self, end_group: int) -> None:
        """A slice up to this group was launched."""
        self.next_group = end_group
        self.in_flight += 1
        self.is_preempted = False
        self.after = ()

    def predicted_rest_ns(self) -> int:
        """The time predicted for the groups not launched yet: their share of a whole run, never a
        sum of percentiles of groups; 0 while unknown or guessed."""
        table = self.table
        if table.is_guess:
            return 0
        prefix = table.prefix
        total_ns = prefix[-1]
        run_ns = table.typical_run_ns if self.is_probe else table.run_ns
        return run_ns * (total_ns - prefix[self.next_group]) // total_ns

    def slice_passed(
        self, end_group: int, started_ns: int, device_ns: int, is_resumption: bool
    ) -> None:
        """One slice of it has passed, the first one in flight."""
        if self.first_started_ns < 0:
            self.first_started_ns = started_ns
        if is_resumption:
            self.preemption_wait_ns += max(0, started_ns - self.last_end_ns)
        self.last_end_ns = started_ns + device_ns
        self.compute_ns += device_ns
        self.passed_group = end_group
        self.in_flight -= 1

    def preempt(self) -> bool:
        """Another one goes ahead although this one is started and has groups left. True if that
        is news: it counts once until it moves again."""
        if self.is_preempted or not self.is_queued or self.frame == NO_FRAME:
            return False
        self.is_preempted = True
        self.preemptions += 1
        return True

    def report(self, now_ns: int) -> RunReport:
        """What happened to it, told when it ends.

        A cursor that ends while preempted stood still until now.
        """
        return self.report_of(self, now_ns, leads=self.is_started)

    def report_of(self, rider: "Cursor", now_ns: int, leads: bool) -> RunReport:
        """What happened to one of those who ride on this run. `leads`: executions are counted by
        it."""
        waited_ns = self.preemption_wait_ns
        if self.is_preempted:
            waited_ns += max(0, now_ns - self.last_end_ns)
        first_ns = self.first_started_ns if self.first_started_ns >= 0 else now_ns
        return RunReport(
            queue_ns=max(0, first_ns - rider.arrived_ns),
            compute_ns=self.compute_ns,
            preemptions=self.preemptions,
            preemption_wait_ns=waited_ns,
            predicted_ns=rider.predicted_ns,
            batch_rows=self.rows if self.is_started else 0,
            leads_batch=leads,
        )


class Batch:
    """What a run carries that several requests share.

    A rider is told its fate with the run's, or earlier if it left: then it is not in `riders` any
    more. Its rows go on.
    """

    __slots__ = ("riders", "rows_of")

    def __init__(self, riders: list[Cursor]) -> None:
        self.riders = riders  # not told yet, in the order of their rows
        rows_of: dict[str, tuple[Tenant, int]] = {}
        for rider in riders:
            tenant = rider.tenant
            rows_of[tenant.name] = (tenant, rows_of.get(tenant.name, (tenant, 0))[1] + rider.rows)
        self.rows_of = tuple(rows_of.values())  # by tenant: who pays which part, the leader first

    @property
    def is_deserted(self) -> bool:
        """Has everybody left?"""
        return all(rider.ending is not None for rider in self.riders)

    def parts_of(self, time_ns: int) -> list[tuple[Tenant, int]]:
        """A time, divided by rows; the leader's tenant has what is left over."""
        rows = sum([rows for _, rows in self.rows_of])
        parts = [(tenant, time_ns * own // rows) for tenant, own in self.rows_of]
        leader, own_ns = parts[0]
        parts[0] = (leader, own_ns + time_ns - sum([part_ns for _, part_ns in parts]))
        return parts
