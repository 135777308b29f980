"""When is a device child dead, and how soon is it started again: two small rules, no clocks.

A child is judged by the turns of its device loop, not by its process being there: a poisoned
context leaves a process that looks alive for hours. It is judged only while the parent itself is
on time, since a machine that stood still (a suspend, a debugger, a full CPU) stops both.
"""

from gpumuxd.node.settings import LinkSettings, RestartSettings


class SilenceWatch:
    """Is this child silent? Asked once per ping."""

    def __init__(self, settings: LinkSettings, now_ns: int) -> None:
        self._settings = settings
        self._turns = -1
        self._was_loading = False
        self._heard_ns = now_ns

    @property
    def has_turned(self) -> bool:
        """True once the loop was heard of for the first time."""
        return self._turns >= 0

    def heard_pong(self, turns: int, now_ns: int) -> None:
        """The loop's count of turns. Progress is a count that grew."""
        if turns > self._turns:
            self._turns = turns
            self._heard_ns = now_ns

    def heard_turn(self, now_ns: int) -> None:
        """It said what only a loop that turns says. A request may be there before the first pong,
        and stop the loop."""
        if not self.has_turned:
            self._turns = 0
            self._heard_ns = now_ns

    def is_silent(
        self, now_ns: int, parent_lag_ns: int, is_starting: bool = False, is_loading: bool = False
    ) -> bool:
        """True when the loop stood still for too long.

        `parent_lag_ns` is how late this question is asked. After that, after a start and after a
        load the time of silence begins anew.
        """
        is_excused = is_starting or parent_lag_ns >= self._settings.parent_lag_ns_max
        if is_excused or (self._was_loading and not is_loading):
            self._heard_ns = now_ns
        self._was_loading = is_loading
        return now_ns - self._heard_ns >= self.limit_ns(is_loading)

    def limit_ns(self, is_loading: bool) -> int:
        """How long the loop may stand still."""
        settings = self._settings
        return settings.load_silence_ns_max if is_loading else settings.silence_ns_max


class Backoff:
    """Delays between an end and the next start: they grow, unless the child lived well."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._next_ns = settings.delay_ns_first

    def next_ns(self, lived_ns: int) -> int:
        """How long `delay_ns` would say to wait."""
        is_healthy = lived_ns >= self._settings.healthy_ns
        return self._settings.delay_ns_first if is_healthy else self._next_ns

    def delay_ns(self, lived_ns: int) -> int:
        """How long to wait now, after a child that lived this long."""
        delay = self.next_ns(lived_ns)
        self._next_ns = min(delay * self._settings.factor, self._settings.delay_ns_max)
        return delay
