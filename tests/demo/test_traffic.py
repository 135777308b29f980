"""What the demo sends and how it counts, with a fake daemon behind the clients."""

import asyncio
from typing import Any

import numpy as np
import pytest

from gpumuxd.demo.traffic import (
    SETTLING_FRAMES,
    VOICE_STREAMS,
    Recording,
    Sentences,
    recording_of,
    run_phase,
)

SAMPLES = 512


def test_frames_on_a_border_and_just_after_speech_have_no_label() -> None:
    pause, speech = SAMPLES * 3, SAMPLES * 4 + 100
    recording = recording_of(
        [
            (False, np.zeros(pause, np.float32)),
            (True, np.ones(speech, np.float32)),
            (False, np.zeros(SAMPLES * 20, np.float32)),
        ]
    )
    # The border lies in frame 7; the pause after it counts from frame 8, once it has settled.
    assert recording.is_speech[:8] == (False, False, False, True, True, True, True, None)
    settled = 8 + SETTLING_FRAMES
    assert set(recording.is_speech[8:settled]) == {None}
    assert recording.is_speech[settled:27] == (False,) * (27 - settled)
    assert recording.is_speech[27:] == (None,)
    assert len(recording.frames) == len(recording.is_speech) == 28


class FakeClient:
    """Answers at once: the detector counts in its state, the embedder says what it is told to."""

    def __init__(self, embedding: np.ndarray) -> None:
        self.embedding = embedding
        self.calls: list[tuple[str, int, dict[str, np.ndarray]]] = []

    async def infer(
        self, model: str, inputs: dict[str, np.ndarray], *, priority: int
    ) -> dict[str, np.ndarray]:
        self.calls.append((model, priority, inputs))
        await asyncio.sleep(0)
        if model == "vad":
            return {"probability": np.full((1, 1), 0.25), "next_state": inputs["state"] + 1}
        return {"embedding": self.embedding}


def sentences(expected: np.ndarray) -> Sentences:
    tokens = np.ones((1, 64), np.int64)
    return Sentences(("a",), ((tokens, tokens),), (expected,))


RECORDING = Recording(np.zeros((1000, 576), np.float32), (True,) * 1000)


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumuxd.demo.traffic.WARM_UP_S", 0.0)


async def test_a_stream_passes_its_state_on_and_keeps_the_pace() -> None:
    client: Any = FakeClient(np.zeros((1, 4), np.float32))
    traffic = await run_phase(client, client, RECORDING, None, 0.2)
    counts = [int(inputs["state"][0, 0, 0]) for _, _, inputs in client.calls]
    # 0.2 s are 6.25 frames of 32 ms; the second stream begins half a frame later.
    assert VOICE_STREAMS == 2
    assert sorted(counts) == sorted([*range(7), *range(6)])
    assert {(model, priority) for model, priority, _ in client.calls} == {("vad", 1)}
    assert traffic.speech == [(True, 0.25)] * len(traffic.voice)
    assert traffic.sentences == 0


async def test_the_worst_embedding_is_what_counts() -> None:
    expected = np.zeros((1, 4), np.float32)
    client: Any = FakeClient(expected + np.array([[0, 0, -0.5, 0.25]], np.float32))
    traffic = await run_phase(client, client, RECORDING, sentences(expected), 0.1)
    assert traffic.embedding_error == 0.5
    assert traffic.sentences_per_s == traffic.sentences / 0.1 > 0
    assert ("minilm", 3) in {(model, priority) for model, priority, _ in client.calls}
