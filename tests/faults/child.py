"""`python -m tests.faults.child <fd>`: a device child that breaks when a request asks for it.

The production child from its first line to its last, but that programs of `faulty...` models are
wrapped when the executor takes them. Faults happen on the device thread, inside a kernel group,
with the rights that a child has left then.
"""

import ctypes
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpumuxd.device import confinement
from gpumuxd.device.main import main
from gpumuxd.device.watchdog import Watchdog
from gpumuxd.domain import Outcome, OutcomeKind, RunReport
from gpumuxd.wire.frames import FRAME_BYTES_MAX, Finished, Ping, encode
from gpumuxd.wire.process import set_parent_death_signal
from tests.faults.ask import FOLDER_VARIABLE, GATE, MODEL_PREFIX, Fault, asked

# Before torch is imported, as in production: this process must not outlive its parent meanwhile.
set_parent_death_signal()
confinement.import_numpy()

import torch  # noqa: E402

from gpumuxd.executors.cpu import CpuExecutor, Program  # noqa: E402

_STRANGER = 1 << 40
"""A request that was never submitted."""


class FaultyProgram:
    """A program whose first group asks its input whether to break."""

    def __init__(self, program: Program, channel_fd: int) -> None:
        self._program = program
        self._channel_fd = channel_fd

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        slots = _Slots(self._program.start(inputs))
        ask = asked(*inputs[0].reshape(-1)[:2].tolist()) if inputs else None
        if ask is not None:
            slots.fault, is_at_gate = ask
            if is_at_gate:
                _pass_gate()
            if (happen := _FAULTS.get(slots.fault)) is not None:
                happen(self._channel_fd)
        return slots

    def outputs(self, slots: list[Any]) -> list[torch.Tensor]:
        outputs = self._program.outputs(slots)
        assert isinstance(slots, _Slots)
        match slots.fault:
            case Fault.WRONG_SHAPE:
                return [output[..., :0] for output in outputs]
            case Fault.WRONG_TYPE:
                return [output.to(torch.float64) for output in outputs]
            case Fault.LARGER_THAN_RESERVED:
                return [output.repeat(*([1000] * output.dim())) for output in outputs]
            case _:
                return outputs


class _Slots(list[Any]):
    """The content of a frame, and what its run was asked to do."""

    fault = Fault.NOTHING


def _pass_gate() -> None:
    """Stand in the kernel until someone has come to the other end and left again; pass if there is
    no gate any more."""
    path = Path(os.environ[FOLDER_VARIABLE]) / GATE
    if not path.exists():
        return
    _at_gate.set()
    with path.open("rb") as gate:
        gate.read()
    _at_gate.clear()


_at_gate = threading.Event()


def _take_all_memory(channel_fd: int) -> None:
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 22))


def _allocate_too_much(channel_fd: int) -> None:
    torch.ones(1 << 44)


def _raise_error(channel_fd: int) -> None:
    raise RuntimeError("the operator failed")


def _run_for_ever(channel_fd: int) -> None:
    while True:
        pass


def _end_thread(channel_fd: int) -> None:
    raise SystemExit


def _send(data: bytes) -> Callable[[int], None]:
    """Say this to the parent beside what the loop says: a datagram is never torn."""

    def send(channel_fd: int) -> None:
        os.write(channel_fd, data)

    return send


def _close_channel(channel_fd: int) -> None:
    with socket.socket(fileno=os.dup(channel_fd)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def _finish_of_stranger() -> bytes:
    return encode(Finished(_STRANGER, Outcome(OutcomeKind.COMPLETED, ""), RunReport(), ()))


_FAULTS: dict[Fault, Callable[[int], None]] = {
    Fault.ABORT: lambda fd: os.abort(),
    Fault.SEGFAULT: lambda fd: ctypes.memset(0, 1, 1) and None,
    Fault.EXIT: lambda fd: os._exit(0),
    Fault.HUGE_ALLOCATION: _allocate_too_much,
    Fault.ALL_MEMORY: _take_all_memory,
    Fault.ERROR: _raise_error,
    Fault.ENDLESS_KERNEL: lambda fd: ctypes.CDLL(None).pause(),
    Fault.ENDLESS_PYTHON: _run_for_ever,
    Fault.ENDLESS_WITH_GIL: lambda fd: ctypes.PyDLL(None).pause(),
    Fault.THREAD_ENDS: _end_thread,
    Fault.GARBAGE: _send(b"\xff" * 100),
    Fault.CUT_FRAME: _send(_finish_of_stranger()[:-3]),
    Fault.LONG_FRAME: _send(b"\x00" * (FRAME_BYTES_MAX + 1)),
    Fault.FRAME_OF_PARENT: _send(encode(Ping(1))),
    Fault.FINISH_OF_STRANGER: _send(_finish_of_stranger()),
    Fault.CLOSED_CHANNEL: _close_channel,
}


def _wait_for_test(look: Callable[[Watchdog, int], None]) -> Callable[[Watchdog, int], None]:
    """A watchdog that has patience with a run at the gate: the machine of a test may be slow."""

    def patient(self: Watchdog, now_ns: int) -> None:
        if not _at_gate.is_set():
            look(self, now_ns)

    return patient


def _break_programs(channel_fd: int) -> None:
    take = CpuExecutor.load

    def load(
        self: CpuExecutor, model: str, program: Program, fills: Sequence[int | float] = ()
    ) -> None:
        if model.startswith(MODEL_PREFIX):
            program = FaultyProgram(program, channel_fd)
        take(self, model, program, fills)

    CpuExecutor.load = load  # type: ignore[method-assign]  # this process is here to be broken
    Watchdog.look = _wait_for_test(Watchdog.look)  # type: ignore[method-assign]


if __name__ == "__main__":
    _break_programs(int(sys.argv[1]))
    sys.exit(main(sys.argv[1:]))
