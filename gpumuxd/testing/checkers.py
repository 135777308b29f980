"""The eleven invariants of ARCHITECTURE.md, asked of a device scheduler after every step.

    1 groups launched once, in order          7 bytes, frames and queue within limits, returned
    2 windows and budgets                     8 drained models: nothing starts, one release
    3 blocking by work that should yield      9 a lost device gets nothing
    4 work conservation                      10 once faults stop, what was admitted finishes
    5 order of the eligible                  11 fairness between equal tenants
    6 one Finish for each arrival

Two exceptions that the rules make: requests that can't be in time any more are given up before
their deadline (`early_stops.py`, 6), and best-effort slices go ahead where a share is stated
(`grant_checks.py`, 5 and 11).

`Checkers` reads events and commands before they are carried out, and `statistics()`; the private
state of the scheduler is none of its business, so a scheduler can't be right by its own word. One
exception: slices of least delay are as long as `explain()` says, for there a bound does not exist.
3, 5 and 11 are in `order_checks.py`, 10 is asked by the simulator's loop.

A checker that can't fail is worthless: `tests/sim/test_checkers.py` breaks a scheduler once for
each of them.
"""

import enum
from collections.abc import Callable, Collection, Sequence

from gpumuxd.commands import Admit, Command, Finish, Launch, Release, Retire
from gpumuxd.events import Event, SliceFailed, SyncPointReached, TenantChanged
from gpumuxd.settings import SchedulerSettings
from gpumuxd.testing.early_stops import EarlyStops
from gpumuxd.testing.fates import why_wrong_fate, why_wrong_report
from gpumuxd.testing.grant_checks import Grants
from gpumuxd.testing.launch_checks import Explain, LaunchCheck, StatisticsSeen
from gpumuxd.testing.order_checks import Blocking, Fairness, OrderCheck
from gpumuxd.testing.sharing_checks import SharingCheck, is_blameless, why_wrong_rows
from gpumuxd.testing.world import World

_STEPS_PER_EXPLANATION = 8
"""An explanation plays a whole run. With a Release in the same step it is of the world after it."""


class Invariant(enum.IntEnum):
    """The numbers of the invariants."""

    GROUPS_IN_ORDER = 1
    WINDOWS_AND_BUDGETS = 2
    BLOCKING = 3
    WORK_CONSERVATION = 4
    ORDER = 5
    ONE_FINISH = 6
    RESOURCES = 7
    DRAINING = 8
    LOST_DEVICE = 9
    LIVENESS = 10
    FAIRNESS = 11


class Violation(Exception):
    """An invariant does not hold. The message is enough to run it again."""

    def __init__(self, invariant: Invariant, message: str, where: str) -> None:
        super().__init__(f"invariant {invariant.value} {invariant.name}: {message} ({where})")
        self.invariant = invariant


