"""Sequences under random steps, ends, cancellations, refusals and losses: no state is ever mixed
up, and every slot is given back once. The seed is in the name of the test."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from gpumuxd.domain import COMPLETED, Outcome, OutcomeKind
from gpumuxd.errors import (
    DeadlineInfeasible,
    GpumuxdError,
    QueueFull,
    SequenceUnknown,
)
from gpumuxd.node.api import InferReply, SequenceStep
from gpumuxd.node.node import Node
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, FakeDevice, FakeLife, call, int32
from tests.node.test_sequences import MANIFEST, SPEC
from tests.node.world import World

STEPS = 150
IDS = 4

FATES = [COMPLETED] * 12 + [
    Outcome(kind, "drawn")
    for kind in (
        OutcomeKind.QUEUE_FULL,
        OutcomeKind.DEADLINE_INFEASIBLE,
        OutcomeKind.DEADLINE_MISSED,
        OutcomeKind.MODEL_FAULTED,
    )
]


class SummingDevice(FakeDevice):
    """Keeps the sum of what each slot got and answers with it, after some turns of the loop. It
    checks what a device child relies on."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw
        self.sums: dict[tuple[FakeLife, int], int] = {}
        self.running: dict[tuple[FakeLife, int], int] = {}
        self.cancelled: set[int] = set()
        self.begun: set[int] = set()
        self.given_back: list[int] = []

    def respond(self, life: FakeLife, frame: frames.AnyFrame) -> None:
        match frame:
            case frames.Submit(sequence=frames.SequenceState() as state):
                key = life, state.slot
                assert key not in self.running, "two steps of one sequence at a time"
                assert state.slot not in self.given_back, "a step after the end"
                assert state.is_start == (state.slot not in self.begun), "begun once"
                self.begun.add(state.slot)
                self.running[key] = frame.request_id
                value = int.from_bytes(life.input(frame)[:4], "little")
                self._later(life, key, frame.request_id, value, self.draw.randrange(6))
            case frames.Cancel(request_id=number):
                self.cancelled.add(number)
            case frames.DropSequence(slot=slot):
                assert slot not in self.given_back, "given back twice"
                self.given_back.append(slot)
                self.sums.pop((life, slot), None)
            case _:
                super().respond(life, frame)

    def _later(
        self, life: FakeLife, key: tuple[FakeLife, int], number: int, value: int, turns: int
    ) -> None:
        loop = asyncio.get_running_loop()
        if life.how:
            return
        if turns:
            loop.call_soon(self._later, life, key, number, value, turns - 1)
            return
        del self.running[key]
        if number in self.cancelled:
            life.finish(number, outcome=Outcome(OutcomeKind.CANCELLED))
            return
        outcome = self.draw.choice(FATES)
        if outcome is COMPLETED:
            self.sums[key] = self.sums.get(key, 0) + value
        life.finish(number, [int32(self.sums.get(key, 0), 0)], outcome)


async def send(node: Node, sequence_id: int, value: int, *, start: bool, end: bool) -> InferReply:
    step = SequenceStep(sequence_id, start, end)
    return await node.infer(replace(call(value, 0), sequence=step))


class Client:
    """One sequence after the other under one id, as a client that waits for each answer; it knows
    what every answer has to be."""

    def __init__(self, node: Node, sequence_id: int, draw: random.Random) -> None:
        self.node = node
        self.sequence_id = sequence_id
        self.draw = draw
        self.sum: int | None = None  # None: there is no sequence
        self.completed = 0

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self.step()

    async def step(self) -> None:
        draw = self.draw
        start = draw.random() < (0.1 if self.sum is not None else 0.7)
        end = draw.random() < 0.1
        value = draw.randrange(1, 1000)
        expected = None if self.sum is None and not start else (0 if start else self.sum or 0)
        task = asyncio.ensure_future(send(self.node, self.sequence_id, value, start=start, end=end))
        if draw.random() < 0.08:
            for _ in range(draw.randrange(1, 5)):  # one that has not begun leaves no trace
                await asyncio.sleep(0)
            task.cancel()
        try:
            reply = await task
        except SequenceUnknown:
            assert expected is None, "a sequence that goes on is known"
        except (QueueFull, DeadlineInfeasible):
            if start:
                self.sum = None  # it leaves nothing, else everything as it was
        except (asyncio.CancelledError, GpumuxdError):
            self.sum = None
        else:
            assert expected is not None, "a step of no sequence was answered"
            found = int.from_bytes(reply.outputs[0].data[:4], "little")
            assert found == expected + value, f"{found} is not {expected} + {value}"
            self.completed += 1
            self.sum = None if end else found


async def burst(node: Node, draw: random.Random, sequence_id: int) -> int:
    """All steps of a sequence sent at once, some of them cancelled: those that were answered are a
    beginning of it, and each is right. Returns how many they were."""
    values = [draw.randrange(1, 1000) for _ in range(draw.randrange(2, 10))]
    last = len(values) - 1
    tasks = [
        asyncio.ensure_future(send(node, sequence_id, value, start=i == 0, end=i == last))
        for i, value in enumerate(values)
    ]
    for _ in range(draw.randrange(1, 40)):
        await asyncio.sleep(0)
    if draw.random() < 0.5:
        draw.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    answered = [isinstance(result, InferReply) for result in results]
    assert answered == sorted(answered, reverse=True), results
    for i, result in enumerate(results):
        if isinstance(result, InferReply):
            assert int.from_bytes(result.outputs[0].data[:4], "little") == sum(values[: i + 1])
    return sum(answered)


@pytest.mark.parametrize("seed", range(6))
async def test_no_state_is_mixed_up(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    world = World(tmp_path)
    world.device = device = SummingDevice(draw)
    world.loader.spec = SPEC
    world.add(manifest=MANIFEST)
    async with asyncio.timeout(WAIT_S), world.started(startup_models=("m",)) as node:
        clients = [Client(node, number, draw) for number in range(1, IDS + 1)]
        for lives in range(1, 4):
            await asyncio.gather(*(client.run(STEPS // 3) for client in clients))
            world.life.end("signal SIGKILL")
            await device.wait_lives(lives + 1)
            await world.wait_ready(False)
            await world.wait_ready()
        assert sum(client.completed for client in clients) > STEPS
        bursts = await asyncio.gather(*(burst(node, draw, i) for i in range(10, 60)))
        assert sum(bursts) > len(bursts)
        # What is left is of sequences whose last step was refused, or that nobody goes on with.
        node._sequences._clock = lambda: 1 << 62
        node._sequences.expire()
        owned = node._sequences._owned["default"]
        assert owned.slots == 0
        assert not owned.live
        await node.drain()
    # Those of a life that was lost went with it.
    assert len(set(device.given_back)) == len(device.given_back) <= len(device.begun)
