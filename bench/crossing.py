"""The crossing between parent and device child: how long until the child has said "accepted".

A real child with a real small model, over the real frames. The parent's side is as the daemon's: a
channel read by uvloop. Submit to Accepted is measured with one request at a time, one after the
other; with a rest before each, so that both sides have slept and their caches are cold; and with
eight outstanding. Ping to Pong is the crossing without a decision. A time ends when the parent has
decoded the answer.

    python -m bench.crossing [--quick] [--json FILE] [--strict]
"""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import uvloop

from bench.harness import Bench, at_most, percentile, run
from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.loader.main import read
from gpumuxd.programs.exporter import export_model
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import GIB, MIB, NS_PER_MS, NS_PER_S, NS_PER_US
from gpumuxd.wire.arena import Arena
from gpumuxd.wire.channel import Channel
from gpumuxd.wire.frames import (
    Accepted,
    Block,
    Finished,
    Frame,
    LoadModel,
    ModelLoaded,
    Ping,
    Pong,
    Start,
    Started,
    Submit,
)
from gpumuxd.wire.in_flight_board import InFlightBoard

MODEL = "tiny/1"
WIDTH = 32
ROW_BYTES = WIDTH * 4
OUTSTANDING = 8

SUBMIT_GOAL_US = 60
"""A bare echo between two processes over the same socket takes 26 us on two quiet cores."""

REST_NS = 2 * NS_PER_MS
"""Before each rested request."""

ANSWER_S = 30.0


class Tiny(torch.nn.Module):
    """Small enough that the device is never what is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Parent:
    """The parent's end of one device child, on the running event loop."""

    def __init__(self, channel: Channel, arena: Arena) -> None:
        self._channel = channel
        self._arena = arena
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._sent_ns: dict[int, int] = {}
        self._slots: dict[int, tuple[int, int]] = {}
        self._waiting: dict[type[Frame], asyncio.Future[Frame]] = {}
        self._more = 0
        self._answered_ns = 0
        self._done = asyncio.Event()
        self.accepted_ns: list[int] = []
        self._loop.add_reader(channel.fileno(), self._handle_readable)

    def close(self) -> None:
        self._loop.remove_reader(self._channel.fileno())

    async def ask(self, frame: Frame, answer: type[Frame], fds: Sequence[int] = ()) -> Frame:
        """Send one frame and wait for the answer of this kind."""
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[answer] = future
        self._channel.send(frame, fds)
        async with asyncio.timeout(ANSWER_S):
            return await future

    async def ping(self, count: int) -> int:
        """Nanoseconds from Ping to Pong."""
        sent_ns = monotonic_ns()
        await self.ask(Ping(count), Pong)
        return self._answered_ns - sent_ns

    async def flood(self, count: int, outstanding: int) -> list[int]:
        """`count` requests, never more than `outstanding` at once: times to Accepted."""
        self.accepted_ns = []
        self._more = count
        self._done.clear()
        for _ in range(min(outstanding, count)):
            offset = self._arena.allocate(ROW_BYTES)
            self._submit(offset, self._arena.allocate(ROW_BYTES))
        async with asyncio.timeout(ANSWER_S):
            await self._done.wait()
        return self.accepted_ns

    def _submit(self, input_offset: int, output_offset: int) -> None:
        self._more -= 1
        request_id = next(self._ids)
        now_ns = monotonic_ns()
        frame = Submit(
            request_id=request_id,
            tenant="bench",
            model=MODEL,
            priority_class=PriorityClass.STANDARD,
            bucket=(1,),
            rows=1,
            arrived_ns=now_ns,
            deadline_ns=now_ns + NS_PER_S,
            inputs=(Block(input_offset, ROW_BYTES, "FP32", (1, WIDTH)),),
            outputs=(Block(output_offset, ROW_BYTES, "FP32", (1, WIDTH)),),
        )
        self._slots[request_id] = (input_offset, output_offset)
        self._sent_ns[request_id] = now_ns
        self._channel.send(frame)

    def _handle_readable(self) -> None:
        while (received := self._channel.receive()) is not None:
            frame, _ = received
            match frame:
                case Accepted(request_id=request_id):
                    self.accepted_ns.append(monotonic_ns() - self._sent_ns.pop(request_id))
                case Finished():
                    self._handle_finished(frame)
                case _:
                    future = self._waiting.pop(type(frame), None)
                    assert future is not None, f"nobody asked for {frame}"
                    self._answered_ns = monotonic_ns()
                    future.set_result(frame)

    def _handle_finished(self, frame: Finished) -> None:
        assert frame.outcome.kind is OutcomeKind.COMPLETED, frame
        slots = self._slots.pop(frame.request_id)
        if self._more > 0:
            self._submit(*slots)
            return
        for offset in slots:
            self._arena.free(offset)
        if not self._slots:
            self._done.set()


