"""Where somebody may listen to a device scheduler: all that goes in and all that comes out.

A recording needs nothing else, since the same events and polls bring the same commands. It must not
know who listens. Invariant: what is heard is what happens, in its order; nobody who listens changes
anything.
"""

from typing import Protocol

from gpumuxd.commands import Command
from gpumuxd.events import Event


class Tap(Protocol):
    """Hears of each call, before it does anything, and what the polls answered."""

    def handles(self, event: Event, now_ns: int) -> None: ...

    def polls_fates(self, now_ns: int) -> None: ...

    def polls_launches(self, now_ns: int) -> None: ...

    def answers(self, commands: list[Command]) -> None: ...