class Checkers:
    """Watches one device scheduler. `only` limits which invariants can fail, for their tests."""

    def __init__(
        self,
        settings: SchedulerSettings,
        statistics: Callable[[], StatisticsSeen],
        explain: Explain,
        where: str,
        only: Collection[Invariant] = tuple(Invariant),
    ) -> None:
        self.world = World(settings)
        self.step = 0
        self._settings = settings
        self._statistics = statistics
        self._where = where
        self._only = frozenset(only)
        self._is_explained = False  # the commands of this step
        self._launch = LaunchCheck(self.world, statistics, explain)
        self._sharing = SharingCheck(self.world, statistics, explain)
        self._stops = EarlyStops(self.world, statistics)
        self._grants = Grants(self.world, statistics)
        self._order = OrderCheck(self.world, self._stops, self._grants)
        self._blocking = Blocking(self.world)
        self._fairness = Fairness(self.world)

    def violate(self, invariant: Invariant, message: str) -> None:
        """Raise, unless this invariant is not asked for."""
        if invariant in self._only:
            raise Violation(invariant, message, f"{self._where}, step {self.step}")

    # What happens

    def see_event(self, event: Event, now_ns: int) -> None:
        """Before `handle(event, now_ns)`."""
        if isinstance(event, SyncPointReached):
            seen = self.world.slices[event.slice_id]
            self._fairness.see_passed(seen, event.device_ns)
            self._grants.see_passed(seen, event.device_ns)
            self.world.see(event, now_ns)
            problem = self._blocking.see_passed(seen, event)
            if problem is not None:
                self.violate(Invariant.BLOCKING, problem)
            return
        if isinstance(event, SliceFailed | TenantChanged):
            self._fairness.begin_anew()
        self.world.see(event, now_ns)

    def see_commands(self, commands: Sequence[Command], now_ns: int) -> None:
        """After `poll(now_ns)` and before its commands are carried out."""
        self.step += 1
        # Refusals count from the start of the poll: nobody may be ordered behind them.
        refused = {c.request_id for c in commands if isinstance(c, Finish)}
        self._is_explained = self.step % _STEPS_PER_EXPLANATION == 0 and not any(
            isinstance(c, Release) for c in commands
        )
        for command in commands:
            match command:
                case Launch():
                    self._see_launch(command, now_ns, refused)
                case Admit():
                    self._see_admit(command, now_ns)
                case Finish():
                    self._see_finish(command, now_ns)
                case Retire():
                    self._see_retire(command)
                case Release():
                    self._see_release(command)
                case _:
                    raise AssertionError(f"unknown command {command!r}")
        self._see_poll_done(now_ns)

    # Commands

    def _see_admit(self, command: Admit, now_ns: int) -> None:
        request = self.world.undecided.get(command.request_id)
        if request is None:
            self.violate(
                Invariant.ONE_FINISH, f"admits {command.request_id}, which waits for no decision"
            )
            return
        model = self.world.models.get(request.arrived.model)
        if self.world.is_lost:
            self.violate(Invariant.LOST_DEVICE, "admits on a lost device")
        if model is None or request.met_drain:
            self.violate(
                Invariant.DRAINING,
                f"admits request {command.request_id} of {request.arrived.model}, "
                f"which {'drained when it arrived' if model else 'is not ready'}",
            )
            if model is None:
                return
        unfinished = len(self.world.requests) - len(self.world.undecided)
        if unfinished >= self._settings.queue_requests_max:
            self.violate(
                Invariant.RESOURCES,
                f"admits request {command.request_id} beside {unfinished} others, "
                f"queue_requests_max is {self._settings.queue_requests_max}",
            )
        self.world.admit(command, now_ns)

    def _see_launch(self, command: Launch, now_ns: int, refused: set[int]) -> None:
        work = command.slice
        world, ask = self.world, self._launch
        if world.is_lost:
            self.violate(Invariant.LOST_DEVICE, f"launches {work}")
        if work.model not in world.models:
            self.violate(Invariant.DRAINING, f"launches {work} of a model that is not loaded")
            return
        bounds_ns = ask.bounds_ns(work)
        why_wrong_mode = ask.why_wrong_mode(work) if self._is_explained else None
        for invariant, problem in (
            (Invariant.GROUPS_IN_ORDER, ask.why_wrong_groups(work)),
            (Invariant.ONE_FINISH, ask.why_wrong_members(work, now_ns)),
            (Invariant.ONE_FINISH, self._sharing.why_wrong_company(work)),
            (Invariant.ONE_FINISH, self._sharing.why_wrong_ride(work, now_ns)),
            (Invariant.WINDOWS_AND_BUDGETS, self._sharing.why_too_large(work, now_ns)),
            (Invariant.WINDOWS_AND_BUDGETS, ask.why_wrong_window(work)),
            (Invariant.WINDOWS_AND_BUDGETS, ask.why_wrong_budget(work, bounds_ns)),
            (Invariant.WINDOWS_AND_BUDGETS, why_wrong_mode),
            (Invariant.RESOURCES, ask.why_wrong_start(work)),
            (Invariant.RESOURCES, ask.why_wrong_frame(work)),
            (Invariant.ORDER, self._order.why_wrong(work, now_ns, refused)),
        ):
            if problem is not None:
                self.violate(invariant, f"launches {work}: {problem}")
        is_known = work.cursor_id in world.cursors
        is_known = is_known or all(member in world.requests for member in work.members)
        if is_known and work.lane in world.lanes:
            world.launch(command, bounds_ns, now_ns)
            self._fairness.see_launched(world.slices[work.slice_id])
            self._grants.see_launched(world.slices[work.slice_id], self._order.is_grant)

    def _see_finish(self, command: Finish, now_ns: int) -> None:
        request = self.world.requests.get(command.request_id)
        if request is None:
            earlier = self.world.finished.get(command.request_id, "never arrived")
            self.violate(
                Invariant.ONE_FINISH, f"finishes request {command.request_id} again: {earlier}"
            )
            return
        problem = why_wrong_fate(self.world, request, command.outcome, now_ns)
        problem = problem or self._stops.why_wrong(request, command.outcome, now_ns)
        problem = problem or why_wrong_report(self.world, request, command)
        problem = problem or self._sharing.why_told_too_early(request)
        problem = problem or why_wrong_rows(request, command.report.batch_rows)
        if is_blameless(request, command.outcome.kind):
            problem = problem or "it is blamed for what it shared with others"
        if problem is not None:
            self.violate(Invariant.ONE_FINISH, f"{command}: {problem}")
        self.world.finish(command)

    def _see_retire(self, command: Retire) -> None:
        cursor = self.world.cursors.get(command.cursor_id)
        if cursor is None:
            self.violate(Invariant.RESOURCES, f"{command} of a cursor that holds no frame")
            return
        held = (cursor.sample.model, cursor.frame)
        if (command.model, command.frame) != held:
            self.violate(Invariant.RESOURCES, f"{command}, held {held}")
        if cursor.in_flight and not self.world.is_lost:
            self.violate(Invariant.RESOURCES, f"{command} with {cursor.in_flight} slices in flight")
        problem = self._sharing.why_wrong_count(cursor)
        if problem is not None:
            self.violate(Invariant.ONE_FINISH, f"{command}: {problem}")
        self.world.retire(command)

    def _see_release(self, command: Release) -> None:
        model = self.world.models.get(command.model)
        if model is None or not model.is_draining:
            self.violate(Invariant.DRAINING, f"{command} of a model that is not draining")
            return
        if model.live or model.cursors:
            self.violate(
                Invariant.DRAINING,
                f"{command} with {model.live} requests and {model.cursors} cursors left",
            )
        self.world.release(command)

    # After a poll

    def _see_poll_done(self, now_ns: int) -> None:
        world = self.world
        if world.undecided:
            self.violate(
                Invariant.ONE_FINISH, f"leaves {list(world.undecided)} neither admitted nor refused"
            )
        if world.is_lost and world.requests:
            self.violate(
                Invariant.ONE_FINISH, f"{list(world.requests)} have no fate on a lost device"
            )
        self._check_ends(now_ns)
        if not world.is_lost:
            self._check_drained()
            problem = self._order.why_idle(now_ns)
            if problem is not None:
                self.violate(Invariant.WORK_CONSERVATION, problem)
        self._stops.see_poll_done(now_ns)
        self._blocking.see_poll_done(now_ns)
        problem = self._fairness.see_poll_done(now_ns) or self._grants.see_poll_done(now_ns)
        if problem is not None:
            self.violate(Invariant.FAIRNESS, problem)
        if self.step % 16 == 0:
            self._check_statistics()
            problem = self._launch.why_wrong_bound()
            if problem is not None:
                self.violate(Invariant.WINDOWS_AND_BUDGETS, problem)

    def _check_ends(self, now_ns: int) -> None:
        """What came to its end in this step has its Finish and Retire in this poll."""
        world = self.world
        for request in world.take_touched(now_ns):
            cursor = request.cursor
            is_shared = cursor is not None and cursor.is_shared
            if world.is_lost or (
                cursor is not None
                and cursor.in_flight
                and not (is_shared and not cursor.failed and world.is_read(cursor))
            ):
                continue
            over = request.cancelled or now_ns >= request.key[0]
            over = over or (cursor is not None and (cursor.is_complete or cursor.failed))
            request_id = request.arrived.request_id
            if over and request_id in world.requests:
                self.violate(Invariant.ONE_FINISH, f"request {request_id} is over, has no fate yet")
            if is_shared and cursor is not None and not (cursor.is_complete or cursor.failed):
                over = not cursor.in_flight and not any(map(world.is_in_run, cursor.riders))
            if over and cursor is not None and cursor.sample.cursor_id in world.cursors:
                self.violate(
                    Invariant.RESOURCES, f"cursor {cursor.sample.cursor_id} is over, not retired"
                )

    def _check_drained(self) -> None:
        for key, model in self.world.models.items():
            if model.is_draining and not model.live and not model.cursors:
                self.violate(Invariant.DRAINING, f"{key} is drained and not released")

    def _check_statistics(self) -> None:
        world = self.world
        told = self._statistics()
        seen = {
            "in_flight_slices": len(world.slices),
            "slices_launched": world.slices_launched,
            "groups_launched": world.groups_launched,
        }
        if not world.is_lost:
            seen |= {"frames_held": len(world.cursors), "memory_bytes": world.memory_bytes}
            seen |= {"started": len(world.cursors)}
            seen |= {"queued": sum(r.cursor is None for r in world.requests.values())}
        problem = self._grants.why_miscounted()
        if problem is not None:
            self.violate(Invariant.RESOURCES, problem)
        for name, value in seen.items():
            if name == "in_flight_slices" and world.is_lost:
                continue
            if getattr(told, name) != value:
                self.violate(
                    Invariant.RESOURCES,
                    f"statistics say {name} {getattr(told, name)}, seen were {value}",
                )

    def see_end(self) -> None:
        """When nothing can happen any more: everything has its fate and all is returned."""
        world = self.world
        if world.requests:
            self.violate(
                Invariant.LIVENESS,
                f"{len(world.requests)} requests never finished: {list(world.requests)[:8]}",
            )
        if world.is_lost:
            return
        if world.cursors:
            self.violate(Invariant.RESOURCES, f"cursors {list(world.cursors)} hold frames")
        self._check_statistics()
