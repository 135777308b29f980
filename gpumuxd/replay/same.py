"""The records of a file through the scheduler that they came from: the same commands come out.

It must not know what is done with the result. Invariant: nothing is decided here; the scheduler is
the one that serves, restored as it was when the recording began.
"""

from dataclasses import dataclass
from typing import cast

from gpumuxd import __version__
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.events import Event
from gpumuxd.replay import format as layout
from gpumuxd.replay.format import BadRecording, Contents
from gpumuxd.replay.graph import Unreadable, thaw
from gpumuxd.replay.history import History
from gpumuxd.replay.sources import SCHEDULER, source_modules


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it. `failure` is a sentence, empty if all is as it was recorded."""

    history: History
    records: int
    commands_hash: str
    failure: str


def restore(contents: Contents) -> DeviceScheduler:
    """The scheduler as it was. Raises BadRecording."""
    made_by = contents.header.gpumuxd_version
    if made_by != __version__:
        raise BadRecording(
            f"it was recorded by gpumuxd {made_by} and this is {__version__}: the version that "
            "made a recording replays it"
        )
    try:
        modules = source_modules()
        scheduler = thaw(contents.state, modules)
    except Unreadable as error:
        raise BadRecording(str(error)) from error
    if not isinstance(scheduler, modules[SCHEDULER].DeviceScheduler):
        raise BadRecording("its state is not that of a device scheduler")
    return cast("DeviceScheduler", scheduler)


def known_events(scheduler: DeviceScheduler) -> list[Event]:
    """What a restored scheduler knows. Raises BadRecording."""
    try:
        return layout.checked(scheduler.inventory())
    except BadRecording:
        raise
    except Exception as error:  # a file may say anything
        raise BadRecording(f"its state can't be used: {error!r}") from error


def replay(contents: Contents) -> Replayed:
    """Replay it all, or up to where it differs. Raises BadRecording when it can't begin."""
    scheduler = restore(contents)
    known = known_events(scheduler)
    cells = layout.Cells()
    for event in [*known, *(what for _, _, what in contents.calls if not isinstance(what, int))]:
        cells.count(event)
    history = History(known, contents.header.began_ns)
    commands = layout.CommandHash()
    number, failure = 0, ""
    for number, (code, now_ns, what) in enumerate(contents.calls, start=1):
        try:
            if not isinstance(what, int):
                scheduler.handle(what, now_ns)
                history.handled(what, now_ns)
                continue
            if what != commands.check:
                failure = f"the commands differ from the recorded ones before record {number}"
                break
            history.asked(now_ns)
            is_first = code == layout.FATES
            answer = scheduler.poll_fates(now_ns) if is_first else scheduler.poll_launches(now_ns)
            if answer:
                commands.update(answer)
                history.answered(answer, now_ns)
        except Exception as error:  # as above; or it failed when it was recorded, too
            failure = f"the scheduler fails at record {number}: {type(error).__name__}: {error}"
            if contents.end is None and number == len(contents.calls):
                failure += " (the recording ends there: it failed when it was recorded)"
            break
    end, digest = contents.end, commands.hexdigest()
    if not failure and end is not None and end.commands_hash != digest:
        failure = "the commands after the last record differ from the recorded ones"
    return Replayed(history, number, digest, failure)
