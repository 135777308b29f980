"""Was a request given up for a good reason? Half of invariant 6, and what order has to know of it.

A scheduler may end an admitted request before its deadline once that can't be met any more. The
onlooker's own estimate is deliberately high: what is left takes its share of the slowest whole run
ever seen of that model and size, or the slowest of each of its groups if that is more; what is in
flight before it likewise. Who would be in time even so must not be given up. A size without a
profile has no shares: what is left counts as a whole run.

A request with slices in flight ends some time after it was given up, and nobody says when that was.
So it may be passed over meanwhile, if it could have been given up; then it must end as late.
"""

from collections.abc import Callable

from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.testing.fates import FATES_OF_GIVEN_UP
from gpumuxd.testing.launch_checks import StatisticsSeen
from gpumuxd.testing.seen import NEVER_NS, SeenRequest
from gpumuxd.testing.world import World


class EarlyStops:
    """Who may have been given up."""

    def __init__(self, world: World, statistics: Callable[[], StatisticsSeen]) -> None:
        self._world = world
        self._statistics = statistics

    def see_poll_done(self, now_ns: int) -> None:
        """Note which of those in flight may have been given up in this poll."""
        for seen in self._world.in_flight():
            for request in seen.cursor.riders:
                if request.key[0] != NEVER_NS and not request.may_be_given_up:
                    request.may_be_given_up = not self._is_clearly_in_time(request, now_ns)

    def may_be_passed_over(self, request: SeenRequest, now_ns: int) -> bool:
        """May others go before this one, which is ordered before them?"""
        may_be = self.may_have_stopped(request, now_ns)
        request.was_passed_over |= may_be
        cursor = request.cursor
        if may_be and cursor is not None and cursor.is_shared:
            for rider in cursor.riders:
                rider.was_passed_over |= not rider.cancelled
        return may_be

    def may_have_stopped(self, request: SeenRequest, now_ns: int) -> bool:
        """Could it have been given up, and only wait for what is in flight of it?"""
        cursor = request.cursor
        if cursor is not None and cursor.is_shared and request is cursor.request:
            left = [r for r in cursor.riders if self._world.is_in_run(r) and not r.cancelled]
            return all(self.may_have_stopped(rider, now_ns) for rider in left)
        if request.key[0] == NEVER_NS or request.cursor is None or not request.cursor.in_flight:
            return False
        return request.may_be_given_up or not self._is_clearly_in_time(request, now_ns)

    def why_wrong(self, request: SeenRequest, outcome: Outcome, now_ns: int) -> str | None:
        """What speaks against this fate, as far as giving up goes."""
        if request.was_passed_over and outcome.kind not in FATES_OF_GIVEN_UP:
            return "others went before it, as if it had been given up"
        deadline_ns = request.key[0]
        is_late = outcome.kind in (OutcomeKind.DEADLINE_MISSED, OutcomeKind.DEADLINE_INFEASIBLE)
        if is_late and outcome.deadline_ns != deadline_ns:
            return f"it tells the deadline {outcome.deadline_ns}, asked for was {deadline_ns}"
        if outcome.kind is not OutcomeKind.DEADLINE_MISSED or now_ns >= deadline_ns:
            return None
        if outcome.predicted_finish_ns <= deadline_ns:
            return f"it tells of an end at {outcome.predicted_finish_ns}, which is in time"
        if not request.may_be_given_up and self._is_clearly_in_time(request, now_ns):
            return f"at {now_ns} it had time enough for the slowest of its runs"
        return None

    def _is_clearly_in_time(self, request: SeenRequest, now_ns: int) -> bool:
        world = self._world
        if request.model is None or self._statistics().rescales:
            return False  # what was seen before a rescale says nothing of what is predicted now
        model, launched = request.model, request.cursor.launched if request.cursor else 0
        bucket = request.cursor.sample.bucket if request.cursor else request.arrived.bucket
        if bucket not in model.slowest_ns:
            return True  # a guess gives up nobody
        rest_ns = model.upper_ns(bucket, launched, model.ready.profile.group_count)
        for seen in world.in_flight():
            work = seen.work
            rest_ns += seen.cursor.model.upper_ns(work.bucket, work.first_group, work.end_group)
        return now_ns + rest_ns <= request.key[0]
