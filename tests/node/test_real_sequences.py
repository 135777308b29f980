"""Sequences of the real case, a voice activity detector, on real children: each is bit for bit what
a client computes that sends the state itself."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from gpumuxd.clock import monotonic_ns
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, STATE_SHAPE, load_silero
from gpumuxd.errors import QuotaExceeded, SequenceAborted, SequenceLost
from gpumuxd.node.api import InferCall, InferReply, InputTensor, SequenceStep, Tenant
from gpumuxd.node.node import Node
from gpumuxd.node.settings import LinkSettings, NodeSettings, TenantSettings
from gpumuxd.programs.exporter import export_model
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB, NS_PER_MS

READY_S = 60.0

ADMIN = Tenant("admin", is_admin=True)
DOOR, HALL = Tenant("door"), Tenant("hall")

MANIFEST = """
[sequence]
state = [{ input = "state", output = "stateN" }]
"""

Frames = np.ndarray[tuple[int, int], np.dtype[np.float32]]


class Served:
    """A node with one real device that serves the detector."""

    def __init__(self, repository: Path) -> None:
        self._changed = asyncio.Event()
        tenants = (DOOR, HALL, ADMIN)
        self.node = Node(
            NodeSettings(
                repository_paths=(repository,),
                devices=(DeviceSettings("cpu:0", arena_bytes=MIB, profile_passes=1),),
                startup_models=("vad",),
                tenants=tuple(TenantSettings(each, sequences_max=64) for each in tenants),
                link=LinkSettings(ping_interval_ns=50 * NS_PER_MS),
            ),
            on_readiness=lambda is_ready: self._changed.set(),
        )

    async def wait_ready(self) -> None:
        async with asyncio.timeout(READY_S):
            while not self.node.is_ready():
                self._changed.clear()
                await self._changed.wait()

    async def step(
        self,
        frame: Frames,
        step: SequenceStep | None,
        state: bytes = b"",
        tenant: Tenant = DOOR,
        wanted: Sequence[str] = (),
    ) -> dict[str, bytes]:
        tensors = [InputTensor("audio", "FP32", (1, frame.size), frame.tobytes())]
        if state:
            tensors.append(InputTensor("state", "FP32", (1, *STATE_SHAPE), state))
        reply: InferReply = await self.node.infer(
            InferCall(
                tenant, "vad", "", 0, None, monotonic_ns(), tensors, tuple(wanted), sequence=step
            )
        )
        return {output.name: output.data for output in reply.outputs}

    async def listen(
        self, frames: Frames, sequence_id: int | str, tenant: Tenant = DOOR
    ) -> list[bytes]:
        """The probabilities of a sequence, and the state that it leaves. All steps are sent at
        once."""
        last = len(frames) - 1
        results = await asyncio.gather(
            *(
                self.step(
                    frame,
                    SequenceStep(sequence_id, i == 0, i == last),
                    tenant=tenant,
                    wanted=("probability", "stateN") if i == last else (),
                )
                for i, frame in enumerate(frames)
            )
        )
        assert [set(result) for result in results[:-1]] == [{"probability"}] * last
        return [result["probability"] for result in results] + [results[-1]["stateN"]]

    async def listen_by_hand(self, frames: Frames) -> list[bytes]:
        """The same of a client that sends what it got back."""
        state, found = np.zeros(STATE_SHAPE, np.float32).tobytes(), []
        for frame in frames:
            result = await self.step(frame, None, state)
            state = result["stateN"]
            found.append(result["probability"])
        return [*found, state]


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    repository = tmp_path_factory.mktemp("repository")
    (repository / "vad" / "1").mkdir(parents=True)
    example = {
        "audio": torch.zeros(2, CONTEXT_SAMPLES + FRAME_SAMPLES),
        "state": torch.zeros(2, *STATE_SHAPE),
    }
    path = repository / "vad" / "1" / "model.pt2"
    export_model(load_silero(), example, path, batch_max=4, output_names=("probability", "stateN"))
    (repository / "vad" / "model.toml").write_text(MANIFEST)
    served = Served(repository)
    await served.node.start()
    assert await served.node.load_startup_models() == {}
    yield served
    await served.node.drain()
    await served.node.stop()


def noise(seed: int, count: int) -> Frames:
    """What a detector may hear: loud and different in every frame."""
    frames = np.random.default_rng(seed).normal(0, 0.3, (count, CONTEXT_SAMPLES + FRAME_SAMPLES))
    return frames.astype(np.float32)


async def test_a_sequence_is_bit_for_bit_what_its_client_would_compute(served: Served) -> None:
    frames = noise(1, 12)
    expected = await served.listen_by_hand(frames)
    assert len(set(expected)) == len(expected), "every frame differs from the others"
    assert await served.listen(frames, 1) == expected
    assert await served.listen(frames, 1) == expected, "the next one begins with zeros again"


async def test_many_sequences_at_once_do_not_mix(served: Served) -> None:
    heard = {name: noise(name, 5) for name in range(12)}
    expected = [await served.listen_by_hand(frames) for frames in heard.values()]
    found = await asyncio.gather(
        *(served.listen(frames, name + 1, DOOR) for name, frames in heard.items()),
        *(served.listen(frames, name + 1, HALL) for name, frames in reversed(heard.items())),
    )
    assert found[:12] == expected
    assert found[:11:-1] == expected


async def test_a_step_that_is_cancelled_ends_its_sequence_and_no_other(served: Served) -> None:
    frames = noise(3, 4)
    await served.step(frames[0], SequenceStep(1, is_start=True))
    await served.step(frames[0], SequenceStep(2, is_start=True))
    cancelled = asyncio.ensure_future(served.step(frames[1], SequenceStep(1)))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(SequenceAborted, match="a step was cancelled"):
        await served.step(frames[2], SequenceStep(1))
    await served.step(frames[1], SequenceStep(2, is_end=True))
    assert await served.listen(frames, 1) == await served.listen_by_hand(frames)


async def test_a_device_that_is_killed_loses_its_sequences_and_new_ones_are_right(
    served: Served,
) -> None:
    frames = noise(4, 4)
    expected = await served.listen_by_hand(frames)
    for name in (1, 2):
        await served.step(frames[0], SequenceStep(name, is_start=True))
    pid = served.node.view().devices[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # so that none of these is answered
    steps = [asyncio.ensure_future(served.step(frames[1], SequenceStep(1))) for _ in range(3)]
    stateless = asyncio.ensure_future(served.listen_by_hand(frames))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    for each in steps:
        with pytest.raises(SequenceLost, match="its state is gone"):
            await each
    assert await stateless == expected, "who keeps its state itself is sent again"
    await served.wait_ready()
    for name in (1, 2):
        with pytest.raises(SequenceLost, match="begin it anew"):
            await served.step(frames[1], SequenceStep(name))
    assert await served.listen(frames, 1) == expected


async def test_a_model_that_is_unloaded_and_loaded_loses_its_sequences(served: Served) -> None:
    frames = noise(5, 3)
    await served.step(frames[0], SequenceStep(1, is_start=True))
    await served.node.unload(ADMIN, "vad")
    await served.node.load(ADMIN, "vad")
    with pytest.raises(SequenceLost):
        await served.step(frames[1], SequenceStep(1))
    assert await served.listen(frames, 1) == await served.listen_by_hand(frames)


async def test_a_tenant_that_is_at_its_limit_goes_on_when_one_ends(served: Served) -> None:
    frame = noise(6, 1)[0]
    for name in range(1, 65):
        await served.step(frame, SequenceStep(name, is_start=True), tenant=HALL)
    with pytest.raises(QuotaExceeded, match="its sequences_max is 64"):
        await served.step(frame, SequenceStep(65, is_start=True), tenant=HALL)
    await served.step(frame, SequenceStep(1, is_end=True), tenant=HALL)
    await served.step(frame, SequenceStep(65, is_start=True), tenant=HALL)
    for name in range(2, 66):
        await served.step(frame, SequenceStep(name, is_end=True), tenant=HALL)