@contextlib.contextmanager
def device_child(channel_end: socket.socket) -> Iterator[None]:
    """`python -m gpumuxd.device`, ended when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpumuxd.device", str(channel_end.fileno())],
        pass_fds=[channel_end.fileno()],
        stderr=subprocess.DEVNULL,
    )
    channel_end.close()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def make_artifact() -> tuple[str, list[int]]:
    """The tiny model as a loader hands it over."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        export_model(Tiny(), {"x": torch.randn(2, WIDTH)}, path)
        with path.open("rb") as file:
            done, fds = read(file, GIB)
    return done.artifact_hash, fds


async def measure(bench: Bench, parent: Parent) -> None:
    """All three, in short rounds that take turns."""
    rounds, count = bench.pick(20, 5), bench.pick(200, 100)
    samples: dict[str, list[int]] = {"alone": [], "rested": [], "outstanding": [], "ping": []}
    rates: list[float] = []
    with bench.measuring():
        for name, is_kept in bench.schedule(list(samples), rounds):
            began_ns = monotonic_ns()
            times: list[int] = []
            match name:
                case "alone":
                    times = await parent.flood(count, 1)
                case "rested":
                    for _ in range(count):
                        await asyncio.sleep(REST_NS / NS_PER_S)
                        times += await parent.flood(1, 1)
                case "ping":
                    times = [await parent.ping(index) for index in range(count)]
                case _:
                    times = await parent.flood(count * 5, OUTSTANDING)
                    if is_kept:
                        rates.append(len(times) * NS_PER_S / (monotonic_ns() - began_ns))
            if is_kept:
                samples[name] += times
    report(bench, samples, rates)


def report(bench: Bench, samples: dict[str, list[int]], rates: list[float]) -> None:
    names = {
        "alone": "submit to accepted",
        "rested": f"same, after {REST_NS // NS_PER_MS} ms of rest",
        "outstanding": f"same, {OUTSTANDING} outstanding",
        "ping": "ping to pong",
    }
    for key, name in names.items():
        goal = at_most(SUBMIT_GOAL_US) if key == "alone" else None
        bench.figure(f"{name}, median", percentile(samples[key], 50) / NS_PER_US, "us", goal)
        bench.figure(f"{name}, p99", percentile(samples[key], 99) / NS_PER_US, "us")
    bench.figure(f"requests, {OUTSTANDING} outstanding", percentile(rates, 50), "1/s")


async def cross(bench: Bench) -> None:
    artifact_hash, fds = make_artifact()
    settings = DeviceSettings(arena_bytes=MIB, profile_passes=1, profile_batch_max=1)
    arena = Arena(settings.arena_bytes)
    board = InFlightBoard()
    channel, end = Channel.pair()
    with channel, device_child(end):
        parent = Parent(channel, arena)
        await parent.ask(Start(settings, os.getpid()), Started, [arena.fd, board.fd])
        load = LoadModel(MODEL, artifact_hash, PriorityClass.REALTIME, None, "bench")
        await parent.ask(load, ModelLoaded, fds)
        await measure(bench, parent)
        parent.close()
    arena.close()
    board.close()


def body(bench: Bench) -> None:
    uvloop.run(cross(bench))


if __name__ == "__main__":
    raise SystemExit(run("crossing", "Submit to acknowledge between parent and child.", body))
