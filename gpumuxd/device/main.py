"""The process of a device child: what it does once, before and after the loop.

Order matters. First it ties its life to the parent's, then it hears what it is (Start), and only
then does it import torch, which takes a second or two. A *spare* imports torch first, in a thread
that yields to everybody, and waits until it is needed. Before it hears of a model it gives up what
computing does not need (`confinement.py`). It ends in one of four ways: after Stop or SIGTERM,
when everything admitted is finished; at once, when the parent is gone; by its watchdog, when a
slice never passes; and by an assertion, with a traceback in the log. The parent sees the last two
as a lost device, and knows them by the exit code.
"""

import gc
import os
import select
import signal
import socket
import sys
import threading
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
from gpumuxd.wire.starting import SPARE, WARM, WORD_BYTES_MAX

EXIT_USAGE = 64

SPARE_NICE = 19
"""A spare has all the time of the machine that nobody else wants."""


def main(arguments: Sequence[str]) -> int:
    """Serve one device over the socket whose number is the first argument. With a second one,
    SPARE, it is a socket on which the end of the channel comes when it is needed."""
    set_parent_death_signal()
    # Ctrl-C in a terminal reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        number, *role = arguments
        if role == [SPARE]:
            channel = _stand_by(socket.socket(fileno=int(number)))
        elif role:
            raise ValueError(f"unknown argument {role[0]!r}")
        else:
            channel = Channel.from_fd(int(number))
    except ParentGone:
        return EXIT_PARENT_GONE
    except (ValueError, OSError) as error:
        print(f"expected the number of an inherited socket: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        start, arena, notes = _read_start(channel)
        set_parent_death_signal(start.parent_pid)
        _import_all()
        from gpumuxd.device.serving import serve

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


def _import_all() -> None:
    """Here and not at the top: the parent's death must count before this takes its time."""
    # Off from the first import on: a collection may come at any moment otherwise.
    gc.disable()
    confinement.import_numpy()
    import gpumuxd.device.serving
    from gpumuxd.programs.onnx_runtime import is_installed

    assert gpumuxd.device.serving
    # Loading its library takes 50 ms in which nothing would be served.
    is_installed()


def _stand_by(parent: socket.socket) -> Channel:
    """Import everything, then wait until this child is needed. Raises ParentGone."""

    def import_in_background() -> None:
        # Of this thread alone: nobody could take it back from the one that will serve.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SPARE_NICE)
        _import_all()

    importing = threading.Thread(target=import_in_background)
    importing.start()
    importing.join()
    with parent:
        try:
            parent.send(WARM)
            _, fds, _, _ = socket.recv_fds(parent, WORD_BYTES_MAX, 1)
        except OSError as error:
            raise ParentGone(str(error)) from error
    if not fds:
        raise ParentGone("it is not needed any more")
    return Channel.from_fd(fds[0])


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
