"""The process of a device child: what it does once, before and after the loop.

Order matters. First it ties its life to the parent's, then it hears what it is (Start), and only
then does it import torch, which takes a second or two. Before it hears of a model it gives up what
computing does not need (`confinement.py`). It ends in one of four ways: after Stop or SIGTERM,
when everything admitted is finished; at once, when the parent is gone; by its watchdog, when a
slice never passes; and by an assertion, with a traceback in the log. The parent sees the last two
as a lost device, and knows them by the exit code.
"""

import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from gpumuxd.device import confinement
from gpumuxd.device.log import log
from gpumuxd.device.watchdog import SliceOverdue
from gpumuxd.wire.arena import ArenaMap
from gpumuxd.wire.channel import Channel, ChannelClosed, MalformedFrame
from gpumuxd.wire.frames import Start
from gpumuxd.wire.in_flight_board import InFlightNotes
from gpumuxd.wire.process import (
    EXIT_BUG,
    EXIT_PARENT_GONE,
    EXIT_WATCHDOG,
    ParentGone,
    set_parent_death_signal,
)

EXIT_USAGE = 64


def main(arguments: Sequence[str]) -> int:
    """Serve one device over the socket whose number is the only argument."""
    set_parent_death_signal()
    # Ctrl-C in a terminal reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        (number,) = arguments
        channel = Channel.from_fd(int(number))
    except (ValueError, OSError) as error:
        print(f"expected the number of an inherited socket: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        start, arena, notes = _read_start(channel)
        set_parent_death_signal(start.parent_pid)
        # Off from the first import on: a collection may come at any moment otherwise.
        gc.disable()
        confinement.import_numpy()
        # Here and not at the top: the parent's death must count before this takes its time.
        from gpumuxd.device.serving import serve
        from gpumuxd.programs.onnx_runtime import is_installed

        # Loading its library takes 50 ms in which nothing would be served.
        is_installed()
        confinement.give_up_rights(start.settings)
        serve(channel, start, arena, notes)
        return 0
    except (ChannelClosed, ParentGone) as error:
        log("warning", "parent_gone", reason=str(error))
        _leave(EXIT_PARENT_GONE)
    except SliceOverdue as error:
        log("critical", "device_overdue", reason=str(error))
        _leave(EXIT_WATCHDOG)
    except BaseException:
        log("critical", "device_bug", exception=traceback.format_exc())
        _leave(EXIT_BUG)


def _read_start(channel: Channel) -> tuple[Start, ArenaMap, InFlightNotes]:
    """Wait for the first frame."""
    received = channel.receive()
    while received is None:
        select.select([channel], (), ())
        received = channel.receive()
    frame, fds = received
    if not isinstance(frame, Start) or len(fds) != 2:
        raise MalformedFrame(
            f"expected Start with two descriptors, got {type(frame).__name__} with {len(fds)}"
        )
    return frame, ArenaMap(fds[0]), InFlightNotes(fds[1])


def _leave(code: int) -> NoReturn:
    """End without waiting for the device thread, which may be inside a long kernel."""
    sys.stderr.flush()
    os._exit(code)
