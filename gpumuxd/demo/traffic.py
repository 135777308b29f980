"""The demo's two kinds of work, as the two tenants' programs would send it.

Voice: streams of 32 ms frames in real time, priority 1. The next frame needs the state that the
last one returned, so a stream that falls behind sends its next frame at once and stays late.
Search: a few sentences always outstanding, priority 3, as fast as the node takes them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from gpumuxd_client import AsyncClient
from numpy.typing import NDArray

from gpumuxd.demo.minilm import SentenceTokenizer
from gpumuxd.demo.repository import MINILM, SEQUENCE, VAD, initial_state
from gpumuxd.demo.silero import FRAME_SAMPLES, SAMPLE_RATE, frames_of

FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
VOICE_STREAMS = 2
SENTENCES_OUTSTANDING = 3
VOICE_PRIORITY = 1
SEARCH_PRIORITY = 3

WARM_UP_S = 1.0
"""What is sent first in every phase is not counted: connections open, estimates settle."""

SETTLING_FRAMES = 10
"""Frames after a sentence in which the detector may still hear its echo: a third of a second."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a voice stream says: model inputs, and of each frame whether it is speech.

    None: on the border between speech and silence, where either answer is right.
    """

    frames: NDArray[np.float32]
    is_speech: tuple[bool | None, ...]


def recording_of(parts: Sequence[tuple[bool, NDArray[np.float32]]]) -> Recording:
    """Frames across the border between two parts, and those that settle after it, have no label."""
    audio = np.concatenate([samples for _, samples in parts])
    labels: list[bool | None] = [None] * -(-audio.size // FRAME_SAMPLES)
    start = 0
    for is_speech, samples in parts:
        first = -(-start // FRAME_SAMPLES)
        if not is_speech and start > 0:
            first += SETTLING_FRAMES
        for i in range(first, (start + samples.size) // FRAME_SAMPLES):
            labels[i] = is_speech
        start += samples.size
    return Recording(frames_of(audio), tuple(labels))


@dataclass(frozen=True, slots=True)
class Sentences:
    """What is searched: the sentences' token ids and masks, and the embeddings they should get."""

    texts: tuple[str, ...]
    inputs: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    expected: tuple[NDArray[np.float32], ...] = ()


def sentences_of(texts: Sequence[str]) -> Sentences:
    """Each as a request of one row, padded to SEQUENCE tokens."""
    tokenizer = SentenceTokenizer()
    return Sentences(tuple(texts), tuple(tokenizer.encode([text], SEQUENCE) for text in texts))


@dataclass(slots=True)
class Traffic:
    """What one phase sent and got, without its warm-up. Times in seconds from its start."""

    voice: list[tuple[float, float]] = field(default_factory=list)
    """When a frame was sent, and how long its answer took."""
    late_frames: int = 0
    """Answers that came after the next frame was due."""
    speech: list[tuple[bool, float]] = field(default_factory=list)
    """Whether a frame was speech, and how probable the detector found it."""
    sentences: int = 0
    embedding_error: float = 0.0
    """Largest difference of any number of any embedding from the expected one."""
    embeddings: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def sentences_per_s(self) -> float:
        return self.sentences / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class _Phase:
    """The time frame of a phase, on the monotonic clock."""

    begin: float
    count_from: float
    end: float

    def counts(self, moment: float) -> bool:
        return self.count_from <= moment < self.end


async def run_phase(
    voice: AsyncClient,
    search: AsyncClient,
    recording: Recording,
    sentences: Sentences | None,
    seconds: float,
) -> Traffic:
    """Send for `seconds`, after a warm-up; without sentences the voice is alone."""
    begin = time.monotonic()
    phase = _Phase(begin, begin + WARM_UP_S, begin + WARM_UP_S + seconds)
    traffic = Traffic(seconds=seconds)
    async with asyncio.TaskGroup() as group:
        for i in range(VOICE_STREAMS):
            offset_s = i * FRAME_S / VOICE_STREAMS
            group.create_task(_speak(voice, recording, phase, offset_s, traffic))
        for i in range(SENTENCES_OUTSTANDING if sentences is not None else 0):
            assert sentences is not None, "the range is empty without"
            group.create_task(_search(search, sentences, phase, i, traffic))
    return traffic


async def _speak(
    client: AsyncClient, recording: Recording, phase: _Phase, offset_s: float, traffic: Traffic
) -> None:
    state = initial_state()
    due = phase.begin + offset_s
    index = 0
    while due < phase.end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        frame = index % len(recording.frames)
        if frame == 0:
            state = initial_state()
        sent = time.monotonic()
        answer = await client.infer(
            VAD,
            {"audio": recording.frames[frame : frame + 1], "state": state},
            priority=VOICE_PRIORITY,
        )
        done = time.monotonic()
        state = answer["next_state"]
        if phase.counts(sent):
            traffic.voice.append((sent - phase.count_from, done - sent))
            traffic.late_frames += done > due + FRAME_S
            label = recording.is_speech[frame]
            if label is not None:
                traffic.speech.append((label, float(answer["probability"][0, 0])))
        index += 1
        due += FRAME_S


async def _search(
    client: AsyncClient, sentences: Sentences, phase: _Phase, first: int, traffic: Traffic
) -> None:
    index = first
    while time.monotonic() < phase.end:
        which = index % len(sentences.inputs)
        token_ids, mask = sentences.inputs[which]
        answer = await client.infer(
            MINILM, {"token_ids": token_ids, "mask": mask}, priority=SEARCH_PRIORITY
        )
        embedding = answer["embedding"]
        error = float(np.abs(embedding - sentences.expected[which]).max())
        traffic.embedding_error = max(traffic.embedding_error, error)
        traffic.embeddings[which] = embedding[0]
        traffic.sentences += phase.counts(time.monotonic())
        index += SENTENCES_OUTSTANDING
