"""Best-effort slices that go ahead of higher classes: no more than the share, and no less.

The onlooker calls it a grant when a best-effort slice is launched although he knows of eligible
work of a higher class. He keeps two books of device time, in nanoseconds times a million. The
lenient one leaves out what best-effort work got in its turn: no grant may be launched while even
that is not above 0. The strict one counts it, and only while such work could run after every poll:
it may not be behind by more than what is in flight and a slice. Grants are for the work of tenants
alone, not for the device's own.
"""

from collections.abc import Callable

from gpumuxd.domain import CursorKind, PriorityClass
from gpumuxd.settings import Order
from gpumuxd.testing.launch_checks import StatisticsSeen
from gpumuxd.testing.seen import SeenRequest, SeenSlice
from gpumuxd.testing.world import World
from gpumuxd.units import PPM

_BEST_EFFORT = PriorityClass.BEST_EFFORT
_OWN_KINDS = (CursorKind.PROFILE, CursorKind.UPLOAD)


class Grants:
    """The share of best-effort work of one device."""

    def __init__(self, world: World, statistics: Callable[[], StatisticsSeen]) -> None:
        settings = world.settings
        is_policy = settings.order is Order.POLICY
        self._world = world
        self._statistics = statistics
        self._share_ppm = settings.best_effort_share_min_ppm if is_policy else 0
        self._rest_ppm = PPM - self._share_ppm
        self._debt = 0  # the lenient book
        self._behind = 0  # the strict one
        self._could_run = False  # some of it, after the last poll
        self._longest_ns = dict.fromkeys(PriorityClass, 0)  # slices that have passed
        self._seen = 0
        self._maybe = 0  # best-effort slices launched while higher work waited or ran beside

    @property
    def is_on(self) -> bool:
        return self._share_ppm > 0

    def _of_tenants(self) -> list[SeenRequest]:
        """The best-effort work that waits and may be granted something."""
        waiting = self._world.waiting[_BEST_EFFORT].values()
        return [request for request in waiting if request.arrived.kind not in _OWN_KINDS]

    def why_not_due(self, chosen: SeenRequest) -> str | None:
        """A best-effort slice would go ahead of higher classes: is it owed that?"""
        if chosen.arrived.kind in _OWN_KINDS:
            return "the device's own work goes ahead of higher classes"
        if self._debt > 0:
            return None
        return f"best-effort work goes first, and is not owed {-self._debt // PPM} ns"

    def see_launched(self, seen: SeenSlice, is_grant: bool) -> None:
        """After a launch."""
        if not self.is_on or seen.cursor.request.effective_class is not _BEST_EFFORT:
            return
        world = self._world
        higher = any(world.waiting[one] for one in PriorityClass if one > _BEST_EFFORT)
        seen.may_be_grant = higher or is_grant or len(world.lanes) > 1
        self._maybe += seen.may_be_grant
        if is_grant:
            seen.is_grant = True
            self._seen += 1
            self._debt -= self._rest_ppm * seen.work.predicted_ns

    def see_passed(self, seen: SeenSlice, device_ns: int) -> None:
        """Before the world hears that a slice has passed."""
        if not self.is_on:
            return
        of = seen.cursor.request.effective_class
        self._longest_ns[of] = max(self._longest_ns[of], device_ns, seen.work.predicted_ns)
        if of is not _BEST_EFFORT:
            self._debt += self._share_ppm * device_ns
            if not self._of_tenants():
                self._debt = min(self._debt, 0)
            self._behind += self._share_ppm * device_ns if self._could_run else 0
            return
        self._behind = max(0, self._behind - self._rest_ppm * device_ns)
        if seen.is_grant:
            self._debt -= self._rest_ppm * (device_ns - seen.work.predicted_ns)

    def see_poll_done(self, now_ns: int) -> str | None:
        """After every poll: is best-effort work behind its share?"""
        if not self.is_on:
            return None
        world = self._world
        self._could_run = any(
            world.is_eligible(r, now_ns) and not world.may_wait(r, now_ns)
            for r in self._of_tenants()
        )
        if not self._could_run or len(world.lanes) > 1:
            self._behind = 0
            return None
        settings, longest_ns = world.settings, self._longest_ns
        others_ns = max(longest_ns[one] for one in PriorityClass if one > _BEST_EFFORT)
        own_ns = 2 * longest_ns[_BEST_EFFORT] + settings.slice_ns_max
        allowed = self._share_ppm * others_ns * (settings.window_max + 1)
        allowed += self._rest_ppm * own_ns
        if self._behind <= allowed:
            return None
        return (
            f"best-effort work could run and is {self._behind // PPM} ns behind its share, allowed "
            f"are {allowed // PPM}"
        )

    def why_miscounted(self) -> str | None:
        """What statistics say of grants: those that are seen, or could have been some."""
        told = self._statistics().best_effort_grants
        if self._seen <= told <= self._maybe:
            return None
        return f"statistics say {told} grants, seen were {self._seen} to {self._maybe}"
